// Package settings turns the environment into typed values, once, at the start.
//
// One table, in table.go, lists every variable that envoyproxy/ratelimit reads, and our own, each with its default,
// what it accepts and what this release does with it. The table in the README is generated from it. A variable that is
// set but empty counts as not set. All errors are reported at once, each with the variable, its value and what it
// accepts.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

//go:generate go test -run ^TestREADME$ . -update

// Settings are the values of the variables that are honoured. Defaults are filled in.
type Settings struct {
	GRPC struct {
		Host       string        `env:"GRPC_HOST"`
		Port       string        `env:"GRPC_PORT"`
		UDS        string        `env:"GRPC_UDS"`
		MaxAge     time.Duration `env:"GRPC_MAX_CONNECTION_AGE"`
		Grace      time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE"`
		Reflection bool          `env:"GRPC_REFLECTION"`
		UseTLS     bool          `env:"GRPC_SERVER_USE_TLS"`
		Cert       string        `env:"GRPC_SERVER_TLS_CERT"`
		Key        string        `env:"GRPC_SERVER_TLS_KEY"`
		MinTLS     string        `env:"GRPC_SERVER_TLS_MIN_VERSION"`
		ClientCA   string        `env:"GRPC_CLIENT_TLS_CACERT"`
		ClientSANs []string      `env:"GRPC_CLIENT_TLS_SAN"`
	}
	HTTP struct {
		Host string `env:"HOST"`
		Port string `env:"PORT"`
	}
	Debug struct {
		Host string `env:"DEBUG_HOST"`
		Port string `env:"DEBUG_PORT"`
	}
	Rules struct {
		Source         string `env:"CONFIG_TYPE"`
		Root           string `env:"RUNTIME_ROOT"`
		Subdirectory   string `env:"RUNTIME_SUBDIRECTORY"`
		AppDirectory   string `env:"RUNTIME_APPDIRECTORY"`
		IgnoreDotFiles bool   `env:"RUNTIME_IGNOREDOTFILES"`
		WatchRoot      bool   `env:"RUNTIME_WATCH_ROOT"`
		MergeDomains   bool   `env:"MERGE_DOMAIN_CONFIG"`
		Strict         bool   `env:"RULES_STRICT"`
		ForceStart     bool   `env:"FORCE_START_WITHOUT_INITIAL_CONFIG"`
		HealthyWithOne bool   `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"`
	}
	XDS    XDS
	Decide struct {
		Shadow         bool    `env:"SHADOW_MODE"`
		Quota          bool    `env:"QUOTA_MODE"`
		StopWhenOver   bool    `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT"`
		NearLimitRatio float32 `env:"NEAR_LIMIT_RATIO"`
		CalendarMonths bool    `env:"USE_CALENDAR_MONTH_RATE_LIMIT"`
	}
	Answer struct {
		Headers          bool   `env:"LIMIT_RESPONSE_HEADERS_ENABLED"`
		LimitHeader      string `env:"LIMIT_LIMIT_HEADER"`
		RemainingHeader  string `env:"LIMIT_REMAINING_HEADER"`
		ResetHeader      string `env:"LIMIT_RESET_HEADER"`
		RetryAfterHeader string `env:"LIMIT_RETRY_AFTER_HEADER"`
		RuleHeader       string `env:"LIMIT_RULE_HEADER"`
		Body             string `env:"LIMIT_BODY"`
		DynamicMetadata  bool   `env:"RESPONSE_DYNAMIC_METADATA"`
		DecisionMetadata bool   `env:"DECISION_METADATA"`
	}
	Backend struct {
		Type          string `env:"BACKEND_TYPE"`
		MemoryMaxKeys int    `env:"MEMORY_MAX_KEYS"`
		LocalCache    int    `env:"LOCAL_CACHE_SIZE_IN_BYTES"` // 0 is off
		OnFailure     string `env:"DEFAULT_ON_FAILURE"`
		KeyPrefix     string `env:"CACHE_KEY_PREFIX"`
		JitterSeconds int    `env:"EXPIRATION_JITTER_MAX_SECONDS"`
		Assumed       bool   // neither BACKEND_TYPE nor REDIS_URL is set, so counters are in Redis, where the reference looks for it
	}
	NearCache struct {
		Keys    int           `env:"NEAR_CACHE_KEYS"`    // 0 is off
		Refusal time.Duration `env:"NEAR_CACHE_REFUSAL"` // 0 is off
		Leases  bool          `env:"NEAR_CACHE_LEASES"`
	}
	Redis          Redis
	RedisPerSecond RedisPerSecond
	Memcache       Memcache
	Admin          struct {
		On        bool   `env:"ADMIN"`
		TokenFile string `env:"ADMIN_TOKEN_FILE"`
	}
	DrainDelay time.Duration `env:"DRAIN_DELAY"`
	Log        struct {
		Level         Level  `env:"LOG_LEVEL"`
		Format        string `env:"LOG_FORMAT"`
		Refused       bool   `env:"LOG_REFUSED"`
		RefusedValues bool   `env:"LOG_REFUSED_VALUES"`
	}
	Tracing struct {
		On        bool    `env:"TRACING_ENABLED"`
		Service   string  `env:"TRACING_SERVICE_NAME"`
		Namespace string  `env:"TRACING_SERVICE_NAMESPACE"`
		Instance  string  `env:"TRACING_SERVICE_INSTANCE_ID"`
		Protocol  string  `env:"TRACING_EXPORTER_PROTOCOL"`
		Rate      float64 `env:"TRACING_SAMPLING_RATE"`
		Values    bool    `env:"TRACING_VALUES"`
	}
	Stats struct {
		Disable          bool          `env:"DISABLE_STATS"`
		MaxSeries        int           `env:"METRIC_MAX_SERIES"`
		Statsd           bool          `env:"USE_STATSD"` // at most one of Statsd, DogStatsd and Prometheus is on, unless Disable is
		DogStatsd        bool          `env:"USE_DOG_STATSD"`
		StatsdHost       string        `env:"STATSD_HOST"`
		StatsdPort       string        `env:"STATSD_PORT"`
		StatsdProtocol   string        `env:"STATSD_PROTOCOL"`
		MogrifierNames   []string      `env:"USE_DOG_STATSD_MOGRIFIERS"`
		Mogrifiers       []Mogrifier   // one for each of the names, in their order
		FlushInterval    time.Duration `env:"STATS_FLUSH_INTERVAL"`
		Prometheus       bool          `env:"USE_PROMETHEUS"`
		PrometheusAddr   string        `env:"PROMETHEUS_ADDR"`
		PrometheusPath   string        `env:"PROMETHEUS_PATH"`
		PrometheusMapper string        `env:"PROMETHEUS_MAPPER_YAML"`
		Milliseconds     bool          `env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"`

		ExtraTags map[string]string `env:"EXTRA_TAGS"`
		Datadog   Datadog
	}
}

