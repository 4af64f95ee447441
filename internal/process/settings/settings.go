// Package settings parses the environment into typed values, once at startup.
//
// The table in table.go and, for backends, in table_stores.go lists all variables of envoyproxy/ratelimit and all extensions.
// Each row has the default, the accepted values, and the field of [Settings], or the reason why it has none. The table in
// docs/settings.md is generated from it. An empty variable counts as unset. All errors are reported together, each with the
// variable, its value, and the accepted values.
//
// This package is part of the process.
package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"
)

//go:generate go test -run ^TestDocument$ . -rewrite

// Settings are the values of all variables, including defaults.
type Settings struct {
	GRPC struct {
		Host         string
		Port         string
		UDS          string
		MaxAge       time.Duration
		Grace        time.Duration
		MaxWaiting   int
		AddressShare float64
		RLQSMemory   int // in bytes
		Reflection   bool
		UseTLS       bool
		Cert         string
		Key          string
		MinTLS       string
		ClientCA     string
		ClientSANs   []string
	}
	HTTP struct {
		Host    string
		Port    string
		MaxBody int // in bytes
	}
	Debug struct {
		Host string
		Port string
		TLS  bool
	}
	Rules struct {
		Source         string
		Root           string
		Subdirectory   string
		AppDirectory   string
		IgnoreDotFiles bool
		WatchRoot      bool
		MergeDomains   bool
		Strict         bool
		Overlay        string
		QuotaGroupBy   []string
		ForceStart     bool
		HealthyWithOne bool
		TenantsFile    string
	}
	XDS    XDS
	Decide struct {
		Shadow         bool
		Quota          bool
		StopWhenOver   bool
		NearLimitRatio float32
		CalendarMonths bool
	}
	Answer struct {
		Headers          bool
		HeadersFormat    string
		LimitHeader      string
		RemainingHeader  string
		ResetHeader      string
		RetryAfterHeader string
		RuleHeader       string
		ShadowHeader     string
		Request          struct {
			Headers         bool
			LimitHeader     string
			RemainingHeader string
			ResetHeader     string
		}
		Body             string
		DynamicMetadata  bool
		DecisionMetadata bool
	}
	Backend struct {
		Type           string
		MemoryMaxKeys  int
		LocalCache     int // 0 disables it
		OnFailure      string
		KeyPrefix      string
		KeySecretFile  string
		JitterSeconds  int
		ReservationKey string // file name
		Assumed        bool   // neither BACKEND_TYPE nor REDIS_URL is set, so counters are in Redis at the reference's default address
	}
	NearCache struct {
		Keys      int           // 0 disables it
		Rejection time.Duration // 0 disables it
		Leases    bool
	}
	Redis          Redis
	RedisPerSecond RedisPerSecond
	Memcache       Memcache
	Admin          struct {
		On             bool
		TokenFile      string
		Socket         string
		ReadTokenFile  string
		ReadSeesValues bool
		SANs           []string
		ReadSANs       []string
		TokensInClear  bool
	}
	DrainDelay time.Duration
	Log        struct {
		Level          Level
		Format         string
		Rejected       bool
		RejectedValues bool
	}
	Tracing struct {
		On        bool
		Service   string
		Namespace string
		Instance  string
		Protocol  string
		Rate      float64
		Values    bool
	}
	Stats struct {
		Disable          bool
		MaxSeries        int
		Statsd           bool // at most one of Statsd, DogStatsd, and Prometheus is set, unless Disable is
		DogStatsd        bool
		StatsdHost       string
		StatsdPort       string
		StatsdProtocol   string
		MogrifierNames   []string
		Mogrifiers       []Mogrifier // in the order of their names
		FlushInterval    time.Duration
		Prometheus       bool
		PrometheusAddr   string
		PrometheusPath   string
		PrometheusMapper string
		Milliseconds     bool
		SanitizeDots     bool // in keys and values of descriptors

		ExtraTags map[string]string
		Datadog   Datadog
	}
}

