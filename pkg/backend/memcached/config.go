package memcached

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// KeyFormat says under which keys counters are kept.
type KeyFormat uint8

// The formats of keys.
const (
	// OurKeys are prefix + "rl:{" + hash + "}f" + length of the window + ":" + its start, both in µs. No two counters share one.
	OurKeys KeyFormat = iota
	// ReferenceKeys are those of envoyproxy/ratelimit, so that both may count in the same servers. Descriptors that it
	// confuses share a counter here too, and so do windows of two lengths that start at one time. Windows are of whole seconds.
	ReferenceKeys
)

// Defaults of [Config].
const (
	DefaultMaxIdleConns = 2
	DefaultMaxConns     = 64
	DefaultOpTimeout    = 50 * time.Millisecond
	DefaultDialTimeout  = 250 * time.Millisecond
)

// NoOpTimeout as [Config.OpTimeout] has callers wait for as long as their own deadlines allow.
const NoOpTimeout time.Duration = -1

// Config says where the servers are and how they are spoken to. Servers or SRV is required; the zero value of all else works.
type Config struct {
	// Servers are host:port, or paths of sockets, which hold a slash. A key lives on the one that its CRC-32 modulo their
	// number says, in this order, as the reference has it: another order is another place. One that stands there twice gets twice
	// as many keys. Names are looked up whenever a connection is opened.
	Servers []string
	// SRV is _service._proto.name: the servers are what DNS knows under it, sorted by name. In place of Servers.
	SRV string
	// SRVRefresh is how often DNS is asked again: 0 is never, once it has answered.
	SRVRefresh time.Duration
	// Resolver asks DNS, for SRV and for the addresses of servers. Nil is net.DefaultResolver.
	Resolver *net.Resolver
	// TLS says how to set up TLS; nil is none. It is asked for each connection, and must return a new configuration each time.
	TLS func() (*tls.Config, error)
	// KeyPrefix stands before every key.
	KeyPrefix string
	// KeyFormat is how counters are named: [OurKeys] by default.
	KeyFormat KeyFormat
	// ExpirationJitter spreads expiry: keys live up to so much longer than they have to. 0 is not at all.
	ExpirationJitter time.Duration
	// MaxIdleConns is how many connections to a server are kept though nothing has used them for ten seconds: 2 if zero.
	MaxIdleConns int
	// MaxConns is how many connections are opened to a server at most: 64 if zero. Who finds none free waits.
	MaxConns int
	// OpTimeout is how long an exchange with a server may take, and a caller without a deadline waits: 50 ms if zero.
	// [NoOpTimeout] leaves it to the callers' deadlines.
	OpTimeout time.Duration
	// DialTimeout is how long it may take to connect to a server and to hear from it: 250 ms if zero.
	DialTimeout time.Duration
	// Observer is told what happens. Nil functions in it are not called.
	Observer Observer
	// Now is the time that decides in which window a hit is counted: memcached has none to tell. Nil is the clock of
	// this process; tests set it.
	Now func() engine.Micros
}

// Observer is told what a [Backend] does. Its functions are called concurrently and must not wait.
type Observer struct {
	// Exchange is called after each use of a connection.
	Exchange func(Exchange)
	// Command is called after each command of an exchange.
	Command func(Command)
	// Breaker is called when a server's breaker changes: closed, half-open or open; gone, when DNS names a server no more;
	// and closed, when it names a new one.
	Breaker func(node, state string)
	// Connections is called with the number of connections that are up, of all servers together, when it changes.
	Connections func(active int)
	// Event is called for what an operator should know of. It may be called again and again for as long as it holds.
	Event func(Event)
}

// Exchange is what one use of a connection came to.
type Exchange struct {
	Node     string // of the server, as [Config.Servers] has it
	Ops      int    // operations that it was for
	Failed   int    // those of Ops that got an error
	Duration time.Duration
	Err      *Error // the worst that happened to one of Ops; nil is nothing
}

// CommandName is what a [Command] does.
type CommandName string

// The commands that are told of, by the names that the reference counts them under.
const (
	CommandMultiGet  CommandName = "multiget"
	CommandIncrement CommandName = "increment"
	CommandAdd       CommandName = "add"
)

