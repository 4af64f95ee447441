package settings

import (
	"encoding"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// state is the reason why a variable has no field in [Settings].
type state uint8

const (
	accepted state = iota // allowed without any effect
	tuning                // affects only the reference's speed; values other than the default cause a notice
)

// variable is a row of the table.
type variable struct {
	name    string
	def     string // default
	kind    kind
	to      any    // pointer to a field of [Settings], or a state
	backend string // the backend that uses it, or shared; empty means all
	text    string // description in Markdown
}

// set stores a value in the variable's field, if any.
func (v *variable) set(value string) (err error) {
	switch to := v.to.(type) {
	case state:
	case *string:
		*to = value
	case *bool:
		*to, err = strconv.ParseBool(value)
	case *int:
		*to, err = parseInt(value)
	case *float32:
		f, parseErr := strconv.ParseFloat(value, 32)
		*to, err = float32(f), parseErr
	case *float64:
		*to, err = strconv.ParseFloat(value, 64)
	case *time.Duration:
		*to, err = time.ParseDuration(value)
	case *[]string:
		for name := range strings.SplitSeq(value, ",") {
			*to = append(*to, strings.TrimSpace(name))
		}
	case *map[string]string:
		*to = v.kind.pairsOf(value)
	case encoding.TextUnmarshaler:
		err = to.UnmarshalText([]byte(value))
	default:
		err = fmt.Errorf("a field of type %T takes no value", to)
	}
	return err
}

// variables returns all variables, in the order of docs/settings.md. Names and defaults are envoyproxy/ratelimit's,
// except for extensions.
func variables(s *Settings) []variable {
	var all []variable
	for _, part := range sections(s) {
		all = append(all, part.rows...)
	}
	return all
}

// SecretFiles returns the names of files with secrets, by variable.
func (s *Settings) SecretFiles() map[string]string {
	all := map[string]string{}
	for _, v := range variables(s) {
		path, _ := v.to.(*string)
		if path != nil && *path != "" && v.name != "TENANTS_FILE" && (strings.HasSuffix(v.name, "_FILE") || strings.HasSuffix(v.name, "_KEY")) {
			all[v.name] = *path
		}
	}
	return all
}

// Variable is a row of [Table].
type Variable struct {
	Name, Default string
	Accepts       string   // description of its values, as the end of a sentence
	Words         []string // all values, ignoring case, if there are only a few
	NoEffect      bool     // it has no effect, and values other than the default are logged
	Inert         bool     // it has no effect, logged or not
}

// Table returns every variable, in the order of docs/settings.md.
func Table() []Variable {
	var all []Variable
	for _, v := range variables(new(Settings)) {
		_, inert := v.to.(state)
		all = append(all, Variable{
			Name: v.name, Default: v.def, Accepts: v.kind.takes(), Words: v.kind.accepts().words, NoEffect: v.to == tuning, Inert: inert,
		})
	}
	return all
}

// section is a part of the table with a heading.
type section struct {
	title string
	rows  []variable
}

func sections(s *Settings) []section {
	return append([]section{
		{"Listening", listening(s)},
		{"Rules", rules(s)},
		{"Deciding", deciding(s)},
		{"Answers", answers(s)},
		{"Backend", backends(s)},
		{"Administration, health and logs", operation(s)},
		{"Metrics", metrics(s)},
		{"Rules over xDS", xds(s)},
		{"Tracing", tracing(s)},
	}, stores(s)...)
}

func listening(s *Settings) []variable {
	return []variable{
		{"GRPC_HOST", "0.0.0.0", host, &s.GRPC.Host, "", "address of the gRPC listener"},
		{"GRPC_PORT", "8081", port, &s.GRPC.Port, "", "port of the gRPC listener"},
		{"GRPC_UDS", "", text, &s.GRPC.UDS, "", "path of a unix socket to serve gRPC on instead of a port"},
		{"GRPC_MAX_CONNECTION_AGE", "24h", duration, &s.GRPC.MaxAge, "", "maximum age of a connection, after which the client is asked to open a new one; 0 means unlimited"},
		{"GRPC_MAX_CONNECTION_AGE_GRACE", "1h", duration, &s.GRPC.Grace, "", "how long calls may continue after GRPC_MAX_CONNECTION_AGE; 0 means unlimited"},
		{"GRPC_MAX_WAITING_CALLS", "4096", positive, &s.GRPC.MaxWaiting, "", "maximum number of calls that wait for their message, for ShouldRateLimit and for other methods each; further calls are UNAVAILABLE. The connection of a call that has waited for 10 s is closed (extension)"},
		{"GRPC_ADDRESS_SHARE", "0.25", ratio, &s.GRPC.AddressShare, "", "maximum share of a port's connections for one IP address, loopback and proxies included. A /64 IPv6 network counts as one address, and may exceed its share until all connections are taken. The share also applies to RLQS_MEMORY_IN_BYTES and the buckets of a domain: an address above it gives way to other addresses. 0 means no limit; a unix socket has none (extension)"},
		{"RLQS_MEMORY_IN_BYTES", "268435456", positive, &s.GRPC.RLQSMemory, "", "estimated memory for clients that decide locally: see [RLQS](rlqs.md#operations) (extension)"},
		{"GRPC_REFLECTION", "false", boolean, &s.GRPC.Reflection, "", "serve gRPC reflection, for tools such as grpcurl (extension)"},
		{"GRPC_SERVER_USE_TLS", "false", boolean, &s.GRPC.UseTLS, "", "TLS on the gRPC listener; needs the certificate and the key"},
		{"GRPC_SERVER_TLS_CERT", "", text, &s.GRPC.Cert, "", "file of the certificate and its chain, read again when it changes"},
		{"GRPC_SERVER_TLS_KEY", "", text, &s.GRPC.Key, "", "file of the key, which may be in another directory; read again when it changes"},
		{"GRPC_SERVER_TLS_MIN_VERSION", "1.2", tlsVersion, &s.GRPC.MinTLS, "", "oldest accepted TLS version, `1.2` or `1.3` (extension)"},
		{"GRPC_SERVER_TLS_CA_CERT", "", text, accepted, "", "set by Envoy Gateway; doesn't make the server request client certificates"},
		{"GRPC_CLIENT_TLS_CACERT", "", text, &s.GRPC.ClientCA, "", "file of the CAs for client certificates; if empty, the server requests none"},
		{"GRPC_CLIENT_TLS_SAN", "", names, &s.GRPC.ClientSANs, "", "DNS names and URIs (`spiffe://…`), separated by commas; a client's certificate must contain one of them"},
		{"HOST", "0.0.0.0", host, &s.HTTP.Host, "", "address of the HTTP listener: `/json`, `/healthcheck`, `/livez`, `/readyz`"},
		{"PORT", "8080", port, &s.HTTP.Port, "", "port of the HTTP listener"},
		{"JSON_MAX_BODY_SIZE_IN_BYTES", "1048576", positive, &s.HTTP.MaxBody, "", "largest body of a request to `/json`; larger ones get 413 (extension)"},
		{"DEBUG_HOST", "0.0.0.0", host, &s.Debug.Host, "", "address of the debug listener: `/rlconfig`, `/stats`, `/metrics`, and pprof, which requires the token of ADMIN_TOKEN_FILE or, without a token file, a loopback address here and a caller on this machine"},
		{"DEBUG_PORT", "6070", port, &s.Debug.Port, "", "port of the debug listener"},
		{"DEBUG_TLS", "false", boolean, &s.Debug.TLS, "", "TLS on the debug listener, with the certificate and the key of GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY; clients need no certificate (extension)"},
	}
}

func rules(s *Settings) []variable {
	return []variable{
		{"CONFIG_TYPE", "FILE", source, &s.Rules.Source, "", "source of the rules: `FILE`, or over xDS `GRPC_XDS_SOTW` (all rules each time) or `GRPC_XDS_DELTA` (only changes; an extension)"},
		{"RUNTIME_ROOT", "/srv/runtime_data/current", text, &s.Rules.Root, "", "rules directory; may be a symbolic link that is swapped"},
		{"RUNTIME_SUBDIRECTORY", "", text, &s.Rules.Subdirectory, "", "directory below RUNTIME_ROOT"},
		{"RUNTIME_APPDIRECTORY", "config", text, &s.Rules.AppDirectory, "", "directory below RUNTIME_SUBDIRECTORY, read recursively"},
		{"RUNTIME_IGNOREDOTFILES", "false", boolean, &s.Rules.IgnoreDotFiles, "", "ignore files and directories whose names begin with a dot; names that begin with two dots are always ignored"},
		{"RUNTIME_WATCH_ROOT", "true", boolean, &s.Rules.WatchRoot, "", "also read files and directories next to RUNTIME_APPDIRECTORY whose names begin with its name and a dot, such as `config.yaml`; changes are noticed either way"},
		{"MERGE_DOMAIN_CONFIG", "false", boolean, &s.Rules.MergeDomains, "", "allow several files to have descriptors for the same domain"},
		{"RULES_STRICT", "false", boolean, &s.Rules.Strict, "", "treat warnings as errors (extension)"},
		{"RULES_OVERLAY", "", text, &s.Rules.Overlay, "", "file or directory of changes to the rules, to add ratelimitd's keys to rules that another system provides in files or over xDS (extension)"},
		{"FORCE_START_WITHOUT_INITIAL_CONFIG", "false", boolean, &s.Rules.ForceStart, "", "be healthy before the first rules are loaded"},
		{"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", boolean, &s.Rules.HealthyWithOne, "", "be healthy only once rules are loaded, regardless of FORCE_START_WITHOUT_INITIAL_CONFIG"},
		{"TENANTS_FILE", "", text, &s.Rules.TenantsFile, "", "file, or directory of files, with the plan of each tenant, in lines of `tenant,plan[,requests_per_unit[,until]]` or of JSON; read again when it changes (extension)"},
	}
}

func deciding(s *Settings) []variable {
	return []variable{
		{"SHADOW_MODE", "false", boolean, &s.Decide.Shadow, "", "decide and count, but let every request pass"},
		{"QUOTA_GROUP_BY", "", names, &s.Rules.QuotaGroupBy, "", "keys of entries, such as `model`: descriptors in quota mode with equal values of these keys form a group. A group is over once one of its limits is exceeded, and a request is rejected once all its groups are over. Applies to domains without `quota_group_by` (extension)"},
		{"QUOTA_MODE", "false", boolean, &s.Decide.Quota, "", "put every rule in quota mode: reject a request only if all of its rules are over their limits"},
		{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false", boolean, &s.Decide.StopWhenOver, "", "if one descriptor of a request is over its limit, consume nothing for its other descriptors"},
		{"NEAR_LIMIT_RATIO", "0.8", ratio, &s.Decide.NearLimitRatio, "", "fraction of a limit beyond which hits count as near it"},
		{"USE_CALENDAR_MONTH_RATE_LIMIT", "false", boolean, &s.Decide.CalendarMonths, "", "use calendar months in UTC, instead of 30 days, for monthly limits"},
	}
}

func answers(s *Settings) []variable {
	return []variable{
		{"LIMIT_RESPONSE_HEADERS_ENABLED", "false", boolean, &s.Answer.Headers, "", "add headers with the limit, the hits left, and the time of the reset"},
		{"LIMIT_HEADERS_FORMAT", "reference", headersFormat, &s.Answer.HeadersFormat, "", "`reference` for the three headers named below, or `draft` for `RateLimit` and `RateLimit-Policy` as in the IETF's draft-ietf-httpapi-ratelimit-headers (extension)"},
		{"LIMIT_LIMIT_HEADER", "RateLimit-Limit", header, &s.Answer.LimitHeader, "", "name of the header with the limit"},
		{"LIMIT_REMAINING_HEADER", "RateLimit-Remaining", header, &s.Answer.RemainingHeader, "", "name of the header with the hits left"},
		{"LIMIT_RESET_HEADER", "RateLimit-Reset", header, &s.Answer.ResetHeader, "", "name of the header with the seconds until it resets"},
		{"LIMIT_RETRY_AFTER_HEADER", "", header, &s.Answer.RetryAfterHeader, "", "name of a header that tells rejected clients when to try again, such as `Retry-After`, unless the request can never pass; empty means no header (extension)"},
		{"LIMIT_RULE_HEADER", "", header, &s.Answer.RuleHeader, "", "name of a header, for the upstream and the caller, with the name of the rule that applied, or its path if it has no name; empty means no header (extension)"},
		{"LIMIT_REQUEST_HEADERS_ENABLED", "false", boolean, &s.Answer.Request.Headers, "", "add three headers for the same limit to the upstream request, whether over the limit or not, and regardless of LIMIT_HEADERS_FORMAT"},
		{"LIMIT_REQUEST_LIMIT_HEADER", "RateLimit-Limit", header, &s.Answer.Request.LimitHeader, "", "name of the upstream's header with the limit"},
		{"LIMIT_REQUEST_REMAINING_HEADER", "RateLimit-Remaining", header, &s.Answer.Request.RemainingHeader, "", "name of the upstream's header with the hits left"},
		{"LIMIT_REQUEST_RESET_HEADER", "RateLimit-Reset", header, &s.Answer.Request.ResetHeader, "", "name of the upstream's header with the seconds until it resets"},
		{"LIMIT_SHADOW_HEADER", "", header, &s.Answer.ShadowHeader, "", "name of an upstream header for requests over a limit that pass only because of shadow mode. Its value is the name of the first such rule, or its path if it has no name; empty means no header (extension)"},
		{"LIMIT_BODY", "", text, &s.Answer.Body, "", "template for the body of rejections, with `{{rule}}`, `{{domain}}`, `{{limit}}`, `{{unit}}`, `{{remaining}}` and `{{retry_after}}`; a template that begins with a brace is JSON; if empty, Envoy makes the body (extension)"},
		{"RESPONSE_DYNAMIC_METADATA", "false", boolean, &s.Answer.DynamicMetadata, "", "add dynamic metadata: the request, and the metadata of the rules"},
		{"DECISION_METADATA", "false", boolean, &s.Answer.DecisionMetadata, "", "add dynamic metadata: the time, and for each descriptor the rule with its file and line, the hits left, and the wait (extension)"},
	}
}

func operation(s *Settings) []variable {
	return []variable{
		{"ADMIN", "true", boolean, &s.Admin.On, "", "serve the admin API: with full access on ADMIN_SOCKET; on the gRPC listener, and on the debug listener as JSON below `/admin/v1/` and as the console at `/ui/`, to callers with the token. Without ADMIN_TOKEN_FILE, these two listeners give this machine read-only access (extension)"},
		{"ADMIN_SOCKET", "", text, &s.Admin.Socket, "", "path of the unix socket of the admin API, which serves only the user of this process and root. By default, it is in `ratelimitd-UID` below the directory for temporary files. Its name depends on GRPC_PORT or GRPC_UDS and, on Linux, on the network namespace. A failure to create it is logged (extension)"},
		{"ADMIN_TOKEN_FILE", "", text, &s.Admin.TokenFile, "", "file with the token that callers need for the admin API and pprof, even on this machine. For several tokens, use lines of `name: token` (the name is in the audit log) or `name[domains=a,b]: token` (for only these domains) (extension)"},
		{"ADMIN_READ_TOKEN_FILE", "", text, &s.Admin.ReadTokenFile, "", "file with the token, or several, for read-only access (extension)"},
		{"ADMIN_READ_SEES_VALUES", "false", boolean, &s.Admin.ReadSeesValues, "", "show values of descriptors, which are data of end users, to callers with read-only access (extension)"},
		{"ADMIN_TLS_SAN", "", names, &s.Admin.SANs, "", "DNS names and URIs (`spiffe://…`), separated by commas, of clients' certificates that replace the token of ADMIN_TOKEN_FILE on the gRPC listener; needs GRPC_CLIENT_TLS_CACERT (extension)"},
		{"ADMIN_READ_TLS_SAN", "", names, &s.Admin.ReadSANs, "", "the same for ADMIN_READ_TOKEN_FILE (extension)"},
		{"ADMIN_TOKENS_IN_CLEAR", "false", boolean, &s.Admin.TokensInClear, "", "accept tokens over a network without TLS, where others can read them; from this machine, they are always accepted (extension)"},
		{"DRAIN_DELAY", "5s", duration, &s.DrainDelay, "", "how long to continue serving after SIGTERM, while already unhealthy (extension)"},
		{"LOG_LEVEL", "INFO", level, &s.Log.Level, "", "`panic`, `fatal`, `error`, `warn`, `info`, `debug` or `trace`"},
		{"LOG_FORMAT", "text", logFormat, &s.Log.Format, "", "`text` or `json`; anything else is `text`"},
		{"LOG_REJECTED", "false", boolean, &s.Log.Rejected, "", "log rejected requests, with rule, limit and domain: for each rule, the first 10 in a second, and then one in 1,000 (extension)"},
		{"LOG_REJECTED_VALUES", "false", boolean, &s.Log.RejectedValues, "", "the same, with the keys and values of the descriptor, which may be personal data (extension)"},
	}
}

func metrics(s *Settings) []variable {
	return []variable{
		{"DISABLE_STATS", "false", boolean, &s.Stats.Disable, "", "serve no metrics, regardless of other variables"},
		{"METRIC_MAX_SERIES", "1000", positive, &s.Stats.MaxSeries, "", "maximum number of metric keys per rule that request values may create, at an average of 128 bytes each; further keys are counted as `__other__` (extension)"},
		{"SANITIZE_DESCRIPTOR_METRIC_DOTS", "false", boolean, &s.Stats.SanitizeDots, "", "in metric names, replace dots in descriptor keys and values with underscores, so that a name has as many parts as the rule has levels"},
		{"USE_PROMETHEUS", "false", boolean, &s.Stats.Prometheus, "", "serve metrics for Prometheus on a separate listener; the debug listener has them in any case"},
		{"PROMETHEUS_ADDR", ":9090", address, &s.Stats.PrometheusAddr, "", "address of the Prometheus listener"},
		{"PROMETHEUS_PATH", "/metrics", path, &s.Stats.PrometheusPath, "", "path of the metrics on the Prometheus listener"},
		{"PROMETHEUS_MAPPER_YAML", "", text, &s.Stats.PrometheusMapper, "", "mapping file of statsd_exporter, used to name the series instead of the built-in mapping"},
		{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "false", boolean, &s.Stats.Milliseconds, "", "response times in milliseconds, under the same name; a mapping file has its own `scale`"},
		{"USE_STATSD", "true", boolean, &s.Stats.Statsd, "", "send statistics to statsd; if not set, it is `false` when USE_PROMETHEUS or USE_DOG_STATSD is true"},
		{"STATSD_HOST", "localhost", text, &s.Stats.StatsdHost, "", "host of statsd and DogStatsD"},
		{"STATSD_PORT", "8125", port, &s.Stats.StatsdPort, "", "port of statsd and DogStatsD"},
		{"STATSD_PROTOCOL", "tcp", protocol, &s.Stats.StatsdProtocol, "", "`tcp` or `udp`, for statsd; DogStatsD is always `udp`"},
		{"USE_DOG_STATSD", "false", boolean, &s.Stats.DogStatsd, "", "send statistics to DogStatsD instead"},
		{"USE_DOG_STATSD_MOGRIFIERS", "", list, &s.Stats.MogrifierNames, "", "names of mogrifiers, which rewrite metric names for DogStatsD; the first match is used. Each has DOG_STATSD_MOGRIFIER_*NAME*_PATTERN, a regular expression, and _NAME and _TAGS (`k:v,k2:v2`), in which `$1` is a group"},
		{"DD_ENTITY_ID", "", text, &s.Stats.Datadog.EntityID, "", "tag `dd.internal.entity_id` for DogStatsD"},
		{"DD_ENV", "", text, &s.Stats.Datadog.Env, "", "tag `env` for DogStatsD"},
		{"DD_SERVICE", "", text, &s.Stats.Datadog.Service, "", "tag `service` for DogStatsD"},
		{"DD_VERSION", "", text, &s.Stats.Datadog.Version, "", "tag `version` for DogStatsD"},
		{"EXTRA_TAGS", "", pairs, &s.Stats.ExtraTags, "", "tags on all metrics, which are labels for Prometheus"},
		{"STATS_FLUSH_INTERVAL", "10s", interval, &s.Stats.FlushInterval, "", "how often statistics are sent to statsd and DogStatsD; Prometheus reads the current values"},
	}
}

func xds(s *Settings) []variable {
	return []variable{
		{"CONFIG_GRPC_XDS_NODE_ID", "default", text, &s.XDS.NodeID, "", "id of this node"},
		{"CONFIG_GRPC_XDS_NODE_METADATA", "", assignments, &s.XDS.NodeMetadata, "", "metadata of this node, `k=v,k2=v2`; a pair without an equals sign is not sent"},
		{"CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", text, &s.XDS.Server, "", "address of the control plane"},
		{"CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s", duration, &s.XDS.FirstWait, "", "maximum wait before the first attempt to reconnect"},
		{"CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", secretPairs, &s.XDS.Headers, "", "headers to send, `k:v,k2:v2`"},
		{"CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", boolean, &s.XDS.TLS, "", "TLS to the control plane"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", text, &s.XDS.Cert, "", "file of the client's certificate, read again for each connection, like the files below"},
		{"CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", text, &s.XDS.Key, "", "file of its key"},
		{"CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", text, &s.XDS.CA, "", "file of the control plane's CA; if set, no other CA is trusted"},
		{"CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", text, &s.XDS.SAN, "", "name that the server's certificate must have, instead of the host's"},
		{"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s", duration, &s.XDS.BackoffInitial, "", "maximum wait before the second attempt to reconnect; later waits grow from there"},
		{"XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", duration, &s.XDS.BackoffMax, "", "longest wait"},
		{"XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.5", ratio, &s.XDS.BackoffFactor, "", "growth factor of the wait; 1 or less means 2, though the reference's wait then never grows"},
		{"XDS_CLIENT_BACKOFF_JITTER", "true", boolean, &s.XDS.BackoffJitter, "", "make each wait random, between zero and its maximum"},
		{"XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", integer, &s.XDS.MaxMessage, "", "largest message; 64 MiB unless set (4 MB in the reference)"},
		{"XDS_KEEP_ON_EMPTY", "false", boolean, &s.XDS.KeepOnEmpty, "", "keep the last rules if the control plane no longer has any (extension)"},
	}
}

func tracing(s *Settings) []variable {
	return []variable{
		{"TRACING_ENABLED", "false", boolean, &s.Tracing.On, "", "send traces over OTLP; `OTEL_EXPORTER_OTLP_ENDPOINT`, `_HEADERS`, `_CERTIFICATE`, `_TIMEOUT` and so on set the destination"},
		{"TRACING_SERVICE_NAME", "RateLimit", text, &s.Tracing.Service, "", "name of the service"},
		{"TRACING_SERVICE_NAMESPACE", "", text, &s.Tracing.Namespace, "", "its namespace"},
		{"TRACING_SERVICE_INSTANCE_ID", "", text, &s.Tracing.Instance, "", "its instance; random if empty"},
		{"TRACING_EXPORTER_PROTOCOL", "http", exporter, &s.Tracing.Protocol, "", "`http` or `grpc`"},
		{"TRACING_SAMPLING_RATE", "1", ratio, &s.Tracing.Rate, "", "fraction of traces to send, if the caller has not decided"},
		{"TRACING_VALUES", "false", boolean, &s.Tracing.Values, "", "include the values of descriptors, which are data of end users, in spans (extension)"},
	}
}
