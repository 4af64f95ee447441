package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/internal/leaf/task"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// firstRules is how long the ports, which are already open, delay their answers until the first rules are loaded, and
// until the store is connected or fails to connect. Both continue after that time; until there are rules, requests are
// answered with an error that says so.
const firstRules = 500 * time.Millisecond

var errStatsOff = errors.New("statistics are off: DISABLE_STATS=true")

// rulesState keeps track of the rules for everything that depends on them.
type rulesState struct {
	limiter                   *limiter.Limiter
	component                 *health.Part
	optional                  bool                      // health does not depend on rules
	oneAtLeast                bool                      // health depends on rules, and an empty set is not enough
	reason                    atomic.Pointer[string]    // why there are no rules; nil once there are
	since                     atomic.Int64              // when the current rules were loaded, in seconds since the Unix epoch
	behind                    atomic.Pointer[time.Time] // since when they may be out of date; nil while they are not
	connected                 func() bool               // the control plane is; nil without one
	successes, failures, warn *count.Counter
}

// newRulesState returns the state before the first load.
func newRulesState(h *health.Tracker, r *stats.Registry, l *limiter.Limiter, c *settings.Settings) *rulesState {
	const waiting = "the rules are not loaded yet"
	s := &rulesState{
		limiter:    l,
		component:  h.Add("rules", false, ""),
		optional:   c.Rules.ForceStart && !c.Rules.HealthyWithOne,
		oneAtLeast: c.Rules.HealthyWithOne,
		successes:  r.Counter(stats.ConfigLoadSuccess),
		failures:   r.Counter(stats.ConfigLoadError),
		warn:       r.Counter(stats.ConfigLoadWarningsTotal),
	}
	s.reason.Store(new(string(waiting)))
	s.current(false)
	if s.optional {
		s.component.Degrade("")
	}
	r.Source(func(v *stats.Values) { // the same, under other names of the reference
		v.Counter(stats.RuntimeLoadAttempts, s.successes.Load()+s.failures.Load())
		v.Counter(stats.RuntimeLoadFailures, s.failures.Load())
	})
	r.Gauge(stats.ConfigLoadedTimestamp, func() float64 { return float64(s.since.Load()) })
	r.Gauge(stats.ConfigAge, func() float64 { return s.age().Seconds() })
	r.Gauge(stats.RuntimeNumValues, func() float64 {
		if set := l.Rules(); set != nil {
			return float64(len(set.Files()))
		}
		return 0
	})
	return s
}

// loaded puts a set in use. Newest reports whether it is known to be that of the source.
func (s *rulesState) loaded(set *descriptors.Set, warnings int, newest bool) {
	s.limiter.SetRules(set)
	s.successes.Add(1)
	s.warn.Add(uint64(warnings))
	s.since.Store(time.Now().Unix())
	s.reason.Store(nil)
	s.current(newest)
}

func (s *rulesState) invalid(err error) {
	s.failures.Add(1)
	s.current(false)
	s.waiting(firstLine(err))
	switch {
	case s.limiter.Rules() == nil:
	case s.tooFew():
		s.component.Set(false, tooFewRules)
	default:
		s.component.Degrade(fmt.Sprintf("new rules were invalid at %s, and the last good ones stay in use: %s",
			time.Now().UTC().Format(time.RFC3339), firstLine(err)))
	}
}

// waiting notes why there are no rules, unless there are: then the last good ones stay in use.
func (s *rulesState) waiting(reason string) {
	if s.limiter.Rules() != nil {
		return
	}
	s.reason.Store(&reason)
	if s.optional {
		s.component.Degrade(reason)
	} else {
		s.component.Set(false, reason)
	}
}

