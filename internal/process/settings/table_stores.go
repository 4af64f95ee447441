package settings

import (
	"errors"
	"fmt"
)

// Backends of variables.
const (
	redis    = "redis"
	memcache = "memcache"
	memory   = "memory"
	shared   = redis + " or " + memcache
)

// BackendTypes returns the values of BACKEND_TYPE.
func BackendTypes() []string { return []string{memory, redis, memcache} }

// stores returns the sections of variables for a single backend.
func stores(s *Settings) []section {
	return []section{
		{"Redis", redisRows(s)},
		{"Memcached", memcacheRows(s)},
	}
}

// backends returns the variables that select the backend and apply to several.
func backends(s *Settings) []variable {
	return []variable{
		{"BACKEND_TYPE", "redis", store, &s.Backend.Type, "", "where counters are kept: `redis`; `memcache`, for fixed windows; or `memory`, in this process only"},
		{"DEFAULT_ON_FAILURE", "error", failure, &s.Backend.OnFailure, "", "fallback for rules without `on_failure` while the backend fails: `error`, `allow`, `deny`, or `local`, which counts in this process (extension)"},
		{"MEMORY_MAX_KEYS", "1000000", positive, &s.Backend.MemoryMaxKeys, "", "maximum number of counters in this process, with BACKEND_TYPE=memory and for `local`; beyond that, live counters are evicted (extension)"},
		{"LOCAL_CACHE_SIZE_IN_BYTES", "0", integer, &s.Backend.LocalCache, "", "any value above 0 turns on the reference's local cache: rejections are remembered until they end and counted as over_limit_with_local_cache. STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT then first checks whether a descriptor is already over its limit. NEAR_CACHE_KEYS, or its default if that is 0, sets the number of rejections kept"},
		{"NEAR_CACHE_KEYS", "100000", integer, &s.NearCache.Keys, "", "maximum number of keys that a replica remembers to avoid asking Redis again; 0 means none, except for LOCAL_CACHE_SIZE_IN_BYTES (extension)"},
		{"NEAR_CACHE_REJECTION", "1s", duration, &s.NearCache.Rejection, "", "how long, at most, a replica repeats a rejection without asking Redis; 0 means not at all (extension)"},
		{"NEAR_CACHE_LEASES", "true", boolean, &s.NearCache.Leases, "", "fetch hits of hot keys in advance, if their rules have `lease: auto`, the default, or a number of hits; never with REDIS_KEY_FORMAT=reference or memcached (extension)"},
		{"EXPIRATION_JITTER_MAX_SECONDS", "300", seconds, &s.Backend.JitterSeconds, shared, "counters are kept for up to this long after they stop counting, to spread their expiry; negative values mean 0"},
		{"RESERVATION_KEY_FILE", "", text, &s.Backend.ReservationKey, "", "file with the key for IDs of reservations, for rules with `reserve`: at least 32 characters, the same on all replicas. Keys in further lines are accepted too, for rotation. By default, the key is derived from CACHE_KEY_SECRET_FILE; without that file, replicas share a key in Redis, and with BACKEND_TYPE=memory it is random (extension)"},
		{"CACHE_KEY_PREFIX", "", text, &s.Backend.KeyPrefix, "", "prefix of the names of counters in the backend"},
		{"CACHE_KEY_SECRET_FILE", "", text, &s.Backend.KeySecretFile, "", "file with a secret, the same on all replicas. It hides users' data in counters, controls, tenants and the audit log from readers of the backend, and keeps those readers from forging reservation IDs; not with `reference` as the key format (extension)"},
	}
}