// Datadog is the variables of Datadog's client: tags for everything sent to DogStatsD.
type Datadog struct {
	EntityID string
	Env      string
	Service  string
	Version  string
}

// Redis configures the Redis of the counters.
type Redis struct {
	RedisServer

	// The following fields also apply to RedisPerSecond.

	Cert         string
	Key          string
	CA           string
	SkipHostname bool
	KeyFormat    string
	HealthActive bool

	Tenants bool // it also holds the table of tenants
}

// RedisPerSecond configures a separate Redis for counters of limits per second.
type RedisPerSecond struct {
	RedisServer

	On bool
}

// RedisServer configures the connection to a Redis.
type RedisServer struct {
	Type             string
	Socket           string
	URL              string
	Auth             string
	AuthFile         string
	SentinelAuth     string
	SentinelAuthFile string
	AuthMaxAge       time.Duration
	TLS              bool
	PoolSize         int
	DialTimeout      time.Duration
	OpTimeout        time.Duration
}

// Memcache configures the memcached of the counters.
type Memcache struct {
	Servers      []string
	MaxIdleConns int
	OpTimeout    time.Duration
	KeyFormat    string
	TLS          bool
	Cert         string
	Key          string
	CA           string
	SkipHostname bool
}

// Level is a log level with the reference's name. Panic and fatal log only errors, the worst level here. Trace is below
// debug.
type Level slog.Level

// UnmarshalText parses one of the reference's names, ignoring case.
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

// Parse reads the settings from the environment, a list of NAME=value as in [os.Environ]. Notices are sentences for the
// log about variables that have no effect, or another effect than in their value. The error contains all errors, one a
// line.
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
	return s, slices.Concat(notices, s.withoutTLS(), s.several(), s.renamed(given), unknown(given)), nil
}

// Only parses the named variables like [Parse]; others have their defaults. It checks each variable, but not their
// combination. The error contains all errors, one a line, and then all variables have their defaults.
func Only(environ []string, names ...string) (Settings, error) {
	given := givenIn(environ)
	maps.DeleteFunc(given, func(name, _ string) bool { return !slices.Contains(names, name) })
	values, _, problems := lookUp(given)
	if len(problems) > 0 {
		values, _, _ = lookUp(nil)
	}
	s, err := typed(values)
	return s, errors.Join(append(problems, err)...)
}

// givenIn returns the variables of an environment that are not empty.
func givenIn(environ []string) map[string]string {
	given := map[string]string{}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); value != "" {
			given[name] = value
		}
	}
	return given
}

// typed stores valid values in Settings.
func typed(values map[string]string) (s Settings, err error) {
	for _, v := range variables(&s) {
		if value := values[v.name]; value != "" {
			if err := v.set(value); err != nil {
				return Settings{}, fmt.Errorf("reading %s: %w", v.name, err)
			}
		}
	}
	return s, nil
}

// lookUp adds defaults, and checks each variable on its own.
func lookUp(given map[string]string) (values map[string]string, notices []string, problems []error) {
	chosen := word(cmp.Or(given["BACKEND_TYPE"], redis), BackendTypes()...)
	values = map[string]string{}
	for _, v := range variables(new(Settings)) {
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
			problems = append(problems, fmt.Errorf("%s: must be %s", v.name, v.kind.takes()))
		case v.kind.check(value) != nil:
			problems = append(problems, wrong(v.name, value, v.kind.takes()))
		case v.to == tuning:
			notices = append(notices, v.notice(value, "has no effect: this server needs no such tuning"))
		}
	}
	if given["USE_STATSD"] == "" && (boolean.same(values["USE_PROMETHEUS"], "true") || boolean.same(values["USE_DOG_STATSD"], "true")) {
		values["USE_STATSD"] = "false" // another sink disables statsd
	}
	return values, append(notices, notesOnTLS(given, values)...), problems
}

