package probe

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Capabilities are what a server can do, of what not every one can: a proxy, an old version or the user's permissions may lack
// commands. Nothing that is sent to it contains these. The zero value lacks nothing.
type Capabilities struct {
	missing []string // names of commands, in lower case
	closes  []string // those of them on which it closes the connection, as Twemproxy does
	until   time.Time
}

// Has reports whether a command, in lower case, or [EvalNoKeys] can be sent.
func (c *Capabilities) Has(name string) bool { return !slices.Contains(c.missing, name) }

// Closes reports whether the server closes the connection on commands that it does not know.
func (c *Capabilities) Closes() bool { return len(c.closes) > 0 }

// without adds commands that are missing.
func (c *Capabilities) without(names ...string) {
	for _, name := range names {
		if c.Has(name) {
			c.missing = append(slices.Clone(c.missing), name)
		}
	}
}

// String names the commands that are missing.
func (c *Capabilities) String() string {
	return strings.Join(slices.Sorted(slices.Values(c.missing)), ", ")
}

// Known are the capabilities of servers, by address. What is known of one is forgotten after ten minutes, so that what it is allowed
// later comes into use. It is safe for concurrent use; the zero value knows none.
type Known struct {
	mu       sync.Mutex
	known    map[string]Capabilities
	reported map[string]string

	learning sync.Mutex // held while one is learnt, so that writers do not do so at the same time
}

// knownFor is how long capabilities are remembered.
const knownFor = 10 * time.Minute

// Of returns what is known of the server at addr.
func (k *Known) Of(addr string) Capabilities {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known := k.known[addr]; time.Now().Before(known.until) {
		return known
	}
	return Capabilities{}
}

// Note remembers what is known of the server at addr, and reports whether that is news.
func (k *Known) Note(addr string, now Capabilities) (news bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.known == nil {
		k.known, k.reported = map[string]Capabilities{}, map[string]string{}
	}
	if len(now.missing) == 0 {
		delete(k.known, addr)
		delete(k.reported, addr)
		return false
	}
	if now.until.IsZero() {
		now.until = time.Now().Add(knownFor)
	}
	k.known[addr] = now
	text := now.String()
	news = k.reported[addr] != text
	k.reported[addr] = text
	return news
}

// Forget forgets what is known of the server at addr.
func (k *Known) Forget(addr string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, addr)
}

// unknown matches replies to a command that a server or a proxy does not have, or that is not to be had there.
var unknown = regexp.MustCompile(`(?i)^(?:ERR )?(?:(?:unknown|unsupported) command|command (?:'?[a-z|]+'? )??(?:is )?not (?:available|support|allowed))`)

// unknownError is the reply to a command that is not sent because the server would hang up.
type unknownError string

// Error implements [error].
func (u unknownError) Error() string { return "ERR unknown command '" + string(u) + "'" }

// RedisError implements [redis.Error].
func (unknownError) RedisError() {}

// notKnown reports whether c failed because the server does not have the command.
func notKnown(c redis.Cmder) bool { return c.Err() != nil && unknown.MatchString(c.Err().Error()) }

// HungUp reports whether the other side closed a connection.
func HungUp(err error) bool {
	_, reply := errors.AsType[redis.Error](err)
	return !reply && remote.ClassOf(err) == remote.Reset
}

// Login is what a connection begins with.
type Login struct {
	User, Password string
	DB             int
}

// A Caller calls a command on a connection of its own, and reports whether there was a reply, be it an error.
type Caller interface {
	Answered(ctx context.Context, addr string, as Login, args ...any) bool
}

// Stranger is a server of which nothing is known but that it closes connections.
type Stranger struct {
	Caller
	Login

	Addr  string
	Needs Requirements
}

// Learn finds out on which commands s closes the connection, each time on a connection of its own. It returns why the connection that
// failed with err cannot be had, if that is so.
func (k *Known) Learn(ctx context.Context, s Stranger, err error) (Capabilities, error) {
	k.learning.Lock()
	defer k.learning.Unlock()
	if c := k.Of(s.Addr); c.Closes() {
		return c, nil // another writer has just done so
	}
	db := s.DB
	s.DB = 0
	if !s.control(ctx) {
		named := s.User != ""
		if s.User, s.Password = "", ""; named && s.control(ctx) {
			return Capabilities{}, remote.Reworded(err, "the server there, or a proxy in front of it, closes the connection on AUTH with a user: "+
				"if it takes only a password, set no user")
		}
		return Capabilities{}, err
	}
	var c Capabilities
	for _, args := range s.Needs.Commands() {
		switch known, sure := s.knows(ctx, args); {
		case !sure:
			return Capabilities{}, err
		case !known:
			c.closes = append(c.closes, commandOf(args))
		}
	}
	if s.DB = db; db > 0 && !s.control(ctx) {
		return Capabilities{}, remote.Reworded(err, fmt.Sprintf("the server there, or a proxy in front of it, closes the connection on SELECT: "+
			"it has no database %d, so leave that out of the URL", db))
	}
	c.without(c.closes...)
	return c, nil
}

// control reports whether s answers an INCRBY that changes nothing, so that it is there.
func (s *Stranger) control(ctx context.Context) bool {
	return s.Answered(ctx, s.Addr, s.Login, "incrby", s.Needs.Unused(), "x")
}

// knows reports whether a command is answered. It is sure of that if the server has answered the control each time it
// did not answer the command: else it may be going down, or coming up.
func (s *Stranger) knows(ctx context.Context, args []any) (known, sure bool) {
	for range 2 {
		if s.Answered(ctx, s.Addr, s.Login, args...) {
			return true, true
		}
		if !s.control(ctx) {
			return false, false
		}
	}
	return false, true
}

// EvalNoKeys is what may be missing beside commands.
const EvalNoKeys = "eval without keys"

// commandOf returns the name of a command, or what it is one of.
func commandOf(args []any) string {
	if args[0] == "eval" && args[2] == "0" {
		return EvalNoKeys
	}
	return fmt.Sprint(args[0])
}