// redisRows returns the variables for BACKEND_TYPE=redis.
func redisRows(s *Settings) []variable {
	return []variable{
		{"REDIS_TYPE", "SINGLE", deployment, &s.Redis.Type, redis, "`single`, `sentinel` or `cluster`"},
		{"REDIS_SOCKET_TYPE", "unix", socket, &s.Redis.Socket, redis, "`unix` or `tcp`, for `single`; host and port always use TCP; `tcp4` and `tcp6` use only IPv4 or IPv6"},
		{"REDIS_URL", "/var/run/nutcracker/ratelimit.sock", text, &s.Redis.URL, redis, "where Redis is: `host:port`, the path of a socket, `redis://` or, with TLS, `rediss://`; seeds of a cluster separated by commas; for sentinels `master,host:port,…`"},
		{"REDIS_AUTH", "", text, &s.Redis.Auth, redis, "`password` or `user:password`"},
		{"REDIS_AUTH_FILE", "", text, &s.Redis.AuthFile, redis, "file with the same, read again for each connection, and when Redis reports a lost login (extension)"},
		{"REDIS_AUTH_MAX_AGE", "0", duration, &s.Redis.AuthMaxAge, redis, "maximum age of a connection, at least `1s`, for tokens that expire: a new connection replaces it in time; 0 means about 10 minutes (extension)"},
		{"REDIS_SENTINEL_AUTH", "", text, &s.Redis.SentinelAuth, redis, "like REDIS_AUTH, for sentinels"},
		{"REDIS_SENTINEL_AUTH_FILE", "", text, &s.Redis.SentinelAuthFile, redis, "file with the same, read again for each connection (extension)"},
		{"REDIS_TLS", "false", boolean, &s.Redis.TLS, redis, "TLS to Redis and its sentinels"},
		{"REDIS_TLS_CLIENT_CERT", "", text, &s.Redis.Cert, redis, "file of the client's certificate, read only with TLS and again for each connection, like the files below"},
		{"REDIS_TLS_CLIENT_KEY", "", text, &s.Redis.Key, redis, "file of its key"},
		{"REDIS_TLS_CACERT", "", text, &s.Redis.CA, redis, "file of a CA that is trusted in addition to the system's"},
		{"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", boolean, &s.Redis.SkipHostname, redis, "accept a certificate for any name; its chain is still verified"},
		{"REDIS_POOL_SIZE", "10", positive, &s.Redis.PoolSize, redis, "maximum number of connections per node; two are used, or more (at most 16) if Redis takes 3 ms or longer; 0 means 4"},
		{"REDIS_TIMEOUT", "250ms", duration, &s.Redis.DialTimeout, redis, "time to connect (the reference's default is 10s)"},
		{"REDIS_OP_TIMEOUT", "0", duration, &s.Redis.OpTimeout, redis, "time for a round trip, and the longest that a call waits for Redis; with 0, a call waits until 2 ms before its deadline, or 250 ms without one (extension)"},
		{"REDIS_KEY_FORMAT", "", keyFormat, &s.Redis.KeyFormat, redis, "`reference` keeps counters under the keys of envoyproxy/ratelimit, with INCRBY and EXPIRE: fixed windows only (extension)"},
		{"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", boolean, &s.Redis.HealthActive, redis, "report healthy only while connected"},
		{"REDIS_PIPELINE_WINDOW", "0", duration, tuning, redis, "how long to wait for further commands to send together"},
		{"REDIS_PIPELINE_LIMIT", "0", integer, tuning, redis, "no effect, as in the reference"},
		{"REDIS_CLUSTER_PIPELINE_PARALLELISM", "1", integer, tuning, redis, "groups sent concurrently"},
		{"REDIS_POOL_ON_EMPTY_BEHAVIOR", "WAIT", text, tuning, redis, "what to do when all connections are in use"},
		{"REDIS_STARTUP_INITIAL_INTERVAL", "1s", duration, tuning, redis, "first wait before connecting again"},
		{"REDIS_STARTUP_MAX_INTERVAL", "30s", duration, tuning, redis, "longest wait"},
		{"REDIS_STARTUP_MAX_ELAPSED_TIME", "0", duration, tuning, redis, "when to give up; ratelimitd never does, because nothing waits for Redis"},
		{"REDIS_CLOSE_CONNECTION_ON_READONLY_ERROR", "false", boolean, accepted, redis, "reconnect when Redis replies READONLY, as after a failover; ratelimitd always does"},
		{"TENANTS_REDIS", "false", boolean, &s.Redis.Tenants, redis, "share a table of tenants and their plans in Redis, which overrides TENANTS_FILE and which `ratelimitd tenant` changes; not with REDIS_KEY_FORMAT=reference (extension)"},
		{"REDIS_PERSECOND", "false", boolean, &s.RedisPerSecond.On, redis, "use a separate Redis for per-second limits"},
		{"REDIS_PERSECOND_TYPE", "SINGLE", deployment, &s.RedisPerSecond.Type, redis, "like REDIS_TYPE"},
		{"REDIS_PERSECOND_SOCKET_TYPE", "unix", socket, &s.RedisPerSecond.Socket, redis, "like REDIS_SOCKET_TYPE"},
		{"REDIS_PERSECOND_URL", "/var/run/nutcracker/ratelimitpersecond.sock", text, &s.RedisPerSecond.URL, redis, "like REDIS_URL"},
		{"REDIS_PERSECOND_AUTH", "", text, &s.RedisPerSecond.Auth, redis, "like REDIS_AUTH"},
		{"REDIS_PERSECOND_AUTH_FILE", "", text, &s.RedisPerSecond.AuthFile, redis, "like REDIS_AUTH_FILE (extension)"},
		{"REDIS_PERSECOND_AUTH_MAX_AGE", "0", duration, &s.RedisPerSecond.AuthMaxAge, redis, "like REDIS_AUTH_MAX_AGE (extension)"},
		{"REDIS_PERSECOND_SENTINEL_AUTH", "", text, &s.RedisPerSecond.SentinelAuth, redis, "like REDIS_PERSECOND_AUTH, for sentinels"},
		{"REDIS_PERSECOND_SENTINEL_AUTH_FILE", "", text, &s.RedisPerSecond.SentinelAuthFile, redis, "like REDIS_SENTINEL_AUTH_FILE (extension)"},
		{"REDIS_PERSECOND_TLS", "false", boolean, &s.RedisPerSecond.TLS, redis, "TLS, with the files of REDIS_TLS_"},
		{"REDIS_PERSECOND_POOL_SIZE", "10", positive, &s.RedisPerSecond.PoolSize, redis, "like REDIS_POOL_SIZE"},
		{"REDIS_PERSECOND_TIMEOUT", "250ms", duration, &s.RedisPerSecond.DialTimeout, redis, "like REDIS_TIMEOUT"},
		{"REDIS_PERSECOND_OP_TIMEOUT", "0", duration, &s.RedisPerSecond.OpTimeout, redis, "like REDIS_OP_TIMEOUT (extension)"},
		{"REDIS_PERSECOND_PIPELINE_WINDOW", "0", duration, tuning, redis, "like REDIS_PIPELINE_WINDOW"},
		{"REDIS_PERSECOND_PIPELINE_LIMIT", "0", integer, tuning, redis, "no effect, as in the reference"},
		{"REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM", "1", integer, tuning, redis, "groups sent concurrently"},
		{"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "WAIT", text, tuning, redis, "like REDIS_POOL_ON_EMPTY_BEHAVIOR"},
	}
}

// memcacheRows returns the variables for BACKEND_TYPE=memcache.
func memcacheRows(s *Settings) []variable {
	return []variable{
		{"MEMCACHE_HOST_PORT", "", list, &s.Memcache.Servers, memcache, "where the servers are: `host:port,host:port`, or paths of sockets; their order determines which counter is where"},
		{"MEMCACHE_MAX_IDLE_CONNS", "64", positive, &s.Memcache.MaxIdleConns, memcache, "idle connections per server that stay open; up to 64 are opened, so with a lower value, connections are opened and closed under load. 0 means 64"},
		{"MEMCACHE_OP_TIMEOUT", "0", duration, &s.Memcache.OpTimeout, memcache, "time for an exchange with a server, and the longest that a call waits for it, as with REDIS_OP_TIMEOUT (extension; envoyproxy/ratelimit has 500ms)"},
		{"MEMCACHE_KEY_FORMAT", "", keyFormat, &s.Memcache.KeyFormat, memcache, "`reference` names counters as envoyproxy/ratelimit does (extension)"},
		{"MEMCACHE_TLS", "false", boolean, &s.Memcache.TLS, memcache, "TLS to the servers"},
		{"MEMCACHE_TLS_CLIENT_CERT", "", text, &s.Memcache.Cert, memcache, "file of the client's certificate, read only with TLS and again for each connection, like the files below"},
		{"MEMCACHE_TLS_CLIENT_KEY", "", text, &s.Memcache.Key, memcache, "file of its key"},
		{"MEMCACHE_TLS_CACERT", "", text, &s.Memcache.CA, memcache, "file of a CA that is trusted in addition to the system's"},
		{"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION", "false", boolean, &s.Memcache.SkipHostname, memcache, "accept a certificate for any name; its chain is still verified"},
	}
}

// of reports whether a backend uses v.
func (v *variable) of(backend string) bool {
	return v.backend == "" || v.backend == backend || v.backend == shared && (backend == redis || backend == memcache)
}

// checkSecret returns the error of a secret for counter names without a key format that uses it.
func checkSecret(given, values map[string]string) []error {
	format := map[string]string{redis: "REDIS_KEY_FORMAT", memcache: "MEMCACHE_KEY_FORMAT"}[values["BACKEND_TYPE"]]
	if given["CACHE_KEY_SECRET_FILE"] == "" || given[format] == "" {
		return nil
	}
	return []error{fmt.Errorf("CACHE_KEY_SECRET_FILE is set, and %s=reference keeps counters under names that show the values of requests: "+
		"unset CACHE_KEY_SECRET_FILE until all servers run ratelimitd, and then %s", format, format)}
}

// checkMemcache returns the errors in the variables for the address of memcached.
func checkMemcache(given map[string]string) []error {
	switch {
	case given["MEMCACHE_SRV"] != "":
		return []error{errors.New("MEMCACHE_SRV is not supported: set MEMCACHE_HOST_PORT to the servers of its SRV records instead, sorted by name as in envoyproxy/ratelimit")}
	case given["MEMCACHE_HOST_PORT"] == "":
		return []error{errors.New("BACKEND_TYPE=memcache needs MEMCACHE_HOST_PORT, such as 127.0.0.1:11211, or a list of addresses")}
	}
	return nil
}
