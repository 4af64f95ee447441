package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// dialect is what a node does without: commands that a proxy, an old version or the user's permissions lack. Nothing that
// is sent to it contains them. The zero value does without nothing.
type dialect struct {
	lacks []string // names of commands, in lower case
	hangs []string // those of them on which it closes the connection, as Twemproxy does
	until time.Time
}

func (d *dialect) has(name string) bool { return !slices.Contains(d.lacks, name) }

// without adds commands that d lacks.
func (d *dialect) without(names ...string) {
	for _, name := range names {
		if d.has(name) {
			d.lacks = append(slices.Clone(d.lacks), name)
		}
	}
}

// text names what d lacks.
func (d *dialect) text() string { return strings.Join(slices.Sorted(slices.Values(d.lacks)), ", ") }

// dialects are those of a pool's nodes, by address. What is known of one is forgotten after as long as a connection lasts,
// so that what it is allowed later comes into use.
type dialects struct {
	mu    sync.Mutex
	known map[string]dialect
	said  map[string]string // what was reported last

	learning sync.Mutex // held while one is found out, so that writers do not do so at the same time
}

func (d *dialects) of(addr string) dialect {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known := d.known[addr]; time.Now().Before(known.until) {
		return known
	}
	return dialect{}
}

// note remembers what is known of the node at addr, and reports whether that is news.
func (d *dialects) note(addr string, now dialect) (news bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known, d.said = map[string]dialect{}, map[string]string{}
	}
	if len(now.lacks) == 0 {
		delete(d.known, addr)
		delete(d.said, addr)
		return false
	}
	if now.until.IsZero() {
		now.until = time.Now().Add(lifetime)
	}
	d.known[addr] = now
	text := now.text()
	news = d.said[addr] != text
	d.said[addr] = text
	return news
}

// forget forgets what is known of the node at addr.
func (d *dialects) forget(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.known, addr)
}

// unknown matches replies to a command that a server or a proxy does not have, or that is not to be had there.
var unknown = regexp.MustCompile(`(?i)^(?:ERR )?(?:(?:unknown|unsupported) command|command (?:'?[a-z|]+'? )??(?:is )?not (?:available|support|allowed))`)

// unknownError is the reply to a command that is not sent because the server would hang up.
type unknownError string

// Error implements [error].
func (u unknownError) Error() string { return "ERR unknown command '" + string(u) + "'" }

// RedisError implements [redis.Error].
func (unknownError) RedisError() {}

// notKnown reports whether c was refused because the server does not have the command.
func notKnown(c redis.Cmder) bool { return c.Err() != nil && unknown.MatchString(c.Err().Error()) }

// hungUp reports whether the other side closed a connection.
func hungUp(err error) bool {
	_, reply := errors.AsType[redis.Error](err)
	return !reply && remote.ClassOf(err) == remote.Reset
}

// login is what a connection begins with.
type login struct {
	user, password string
	db             int
}

// learn finds out on which commands the server at addr closes the connection, each time on a connection of its own. It
// returns why the connection that failed with err cannot be had, if that is so.
func (p *pool) learn(ctx context.Context, addr string, err error) (dialect, error) {
	p.dialects.learning.Lock()
	defer p.dialects.learning.Unlock()
	if d := p.dialects.of(addr); len(d.hangs) > 0 {
		return d, nil // another writer has just done so
	}
	user, password, failed := p.config.credentials(p.target.auth)
	if failed != nil {
		return dialect{}, failed
	}
	as := login{user: user, password: password}
	try := probe{pool: p, addr: addr, login: as}
	control := func() bool { return try.answered(ctx, "incrby", p.unused(), "x") }
	if !control() {
		if try.login.user, try.login.password = "", ""; user != "" && control() {
			return dialect{}, remote.Reworded(err, "the server there, or a proxy in front of it, closes the connection on AUTH with a user: "+
				"if it takes a password alone, give it that without the user")
		}
		return dialect{}, err
	}
	var d dialect
	for _, c := range p.needs.probes() {
		switch known, sure := try.knows(ctx, control, c); {
		case !sure:
			return dialect{}, err
		case !known:
			d.hangs = append(d.hangs, commandOf(c))
		}
	}
	if try.login.db = p.target.db; try.login.db > 0 && !control() {
		return dialect{}, remote.Reworded(err, fmt.Sprintf("the server there, or a proxy in front of it, closes the connection on SELECT: "+
			"it has no database %d, so leave that out of the URL", try.login.db))
	}
	d.without(d.hangs...)
	return d, nil
}

// probe tries commands on connections that are thrown away.
type probe struct {
	pool  *pool
	addr  string
	login login
}

// answered reports whether there was a reply to a command, be it an error.
func (t *probe) answered(ctx context.Context, args ...any) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*t.pool.config.DialTimeout)
	defer cancel()
	conn, err := t.pool.dialer.Dial(ctx, t.pool.target.network, t.addr)
	if err != nil {
		return false
	}
	client := t.pool.client(t.addr, &opening{Conn: conn}, t.login)
	err = client.Do(ctx, args...).Err()
	_ = client.Close() // it has served its purpose,
	_ = conn.Close()   // whatever became of it
	_, reply := errors.AsType[redis.Error](err)
	return err == nil || reply
}

// knows reports whether a command is answered. It is sure of that if the server has answered the control each time it
// did not answer the command: else it may be going down, or coming up.
func (t *probe) knows(ctx context.Context, control func() bool, args []any) (known, sure bool) {
	for range 2 {
		if t.answered(ctx, args...) {
			return true, true
		}
		if !control() {
			return false, false
		}
	}
	return false, true
}

// client returns a go-redis client that uses conn, and never another connection.
func (p *pool) client(addr string, conn net.Conn, as login) *redis.Client {
	once := make(chan net.Conn, 1)
	once <- conn
	o := p.options(addr)
	o.Username, o.Password, o.DB = as.user, as.password, as.db
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

// unused returns the name of a key that is never a counter's, but lies where counters of our own do.
func (p *pool) unused() string { return p.config.KeyPrefix + "rl:{permitted}" }

// evalNoKeys is what a dialect may lack beside commands.
const evalNoKeys = "eval without keys"

// commandOf returns the name of a command, or what it is one of.
func commandOf(args []any) string {
	if args[0] == "eval" && args[2] == "0" {
		return evalNoKeys
	}
	return fmt.Sprint(args[0])
}
