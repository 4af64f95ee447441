package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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
	server server
	lack   lack // at first

	dialect dialect
}

// server is what is known of the process at the other end; nothing if we may not ask.
type server struct {
	run     string // its run_id
	name    string // Redis, or what takes its place
	version string
	mode    string // standalone or cluster
	role    string // master or slave
	policy  string // maxmemory-policy
}

// command is a go-redis command that go-redis itself never retries.
type command struct{ *redis.Cmd }

// NoRetry keeps go-redis from resending what may have been counted: a cluster client then only follows MOVED and ASK.
func (c *command) NoRetry() bool { return true }

func newCommand(args ...any) *command { return &command{redis.NewCmd(context.Background(), args...)} }

// reset makes c ready to be sent again, after its arguments were overwritten.
func (c *command) reset() {
	c.SetErr(nil)
	c.SetVal(nil)
}

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
	l, err := p.connect(ctx, addr, p.dialects.of(addr))
	if err != nil && hungUp(err) {
		p.dialects.forget(addr)
		d, failed := p.learn(ctx, addr, err)
		if failed != nil {
			return nil, failed
		}
		if len(d.hangs) == 0 {
			return nil, err
		}
		l, err = p.connect(ctx, addr, d)
	}
	if err != nil {
		return nil, err
	}
	if p.dialects.note(addr, l.dialect) {
		p.observer.Event(remote.Event{Kind: EventLacking, Node: addr, Detail: l.dialect.text()})
	}
	return l, nil
}

// connect is open for a server whose dialect is d, as far as that is known.
func (p *pool) connect(ctx context.Context, addr string, d dialect) (*link, error) {
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
	l := &link{net: conn, addr: addr, user: cmp.Or(user, "default"), ends: time.Now().Add(p.config.age()), dialect: d}
	first := &opening{Conn: conn}
	l.client = p.client(addr, first, login{user, password, p.target.db})
	l.conn = l.client.Conn()
	l.pipe = l.conn.Pipeline()
	if err := l.greet(ctx, p); err != nil {
		l.close()
		return nil, p.greeted(first.refusal(err))
	}
	if l.lack, err = p.judge(&l.dialect, func(trial []redis.Cmder) error { return l.exec(ctx, trial) }); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
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

// greet authenticates, and asks the server who it is. What cannot be asked stays unknown; a version known to be too old for
// scripts is an error.
func (l *link) greet(ctx context.Context, p *pool) error {
	pipe := l.conn.Pipeline()
	asked := map[string]*redis.Cmd{}
	for _, args := range greetings() {
		if name := commandOf(args); l.dialect.has(name) {
			asked[name] = pipe.Do(ctx, args...)
		}
	}
	if !l.dialect.has("echo") && !l.dialect.has("ping") {
		asked["get"] = pipe.Do(ctx, "get", p.unused())
	}
	_, err := pipe.Exec(ctx)
	if err = l.greeting(err, asked); err != nil {
		return err
	}
	l.enclose(p) //nolint:contextcheck // go-redis stores the context of a command, but does not use it
	if info := asked["info"]; info != nil {
		text, _ := info.Val().(string)
		l.server = parseInfo(text)
		if p.config.KeyFormat == OurKeys {
			return l.server.old()
		}
	}
	return nil
}

// greetings returns the commands that a connection begins with, and without which it works too.
func greetings() [][]any {
	return [][]any{{"info"}, {"echo", ""}, {"ping"}}
}

// greeting returns why the server did not answer, or notes what it refused.
func (l *link) greeting(err error, asked map[string]*redis.Cmd) error {
	if err == nil {
		return nil
	}
	if _, reply := errors.AsType[redis.Error](err); !reply {
		return err
	}
	answered := false
	for name, c := range asked {
		answered = answered || c.Err() != nil || c.Val() != nil
		if c.Err() == nil || errors.Is(c.Err(), redis.Nil) {
			continue
		}
		switch classify("", c.Err()).Code {
		case "NOAUTH", "LOADING", "BUSY", "MASTERDOWN":
			return c.Err()
		case "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN":
			continue // it has the command; the key is another node's, or nobody's
		}
		if !keyForbidden(c) { // it is a command that is not to be had
			l.dialect.without(name)
		}
	}
	if !answered { // it is the reply to AUTH or SELECT, after which nothing was sent
		return err
	}
	return nil
}

// enclose chooses what ends each batch: an ECHO of its number, or else a command whose reply is not that of a counter.
func (l *link) enclose(p *pool) {
	switch {
	case l.dialect.has("echo"):
		l.fence = newCommand("echo", "")
	case l.dialect.has("ping"):
		l.fence = newCommand("ping")
	default:
		l.fence = newCommand("get", p.unused())
	}
}

// exec sends commands, followed by the fence, whose reply must come back last; otherwise the replies may belong to other
// commands. If it returns an error, no reply can be trusted and l must be closed.
func (l *link) exec(ctx context.Context, commands []redis.Cmder) error {
	want := "PONG"
	if args := l.fence.Args(); args[0] != "ping" {
		l.n++
		want = strconv.FormatInt(l.n, 10)
		if args[0] == "echo" {
			args[1] = want
		}
	}
	l.fence.reset()
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
		return errBehind
	}
	return nil
}

func (l *link) close() {
	_ = l.conn.Close()   // whatever is unanswered
	_ = l.client.Close() // is lost
	_ = l.net.Close()    // in any case
}

// parseInfo reads the server's identity from a reply to INFO.
func parseInfo(text string) server {
	s := server{
		run: infoField(text, "run_id"), name: "Redis", version: infoField(text, "redis_version"), mode: cmp.Or(infoField(text, "redis_mode"), infoField(text, "server_mode")),
		role: infoField(text, "role"), policy: infoField(text, "maxmemory_policy"),
	}
	for _, other := range []string{"Valkey", "Dragonfly"} {
		if v := infoField(text, strings.ToLower(other)+"_version"); v != "" {
			s.name, s.version = other, strings.TrimPrefix(v, "df-v")
		}
	}
	if strings.Contains(infoField(text, "executable"), "keydb") {
		s.name = "KeyDB"
	}
	return s
}

func infoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// old rejects servers that are too old for the scripts.
func (s *server) old() error {
	least, known := map[string][2]int{"Redis": {6, 2}, "Valkey": {7, 2}}[s.name]
	var major, minor int
	if _, err := fmt.Sscanf(s.version, "%d.%d", &major, &minor); err != nil || !known {
		return nil //nolint:nilerr // a server that does not give its version is accepted
	}
	if major < least[0] || major == least[0] && minor < least[1] {
		return fmt.Errorf("this is %s %s, which is too old: Redis 6.2 or later, or Valkey 7.2 or later, is required; "+
			"REDIS_KEY_FORMAT=reference, which counts fixed windows without scripts, takes Redis 4 or later", s.name, s.version)
	}
	return nil
}
