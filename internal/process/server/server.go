// Package server is the daemon. It builds its parts from the settings, runs them, and stops them in order. Signals, the garbage
// collector, and the exit code are left to the command.
//
// This package is part of the process.
package server

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rls"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/console"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/certs"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/secret"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds of the time to stop, in addition to DRAIN_DELAY.
const (
	grpcGrace = 10 * time.Second // for running calls
	stopBound = 30 * time.Second // in total
)

// Config configures a Server in addition to its settings.
type Config struct {
	Log     *slog.Logger // required
	Audit   *slog.Logger // logger for changes by operators; nil discards
	Stdout  io.Writer    // receives the startup banner; nil means none
	Command string       // the program's command name, for hints
	Pod     string       // the Kubernetes pod; empty outside Kubernetes
	Release string       // the release of this program, for banners and metrics

	SinglesAfter time.Duration // see [limiter.Config]

	// Store wraps the backend if it is not nil. Tests use it to inject failures.
	Store func(backend.Backend) backend.Backend
}

// Server is a running ratelimitd with all its parts.
type Server struct {
	settings settings.Settings
	config   Config
	log      *slog.Logger
	registry *stats.Registry
	statistics
	tracing      *tracing.Tracer // nil if tracing is off
	store        *store
	controls     *controls.Controls
	audit        *audit.Log
	tenants      *tenants.Tenants
	listed       *file.Watcher // watches TENANTS_FILE; nil without it
	limiter      *limiter.Limiter
	reservations *secret.Reservations
	gate         *admission.Gate
	unread       *count.Counter    // calls shed before their message was read
	observer     *observe.Observer // nil without the admin API
	guard        *access.Guard
	overHTTP     http.Handler     // the admin API; nil if disabled
	console      http.Handler     // the console; nil if disabled
	history      *console.History // data of the console; nil if disabled
	health       *health.Tracker
	served       atomic.Bool // the server has been healthy before
	started      time.Time
	rules        *rulesState
	shutdown     *shutdown
	watcher      rulesSource
	loads        *configwatch.Watch // updated by watcher
	overlay      *file.Watcher      // nil without RULES_OVERLAY
	service      *rls.Service
	certs        *certs.Server // nil without TLS
	grpc         *grpcserver.Server
	rlqs         *rlqs.Service
	listeners    listeners
	miswirings   *throttle.Log // bounds log lines about clients with the wrong port or protocol
	tasks        *task.Group
}

// New builds the server and opens its ports. It starts nothing.
func New(ctx context.Context, s settings.Settings, c Config) (*Server, error) {
	log := c.Log
	v := &Server{settings: s, config: c, log: log, started: time.Now(), registry: newRegistry(&s, c.Release), health: health.NewTracker()}
	v.miswirings = throttle.Every(wiringEvery)

	var err error
	if v.statistics, err = newStatistics(&s, log, v.registry); err != nil {
		return nil, err
	}
	if v.tracing, err = newTracing(ctx, &s, log); err != nil {
		return nil, err
	}
	if v.store, err = newStore(&s, log, v.registry, v.health, v.tracing); err != nil {
		return nil, err
	}
	if c.Store != nil {
		v.store.Backend = c.Store(v.store.Backend)
	}
	if s.Admin.On {
		v.observer = observe.New(caller)
		v.registry.Gauge(stats.Watchers, func() float64 { return float64(v.observer.Watchers()) })
	}
	v.gate, v.unread = newGate(v.registry), v.registry.Counter(stats.ShedTotal, "", "calls")
	v.controls = controls.New(controls.Config{Store: v.store.controls, Unshared: v.store.unshared, Status: v.replicaStatus, Log: log})
	v.audit = audit.New(v.store.audit, log)
	if v.reservations, err = secret.NewReservations(s.Backend.ReservationKey, v.store.keys, v.store.reservationKey, log); err != nil {
		return nil, err
	}
	v.takeTenants()
	v.limiter = limiter.New(v.store, v.registry, v.deciding())
	v.registry.Source(v.ruleGauges)
	v.rules = newRulesState(v.health, v.registry, v.limiter, &s)
	v.shutdown = &shutdown{health: v.health, component: v.health.Add(draining, true, "")}
	v.health.OnChange(func(ok bool) { // all components are registered by now
		if ok {
			v.served.Store(true)
		}
	})
	v.takeRules(configwatch.Config{
		Options: descriptors.Options{MergeDomains: s.Rules.MergeDomains, Strict: s.Rules.Strict, CalendarMonths: s.Decide.CalendarMonths, QuotaGroupBy: s.Rules.QuotaGroupBy},
		Check:   Unsupported(&s),
		Compare: compare,
		Loaded: func(set *descriptors.Set, warnings int, newest bool) {
			v.rules.loaded(set, warnings, newest)
			v.store.prepaid.loaded(set)
			v.tenants.SetPlans(set.PlanNames())
		},
		Invalid: v.rules.invalid,
	})
	v.reservations.Use(v.limiter, func(ctx context.Context) { task.Await(ctx, firstRules, v.watcher.First(), v.store.Tried()) })

	if v.service, err = v.newService(); err != nil {
		return nil, err
	}
	if v.certs, err = newCerts(&s, log, v.registry); err != nil {
		return nil, err
	}
	if v.listeners, err = listen(ctx, &s); err != nil {
		return nil, err
	}
	v.listenForAdmin(ctx)
	v.grpc = grpcserver.New(v.service, v.serving())
	v.serveRLQS()
	v.health.OnChange(v.grpc.SetServing)
	v.bound()
	if err := v.serveAdmin(ctx); err != nil {
		return nil, err
	}
	v.tasks = v.group()
	return v, nil
}

