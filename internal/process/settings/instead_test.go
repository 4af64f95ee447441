package settings

import (
	"maps"
	"strings"
	"testing"
)

// What envoyproxy/ratelimit starts with starts here too: what is done instead is done, and told.
func TestInstead(t *testing.T) {
	t.Parallel()
	const cache, plane = "BACKEND_TYPE=memcache MEMCACHE_HOST_PORT=a:1", "CONFIG_TYPE=GRPC_XDS_SOTW"
	whatever := func(*Settings) bool { return true }
	for _, tt := range []struct {
		environ string
		notice  string // the one; none where the value means what it says
		ok      func(*Settings) bool
	}{
		{"REDIS_POOL_SIZE=0", "REDIS_POOL_SIZE=0 means 4", func(s *Settings) bool { return s.Redis.PoolSize == 4 }},
		{"REDIS_PERSECOND_POOL_SIZE=0x0", "REDIS_PERSECOND_POOL_SIZE=0x0 means 4", func(s *Settings) bool { return s.RedisPerSecond.PoolSize == 4 }},
		{"REDIS_POOL_SIZE=1", "", func(s *Settings) bool { return s.Redis.PoolSize == 1 }},
		{cache + " MEMCACHE_MAX_IDLE_CONNS=0", "MEMCACHE_MAX_IDLE_CONNS=0 means 64", func(s *Settings) bool { return s.Memcache.MaxIdleConns == 64 }},
		{cache + " MEMCACHE_MAX_IDLE_CONNS=-7", "MEMCACHE_MAX_IDLE_CONNS=-7 means 64", func(s *Settings) bool { return s.Memcache.MaxIdleConns == 64 }},
		{"EXPIRATION_JITTER_MAX_SECONDS=-1", "EXPIRATION_JITTER_MAX_SECONDS=-1 means 0", func(s *Settings) bool { return s.Backend.JitterSeconds == 0 }},
		{"LOG_FORMAT=xml", "LOG_FORMAT=xml is not known, so the log is written as text", func(s *Settings) bool { return s.Log.Format == "text" }},
		{"LOG_FORMAT=Json", "", func(s *Settings) bool { return s.Log.Format == "json" }},
		{"REDIS_SOCKET_TYPE=tcp4", "REDIS_SOCKET_TYPE=tcp4 reaches a single Redis over IPv4 only", func(s *Settings) bool { return s.Redis.Socket == "tcp4" }},
		{
			"REDIS_PERSECOND_SOCKET_TYPE=tcp6", "REDIS_PERSECOND_SOCKET_TYPE=tcp6 reaches a single Redis over IPv6 only",
			func(s *Settings) bool { return s.RedisPerSecond.Socket == "tcp6" },
		},
		{
			plane + " CONFIG_GRPC_XDS_NODE_METADATA=key1:val1", "CONFIG_GRPC_XDS_NODE_METADATA=key1:val1 leaves out key1:val1",
			func(s *Settings) bool { return len(s.XDS.NodeMetadata) == 0 },
		},
		{
			plane + " CONFIG_GRPC_XDS_NODE_METADATA=key1:val1,k=a:b,x,",
			"CONFIG_GRPC_XDS_NODE_METADATA=key1:val1,k=a:b,x, leaves out key1:val1, x,", func(s *Settings) bool {
				return maps.Equal(s.XDS.NodeMetadata, map[string]string{"k": "a:b"})
			},
		},
		{
			"REDIS_TLS=false REDIS_TLS_CACERT=/nowhere.pem", "REDIS_TLS_CACERT has no effect without REDIS_TLS=true",
			func(s *Settings) bool { return !s.Redis.OverTLS() },
		},
		{
			"REDIS_TLS_CLIENT_KEY=k REDIS_PERSECOND_TLS=true", "REDIS_TLS_CLIENT_KEY has no effect",
			func(s *Settings) bool { return !s.RedisPerSecond.OverTLS() },
		},
		{"REDIS_TLS_CLIENT_CERT=c REDIS_PERSECOND=true REDIS_PERSECOND_TLS=true", "", func(s *Settings) bool { return s.RedisPerSecond.OverTLS() }},
		{"REDIS_TLS_CACERT=c REDIS_TLS=1", "", func(s *Settings) bool { return s.Redis.OverTLS() }},
		{"REDIS_TLS_CACERT=c REDIS_URL=rediss://a:1", "", func(s *Settings) bool { return s.Redis.OverTLS() }},
		{"BACKEND_TYPE=memory REDIS_TLS_CACERT=c MEMCACHE_TLS_CACERT=c", "", func(s *Settings) bool { return s.Backend.Type == "memory" }},
		{cache + " MEMCACHE_TLS_CACERT=c", "MEMCACHE_TLS_CACERT has no effect without MEMCACHE_TLS=true", func(s *Settings) bool { return !s.Memcache.TLS }},
		{"BACKEND_TYPE=MEMCACHE MEMCACHE_HOST_PORT=a:1", "", func(s *Settings) bool { return s.Backend.Type == "memcache" && len(s.Memcache.Servers) == 1 }},
		{"BACKEND_TYPE=Redis REDIS_URL=a:1", "", func(s *Settings) bool { return s.Backend.Type == "redis" && s.Redis.URL == "a:1" }},
		{"BACKEND_TYPE=Memory", "", func(s *Settings) bool { return s.Backend.Type == "memory" }},
		{"HOST=[::] GRPC_HOST=[::1] DEBUG_HOST=::1 STATSD_HOST=[2001:db8::1]", "", func(s *Settings) bool {
			return s.HTTP.Host == "::" && s.GRPC.Host == "::1" && s.Debug.Host == "::1" && s.Stats.StatsdHost == "2001:db8::1"
		}},
		{"REDIS_URL=mymaster,a:1", "REDIS_URL has a comma, as if it named several servers, and REDIS_TYPE is single", whatever},
		{"REDIS_URL=mymaster,redis://:a@b:1", "REDIS_URL has a comma", whatever},
		{"REDIS_URL=redis://a:1,redis://b:1", "REDIS_URL has a comma", whatever},
		{"REDIS_URL=a:1 REDIS_PERSECOND=true REDIS_PERSECOND_URL=a:1,b:1", "REDIS_PERSECOND_URL has a comma", whatever},
		{"REDIS_URL=a:1 REDIS_PERSECOND_URL=a:1,b:1", "", whatever},
		{"REDIS_URL=mymaster,a:1 REDIS_TYPE=Sentinel", "", whatever},
		{"REDIS_URL=a:1,b:1 REDIS_TYPE=cluster", "", whatever},
		{"REDIS_URL=redis://user:a,b@c:1", "", whatever},
		{"REDIS_URL=/run/a,b.sock", "", whatever},
		{"CONFIG_TYPE=file", "", func(s *Settings) bool { return s.Rules.Source == "FILE" }},
		{"CONFIG_TYPE=grpc_xds_Sotw", "", func(s *Settings) bool { return s.Rules.Source == "GRPC_XDS_SOTW" }},
	} {
		s, notices, err := Parse(append([]string{"USE_STATSD=false"}, strings.Fields(tt.environ)...))
		if err != nil || !tt.ok(&s) {
			t.Errorf("%s: %v, %+v", tt.environ, err, s)
		}
		if said := strings.Join(notices, "\n"); !strings.HasPrefix(said, tt.notice) || (said == "") != (tt.notice == "") || len(notices) > 1 {
			t.Errorf("%s: notices %q, want one that begins with %q", tt.environ, notices, tt.notice)
		}
	}
}
