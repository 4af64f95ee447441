package memcached

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// KeyFormat says under which keys counters are kept.
type KeyFormat uint8

// The formats of keys.
const (
	// OurKeys are prefix + "rl:{" + hash + "}f" + length of the window + ":" + its start, both in µs. No two counters
	// share a key.
	OurKeys KeyFormat = iota
	// ReferenceKeys are those of envoyproxy/ratelimit, so that both may count on the same servers. Descriptors that it
	// cannot tell apart share a counter here too, and so do windows of different lengths that start at the same time.
	// Windows must be whole seconds.
	ReferenceKeys
)

// Defaults of [Config].
const (
	DefaultMaxIdleConns = 2
	DefaultMaxConns     = 64
)

// Config says where the servers are and how to talk to them. Servers or SRV is required; the zero value of every other
// field works.
type Config struct {
	// Servers are host:port, or paths of sockets, which contain a slash. The CRC-32 of a key modulo the number of
	// servers is the index of the key's server, as in the reference, so the order matters. A server listed twice gets
	// twice as many keys. Names are resolved whenever a connection is opened.
	Servers []string
	// SRV is a DNS name of the form _service._proto.name, used in place of Servers: its records are the servers, sorted
	// by name.
	SRV string
	// SRVRefresh is how often DNS is asked again: 0 means never, once it has answered.
	SRVRefresh time.Duration
	// Resolver is used to look up SRV and the addresses of servers. Nil means net.DefaultResolver.
	Resolver *net.Resolver
	// TLS returns a TLS configuration; nil means no TLS. It is called for each connection, and must return a new
	// configuration each time.
	TLS func() (*tls.Config, error)
	// KeyPrefix is prepended to every key.
	KeyPrefix string
	// KeyFormat is how counters are named: [OurKeys] by default.
	KeyFormat KeyFormat
	// ExpirationJitter spreads expiry: keys live up to this much longer than they have to, at random.
	ExpirationJitter time.Duration
	// MaxIdleConns is how many connections to a server are kept although nothing has used them for ten seconds: 2 if
	// zero.
	MaxIdleConns int
	// MaxConns is the maximum number of connections to a server: 64 if zero. A call that finds none free waits for one.
	MaxConns int
	// OpTimeout is how long a caller waits at most, whatever its deadline; how long a command may take, and how long a server
	// may keep silent before calls are kept away, both never less than 50 ms. If zero, a caller waits until 2 ms before its
	// deadline, or 250 ms if it has none, a command may take 250 ms, and a server may be silent for 50 ms.
	OpTimeout time.Duration
	// DialTimeout is how long it may take to connect to a server and to hear from it: 250 ms if zero.
	DialTimeout time.Duration
	// Observer is notified of what happens; of each use of a connection as a batch. A server is gone when DNS no longer
	// names it.
	Observer remote.Observer
	// Command is called after each command of a batch. It may be nil, is called concurrently, and must not block.
	Command func(Command)
	// Now returns the time that determines the window in which a hit is counted, since memcached cannot be asked for
	// the time. Nil means the clock of this process; tests set it.
	Now func() engine.Micros
}

// CommandName is what a [Command] does.
type CommandName string

// The commands that are reported, by the names under which the reference counts them.
const (
	CommandMultiGet  CommandName = "multiget"
	CommandIncrement CommandName = "increment"
	CommandAdd       CommandName = "add"
)

// Code is the outcome of a [Command].
type Code string

// The codes of commands.
const (
	CodeSuccess   Code = "success"
	CodeMiss      Code = "miss"       // of an increment: there is no counter yet
	CodeNotStored Code = "not_stored" // of an add: there is a counter already
	CodeError     Code = "error"
)

// Command is one command and its outcome.
type Command struct {
	Name        CommandName
	Code        Code
	Keys, Found int // of a multiget: keys asked for, and keys found
}

// The kinds of events, beside those of package remote, the Node of which is the name that was looked up.
const (
	EventLookupFailed   remote.EventKind = "lookup_failed"   // DNS did not return the servers; Err says why
	EventServersChanged remote.EventKind = "servers_changed" // DNS names others than before, in Detail: most counters now live elsewhere, and start again
)

func (c *Config) defaults() {
	c.MaxIdleConns = cmp.Or(c.MaxIdleConns, DefaultMaxIdleConns)
	c.MaxConns = cmp.Or(c.MaxConns, DefaultMaxConns)
	c.DialTimeout = cmp.Or(c.DialTimeout, remote.DefaultDialTimeout)
	c.Resolver = cmp.Or(c.Resolver, net.DefaultResolver)
	c.Observer = c.Observer.Filled()
	if c.Command == nil {
		c.Command = func(Command) {}
	}
	if c.Now == nil {
		c.Now = func() engine.Micros { return engine.Micros(time.Now().UnixMicro()) }
	}
}

func (c *Config) validate() error {
	switch {
	case len(c.Servers) > 0 && c.SRV != "":
		return errors.New("memcached: both a list of servers and a DNS name for them are set; remove one of them")
	case len(c.Servers) == 0 && c.SRV == "":
		return errors.New("memcached: no server is set; it must be host:port, a list of those, or _service._proto.name for DNS")
	case strings.Contains(c.SRV, "@"):
		return errors.New("memcached: the DNS name has an @ in it; it must be _service._proto.name, and memcached is sent no user and no password")
	case c.SRV != "" && splitSRV(c.SRV) == nil:
		return fmt.Errorf("memcached: %q is not the name of a service; it must be _service._proto.name", c.SRV)
	case c.SRVRefresh < 0:
		return fmt.Errorf("memcached: the DNS refresh interval is %v; it must be 0, which means never, or more", c.SRVRefresh)
	case c.MaxIdleConns < 0:
		return fmt.Errorf("memcached: the number of idle connections is %d; it must be at least 1", c.MaxIdleConns)
	case c.MaxConns < 0:
		return fmt.Errorf("memcached: the number of connections is %d; it must be at least 1", c.MaxConns)
	case c.OpTimeout < 0:
		return fmt.Errorf("memcached: the timeout is %v; it must be positive", c.OpTimeout)
	case c.DialTimeout < 0:
		return fmt.Errorf("memcached: the timeout for connecting is %v; it must be positive", c.DialTimeout)
	case c.ExpirationJitter < 0:
		return fmt.Errorf("memcached: the expiration jitter is %v; it must be 0 or more", c.ExpirationJitter)
	case c.KeyFormat > ReferenceKeys:
		return fmt.Errorf("memcached: key format %d is not known: it must be empty or reference", c.KeyFormat)
	}
	for i, s := range c.Servers {
		if remote.Credentials(s) {
			return fmt.Errorf("memcached: server %d of %d has a user or a password; it must be host:port or the path of a socket, and memcached is sent neither", i+1, len(c.Servers))
		}
		if _, port, err := net.SplitHostPort(s); !strings.Contains(s, "/") && (err != nil || port == "") {
			return fmt.Errorf("memcached: server %d of %d, %q, has no port; it must be host:port or the path of a socket", i+1, len(c.Servers), s)
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
