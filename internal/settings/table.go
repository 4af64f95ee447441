package settings

// state says what this release does with a variable.
type state uint8

const (
	honoured state = iota // has a field in Settings
	accepted              // may be set, and changes nothing here
	tuning                // changes only how fast the reference is; values other than the default cause a warning
)

// The backends that variables belong to.
const (
	redis    = "redis"
	memcache = "memcache"
	memory   = "memory"
	shared   = "redis or memcache"
)

// BackendTypes returns the values of BACKEND_TYPE.
func BackendTypes() []string { return []string{memory, redis, memcache} }

// variable is a row of the table of variables.
type variable struct {
	name    string
	def     string // default
	kind    kind
	state   state
	backend string // used only with this backend, or with either of two; empty means with all
	text    string // meaning, in Markdown
}

// variables is the table of every variable, in the order of the README. Names and defaults are those of
// envoyproxy/ratelimit, except for our own rows.
func variables() []variable {
	var all []variable
	for _, s := range sections() {
		all = append(all, s.rows...)
	}
	return all
}

// Variable is a row of the table, for users of [Table].
type Variable struct {
	Name, Default string
	Told          bool // changes nothing, which is logged if it is set to anything but its default
}

// Table returns every variable, in the order of the README.
func Table() []Variable {
	var all []Variable
	for _, v := range variables() {
		all = append(all, Variable{Name: v.name, Default: v.def, Told: v.state == tuning})
	}
	return all
}

// section is a part of the table with its own heading.
type section struct {
	title string
	rows  []variable
}

func sections() []section {
	return []section{
		{"Listening", listening()},
		{"Rules", rules()},
		{"Deciding", deciding()},
		{"Answers", answers()},
		{"Backend", backends()},
		{"Administration, health and logs", operation()},
		{"Metrics", metrics()},
		{"Rules over xDS", xds()},
		{"Tracing", tracing()},
		{"Redis", redisRows()},
		{"Memcached", memcacheRows()},
	}
}

func listening() []variable {
	return []variable{
		{"GRPC_HOST", "0.0.0.0", text, honoured, "", "address of the gRPC listener"},
		{"GRPC_PORT", "8081", port, honoured, "", "port of the gRPC listener"},
		{"GRPC_UDS", "", text, honoured, "", "path of a unix socket to serve gRPC on instead of a port"},
		{"GRPC_MAX_CONNECTION_AGE", "24h", duration, honoured, "", "how long a connection is kept before the client is asked to open a new one; 0 means for ever"},
		{"GRPC_MAX_CONNECTION_AGE_GRACE", "1h", duration, honoured, "", "how long calls may continue after that; 0 means for ever"},
		{"GRPC_REFLECTION", "false", boolean, honoured, "", "serve gRPC reflection, for tools such as grpcurl (ours)"},
		{"GRPC_SERVER_USE_TLS", "false", boolean, honoured, "", "TLS on the gRPC listener; needs the certificate and the key"},
		{"GRPC_SERVER_TLS_CERT", "", text, honoured, "", "file of the certificate and its chain, read again when it changes"},
		{"GRPC_SERVER_TLS_KEY", "", text, honoured, "", "file of the key, which may be in another directory; read again when it changes"},
		{"GRPC_SERVER_TLS_MIN_VERSION", "1.2", tlsVersion, honoured, "", "oldest version of TLS that is accepted, `1.2` or `1.3` (ours)"},
		{"GRPC_SERVER_TLS_CA_CERT", "", text, accepted, "", "set by Envoy Gateway; as in envoyproxy/ratelimit, it does not make the server ask clients for certificates"},
		{"GRPC_CLIENT_TLS_CACERT", "", text, honoured, "", "file of the only CAs that may have issued clients' certificates; if empty, clients are not asked for a certificate"},
		{"GRPC_CLIENT_TLS_SAN", "", names, honoured, "", "DNS names and URIs (`spiffe://…`), separated by commas, one of which a client's certificate must contain"},
		{"HOST", "0.0.0.0", text, honoured, "", "address of the HTTP listener: `/json`, `/healthcheck`, `/livez`, `/readyz`"},
		{"PORT", "8080", port, honoured, "", "port of the HTTP listener"},
		{"DEBUG_HOST", "0.0.0.0", text, honoured, "", "address of the debug listener: `/rlconfig`, `/stats`, `/metrics`, and pprof for callers on loopback"},
		{"DEBUG_PORT", "6070", port, honoured, "", "port of the debug listener"},
	}
}