// deciding returns the configuration of the limiter.
func (v *Server) deciding() limiter.Config {
	s := &v.settings
	c := limiter.Config{
		Operators:       v.store.operators,
		Overrides:       v.controls.Overrides(),
		Now:             v.controls.Now,
		Plans:           v.tenants.Plans(),
		Secret:          v.store.keys.CounterNames(),
		OnFailure:       defaultOnFailure(s),
		Local:           v.store.local,
		Shadow:          s.Decide.Shadow,
		Quota:           s.Decide.Quota,
		StopWhenOver:    s.Decide.StopWhenOver,
		LocalCache:      s.Backend.LocalCache > 0,
		NearLimitRatio:  max(s.Decide.NearLimitRatio, math.SmallestNonzeroFloat32), // 0 would mean the default
		MetricMaxSeries: s.Stats.MaxSeries,
		SanitizeDots:    s.Stats.SanitizeDots,
		ReferenceNames:  v.store.referenceNames,
		Unknown:         v.unknownDomain,
		Missing:         v.missingKey,
		Reservations:    &v.reservations.Sealer,
		SinglesAfter:    v.config.SinglesAfter,
	}
	if s.Admin.On { // only the admin API reads it
		c.Observer = v.observer
	}
	return c
}

// serving returns the configuration of the gRPC server.
func (v *Server) serving() grpcserver.Config {
	return grpcserver.Config{
		TLS:                   v.serverTLS(),
		ClearSocket:           v.adminSocket(),
		MaxConnectionAge:      v.settings.GRPC.MaxAge,
		MaxConnectionAgeGrace: v.settings.GRPC.Grace,
		Reflection:            v.settings.GRPC.Reflection,
		Registry:              v.registry,
		Log:                   v.log,
		Handshake:             v.handshakeFailed(),
		Began:                 v.grpcBegan,
		Tracing:               v.tracing.Server(),
	}
}