// Datadog holds what Datadog's client reads: tags for everything that is sent to DogStatsD.
type Datadog struct {
	EntityID string `env:"DD_ENTITY_ID"`
	Env      string `env:"DD_ENV"`
	Service  string `env:"DD_SERVICE"`
	Version  string `env:"DD_VERSION"`
}

// Redis says where the counters are in Redis.
type Redis struct {
	Type         string        `env:"REDIS_TYPE"`
	Socket       string        `env:"REDIS_SOCKET_TYPE"`
	URL          string        `env:"REDIS_URL"`
	Auth         string        `env:"REDIS_AUTH"`
	AuthFile     string        `env:"REDIS_AUTH_FILE"`
	SentinelAuth string        `env:"REDIS_SENTINEL_AUTH"`
	TLS          bool          `env:"REDIS_TLS"`
	PoolSize     int           `env:"REDIS_POOL_SIZE"`
	DialTimeout  time.Duration `env:"REDIS_TIMEOUT"`
	OpTimeout    time.Duration `env:"REDIS_OP_TIMEOUT"`

	// The following also applies to the Redis for limits per second.

	Cert         string `env:"REDIS_TLS_CLIENT_CERT"`
	Key          string `env:"REDIS_TLS_CLIENT_KEY"`
	CA           string `env:"REDIS_TLS_CACERT"`
	SkipHostname bool   `env:"REDIS_TLS_SKIP_HOSTNAME_VERIFICATION"`
	KeyFormat    string `env:"REDIS_KEY_FORMAT"`
	HealthActive bool   `env:"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION"`
}

