package redis

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/internal/probe"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// dialAgain has to be given to go-redis, which never waits for it since it is told to dial once.
const dialAgain = 50 * time.Millisecond

func newDialer(c *Config, t target, permits chan struct{}) *remote.Dialer {
	d := &remote.Dialer{TLS: c.TLS, Timeout: c.DialTimeout, Permits: permits}
	if d.TLS == nil && t.tls {
		d.TLS = remote.TLSFiles{}.Load
	}
	return d
}

// link is a writer's connection, wrapped in a go-redis client that never opens another one: once it is unusable the
// writer makes a new link. So only the writer decides when to connect and to what.
type link struct {
	net    net.Conn
	client *redis.Client
	conn   *redis.Conn
	pipe   redis.Pipeliner
	fence  *command  // ends each batch
	n      int64     // number of the last batch
	ends   time.Time // when it is to be renewed
	addr   string
	user   string // for people
	server probe.Server
	lacks  probe.Missing // at first
	can    probe.Capabilities
}

type command = probe.Command

func newCommand(args ...any) *command { return probe.NewCommand(args...) }

// errSpent is what go-redis gets if it wants a second connection for a link.
var errSpent = errors.New("the connection is closed")

// open connects to the server at addr, which must be fit for decisions.
func (p *pool) open(ctx context.Context, addr string) (*link, error) {
	l, err := p.meet(ctx, addr)
	if err == nil {
		if err = p.served(l); err == nil {
			return l, nil
		}
		l.close()
	}
	return nil, err
}

// meet connects to addr, authenticates, and finds out what we need to know about the server. If that closes the
// connection, it may be a proxy, and it is found out what it takes.
func (p *pool) meet(ctx context.Context, addr string) (*link, error) {
	l, err := p.connect(ctx, addr, p.known.Of(addr))
	if err != nil && probe.HungUp(err) {
		p.known.Forget(addr)
		can, failed := p.learn(ctx, addr, err)
		if failed != nil {
			return nil, failed
		}
		if !can.Closes() {
			return nil, err
		}
		l, err = p.connect(ctx, addr, can)
	}
	if err != nil {
		return nil, err
	}
	if p.known.Note(addr, l.can) {
		p.observer.Event(remote.Event{Kind: EventLacking, Node: addr, Detail: l.can.String()})
	}
	return l, nil
}

// connect is open for a server whose capabilities are known as far as can says.
func (p *pool) connect(ctx context.Context, addr string, can probe.Capabilities) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.config.DialTimeout)
	defer cancel()
	conn, err := p.dialer.Dial(ctx, p.target.network, addr)
	if err != nil {
		return nil, p.unreached(addr, err)
	}
	user, password, err := p.config.credentials(p.target.auth)
	if err != nil {
		_ = conn.Close() // it is useless
		return nil, err
	}
	l := &link{net: conn, addr: addr, user: cmp.Or(user, "default"), ends: time.Now().Add(p.config.age()), can: can}
	first := &opening{Conn: conn}
	l.client = p.client(addr, first, probe.Login{User: user, Password: password, DB: p.target.db})
	l.conn = l.client.Conn()
	l.pipe = l.conn.Pipeline()
	if err := l.greet(ctx, p); err != nil {
		l.close()
		return nil, p.greeted(first.tooMany(err))
	}
	if l.lacks, err = probe.Permissions(ctx, l, p.needs, &l.can, p.domains.Load()); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// learn finds out on which commands the server at addr closes the connection. It returns why the connection that failed with err cannot be
// had, if that is so.
func (p *pool) learn(ctx context.Context, addr string, err error) (probe.Capabilities, error) {
	user, password, failed := p.config.credentials(p.target.auth)
	if failed != nil {
		return probe.Capabilities{}, failed
	}
	as := probe.Login{User: user, Password: password, DB: p.target.db}
	return p.known.Learn(ctx, probe.Stranger{Caller: p, Login: as, Addr: addr, Needs: p.needs}, err)
}

