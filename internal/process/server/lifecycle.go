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

// firstRules bounds how long the open ports delay answers until the first rules are loaded and the backend has connected or
// failed to connect. Loading and connecting continue after that; without rules, requests are answered with an error.
const firstRules = 500 * time.Millisecond

var errStatsOff = errors.New("statistics are off: DISABLE_STATS=true")

// rulesState tracks the state of the rules for health, metrics, and status.
type rulesState struct {
	limiter                   *limiter.Limiter
	component                 *health.Part
	optional                  bool                      // health ignores rules
	oneAtLeast                bool                      // health requires at least one rule file
	reason                    atomic.Pointer[string]    // why there are no rules; nil if there are
	since                     atomic.Int64              // load time of the current rules, in Unix seconds
	behind                    atomic.Pointer[time.Time] // time since which the rules may be out of date; nil if they are current
	connected                 func() bool               // reports whether the control plane is connected; nil without one
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

// loaded puts a set in use. newest reports whether the set is the newest of its source.
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

// waiting records why there are no rules. It does nothing if there are rules, because the last valid ones stay in use.
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

// current records whether the rules are up to date with their source.
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
	if s.connected == nil || s.connected() { // otherwise only the overlay is new
		s.behind.Store(nil)
	}
}

const tooFewRules = "the rules are empty, and HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true"

// tooFew reports whether health requires rules and the set is empty.
func (s *rulesState) tooFew() bool { return s.oneAtLeast && len(s.limiter.Rules().Files()) == 0 }

// age returns how long the rules may have been out of date.
func (s *rulesState) age() time.Duration {
	since := s.behind.Load()
	if since == nil {
		return 0
	}
	return time.Since(*since)
}

// why returns the reason for missing rules, or "" if there are rules.
func (s *rulesState) why() string {
	if reason := s.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// firstLine returns the first line of an error and the number of further lines. It is public, so it omits the contents of rules.
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

// notReady returns the reasons why the server cannot decide requests, for /readyz.
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

// draining is the health component that fails once the server is stopping or drained.
const draining = "shutdown"

// drain waits until ctx ends, makes health fail, and keeps serving for DRAIN_DELAY so that clients can move to other servers. The
// delay is zero if the server was never healthy, because no clients have to move. It is shorter by the time for which an operator
// has drained the server.
func (v *Server) drain(ctx context.Context) error {
	<-ctx.Done()
	var delay time.Duration
	drained := v.shutdown.stop()
	if v.served.Load() {
		delay = max(v.settings.DrainDelay-drained, 0)
	}
	v.log.Info("stopping", "drain_delay", delay)
	time.Sleep(delay)
	v.rlqs.Drain() // clients connect to other servers now
	return nil
}

// serveGRPC serves until ctx ends, and then waits up to grpcGrace for running calls.
func (v *Server) serveGRPC(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- v.grpc.Serve(v.listeners.grpc) }()
	if v.listeners.admin != nil {
		go func() { _ = v.grpc.Serve(v.listeners.admin) }() // ends with the server; a failure leaves the other listeners serving
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
	if err := <-failed; !errors.Is(err, grpc.ErrServerStopped) { // returned if the server stopped before Serve began
		return err
	}
	return nil
}

// afterRules returns t delayed until the first load of the rules and of the other state has ended, for at most firstRules.
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
