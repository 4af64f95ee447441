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

// Observer receives notifications about a backend.
type Observer = remote.Observer

// Batch describes one round trip.
type Batch = remote.Batch

// Event is an event of interest to an operator.
type Event = remote.Event

// Type is a kind of deployment.
type Type uint8

// The kinds of deployments.
const (
	Single   Type = iota // one server
	Sentinel             // one server and its replicas, watched by Redis Sentinel
	Cluster              // a Redis Cluster
)

// KeyFormat is a format of the keys of counters.
type KeyFormat uint8

// The formats of keys.
const (
	OurKeys       KeyFormat = iota // for all algorithms, by scripts
	ReferenceKeys                  // envoyproxy/ratelimit's, by INCRBY and EXPIRE: fixed windows only
)

// DefaultPoolSize is the default of [Config.PoolSize].
const DefaultPoolSize = 10

// Config configures a [Backend]. URL is required; the zero value of every other field is valid.
type Config struct {
	// Type is the kind of deployment: [Single] by default.
	Type Type
	// Network is tcp (the default), tcp4 or tcp6 to use only one address family, or unix. URLs with a host and a port always use TCP.
	// Sentinels and clusters always use tcp.
	Network string
	// URL is the address of Redis. For a single server: host:port, the path of a socket, redis://[user[:password]@]host:port[/db] or,
	// with TLS, rediss://…. For a cluster: one or more of these, separated by commas. For sentinels: the master's name, followed by the
	// addresses of the sentinels, host:port or redis://[user[:password]@]host:port, separated by commas; a password there is that of the
	// sentinels.
	URL string
	// TLS returns a new TLS configuration for each connection. TLS is used if this is not nil, or if the URL is rediss://….
	TLS func() (*tls.Config, error)
	// Auth is a password, or user:password. If empty, the URL's credentials are used, unless they are those of sentinels.
	Auth string
	// AuthFile names a file whose content replaces Auth. It is read for each new connection, so a rotated password takes effect without a
	// restart.
	AuthFile string
	// AuthMaxAge is the maximum lifetime of an authenticated connection, for passwords that are expiring tokens. A new connection
	// replaces the old one after between seven and nine tenths of it. The default is about ten minutes.
	AuthMaxAge time.Duration
	// SentinelAuth and SentinelAuthFile correspond to Auth and AuthFile, for the sentinels. If both are empty, the URL's credentials are
	// used.
	SentinelAuth, SentinelAuthFile string
	// KeyPrefix is prepended to every key.
	KeyPrefix string
	// ExpirationJitter spreads expiry: a random part of it is added to the lifetime of each key.
	ExpirationJitter time.Duration
	// PoolSize is the maximum number of connections to one server: 10 if zero. Usually two are used. A server with a round-trip time of 3
	// ms or more gets one per millisecond, up to 16.
	PoolSize int
	// OpTimeout bounds a round trip, and the wait of a caller, regardless of its deadline. It is also the time without an answer, at
	// least 50 ms, after which a node counts as silent. If zero, a round trip may take 250 ms, a caller waits until 2 ms before its
	// deadline, or 250 ms without one, and a node is silent after 50 ms.
	OpTimeout time.Duration
	// DialTimeout bounds the time to connect, and again the time to authenticate and to query the server: 250 ms if zero.
	DialTimeout time.Duration
	// KeyFormat is the format of keys, which also determines the commands. The default is [OurKeys].
	KeyFormat KeyFormat
	// PerSecond is a second Redis, for descriptors whose limits all have a window of one second. Its PerSecond, KeyPrefix,
	// ExpirationJitter, KeyFormat, Now, Observer and Evicted are ignored in favor of this Config's. Nil means none.
	PerSecond *Config
	// Observer is notified of events. A node is gone when it is no longer a master of the cluster. Connections are counted as by
	// [Backend.Connections].
	Observer Observer
	// Evicted is called with the number of keys that a node has evicted for lack of memory since the last query; the first query is at
	// connecting. Each evicted key may have been a counter, whose limit was thereby reset. Evicted may be nil, is called concurrently,
	// and must not block.
	Evicted func(node string, keys int64)
	// Policy is called with the maxmemory-policy of a node, at connecting and every few seconds. It is empty without the permission to
	// query it. Otherwise it is like Evicted. PerSecond has its own.
	Policy func(node, policy string)
	// Now returns the time used by scripts. Nil means the clock of Redis. Only tests set it.
	Now func() engine.Micros
}

// Kinds of events in addition to those of package remote, with their Detail.
const (
	EventDataChanged   remote.EventKind = "dataset_changed" // a node is another process than before, so counters may be lost; its run ID
	EventMaxMemory     remote.EventKind = "maxmemory"       // maxmemory-policy allows Redis to evict counters, which resets limits; the policy
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
