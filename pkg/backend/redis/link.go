package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// How long a connection is used.
const (
	lifetime   = 10 * time.Minute
	lifeJitter = 2 * time.Minute
)

// dialAgain has to be given to go-redis, which never waits for it since it is told to dial once.
const dialAgain = 50 * time.Millisecond

// age returns how long a new connection is used.
func age() time.Duration { return lifetime - lifeJitter + rand.N(2*lifeJitter) }

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
	echo   *command
	n      int64 // number of the last batch
	ends   time.Time
	addr   string
	user   string // for people
	server server
	lack   lack // at first
}

// server is what is known of the process at the other end.
type server struct {
	run     string // its run_id
	version string
	policy  string // maxmemory-policy, or empty if we may not ask
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

// open connects to addr, authenticates, and finds out what we need to know about the server.
func (p *pool) open(ctx context.Context, addr string) (*link, error) {
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
	l := &link{net: conn, addr: addr, user: cmp.Or(user, "default"), ends: time.Now().Add(age()), echo: newCommand("echo", "")} //nolint:contextcheck // go-redis stores the context, but does not use it
	first := &opening{Conn: conn}
	once := make(chan net.Conn, 1)
	once <- first
	o := p.options(addr)
	o.Username, o.Password = user, password
	o.PoolSize, o.PipelinePoolSize = 1, -1
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-once:
			return c, nil
		default:
			return nil, errSpent
		}
	}
	l.client = redis.NewClient(o)
	l.conn = l.client.Conn()
	l.pipe = l.conn.Pipeline()
	if err := l.meet(ctx, p.scripts); err != nil {
		l.close()
		return nil, p.greeted(first.refusal(err))
	}
	l.lack, err = p.judge(func(trial []redis.Cmder) error { return l.exec(ctx, trial) })
	if err != nil {
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

// meet authenticates, asks the server who it is, and loads scripts. What the user has no permission to ask stays
// unknown; a version known to be too old is an error.
func (l *link) meet(ctx context.Context, scripts []string) error {
	pipe := l.conn.Pipeline()
	info := pipe.Do(ctx, "info", "server")
	policy := pipe.Do(ctx, "config", "get", "maxmemory-policy")
	_, err := pipe.Exec(ctx)
	var reply redis.Error
	if err != nil && (!errors.As(err, &reply) || info.Err() == nil && info.Val() == nil) {
		return err // of the connection, or of the greeting, after which nothing was sent
	}
	if err := info.Err(); err != nil {
		if e := classify("", err); e.Code == "NOAUTH" || e.Code == "LOADING" || e.Code == "BUSY" || e.Code == "MASTERDOWN" {
			return err
		}
	}
	text, _ := info.Val().(string)
	l.server = parseInfo(text)
	if found, ok := policy.Val().([]any); ok && len(found) == 2 {
		l.server.policy, _ = found[1].(string)
	}
	if err := checkVersion(text); err != nil {
		return err
	}
	for _, s := range scripts { // only now: unauthenticated clients may not send this much
		pipe.Do(ctx, "script", "load", s)
	}
	if _, err = pipe.Exec(ctx); errors.As(err, &reply) {
		err = nil // a script that is not loaded is sent when it is needed
	}
	return err
}

// exec sends commands, followed by an ECHO of a number that must come back last; otherwise the replies may belong to
// other commands. If it returns an error, no reply can be trusted and l must be closed.
func (l *link) exec(ctx context.Context, commands []redis.Cmder) error {
	l.n++
	number := strconv.FormatInt(l.n, 10)
	l.echo.reset()
	l.echo.Args()[1] = number
	_ = l.pipe.BatchProcess(ctx, commands...) // only collects
	_ = l.pipe.Process(ctx, l.echo)           // the same
	_, _ = l.pipe.Exec(ctx)                   // each command has its own error
	if e := l.echo.Err(); e != nil {
		if _, ok := errors.AsType[redis.Error](e); !ok {
			return e
		}
		return nil // an error reply is an answer too; the server then answers the other commands in the same way
	}
	if got, _ := l.echo.Val().(string); got != number {
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
	return server{run: infoField(text, "run_id"), version: infoField(text, "redis_version")}
}

func infoField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// checkVersion rejects servers that are too old for the scripts.
func checkVersion(info string) error {
	name, version, least := "Redis", infoField(info, "redis_version"), [2]int{6, 2}
	if v := infoField(info, "valkey_version"); v != "" {
		name, version, least = "Valkey", v, [2]int{7, 2}
	}
	var major, minor int
	if _, err := fmt.Sscanf(version, "%d.%d", &major, &minor); err != nil {
		return nil //nolint:nilerr // a server that does not give its version is accepted
	}
	if major < least[0] || major == least[0] && minor < least[1] {
		return fmt.Errorf("this is %s %s, which is too old: Redis 6.2 or later, or Valkey 7.2 or later, is required", name, version)
	}
	return nil
}