func rules() []variable {
	return []variable{
		{"CONFIG_TYPE", "FILE", text, honoured, "", "where rules come from: `FILE`, or over xDS `GRPC_XDS_SOTW` (all of them each time) or `GRPC_XDS_DELTA` (only changes; ours)"},
		{"RUNTIME_ROOT", "/srv/runtime_data/current", text, honoured, "", "directory of the rules, which may be a symbolic link that is swapped"},
		{"RUNTIME_SUBDIRECTORY", "", text, honoured, "", "directory below it"},
		{"RUNTIME_APPDIRECTORY", "config", text, honoured, "", "directory below that, which is read recursively"},
		{"RUNTIME_IGNOREDOTFILES", "false", boolean, honoured, "", "ignore files and directories whose names begin with a dot; those that begin with two are never read"},
		{"RUNTIME_WATCH_ROOT", "true", boolean, honoured, "", "also read files and directories next to RUNTIME_APPDIRECTORY whose names begin with its name and a dot, such as `config.yaml`; changes are noticed either way"},
		{"MERGE_DOMAIN_CONFIG", "false", boolean, honoured, "", "several files may have descriptors of the same domain"},
		{"RULES_STRICT", "false", boolean, honoured, "", "refuse rules that otherwise only cause warnings (ours)"},
		{"FORCE_START_WITHOUT_INITIAL_CONFIG", "false", boolean, honoured, "", "be healthy before the first rules are loaded"},
		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", boolean, honoured, "", "be healthy only once rules are loaded, whatever FORCE_START_WITHOUT_INITIAL_CONFIG says"},
	}
}

func deciding() []variable {
	return []variable{
		{"SHADOW_MODE", "false", boolean, honoured, "", "decide and count, but let every request pass"},
		{"QUOTA_MODE", "false", boolean, honoured, "", "every rule is in quota mode: a request is refused only if all of its rules are over their limits"},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", boolean, honoured, "", "a request with a descriptor over its limit spends nothing on the others"},
		{"NEAR_LIMIT_RATIO", "0.8", ratio, honoured, "", "fraction of a limit beyond which hits count as near it"},
		{"USE_CALENDAR_MONTH_RATE_LIMIT", "false", boolean, honoured, "", "limits per month use calendar months, in UTC, instead of 30 days"},
	}
}

func answers() []variable {
	return []variable{
		{"LIMIT_RESPONSE_HEADERS_ENABLED", "false", boolean, honoured, "", "add headers with the limit, what remains of it and when it resets"},
		{"LIMIT_LIMIT_HEADER", "RateLimit-Limit", header, honoured, "", "name of the header with the limit"},
		{"LIMIT_REMAINING_HEADER", "RateLimit-Remaining", header, honoured, "", "name of the header with what remains"},
		{"LIMIT_RESET_HEADER", "RateLimit-Reset", header, honoured, "", "name of the header with the seconds until it resets"},
		{"LIMIT_RETRY_AFTER_HEADER", "", header, honoured, "", "name of a header that tells refused clients when to try again, such as `Retry-After`; empty means none (ours)"},
		{"LIMIT_RULE_HEADER", "", header, honoured, "", "name of a header that gives the upstream and the caller the name of the rule that applied, or its path if it has no name; empty means none (ours)"},
		{"LIMIT_BODY", "", text, honoured, "", "template for the body of refusals, with `{{rule}}`, `{{domain}}`, `{{limit}}`, `{{unit}}`, `{{remaining}}` and `{{retry_after}}`; a template that begins with a brace is JSON; if empty, the body is left to Envoy (ours)"},
		{"RESPONSE_DYNAMIC_METADATA", "false", boolean, honoured, "", "add dynamic metadata: the request, and the metadata of the rules"},
		{"DECISION_METADATA", "false", boolean, honoured, "", "add, for each descriptor, the rule with its file and line, what remains and how long to wait (ours)"},
	}
}