// current notes whether the rules are known to be up to date with their source.
func (s *rulesState) current(yes bool) {
	switch {
	case !yes:
		s.behind.CompareAndSwap(nil, new(time.Now()))
		return
	case s.tooFew():
		s.component.Set(false, tooFewRules)
	default:
		s.component.Set(true, "")
	}
	if s.connected == nil || s.connected() { // else only the overlay is new
		s.behind.Store(nil)
	}
}

const tooFewRules = "the rules are empty, and HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"

// tooFew reports whether the rules are empty, and health depends on some.
func (s *rulesState) tooFew() bool { return s.oneAtLeast && len(s.limiter.Rules().Files()) == 0 }

// age returns for how long the rules have not been known to be up to date.
func (s *rulesState) age() time.Duration {
	since := s.behind.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}

// why returns why there are no rules, or "" if there are.
func (s *rulesState) why() string {
	if reason := s.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// firstLine returns the first line of an error, and how many follow. Anyone may read it, so it has nothing of what rules say.
func firstLine(err error) string {
	if all, ok := errors.AsType[descriptors.Problems](err); ok {
		err = all.Bared()
	}
	first, rest, more := strings.Cut(err.Error(), "\n")
	if more {
		first = fmt.Sprintf("%s (and %d more)", first, strings.Count(rest, "\n")+1)
	}
	return first
}

// notReady returns why no request can be decided now, for /readyz.
func (v *Server) notReady() []string {
	var reasons []string
	if v.limiter.Rules() == nil {
		reasons = append(reasons, "rules: "+v.rules.why())
	}
	if why := v.store.NotReady(); why != "" {
		reasons = append(reasons, v.store.name+": "+why)
	}
	if why := v.reservations.NotReady(); why != "" {
		reasons = append(reasons, v.reservations.String()+": "+why)
	}
	for _, c := range v.health.Components() {
		if !c.OK && c.Name == draining {
			reasons = append(reasons, c.Name+": "+c.LastError)
		}
	}
	return reasons
}

// draining is the health component that fails once the server is told to stop.
const draining = "shutdown"

// drain waits until the server has to stop, makes it report that it is unhealthy, and lets it serve on for a while so
// that clients can move to other servers. If it was never healthy, because there were no rules or no store yet, no
// client has to move, and if an operator has drained it before, clients have had that time already.
func (v *Server) drain(ctx context.Context) error {
	<-ctx.Done()
	var delay time.Duration
	drained := v.shutdown.stop()
	if v.served.Load() {
		delay = max(v.settings.DrainDelay-drained, 0)
	}
	v.log.Info("stopping", "drain_delay", delay)
	time.Sleep(delay)
	v.rlqs.Drain() // now that clients connect elsewhere
	return nil
}

// serveGRPC serves until ctx ends, and then lets running calls finish.
func (v *Server) serveGRPC(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- v.grpc.Serve(v.listeners.grpc) }()
	if v.listeners.admin != nil {
		go func() { _ = v.grpc.Serve(v.listeners.admin) }() // it ends with the server; without it the others go on
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serving on %s: %w", v.listeners.grpc.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), grpcGrace)
	defer cancel()
	v.grpc.Shutdown(grace)
	v.rlqs.Wait()
	if err := <-failed; !errors.Is(err, grpc.ErrServerStopped) { // returned if it was stopped before it had begun
		return err
	}
	return nil
}

// afterRules is t, started once the rules have been loaded for the first time, or loading has failed or takes too long.
func (v *Server) afterRules(t task.Task) task.Func {
	return task.Func{Name: t.String(), Do: func(ctx context.Context) error {
		v.awaitRules(ctx)
		return t.Run(ctx)
	}}
}

func (v *Server) awaitRules(ctx context.Context) {
	ready := []<-chan struct{}{v.watcher.First(), v.controls.First(), v.store.Tried(), v.reservations.First()}
	if v.store.tenants != nil {
		ready = append(ready, v.tenants.First())
	}
	if v.listed != nil {
		ready = append(ready, v.listed.First())
	}
	task.Await(ctx, firstRules, ready...)
}