// Run serves until ctx ends or a task fails. It must be called only once.
func (v *Server) Run(ctx context.Context) error {
	err := v.tasks.Run(ctx)
	if closeErr := v.store.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Reload reloads the rules from their source. It does not wait for them.
func (v *Server) Reload() { v.watcher.Reload() }

// newService returns the ShouldRateLimit service.
func (v *Server) newService() (*rls.Service, error) {
	s := &v.settings
	c := rls.Config{
		Gate:             v.gate,
		Foresee:          v.limiter.Foresee,
		Headers:          AnswerHeaders(s),
		DynamicMetadata:  s.Answer.DynamicMetadata,
		DecisionMetadata: s.Answer.DecisionMetadata,
		Registry:         v.registry,
		Log:              v.log,
		NoRules:          v.rules.why,
	}
	if s.Answer.Body != "" {
		var err error
		if c.Body, err = rls.ParseBody(s.Answer.Body); err != nil {
			return nil, fmt.Errorf("LIMIT_BODY: %w", err)
		}
	}
	if s.Log.Rejected || s.Log.RejectedValues {
		c.Rejected = rls.LogRejected(v.log, s.Log.RejectedValues)
	}
	return rls.New(v.tracing.Decider(v.limiter), c), nil
}

// AnswerHeaders returns the configuration of the headers in answers.
func AnswerHeaders(s *settings.Settings) rls.Headers {
	h := rls.Headers{
		Enabled:    s.Answer.Headers,
		Draft:      strings.EqualFold(s.Answer.HeadersFormat, "draft"),
		Limit:      s.Answer.LimitHeader,
		Remaining:  s.Answer.RemainingHeader,
		Reset:      s.Answer.ResetHeader,
		RetryAfter: s.Answer.RetryAfterHeader,
		Rule:       s.Answer.RuleHeader,
		Shadow:     s.Answer.ShadowHeader,
	}
	r := &s.Answer.Request
	h.Request.Enabled, h.Request.Limit, h.Request.Remaining, h.Request.Reset = r.Headers, r.LimitHeader, r.RemainingHeader, r.ResetHeader
	return h
}

// group returns the tasks in order: rules, then listeners, then draining. Tasks stop in reverse order.
func (v *Server) group() *task.Group {
	g := task.NewGroup(v.log, v.settings.DrainDelay+stopBound)
	if v.tracing != nil {
		g.Add(v.tracing) // stops last, to receive the spans of all other tasks
	}
	if v.sink != nil {
		g.Add(v.sink) // stops after the other tasks, to send their last counts
	}
	if v.overlay != nil {
		g.Add(v.overlay)
	}
	g.Add(v.watcher, observe.LogShedding(v.log, v.shed), observe.LogRejections(v.log, v.limiter.Tallies), observe.LogMistakes(v.log, v.limiter.Mistakes))
	if v.history != nil {
		g.Add(v.remember())
	}
	g.Add(v.store.tasks...)
	g.Add(v.controls)
	g.Add(v.audit)
	g.Add(v.reservations)
	if v.store.tenants != nil {
		g.Add(v.tenants)
	}
	if v.listed != nil {
		g.Add(task.Func{Name: v.listed.String(), Do: v.followTenants})
	}
	if v.certs != nil {
		g.Add(v.certs)
	}
	if v.listeners.prometheus != nil {
		h := web.MetricsHandler(v.settings.Stats.PrometheusPath, v.registry.Handler(v.prometheus))
		g.Add(web.NewServer("Prometheus", v.listeners.prometheus, h, v.log, web.Limits{}))
	}
	g.Add(
		v.debugServer(),
		v.afterRules(web.NewServer("HTTP", v.listeners.http, v.mainHandler(), v.log, web.Limits{})),
		v.afterRules(task.Func{Name: "gRPC", Do: v.serveGRPC}),
		task.Func{Name: "draining", Do: v.drain},
	)
	if v.config.Stdout != nil {
		g.Add(task.Func{Name: "announcing", Do: v.announce})
	}
	return g
}

func (v *Server) debugPages() web.Debug {
	policy := v.access(v.listeners.debug.Addr(), "DEBUG_HOST")
	d := web.Debug{
		Admin:        v.overHTTP,
		AdminByName:  policy.Guarded(),
		Console:      v.console,
		Off:          v.off(policy.Guarded()),
		MayProfile:   policy.AllowHTTP,
		Rules:        func(w io.Writer) error { return admin.WriteRules(w, v.limiter.Rules()) },
		RulesVerbose: func(w io.Writer) error { return admin.WriteRulesVerbose(w, v.limiter.Rules()) },
		RulesJSON:    func(w io.Writer) error { return admin.WriteRulesJSON(w, v.limiter.Rules()) },
		Stats:        v.registry.WriteText,
		Metrics:      v.registry.Handler(v.prometheus),
	}
	if v.settings.Stats.Disable {
		d.Stats = func(io.Writer) error { return errStatsOff }
		d.Metrics = http.NotFoundHandler()
	}
	return d
}

// off lists the features that are off or read-only on the debug port, and how to enable them. guarded means that tokens are
// configured.
func (v *Server) off(guarded bool) (lines []string) {
	switch {
	case !v.settings.Admin.On:
		lines = append(lines, "off: the admin API and the console; ADMIN=true turns them on")
	case !guarded:
		lines = append(lines, "read-only: the admin API and the console; to allow changes from callers with a token, set ADMIN_TOKEN_FILE; "+
			"the admin socket allows them on this machine")
	}
	if v.settings.Stats.Disable {
		lines = append(lines, "off: /metrics and /stats; DISABLE_STATS=false turns them on")
	}
	return lines
}

// json answers /json and records its duration.
func (v *Server) json(ctx context.Context, body []byte) (code int, contentType string, answer []byte) {
	begin := time.Now()
	code, contentType, answer = v.service.JSON(ctx, body)
	v.registry.ObserveJSON(time.Since(begin).Seconds())
	return code, contentType, answer
}

// mainHandler returns the handler of the HTTP port.
func (v *Server) mainHandler() http.Handler {
	return v.tracing.Handler(web.MainHandler(web.Main{
		MaxBody:    v.settings.HTTP.MaxBody,
		JSON:       v.tracing.JSON(v.json),
		Healthy:    v.health.OK,
		Components: v.health.Components,
		NotReady:   v.notReady,
	}))
}