func backends() []variable {
	return []variable{
		{"BACKEND_TYPE", "redis", text, honoured, "", "where counters are kept: `redis`; `memcache`, for fixed windows; or `memory`, in this process only"},
		{"DEFAULT_ON_FAILURE", "error", failure, honoured, "", "what rules without `on_failure` do while the store fails: `error`, `allow`, `deny`, or `local`, which counts in this process (ours)"},
		{"MEMORY_MAX_KEYS", "1000000", positive, honoured, "", "maximum number of counters in this process, with BACKEND_TYPE=memory and for `local`; beyond that, live ones are forced out (ours)"},
		{"LOCAL_CACHE_SIZE_IN_BYTES", "0", integer, honoured, "", "any value above 0 turns on the reference's local cache: refusals are remembered until they end, and counted as over_limit_with_local_cache; STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT first checks whether a descriptor is already over its limit. How many are kept is set by NEAR_CACHE_KEYS, or its default if that is 0"},
		{"NEAR_CACHE_KEYS", "100000", integer, honoured, "", "maximum number of keys that a replica remembers, to avoid asking Redis again; 0 means none, but for LOCAL_CACHE_SIZE_IN_BYTES (ours)"},
		{"NEAR_CACHE_REFUSAL", "1s", duration, honoured, "", "how long, at most, a replica repeats a refusal without asking Redis; 0 means not at all (ours)"},
		{"NEAR_CACHE_LEASES", "true", boolean, honoured, "", "fetch hits of hot keys in advance, if their rules have `lease: auto`, the default, or a number of hits; never with REDIS_KEY_FORMAT=reference or memcached (ours)"},
		{"EXPIRATION_JITTER_MAX_SECONDS", "300", seconds, honoured, shared, "how much longer than they count counters are kept, at most; less than 0 is 0"},
		{"CACHE_KEY_PREFIX", "", text, honoured, "", "prefix of the names of counters in a store"},
	}
}

func operation() []variable {
	return []variable{
		{"ADMIN", "false", boolean, honoured, "", "serve the admin API on the gRPC listener, to loopback or to callers with the token (ours)"},
		{"ADMIN_TOKEN_FILE", "", text, honoured, "", "file of the token with which other machines may use the admin API; without it, only this machine may (ours)"},
		{"DRAIN_DELAY", "5s", duration, honoured, "", "how long to continue serving after SIGTERM, while already unhealthy (ours)"},
		{"LOG_LEVEL", "WARN", level, honoured, "", "`panic`, `fatal`, `error`, `warn`, `info`, `debug` or `trace`"},
		{"LOG_FORMAT", "text", text, honoured, "", "`text` or `json`; anything else is `text`"},
		{"LOG_REFUSED", "false", boolean, honoured, "", "log refused requests, with rule, limit and domain: for each rule the first 10 in a second, and then one in 1,000 (ours)"},
		{"LOG_REFUSED_VALUES", "false", boolean, honoured, "", "the same, with the keys and values of the descriptor, which are data of end users (ours)"},
	}
}

