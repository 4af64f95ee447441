package redis

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// dialAgain is required by go-redis, but unused because go-redis dials only once.
const dialAgain = 50 * time.Millisecond

func newDialer(c *Config, t target, permits chan struct{}) *remote.Dialer {
	d := &remote.Dialer{TLS: c.TLS, Timeout: c.DialTimeout, Permits: permits}
	if d.TLS == nil && t.tls {
		d.TLS = remote.TLSFiles{}.Load
	}
	return d
}

// bareFor is the lifetime of a bare connection, because the failure of the earlier ones may have been a coincidence.
const bareFor = time.Minute

// link is a writer's connection, with the go-redis client that uses it. The client never opens another one: only the writer decides when
// and where to connect, and it must know whether the connection is still open before it sends a command that counts.
type link struct {
	net    net.Conn
	client *redis.Client
	conn   *redis.Conn
	pipe   redis.Pipeliner
	fence  *command  // last command of each batch
	n      int64     // number of the last batch
	ends   time.Time // time of its renewal
	addr   string
	server server
}

// open connects to the server at addr, which must be able to decide. If the connection closes during this, open tries again. If that
// fails too, a proxy may be closing connections on INFO or ECHO, and open tries without these.
func (p *pool) open(ctx context.Context, addr string) (l *link, err error) {
	for _, bare := range []bool{false, false, true} {
		if l, err = p.connect(ctx, addr, bare); err == nil || errorReply(err) || remote.ClassOf(err) != remote.Reset {
			return l, err
		}
	}
	return nil, err
}

// connect is a single attempt of open. A bare connection begins without INFO and ECHO.
func (p *pool) connect(ctx context.Context, addr string, bare bool) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.config.DialTimeout)
	defer cancel()
	conn, err := p.dialer.Dial(ctx, p.target.network, addr)
	if err != nil {
		return nil, p.unreached(addr, err)
	}
	o := p.options(addr)
	o.Dialer = func(context.Context, string, string) (net.Conn, error) { return &withoutHello{Conn: conn}, nil }
	l := &link{net: conn, addr: addr, ends: time.Now().Add(p.config.age()), client: redis.NewClient(o)}
	if bare {
		l.ends = time.Now().Add(min(p.config.age(), bareFor))
	}
	l.conn = l.client.Conn()
	l.pipe = l.conn.Pipeline()
	if err = l.greet(ctx, p, bare); err == nil {
		err = p.try(ctx, l)
	}
	if err != nil {
		l.close()
		return nil, p.greeted(err)
	}
	return l, nil
}

// options returns the common options of all go-redis clients.
func (p *pool) options(addr string) *redis.Options {
	longest := max(p.config.OpTimeout, 5*time.Second) // the context has the actual bound
	return &redis.Options{
		Network: p.target.network, Addr: addr, DB: p.target.db, Protocol: 2, DisableIdentity: true,
		CredentialsProviderContext: p.credentials, PoolSize: 1, PipelinePoolSize: -1,
		MaxRetries: -1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
		ContextTimeoutEnabled: true, ReadTimeout: longest, WriteTimeout: longest,
		DialTimeout: p.config.DialTimeout, DialerRetries: 1, DialerRetryTimeout: dialAgain, PoolTimeout: 5 * time.Millisecond,
		ConnMaxIdleTime:          -1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// greet authenticates, queries the server's identity, and selects the fence: an ECHO of the batch's number or, if that is unavailable, a
// GET of a missing key.
func (l *link) greet(ctx context.Context, p *pool, bare bool) error {
	info, echo := newCommand("info"), newCommand("echo", "")    //nolint:contextcheck // go-redis stores the context, but does not use it
	l.fence = newCommand("get", p.config.KeyPrefix+"rl:{none}") //nolint:contextcheck // the same
	commands := []redis.Cmder{info, echo}
	if bare {
		commands = []redis.Cmder{l.fence}
	}
	_ = l.pipe.BatchProcess(ctx, commands...) // only buffers
	_, err := l.pipe.Exec(ctx)
	if err != nil && !errorReply(err) {
		return err
	}
	for _, c := range commands {
		c := c.(*command)
		switch {
		case c.Err() == nil && c.Val() == nil:
			return err // of AUTH or SELECT; nothing was sent after it
		case c.Err() == nil:
			continue
		}
		switch e := classify("", c.Err()); {
		case e.Code == "NOPERM":
		case e.Class == ClassNoAuth, e.Class == ClassLoading, e.Class == ClassBusy, e.Class == remote.Refused, e.Code == "MASTERDOWN":
			return c.Err()
		}
	}
	if text, ok := info.Val().(string); ok {
		l.server = parseInfo(text)
	}
	if !bare && echo.Err() == nil {
		l.fence = echo
	}
	switch {
	case p.config.KeyFormat == OurKeys && l.server.old() != nil:
		return l.server.old()
	case p.sentinels != nil && l.server.role == "slave":
		return store.Failed(ClassReadOnly, l.addr, "the sentinels say that this is the master, but it is a replica")
	}
	return nil
}

// exec sends commands followed by the fence. The reply to the fence must be the last one; otherwise the replies may belong to other
// commands. After an error, no reply is valid, and l must be closed.
func (l *link) exec(ctx context.Context, commands []redis.Cmder) error {
	l.n++
	want := strconv.FormatInt(l.n, 10)
	if args := l.fence.Args(); args[0] == "echo" {
		args[1] = want
	}
	l.fence.Reset()
	_ = l.pipe.BatchProcess(ctx, commands...) // only buffers
	_ = l.pipe.Process(ctx, l.fence)          // only buffers
	_, _ = l.pipe.Exec(ctx)                   // each command has its own error
	if e := l.fence.Err(); e != nil {
		if !errorReply(e) {
			return e
		}
		return nil // an error reply or a missing key are answers too
	}
	if got, _ := l.fence.Val().(string); got != want {
		return errBehind
	}
	return nil
}

// send sends commands whose replies identify their commands or are errors. After an error, no reply is valid, and l must be closed.
func (l *link) send(ctx context.Context, commands []redis.Cmder) error {
	_ = l.pipe.BatchProcess(ctx, commands...) // only collects
	_, _ = l.pipe.Exec(ctx)                   // each command has its own error
	for _, c := range commands {
		if err := c.Err(); err != nil && !errorReply(err) {
			return err
		}
	}
	return nil
}

func (l *link) close() {
	_ = l.conn.Close() // unanswered commands are lost
	_ = l.client.Close()
	_ = l.net.Close() // in any case
}