// RedisPerSecond says where the counters of limits per second are, if they have a Redis of their own.
type RedisPerSecond struct {
	On           bool          `env:"REDIS_PERSECOND"`
	Type         string        `env:"REDIS_PERSECOND_TYPE"`
	Socket       string        `env:"REDIS_PERSECOND_SOCKET_TYPE"`
	URL          string        `env:"REDIS_PERSECOND_URL"`
	Auth         string        `env:"REDIS_PERSECOND_AUTH"`
	AuthFile     string        `env:"REDIS_PERSECOND_AUTH_FILE"`
	SentinelAuth string        `env:"REDIS_PERSECOND_SENTINEL_AUTH"`
	TLS          bool          `env:"REDIS_PERSECOND_TLS"`
	PoolSize     int           `env:"REDIS_PERSECOND_POOL_SIZE"`
	DialTimeout  time.Duration `env:"REDIS_PERSECOND_TIMEOUT"`
	OpTimeout    time.Duration `env:"REDIS_PERSECOND_OP_TIMEOUT"`
}

// Memcache says where the counters are in memcached.
type Memcache struct {
	Servers      []string      `env:"MEMCACHE_HOST_PORT"`
	SRV          string        `env:"MEMCACHE_SRV"`
	SRVRefresh   time.Duration `env:"MEMCACHE_SRV_REFRESH"`
	MaxIdleConns int           `env:"MEMCACHE_MAX_IDLE_CONNS"`
	OpTimeout    time.Duration `env:"MEMCACHE_OP_TIMEOUT"`
	KeyFormat    string        `env:"MEMCACHE_KEY_FORMAT"`
	TLS          bool          `env:"MEMCACHE_TLS"`
	Cert         string        `env:"MEMCACHE_TLS_CLIENT_CERT"`
	Key          string        `env:"MEMCACHE_TLS_CLIENT_KEY"`
	CA           string        `env:"MEMCACHE_TLS_CACERT"`
	SkipHostname bool          `env:"MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION"`
}

// Level is how much is logged, under the reference's names. Panic and fatal log only errors, since there is nothing
// worse here; trace is below debug.
type Level slog.Level

// UnmarshalText reads one of the reference's names, in any case.
func (l *Level) UnmarshalText(name []byte) error {
	switch strings.ToLower(string(name)) {
	case "panic", "fatal", "error":
		*l = Level(slog.LevelError)
	case "warn", "warning":
		*l = Level(slog.LevelWarn)
	case "info":
		*l = Level(slog.LevelInfo)
	case "debug":
		*l = Level(slog.LevelDebug)
	case "trace":
		*l = Level(slog.LevelDebug - 4)
	default:
		return errors.New(level.takes())
	}
	return nil
}

// Parse reads the settings from the environment, a list of NAME=value as [os.Environ] returns it. Notices say what is
// accepted and has no effect, or another one than it says, each in a sentence for the log. The error has everything that is wrong, one line each.
func Parse(environ []string) (s Settings, notices []string, err error) {
	given := givenIn(environ)
	values, notices, problems := lookUp(given)
	problems = append(problems, relations(given, values)...)
	if len(problems) > 0 {
		return Settings{}, nil, errors.Join(problems...)
	}
	if s, err = typed(values); err != nil {
		return Settings{}, nil, err
	}
	s.Backend.Assumed = given["BACKEND_TYPE"] == "" && given["REDIS_URL"] == ""
	s.Stats.StatsdProtocol = strings.ToLower(s.Stats.StatsdProtocol)
	s.Stats.Mogrifiers = mogrifiers(given, s.Stats.MogrifierNames)
	return s, append(notices, s.withoutTLS()...), nil
}

// Only reads the named variables as [Parse] does, for a command that needs no others; those have their defaults. Each is
// checked on its own: whether a server could start with all of them is not asked. The error has everything that is wrong
// with them, one line each, and then all have their defaults.
func Only(environ []string, names ...string) (Settings, error) {
	given := givenIn(environ)
	maps.DeleteFunc(given, func(name, _ string) bool { return !slices.Contains(names, name) })
	values, _, problems := lookUp(given)
	problems = append(problems, checkType(values["BACKEND_TYPE"])...)
	if len(problems) > 0 {
		values, _, _ = lookUp(nil)
	}
	s, err := typed(values)
	return s, errors.Join(append(problems, err)...)
}

// givenIn returns the variables of an environment that are set, and not to nothing.
func givenIn(environ []string) map[string]string {
	given := map[string]string{}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); value != "" {
			given[name] = value
		}
	}
	return given
}

// typed returns values, which have been checked, as settings.
func typed(values map[string]string) (s Settings, err error) {
	err = env.ParseWithOptions(&s, env.Options{Environment: values, FuncMap: map[reflect.Type]env.ParserFunc{
		reflect.TypeFor[int](): func(v string) (any, error) { return parseInt(v) },
	}})
	if err != nil {
		return Settings{}, fmt.Errorf("reading the environment: %w", err)
	}
	return s, nil
}