func metrics() []variable {
	return []variable{
		{"DISABLE_STATS", "false", boolean, honoured, "", "serve no metrics, whatever the other variables say"},
		{"METRIC_MAX_SERIES", "1000", positive, honoured, "", "maximum number of metric keys that values of requests may create, per rule, of 128 bytes each on average; the rest is counted as `__other__` (ours)"},
		{"USE_PROMETHEUS", "false", boolean, honoured, "", "serve metrics for Prometheus on a separate listener; the debug listener has them in any case"},
		{"PROMETHEUS_ADDR", ":9090", address, honoured, "", "address of that listener"},
		{"PROMETHEUS_PATH", "/metrics", path, honoured, "", "path of the metrics there"},
		{"PROMETHEUS_MAPPER_YAML", "", text, honoured, "", "mapping file of statsd_exporter, which names the series instead of the built-in mapping"},
		{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", boolean, honoured, "", "response times in milliseconds, under the same name; a mapping file has its own `scale`"},
		{"USE_STATSD", "true", boolean, honoured, "", "send statistics to statsd; if not set, it is `false` when USE_PROMETHEUS or USE_DOG_STATSD is true"},
		{"STATSD_HOST", "localhost", text, honoured, "", "host of statsd and DogStatsD"},
		{"STATSD_PORT", "8125", port, honoured, "", "port of statsd and DogStatsD"},
		{"STATSD_PROTOCOL", "tcp", protocol, honoured, "", "`tcp` or `udp`, for statsd; DogStatsD is always `udp`"},
		{"USE_DOG_STATSD", "false", boolean, honoured, "", "send them to DogStatsD instead"},
		{"USE_DOG_STATSD_MOGRIFIERS", "", list, honoured, "", "names of mogrifiers, which rewrite the names of metrics for DogStatsD; the first that matches is used. Each has DOG_STATSD_MOGRIFIER_*NAME*_PATTERN, a regular expression, _NAME and _TAGS (`k:v,k2:v2`), in which `$1` stands for a group"},
		{"DD_ENTITY_ID", "", text, honoured, "", "tag `dd.internal.entity_id` for DogStatsD"},
		{"DD_ENV", "", text, honoured, "", "tag `env` for DogStatsD"},
		{"DD_SERVICE", "", text, honoured, "", "tag `service` for DogStatsD"},
		{"DD_VERSION", "", text, honoured, "", "tag `version` for DogStatsD"},
		{"EXTRA_TAGS", "", pairs, honoured, "", "tags on all metrics, which are labels for Prometheus"},
		{"STATS_FLUSH_INTERVAL", "10s", interval, honoured, "", "how often statistics are sent to statsd and DogStatsD; Prometheus reads the current values"},
	}
}

func xds() []variable {
	return []variable{
		{"CONFIG_GRPC_XDS_NODE_ID", "default", text, honoured, "", "id of this node"},
		{"CONFIG_GRPC_XDS_NODE_METADATA", "", assignments, honoured, "", "metadata of this node, `k=v,k2=v2`; a pair without an equals sign is not sent"},
		{"CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", text, honoured, "", "address of the control plane"},
		{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", duration, honoured, "", "maximum of the first wait before connecting again"},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", secretPairs, honoured, "", "headers to send along, `k:v,k2:v2`"},
		{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", boolean, honoured, "", "TLS to the control plane"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", text, honoured, "", "file of the client's certificate, read again for each connection, as are those below"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", text, honoured, "", "file of its key"},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", text, honoured, "", "file of the CA of the control plane; if set, no other CA is trusted"},
		{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", text, honoured, "", "name that its certificate must have, instead of the host's"},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", duration, honoured, "", "maximum of the second wait in a row; the waits grow from there"},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", duration, honoured, "", "longest wait"},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", ratio, honoured, "", "growth of the wait; 1 and less, with which the reference's wait never grows, mean 2"},
		{"XDS_CLIENT_BACKOFF_JITTER", "true", boolean, honoured, "", "make each wait random, between zero and its maximum"},
		{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", integer, honoured, "", "largest message; 64 MiB unless set (4 MB in the reference)"},
		{"XDS_KEEP_ON_EMPTY", "false", boolean, honoured, "", "keep the last rules if the control plane has none any more (ours)"},
	}
}

func tracing() []variable {
	return []variable{
		{"TRACING_ENABLED", "false", boolean, honoured, "", "send traces over OTLP; `OTEL_EXPORTER_OTLP_ENDPOINT`, `_HEADERS`, `_CERTIFICATE`, `_TIMEOUT` and the like say where and how"},
		{"TRACING_SERVICE_NAME", "RateLimit", text, honoured, "", "name of the service"},
		{"TRACING_SERVICE_NAMESPACE", "", text, honoured, "", "its namespace"},
		{"TRACING_SERVICE_INSTANCE_ID", "", text, honoured, "", "its instance; random if empty"},
		{"TRACING_EXPORTER_PROTOCOL", "http", exporter, honoured, "", "`http` or `grpc`"},
		{"TRACING_SAMPLING_RATE", "1", ratio, honoured, "", "fraction of the traces to send, if the caller has not decided"},
		{"TRACING_VALUES", "false", boolean, honoured, "", "let spans contain the values of descriptors, which are data of end users (ours)"},
	}
}
