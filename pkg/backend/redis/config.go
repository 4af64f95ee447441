package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Observer is notified of what a backend does.
type Observer = remote.Observer

// Batch is what one round trip did.
type Batch = remote.Batch

// Event is what an operator should know about.
type Event = remote.Event

// Type is the kind of deployment that counters live in.
type Type uint8

// The kinds of deployments.
const (
	Single   Type = iota // one server
	Sentinel             // one server and its replicas, watched by Redis Sentinel
	Cluster              // a Redis Cluster
)

// KeyFormat says under which keys counters are kept.
type KeyFormat uint8

// The formats of keys.
const (
	OurKeys       KeyFormat = iota // all algorithms, by scripts
	ReferenceKeys                  // those of envoyproxy/ratelimit, by INCRBY and EXPIRE: fixed windows only
)

// DefaultPoolSize is the default of [Config.PoolSize].
const DefaultPoolSize = 10

// Config says where Redis is and how to talk to it. URL is required; the zero value of every other field works.
type Config struct {
	// Type is the kind of deployment: [Single] by default.
	Type Type
	// Network is tcp, the default, tcp4 or tcp6 for addresses of one kind alone, or unix. Any URL with a host and a port is
	// reached by TCP; sentinels and clusters are always reached by tcp.
	Network string
	// URL is where Redis is. For a single server: host:port, the path of a socket,
	// redis://[user[:password]@]host:port[/db] or, with TLS, rediss://…. For a cluster: one or more of these, separated
	// by commas. For sentinels: the master's name and their addresses, host:port or redis://[user[:password]@]host:port,
	// separated by commas; a password there is the sentinels'.
	URL string
	// TLS returns a TLS configuration. TLS is used if it is not nil or the URL says rediss. It is called for each
	// connection, and must return a new configuration each time.
	TLS func() (*tls.Config, error)
	// Auth is a password, or user:password; if empty, the URL's is used, if any, unless that has the addresses of sentinels.
	Auth string
	// AuthFile names a file whose contents take the place of Auth. It is read for each new connection, so that a
	// rotated password takes effect without a restart.
	AuthFile string
	// AuthMaxAge is how long a connection is used after it has authenticated, at most, where passwords are tokens that end:
	// a new one takes its place when between seven and nine tenths of that have passed, before the old one is closed. Ten
	// minutes, more or less, if zero.
	AuthMaxAge time.Duration
	// SentinelAuth and SentinelAuthFile are like Auth and AuthFile, for the sentinels. If both are empty, the URL's is used.
	SentinelAuth, SentinelAuthFile string
	// KeyPrefix is prepended to every key.
	KeyPrefix string
	// ExpirationJitter spreads expiry: keys live up to this much longer than they have to, at random.
	ExpirationJitter time.Duration
	// PoolSize is the maximum number of connections to one server: 10 if zero. Two are used; or one for each millisecond, up to 16, to a
	// server that is 3 ms away or farther.
	PoolSize int
	// OpTimeout is how long one round trip may take, how long a caller waits at most, whatever its deadline, and how long
	// a node may keep silent before calls are kept away, which is never less than 50 ms. If zero, a round trip may take
	// 250 ms, a caller waits until 2 ms before its deadline, or 250 ms if it has none, and a node may be silent for 50 ms.
	OpTimeout time.Duration
	// DialTimeout is how long it may take to connect, and again to authenticate and to learn about the server: 250 ms
	// if zero.
	DialTimeout time.Duration
	// KeyFormat is how counters are named and counted: [OurKeys] by default.
	KeyFormat KeyFormat
	// PerSecond is a second Redis, for descriptors all of whose limits have a window of one second. Its own PerSecond,
	// KeyPrefix, ExpirationJitter, KeyFormat, Now, Observer and Evicted are ignored in favour of this Config's. Nil
	// means that there is none.
	PerSecond *Config
	// Observer is notified of what happens. A node is gone when it is a cluster's master no longer, and connections are
	// counted as by [Backend.Connections].
	Observer Observer
	// Evicted is called with the number of keys that a node has evicted for lack of memory since it was last asked, the
	// first time when connecting to it. Each may have been a counter, whose limit was thereby reset. It may be nil, is
	// called concurrently, and must not block.
	Evicted func(node string, keys int64)
	// Policy is called with the maxmemory-policy of a node, empty if it may not be asked, when connecting to it and every few
	// seconds. Otherwise it is as Evicted. That of PerSecond is its own.
	Policy func(node, policy string)
	// Now returns the time that scripts decide by. Nil means the clock of Redis; tests set it.
	Now func() engine.Micros
}

// The kinds of events, beside those of package remote, and what their Detail is.
const (
	EventDataChanged   remote.EventKind = "dataset_changed" // a node is no longer the same process: counters may be gone; its run ID
	EventMaxMemory     remote.EventKind = "maxmemory"       // maxmemory-policy lets Redis evict counters, which resets limits; the policy
	EventMasterChanged remote.EventKind = "master_changed"  // the sentinels name a new master; its address
)

func (c *Config) defaults() {
	if c.Network == "" {
		c.Network = "tcp"
	}
	if c.PoolSize == 0 {
		c.PoolSize = DefaultPoolSize
	}
	if c.DialTimeout == 0 {
		c.DialTimeout = remote.DefaultDialTimeout
	}
	c.Observer = c.Observer.Filled()
	if c.Evicted == nil {
		c.Evicted = func(string, int64) {}
	}
	if c.Policy == nil {
		c.Policy = func(string, string) {}
	}
}

func (c *Config) validate() error {
	switch {
	case c.URL == "":
		return errors.New("redis: the URL is empty; it must be host:port, redis://host:port, rediss://host:port or the path of a socket")
	case c.Type > Cluster:
		return fmt.Errorf("redis: type %d is not known; it must be single, sentinel or cluster", c.Type)
	case !slices.Contains([]string{"tcp", "tcp4", "tcp6", "unix"}, c.Network):
		return fmt.Errorf("redis: socket type %q is not known; it must be tcp, tcp4, tcp6 or unix", c.Network)
	case c.PoolSize < 0:
		return fmt.Errorf("redis: the pool size is %d; it must be at least 1", c.PoolSize)
	case c.OpTimeout < 0:
		return fmt.Errorf("redis: the timeout is %v; it must be positive", c.OpTimeout)
	case c.DialTimeout < 0:
		return fmt.Errorf("redis: the timeout for connecting is %v; it must be positive", c.DialTimeout)
	case c.ExpirationJitter < 0:
		return fmt.Errorf("redis: the expiration jitter is %v; it must be 0 or more", c.ExpirationJitter)
	case c.KeyFormat > ReferenceKeys:
		return fmt.Errorf("redis: key format %d is not known: it must be empty or reference", c.KeyFormat)
	case c.Auth != "" && c.AuthFile != "":
		return errors.New("redis: both a password and a password file are set; remove one of them")
	case c.SentinelAuth != "" && c.SentinelAuthFile != "":
		return errors.New("redis: both a password and a password file are set for the sentinels; remove one of them")
	case c.AuthMaxAge != 0 && c.AuthMaxAge < minAuthAge:
		return fmt.Errorf("redis: connections are to be renewed within %v; it must be at least %v, or 0 for the default", c.AuthMaxAge, minAuthAge)
	}
	return nil
}