// lookUp fills in the defaults, and checks each variable on its own.
func lookUp(given map[string]string) (values map[string]string, notices []string, problems []error) {
	chosen := word(cmp.Or(given["BACKEND_TYPE"], redis), BackendTypes()...)
	values = map[string]string{}
	for _, v := range variables() {
		values[v.name] = v.def
		value, set := given[v.name]
		if !set || !v.of(chosen) {
			continue
		}
		value, notice := v.instead(value)
		values[v.name] = value
		if notice != "" {
			notices = append(notices, notice)
		}
		switch {
		case v.kind.same(value, v.def):
		case v.kind.check(value) != nil && v.kind == secretPairs:
			problems = append(problems, fmt.Errorf("%s takes %s", v.name, v.kind.takes()))
		case v.kind.check(value) != nil:
			problems = append(problems, wrong(v.name, value, v.kind.takes()))
		case v.state == tuning:
			notices = append(notices, fmt.Sprintf("%s=%s has no effect: this server needs no such tuning", v.name, value))
		}
	}
	if given["USE_STATSD"] == "" && (boolean.same(values["USE_PROMETHEUS"], "true") || boolean.same(values["USE_DOG_STATSD"], "true")) {
		values["USE_STATSD"] = "false" // choosing another sink is enough to turn this one off
	}
	if !boolean.same(values["GRPC_SERVER_USE_TLS"], "true") {
		for _, name := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_CLIENT_TLS_CACERT"} {
			if given[name] != "" {
				notices = append(notices, name+noTLS)
			}
		}
	}
	return values, notices, problems
}

// noTLS is the notice for variables that make a plain listener look as if it spoke TLS, or verified clients.
const noTLS = " has no effect without GRPC_SERVER_USE_TLS=true: gRPC is plain text, and clients are asked for no certificate"

func wrong(name, value, takes string) error {
	return fmt.Errorf("%s=%q: takes %s", name, value, takes)
}

// relations returns what is wrong with values that must be one of a few, or that do not go together.
func relations(given, values map[string]string) []error {
	var problems []error
	problems = append(problems, checkBackend(given, values["BACKEND_TYPE"])...)
	if boolean.same(values["TRACING_ENABLED"], "true") {
		problems = append(problems, checkOTLP(given, values["TRACING_EXPORTER_PROTOCOL"])...)
	}
	switch v := values["CONFIG_TYPE"]; v {
	case "FILE":
	case "GRPC_XDS_SOTW", "GRPC_XDS_DELTA":
		problems = append(problems, checkXDS(given)...)
	default:
		problems = append(problems, wrong("CONFIG_TYPE", v, "FILE, GRPC_XDS_SOTW or GRPC_XDS_DELTA"))
	}
	problems = append(problems, checkTLS(given)...)
	for _, prefix := range []string{"REDIS_", "REDIS_PERSECOND_"} {
		if given[prefix+"AUTH"] != "" && given[prefix+"AUTH_FILE"] != "" && values["BACKEND_TYPE"] == redis {
			problems = append(problems, fmt.Errorf("%sAUTH and %[1]sAUTH_FILE are both set: unset one of them", prefix))
		}
	}
	problems = append(problems, checkSinks(given, values)...)
	return problems
}

// checkTLS returns what is missing for TLS on the gRPC listener.
func checkTLS(given map[string]string) []error {
	if !boolean.same(given["GRPC_SERVER_USE_TLS"], "true") {
		return nil
	}
	var problems []error
	for _, file := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"} {
		if given[file] == "" {
			problems = append(problems, fmt.Errorf("GRPC_SERVER_USE_TLS=true needs %s: the path of a PEM file", file))
		}
	}
	if given["GRPC_CLIENT_TLS_SAN"] != "" && given["GRPC_CLIENT_TLS_CACERT"] == "" {
		problems = append(problems, errors.New("GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT: "+
			"the path of a PEM file of the CA that vouches for these names; without it clients are asked for no certificate"))
	}
	return problems
}

// checkBackend returns why counters cannot be kept where BACKEND_TYPE says.
func checkBackend(given map[string]string, v string) []error {
	if v == memcache {
		return checkMemcache(given)
	}
	return checkType(v)
}

// checkType returns what is wrong with the value of BACKEND_TYPE.
func checkType(v string) []error {
	if types := BackendTypes(); !slices.Contains(types, v) {
		last := len(types) - 1
		return []error{wrong("BACKEND_TYPE", v, strings.Join(types[:last], ", ")+" or "+types[last])}
	}
	return nil
}
