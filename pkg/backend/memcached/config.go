package memcached

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// KeyFormat is a format of the keys of counters.
type KeyFormat uint8

// The formats of keys.
const (
	// OurKeys are prefix + "rl:{" + hash + "}f" + length of the window + ":" + its start, both in µs. No two counters
	// share a key.
	OurKeys KeyFormat = iota
	// ReferenceKeys are those of envoyproxy/ratelimit, which can then share the counters. Descriptors with the same name there share a
	// counter, and so do windows of different lengths that start at the same time. Windows must be whole seconds.
	ReferenceKeys
)

// DefaultMaxConns is the default of [Config.MaxConns].
const DefaultMaxConns = 64

// Config configures a [Backend]. Servers is required. The zero value of every other field is valid. A number or duration of a connection
// that is not positive means its default.
type Config struct {
	// Servers are host:port or paths of sockets, which contain a slash. The CRC-32 of a key modulo the number of servers
	// is the index of its server, as in the reference, so the order matters. A server listed twice gets twice as many
	// keys. Names are resolved for each new connection.
	Servers []string
	// TLS returns a new TLS configuration for each connection. Nil means no TLS.
	TLS func() (*tls.Config, error)
	// KeyPrefix is prepended to every key.
	KeyPrefix string
	// KeyFormat is the format of keys. The default is [OurKeys].
	KeyFormat KeyFormat
	// ExpirationJitter spreads expiry: a random part of it is added to the lifetime of each key.
	ExpirationJitter time.Duration
	// MaxIdleConns is the maximum number of idle connections to a server, see [memcache.Client]. The default is MaxConns.
	// With fewer, connections are opened and closed under load.
	MaxIdleConns int
	// MaxConns is the maximum number of connections to a server. The default is 64. Further calls wait for one.
	MaxConns int
	// OpTimeout limits the wait of a caller, regardless of its deadline, and the duration of a command, which may always take 50 ms. If
	// zero, a caller waits until 2 ms before its deadline, or 250 ms without one, and a command may take 250 ms.
	OpTimeout time.Duration
	// DialTimeout limits the time to open a connection. The default is 250 ms.
	DialTimeout time.Duration
	// Observer is notified of events. Each exchange with a server is a batch.
	Observer remote.Observer
	// Command is called after each command. It may be nil, is called concurrently, and must not block.
	Command func(Command)
	// Now returns the time that determines the window of a hit, because memcached has no command for its time. Nil means
	// the clock of this process.
	Now func() engine.Micros
}

// CommandName is the kind of a [Command].
type CommandName string

// The commands that are reported, under the names of the reference's metrics.
const (
	CommandMultiGet  CommandName = "multiget"
	CommandIncrement CommandName = "increment"
	CommandAdd       CommandName = "add"
)

// Code is the outcome of a [Command].
type Code string

// The outcomes of commands.
const (
	CodeSuccess   Code = "success"
	CodeMiss      Code = "miss"       // increment: the counter does not exist
	CodeNotStored Code = "not_stored" // add: the counter exists
	CodeError     Code = "error"
)

// Command is one command and its outcome.
type Command struct {
	Name        CommandName
	Code        Code
	Keys, Found int // multiget: requested and found keys
}

func (c *Config) defaults() {
	c.MaxConns = cmp.Or(max(c.MaxConns, 0), DefaultMaxConns)
	c.MaxIdleConns = cmp.Or(max(c.MaxIdleConns, 0), c.MaxConns)
	c.DialTimeout = cmp.Or(max(c.DialTimeout, 0), remote.DefaultDialTimeout)
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
	case len(c.Servers) == 0:
		return errors.New("memcached: no server is set; it must be host:port, the path of a socket, or a list of those")
	case c.OpTimeout < 0:
		return fmt.Errorf("memcached: the timeout is %v; it must be positive", c.OpTimeout)
	case c.ExpirationJitter < 0:
		return fmt.Errorf("memcached: the expiration jitter is %v; it must be 0 or more", c.ExpirationJitter)
	case c.KeyFormat > ReferenceKeys:
		return fmt.Errorf("memcached: key format %d is not known: it must be empty or reference", c.KeyFormat)
	}
	for i, s := range c.Servers {
		if remote.Credentials(s) {
			return fmt.Errorf("memcached: server %d of %d has a user or a password; it must be host:port or the path of a socket, and neither is sent to memcached", i+1, len(c.Servers))
		}
		if _, port, err := net.SplitHostPort(s); !strings.Contains(s, "/") && (err != nil || port == "") {
			return fmt.Errorf("memcached: server %d of %d, %q, has no port; it must be host:port or the path of a socket", i+1, len(c.Servers), s)
		}
	}
	return nil
}