// notesOnTLS returns notices about variables that require TLS if neither gRPC nor the debug listener uses it.
func notesOnTLS(given, values map[string]string) (notices []string) {
	if boolean.same(values["GRPC_SERVER_USE_TLS"], "true") || boolean.same(values["DEBUG_TLS"], "true") {
		return nil
	}
	for _, name := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_CLIENT_TLS_CACERT"} {
		if given[name] != "" {
			notices = append(notices, name+noTLS)
		}
	}
	for _, name := range []string{"ADMIN_TLS_SAN", "ADMIN_READ_TLS_SAN"} {
		if given[name] != "" {
			notices = append(notices, name+" lets no client in without GRPC_SERVER_USE_TLS=true and GRPC_CLIENT_TLS_CACERT: clients are not asked for a certificate")
		}
	}
	return notices
}

// noTLS is the notice for variables that suggest TLS or client certificates on a plaintext listener.
const noTLS = " has no effect without GRPC_SERVER_USE_TLS=true: gRPC is plaintext, and clients are not asked for a certificate"

// wrong returns the error for an invalid value.
func wrong(name, value, takes string) error {
	if withAt(value) {
		return fmt.Errorf("%s: must be %s", name, takes)
	}
	return fmt.Errorf("%s=%q: must be %s", name, value, takes)
}

// withAt reports whether a value must not appear in messages, because it may be an address with a password, even in a
// variable that takes none.
func withAt(value string) bool { return strings.Contains(value, "@") }

// relations returns the errors in combinations of values, and in values that depend on others.
func relations(given, values map[string]string) []error {
	var problems []error
	if values["BACKEND_TYPE"] == memcache {
		problems = append(problems, checkMemcache(given)...)
	}
	if boolean.same(values["TRACING_ENABLED"], "true") {
		problems = append(problems, checkOTLP(given, values["TRACING_EXPORTER_PROTOCOL"])...)
	}
	if strings.HasPrefix(values["CONFIG_TYPE"], "GRPC_XDS_") {
		problems = append(problems, checkXDS(given)...)
	}
	problems = append(problems, checkTLS(given)...)
	for _, auth := range []string{"REDIS_AUTH", "REDIS_SENTINEL_AUTH", "REDIS_PERSECOND_AUTH", "REDIS_PERSECOND_SENTINEL_AUTH"} {
		if given[auth] != "" && given[auth+"_FILE"] != "" && values["BACKEND_TYPE"] == redis {
			problems = append(problems, fmt.Errorf("%s and %[1]s_FILE are both set: unset one of them", auth))
		}
	}
	problems = append(problems, checkSinks(given, values)...)
	return append(problems, checkSecret(given, values)...)
}

// checkTLS returns the errors in the TLS variables of gRPC and the debug listener.
func checkTLS(given map[string]string) []error {
	var problems []error
	on := false
	for _, name := range []string{"GRPC_SERVER_USE_TLS", "DEBUG_TLS"} {
		if !boolean.same(given[name], "true") {
			continue
		}
		on = true
		for _, file := range []string{"GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY"} {
			if given[file] == "" {
				problems = append(problems, fmt.Errorf("%s=true needs %s: the path of a PEM file", name, file))
			}
		}
	}
	if !on {
		return nil
	}
	for _, names := range []string{"ADMIN_TLS_SAN", "ADMIN_READ_TLS_SAN"} {
		if given[names] != "" && given["GRPC_CLIENT_TLS_CACERT"] == "" {
			problems = append(problems, fmt.Errorf("%s needs GRPC_CLIENT_TLS_CACERT: the path of a PEM file with the CA that issues these clients' certificates", names))
		}
	}
	if given["GRPC_CLIENT_TLS_SAN"] != "" && given["GRPC_CLIENT_TLS_CACERT"] == "" {
		problems = append(problems, errors.New("GRPC_CLIENT_TLS_SAN needs GRPC_CLIENT_TLS_CACERT: "+
			"the path of a PEM file with the CA that issues these clients' certificates; without it clients are not asked for a certificate"))
	}
	return problems
}
