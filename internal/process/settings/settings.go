// Package settings turns the environment into typed values, once, at the start.
//
// One table, in table.go and, for stores, table_stores.go, lists every variable that envoyproxy/ratelimit reads, and our
// own, each with its default, what it accepts, and the field of [Settings] that takes its value or why there is none. The
// table in docs/settings.md is generated from it. A variable that is set but empty counts as not set. All errors are reported at
// once, each with the variable, its value and what it accepts.
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

//go:generate go test -run ^TestDocument$ . -update

// Settings are the values of the variables that are honoured. Defaults are filled in.
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
		LocalCache     int // 0 is off
		OnFailure      string
		KeyPrefix      string
		KeySecretFile  string
		JitterSeconds  int
		ReservationKey string // a file
		Assumed        bool   // neither BACKEND_TYPE nor REDIS_URL is set, so counters are in Redis, where the reference looks for it
	}
	NearCache struct {
		Keys      int           // 0 is off
		Rejection time.Duration // 0 is off
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
		Statsd           bool // at most one of Statsd, DogStatsd and Prometheus is on, unless Disable is
		DogStatsd        bool
		StatsdHost       string
		StatsdPort       string
		StatsdProtocol   string
		MogrifierNames   []string
		Mogrifiers       []Mogrifier // one for each of the names, in their order
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

// Datadog holds what Datadog's client reads: tags for everything that is sent to DogStatsD.
type Datadog struct {
	EntityID string
	Env      string
	Service  string
	Version  string
}

// Redis says where the counters are in Redis.
type Redis struct {
	RedisServer

	// The following also applies to the Redis for limits per second.

	Cert         string
	Key          string
	CA           string
	SkipHostname bool
	KeyFormat    string
	HealthActive bool

	Tenants bool // the table of tenants is in it too
}

// RedisPerSecond says where the counters of limits per second are, if they have a Redis of their own.
type RedisPerSecond struct {
	RedisServer

	On bool
}

// RedisServer says where a Redis is, and how to reach it.
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

// Memcache says where the counters are in memcached.
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

// Parse reads the settings from the environment, a list of NAME=value as [os.Environ] returns it. Notices say which
// variables are accepted but have no effect, or mean something else than they say, each in a sentence for the log. The
// error has everything that is wrong, one line each.
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

// Only reads the named variables as [Parse] does, for a command that needs no others; those have their defaults. Each is
// checked on its own: whether a server could start with all of them is not asked. The error has everything that is wrong
// with them, one line each, and then all have their defaults.
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
	for _, v := range variables(&s) {
		if value := values[v.name]; value != "" {
			if err := v.set(value); err != nil {
				return Settings{}, fmt.Errorf("reading %s: %w", v.name, err)
			}
		}
	}
	return s, nil
}

// lookUp fills in the defaults, and checks each variable on its own.
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
			notices = append(notices, v.says(value, "has no effect: this server needs no such tuning"))
		}
	}
	if given["USE_STATSD"] == "" && (boolean.same(values["USE_PROMETHEUS"], "true") || boolean.same(values["USE_DOG_STATSD"], "true")) {
		values["USE_STATSD"] = "false" // choosing another sink is enough to turn this one off
	}
	return values, append(notices, notesOnTLS(given, values)...), problems
}

// notesOnTLS are the notices about variables that need TLS, where neither the gRPC nor the debug listener has it.
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

// noTLS is the notice for variables that make a plain listener look as if it spoke TLS, or verified clients.
const noTLS = " has no effect without GRPC_SERVER_USE_TLS=true: gRPC is plaintext, and clients are not asked for a certificate"

// wrong is the error of a value that a variable does not take.
func wrong(name, value, takes string) error {
	if withAt(value) {
		return fmt.Errorf("%s: must be %s", name, takes)
	}
	return fmt.Errorf("%s=%q: must be %s", name, value, takes)
}

// withAt reports whether a value must not be repeated, because it may be an address with a password, in whichever variable it
// ended up.
func withAt(value string) bool { return strings.Contains(value, "@") }

// relations returns what is wrong with values that must be one of a few, or that do not go together.
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

// checkTLS returns what is missing for TLS on the gRPC and on the debug listener.
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