// Answered implements [probe.Caller].
func (p *pool) Answered(ctx context.Context, addr string, as probe.Login, args ...any) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*p.config.DialTimeout)
	defer cancel()
	conn, err := p.dialer.Dial(ctx, p.target.network, addr)
	if err != nil {
		return false
	}
	client := p.client(addr, &opening{Conn: conn}, as)
	err = client.Do(ctx, args...).Err()
	_ = client.Close() // it has served its purpose,
	_ = conn.Close()   // whatever became of it
	return err == nil || errorReply(err)
}

// client returns a go-redis client that uses conn, and never another connection.
func (p *pool) client(addr string, conn net.Conn, as probe.Login) *redis.Client {
	once := make(chan net.Conn, 1)
	once <- conn
	o := p.options(addr)
	o.Username, o.Password, o.DB = as.User, as.Password, as.DB
	o.PoolSize, o.PipelinePoolSize = 1, -1
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-once:
			return c, nil
		default:
			return nil, errSpent
		}
	}
	return redis.NewClient(o)
}

// options returns the options that all go-redis clients share.
func (p *pool) options(addr string) *redis.Options {
	longest := max(p.config.OpTimeout, 5*time.Second) // the real bound is the context's
	return &redis.Options{
		Network: p.target.network, Addr: addr, DB: p.target.db,
		Protocol: 2, DisableIdentity: true,
		MaxRetries: -1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
		ContextTimeoutEnabled: true, ReadTimeout: longest, WriteTimeout: longest,
		DialTimeout: p.config.DialTimeout, DialerRetries: 1, DialerRetryTimeout: dialAgain, PoolTimeout: 5 * time.Millisecond,
		ConnMaxIdleTime:          -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// greet authenticates, and asks the server for its version and role. A version known to be too old for scripts is an error.
func (l *link) greet(ctx context.Context, p *pool) (err error) {
	if l.server, err = probe.Greet(ctx, l.conn, &l.can, p.needs.Unused()); err != nil {
		return err
	}
	l.enclose(p) //nolint:contextcheck // go-redis stores the context of a command, but does not use it
	if p.config.KeyFormat == OurKeys {
		return l.server.Old()
	}
	return nil
}

// enclose chooses what ends each batch: an ECHO of its number, or else a command whose reply is not that of a counter.
func (l *link) enclose(p *pool) {
	switch {
	case l.can.Has("echo"):
		l.fence = newCommand("echo", "")
	case l.can.Has("ping"):
		l.fence = newCommand("ping")
	default:
		l.fence = newCommand("get", p.needs.Unused())
	}
}

// Exec sends commands, followed by the fence, whose reply must come back last; otherwise the replies may belong to other
// commands. If it returns an error, no reply can be trusted and l must be closed.
func (l *link) Exec(ctx context.Context, commands []redis.Cmder) error {
	want := "PONG"
	if args := l.fence.Args(); args[0] != "ping" {
		l.n++
		want = strconv.FormatInt(l.n, 10)
		if args[0] == "echo" {
			args[1] = want
		}
	}
	l.fence.Reset()
	_ = l.pipe.BatchProcess(ctx, commands...) // only collects
	_ = l.pipe.Process(ctx, l.fence)          // the same
	_, _ = l.pipe.Exec(ctx)                   // each command has its own error
	if e := l.fence.Err(); e != nil {
		if _, ok := errors.AsType[redis.Error](e); !ok {
			return e
		}
		return nil // an error reply is an answer too, and so is that there is no such key
	}
	if got, _ := l.fence.Val().(string); got != want {
		return probe.ErrBehind
	}
	return nil
}

// send sends commands whose replies tell to what they are replies, or are errors. If it returns an error, no reply can be
// trusted and l must be closed.
func (l *link) send(ctx context.Context, commands []redis.Cmder) error {
	_ = l.pipe.BatchProcess(ctx, commands...) // only collects
	_, _ = l.pipe.Exec(ctx)                   // each command has its own error
	for _, c := range commands {
		if err := c.Err(); err != nil {
			if _, reply := errors.AsType[redis.Error](err); !reply {
				return err
			}
		}
	}
	return nil
}

func (l *link) close() {
	_ = l.conn.Close()   // whatever is unanswered
	_ = l.client.Close() // is lost
	_ = l.net.Close()    // in any case
}
