package settings

import (
	"fmt"
	"strings"
)

// instead returns the value to use for v, and a notice if it differs from the meaning of the given value. It replaces
// values that envoyproxy/ratelimit accepts but that are invalid here.
func (v *variable) instead(value string) (used, notice string) {
	n, err := parseInt(value)
	number := err == nil
	says := func(what string) string { return v.notice(value, what) }
	switch v.name {
	case "BACKEND_TYPE", "CONFIG_TYPE":
		return word(value, v.kind.accepts().words...), ""
	case "LOG_FORMAT":
		if v.kind.check(value) != nil {
			return "text", says("is not known, so the log is written as text; it must be text or json")
		}
		return strings.ToLower(value), ""
	case "REDIS_POOL_SIZE", "REDIS_PERSECOND_POOL_SIZE":
		if number && n == 0 {
			return "4", says("means 4, the default of envoyproxy/ratelimit's Redis client")
		}
	case "REDIS_SOCKET_TYPE", "REDIS_PERSECOND_SOCKET_TYPE":
		if strings.EqualFold(value, "tcp4") || strings.EqualFold(value, "tcp6") {
			return value, says("reaches a single Redis over IPv" + value[3:] + " only; tcp uses both IPv4 and IPv6, as sentinels and clusters do")
		}
	case "MEMCACHE_MAX_IDLE_CONNS":
		if number && n <= 0 {
			return v.def, says("means " + v.def + ", the default")
		}
	case "EXPIRATION_JITTER_MAX_SECONDS":
		if number && n < 0 {
			return "0", says("means 0: no counter is kept for longer than it counts")
		}
	case "CONFIG_GRPC_XDS_NODE_METADATA":
		return assigned(value, says)
	case "HOST", "GRPC_HOST", "DEBUG_HOST", "STATSD_HOST":
		if inner, ok := strings.CutPrefix(value, "["); ok && strings.HasSuffix(inner, "]") { // like an IPv6 address before a port
			return strings.TrimSuffix(inner, "]"), ""
		}
	}
	return value, ""
}

// notice returns a notice about a value of v.
func (v *variable) notice(value, what string) string {
	if withAt(value) {
		return v.name + " " + what
	}
	return fmt.Sprintf("%s=%s %s", v.name, value, what)
}

// word returns the element of words that equals v ignoring case, or v itself.
func word(v string, words ...string) string {
	for _, w := range words {
		if strings.EqualFold(v, w) {
			return w
		}
	}
	return v
}

// assigned removes the pairs without an equals sign.
func assigned(v string, says func(string) string) (used, notice string) {
	var kept, left []string
	for pair := range strings.SplitSeq(v, ",") {
		switch {
		case strings.Contains(pair, "="):
			kept = append(kept, pair)
		case pair != "":
			left = append(left, pair)
		}
	}
	if left != nil {
		notice = says("leaves out " + strings.Join(left, ", ") + ", as envoyproxy/ratelimit does: a pair is written key=value")
	}
	return strings.Join(kept, ","), notice
}

// OverTLS reports whether TLS is used, by setting or by a rediss URL.
func (r *RedisServer) OverTLS() bool {
	return r.TLS || strings.Contains(strings.ToLower(r.URL), "rediss://")
}

// OverTLS reports whether this Redis is used, and with TLS.
func (r *RedisPerSecond) OverTLS() bool { return r.On && r.RedisServer.OverTLS() }

// withoutTLS returns notices about files that are not read because the backend is used without TLS.
func (s *Settings) withoutTLS() (notices []string) {
	unread := func(prefix, ca, cert, key string) {
		for _, f := range []struct{ name, path string }{{"_CACERT", ca}, {"_CLIENT_CERT", cert}, {"_CLIENT_KEY", key}} {
			if f.path != "" {
				notices = append(notices, fmt.Sprintf("%s%s has no effect without %[1]s=true: the file is not read, and connections are plaintext", prefix, f.name))
			}
		}
	}
	r, m := &s.Redis, &s.Memcache
	switch {
	case s.Backend.Type == redis && !r.OverTLS() && !s.RedisPerSecond.OverTLS():
		unread("REDIS_TLS", r.CA, r.Cert, r.Key)
	case s.Backend.Type == memcache && !m.TLS:
		unread("MEMCACHE_TLS", m.CA, m.Cert, m.Key)
	}
	return notices
}

// several returns a notice about each URL with several servers although REDIS_TYPE requires one.
func (s *Settings) several() (notices []string) {
	for _, r := range []struct {
		prefix string
		on     bool
		*RedisServer
	}{{"REDIS", true, &s.Redis.RedisServer}, {"REDIS_PERSECOND", s.RedisPerSecond.On, &s.RedisPerSecond.RedisServer}} {
		scheme, _, _ := strings.Cut(r.URL, "://")
		hosts := r.URL[strings.LastIndexByte(r.URL, '@')+1:] // an earlier comma may be part of a password
		if s.Backend.Type == redis && r.on && strings.EqualFold(r.Type, "single") && !strings.HasPrefix(r.URL, "/") && strings.Contains(hosts+scheme, ",") {
			notices = append(notices, fmt.Sprintf("%s_URL has a comma, as if it named several servers, and %[1]s_TYPE is single: "+
				"set the type to sentinel if the master's name comes first, or to cluster", r.prefix))
		}
	}
	return notices
}

// renamed returns a notice about each renamed header, because LIMIT_HEADERS_FORMAT=draft has fixed names.
func (s *Settings) renamed(given map[string]string) (notices []string) {
	if !strings.EqualFold(s.Answer.HeadersFormat, "draft") {
		return nil
	}
	for _, name := range []string{"LIMIT_LIMIT_HEADER", "LIMIT_REMAINING_HEADER", "LIMIT_RESET_HEADER"} {
		if given[name] != "" {
			notices = append(notices, name+" has no effect with LIMIT_HEADERS_FORMAT=draft: the headers are RateLimit and RateLimit-Policy")
		}
	}
	return notices
}