// Code is what a [Command] came to.
type Code string

// The codes of commands.
const (
	CodeSuccess   Code = "success"
	CodeMiss      Code = "miss"       // of an increment: there is no counter yet
	CodeNotStored Code = "not_stored" // of an add: there is a counter already
	CodeError     Code = "error"
)

// Command is what one command came to.
type Command struct {
	Name        CommandName
	Code        Code
	Keys, Found int // of a multiget: those asked for, and those that were there
}

// EventKind is what an [Event] is about.
type EventKind string

// The kinds of events.
const (
	EventConnectFailed  EventKind = "connect_failed"  // no connection could be opened; Err says why
	EventConnected      EventKind = "connected"       // a server that had no connection has one
	EventLookupFailed   EventKind = "lookup_failed"   // DNS did not tell the servers; Err says why
	EventServersChanged EventKind = "servers_changed" // DNS tells other servers: most counters live elsewhere now, and begin anew
)

// Event is something an operator should know of.
type Event struct {
	Kind   EventKind
	Node   string // the server, or the name that was looked up
	Detail string // the servers
	Err    error  // why, where something failed
}

func (c *Config) defaults() {
	if c.MaxIdleConns == 0 {
		c.MaxIdleConns = DefaultMaxIdleConns
	}
	if c.MaxConns == 0 {
		c.MaxConns = DefaultMaxConns
	}
	if c.OpTimeout == 0 {
		c.OpTimeout = DefaultOpTimeout
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = DefaultDialTimeout
	}
	if c.Resolver == nil {
		c.Resolver = net.DefaultResolver
	}
	if c.Now == nil {
		c.Now = func() engine.Micros { return engine.Micros(time.Now().UnixMicro()) }
	}
}

func (c *Config) validate() error {
	switch {
	case len(c.Servers) > 0 && c.SRV != "":
		return errors.New("memcached: both a list of servers and a name for DNS to tell them are given; one of them has to go")
	case len(c.Servers) == 0 && c.SRV == "":
		return errors.New("memcached: no server is given; it takes host:port, several of them in a list, or _service._proto.name for DNS")
	case c.SRV != "" && splitSRV(c.SRV) == nil:
		return fmt.Errorf("memcached: %q names no service; it takes _service._proto.name", c.SRV)
	case c.SRVRefresh < 0:
		return fmt.Errorf("memcached: asking DNS every %v makes no sense; it takes 0, which is never again, or more", c.SRVRefresh)
	case c.MaxIdleConns < 0:
		return fmt.Errorf("memcached: %d idle connections make no sense; it takes at least 1", c.MaxIdleConns)
	case c.MaxConns < 0:
		return fmt.Errorf("memcached: %d connections make no sense; it takes at least 1", c.MaxConns)
	case c.OpTimeout < 0 && c.OpTimeout != NoOpTimeout:
		return fmt.Errorf("memcached: a time-out of %v makes no sense; it takes a positive one", c.OpTimeout)
	case c.DialTimeout < 0:
		return fmt.Errorf("memcached: a time-out of %v to connect makes no sense; it takes a positive one", c.DialTimeout)
	case c.ExpirationJitter < 0:
		return fmt.Errorf("memcached: an expiration jitter of %v makes no sense; it takes 0 or more", c.ExpirationJitter)
	case c.KeyFormat > ReferenceKeys:
		return fmt.Errorf("memcached: key format %d is not known; it takes ours or reference", c.KeyFormat)
	}
	for i, s := range c.Servers {
		if _, port, err := net.SplitHostPort(s); !strings.Contains(s, "/") && (err != nil || port == "") {
			return fmt.Errorf("memcached: server %d of %d, %q, has no port; it takes host:port or the path of a socket", i+1, len(c.Servers), s)
		}
	}
	return nil
}

var nameOfService = regexp.MustCompile(`^_(.+?)\._(.+?)\.(.+)$`)

// splitSRV returns service, protocol and name, or nil.
func splitSRV(srv string) []string {
	if m := nameOfService.FindStringSubmatch(srv); m != nil {
		return m[1:]
	}
	return nil
}
