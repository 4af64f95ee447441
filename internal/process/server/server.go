// Package server is the daemon: it builds the parts that serve from the settings, runs them, and stops them in order. The
// process itself (signals, the garbage collector, the exit code) is left to the command.
//
// This package is part of the process.
package server

import (
	"context"
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
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/console"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/certs"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// How long stopping may take, in addition to DRAIN_DELAY.
const (
	grpcGrace = 10 * time.Second // calls that run
	stopBound = 30 * time.Second // all of it
)

// Config is what a server is told beside its settings.
type Config struct {
	Log     *slog.Logger // required
	Audit   *slog.Logger // gets what operators change; nil discards
	Stdout  io.Writer    // where to say what is served, once it is; nil says nothing
	Command string       // the name under which this program takes commands, for what people are told to try
	Pod     string       // where this program runs; empty outside Kubernetes
	Release string       // of this program, for people and for metrics

	SinglesAfter time.Duration // see [limiter.Config]

	// Store, if it is not nil, is put around the store, so that tests can have it fail as no store does.
	Store func(backend.Backend) backend.Backend
}

// Server is everything that serves.
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
	listed       *file.Watcher // of TENANTS_FILE; nil without it
	limiter      *limiter.Limiter
	reservations *reservations
	gate         *admission.Gate
	unread       *count.Counter    // calls shed before their message was read
	observer     *observe.Observer // nil without the admin API
	guard        *admin.Guard
	overHTTP     http.Handler     // the admin API; nil without it
	console      http.Handler     // likewise
	history      *console.History // likewise
	health       *health.Tracker
	served       atomic.Bool // the server has been healthy at some time
	started      time.Time
	rules        *rulesState
	shutdown     *shutdown
	watcher      rulesSource
	loads        *configwatch.Watch // what watcher updates
	overlay      *file.Watcher      // nil without RULES_OVERLAY
	service      *rls.Service
	certs        *certs.Server // nil without TLS
	grpc         *grpcserver.Server
	rlqs         *rlqs.Service
	listeners    listeners
	tasks        *task.Group
}

// New builds the server, dependencies first, and opens its ports. Nothing runs yet.
func New(ctx context.Context, s settings.Settings, c Config) (*Server, error) {
	log := c.Log
	v := &Server{settings: s, config: c, log: log, started: time.Now(), registry: newRegistry(&s, c.Release), health: health.NewTracker()}

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
	v.controls = controls.New(controls.Config{Store: v.store.controls, Alone: v.store.unshared, Says: v.says, Log: log})
	v.audit = audit.New(v.store.audit, log)
	if v.reservations, err = newReservations(&s, v.store, log); err != nil {
		return nil, err
	}
	v.takeTenants()
	v.limiter = limiter.New(v.store, v.registry, v.deciding())
	v.reservations.uses = v.limiter
	v.registry.Source(v.ruleGauges)
	v.rules = newRulesState(v.health, v.registry, v.limiter, &s)
	v.shutdown = &shutdown{health: v.health, component: v.health.Add(draining, true, "")}
	v.health.OnChange(func(ok bool) { // all components have been registered
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
	v.reservations.begin = []<-chan struct{}{v.watcher.First(), v.store.Tried()}

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

// deciding returns how requests are decided.
func (v *Server) deciding() limiter.Config {
	s := &v.settings
	c := limiter.Config{
		Operators:       v.store.operators,
		Overrides:       v.controls.Overrides(),
		Now:             v.controls.Now,
		Plans:           v.tenants.Plans(),
		Secret:          v.store.secret,
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
		Reservations:    &v.reservations.sealer,
		SinglesAfter:    v.config.SinglesAfter,
	}
	if s.Admin.On { // nothing else asks
		c.Observer = v.observer
	}
	return c
}

// serving returns how gRPC is served.
func (v *Server) serving() grpcserver.Config {
	c := grpcserver.Config{
		TLS:                   v.serverTLS(),
		ClearSocket:           v.adminSocket(),
		MaxConnectionAge:      v.settings.GRPC.MaxAge,
		MaxConnectionAgeGrace: v.settings.GRPC.Grace,
		Reflection:            v.settings.GRPC.Reflection,
		Registry:              v.registry,
		Log:                   v.log,
		Handshake:             v.handshakeFailed(),
		Began:                 v.grpcBegan(),
	}
	if v.tracing != nil {
		c.Tracing = v.tracing.Server()
	}
	return c
}

// Run serves until ctx ends, or something fails for good. It can be called once.
func (v *Server) Run(ctx context.Context) error {
	err := v.tasks.Run(ctx)
	if closeErr := v.store.Close(); err == nil {
		err = closeErr
	}
	return err
}

// Reload takes the rules again from where they come from. It does not wait for them.
func (v *Server) Reload() { v.watcher.Reload() }

// newService returns the service that answers ShouldRateLimit.
func (v *Server) newService() (*rls.Service, error) {
	s := &v.settings
	body, err := answerBody(s)
	if err != nil {
		return nil, err
	}
	c := rls.Config{
		Body:             body,
		Gate:             v.gate,
		Foresee:          v.limiter.Foresee,
		Headers:          AnswerHeaders(s),
		DynamicMetadata:  s.Answer.DynamicMetadata,
		DecisionMetadata: s.Answer.DecisionMetadata,
		Registry:         v.registry,
		Log:              v.log,
		Rejected:         logRejected(s, v.log),
		NoRules:          v.rules.why,
	}
	if v.tracing != nil {
		return rls.New(v.tracing.Decider(v.limiter), c), nil
	}
	return rls.New(v.limiter, c), nil
}

// AnswerHeaders returns which headers answers have by the settings.
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

// group lists the tasks: rules first, then what answers, and last the one that drains, which therefore stops first.
func (v *Server) group() *task.Group {
	g := task.NewGroup(v.log, v.settings.DrainDelay+stopBound)
	if v.tracing != nil {
		g.Add(v.tracing) // stops last, so that it gets the spans of all others
	}
	if v.sink != nil {
		g.Add(v.sink) // stops after the others, so that it sends what they counted last
	}
	if v.overlay != nil {
		g.Add(v.overlay)
	}
	g.Add(v.watcher, logShedding(v.log, v.shed), logRejections(v.log, v.limiter.Tallies), logMistakes(v.log, v.limiter.Mistakes))
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
	access := v.access(v.listeners.debug.Addr(), "DEBUG_HOST")
	d := web.Debug{
		Admin:        v.overHTTP,
		AdminByName:  access.Guarded(),
		Console:      v.console,
		Off:          v.off(access.Guarded()),
		MayProfile:   access.AllowHTTP,
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

// off says what is off on the debug port or only reads there, and what switches it on. With tokens guarded is true.
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

// json answers /json, and counts it.
func (v *Server) json(ctx context.Context, body []byte) (code int, contentType string, answer []byte) {
	begin := time.Now()
	code, contentType, answer = v.service.JSON(ctx, body)
	v.registry.ObserveJSON(time.Since(begin).Seconds())
	return code, contentType, answer
}

// mainHandler returns the handler of the main HTTP listener.
func (v *Server) mainHandler() http.Handler {
	pages := web.Main{
		MaxBody:    v.settings.HTTP.MaxBody,
		JSON:       v.json,
		Healthy:    v.health.OK,
		Components: v.health.Components,
		NotReady:   v.notReady,
	}
	if v.tracing == nil {
		return web.MainHandler(pages)
	}
	pages.JSON = v.tracing.JSON(pages.JSON)
	return v.tracing.Handler(web.MainHandler(pages))
}
