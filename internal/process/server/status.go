package server

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

var _ admin.Process = (*Server)(nil)

// Status implements [admin.Process].
func (v *Server) Status(who *access.Who) *adminv1.StatusResponse {
	gate, shed := v.gate.Stats(), v.shed()
	now := &adminv1.StatusResponse{
		Version:   v.config.Release,
		GoVersion: runtime.Version(),
		Started:   timestamppb.New(v.started),
		Uptime:    durationpb.New(time.Since(v.started)),
		Healthy:   v.health.OK(),
		NotReady:  v.notReady(),
		Drained:   admin.Timestamp(v.shutdown.drained()),
		Rules:     v.rulesInUse(who),
		Store: &adminv1.StoreStatus{
			Text: v.store.what, Connections: uint32(max(v.store.Connections(), 0)), Nodes: v.nodes(), MemoryKeys: uint64(v.store.local.Stats().Keys),
		},
		Load: &adminv1.LoadStatus{
			Calls: uint64(max(gate.Calls, 0)), Limit: uint64(max(gate.Limit, 0)), Wait: admin.Duration(gate.Wait),
			ShedByProcess: shed.Process, ShedByStore: shed.Store, ShedCalls: shed.Calls,
		},
	}
	for _, c := range v.health.Components() {
		now.Components = append(now.Components, &adminv1.Component{
			Name: c.Name, Since: timestamppb.New(c.Since), LastError: c.LastError, Health: healthMessage(&c),
		})
	}
	if r := v.loads.Rejected(); r != nil {
		now.InvalidRules = &adminv1.InvalidRules{Time: timestamppb.New(r.At), Version: r.Version, IsOver: v.loads.Last() != r}
		now.InvalidRules.Problems, now.InvalidRules.Total = admin.Problems(who, problems(r))
	}
	v.limiter.Mistakes(func(r *descriptors.Rule, m limiter.Mistake, calls uint64) {
		if who.Sees(r.DomainName()) && len(now.Mistakes) < admin.MaxShown {
			now.Mistakes = append(now.Mistakes, &adminv1.RuleMistake{Rule: r.Path, Mistake: m.String(), Calls: calls, Text: m.Advice(r)})
		}
	})
	if near := v.store.near; near != nil {
		n := near.Stats()
		now.NearCache = &adminv1.NearCacheStatus{
			Entries: uint64(n.Entries), Hits: n.Hits, Rejections: n.Rejections, Misses: n.Misses, Evictions: n.Evictions,
		}
		now.Leases = &adminv1.LeaseStatus{Held: n.Held, Leased: n.Leased, Spent: n.Spent, Returned: n.Returned + n.Full}
	}
	return now
}

// nodes returns the backend's servers, sorted by name.
func (v *Server) nodes() (all []*adminv1.StoreNode) {
	if v.store.waits == nil {
		return nil
	}
	breakers, waits := v.store.Breakers(), v.store.waits()
	for _, name := range slices.Sorted(maps.Keys(breakers)) {
		all = append(all, &adminv1.StoreNode{
			Name:    name,
			Breaker: adminv1.Breaker(adminv1.Breaker_value["BREAKER_"+strings.ToUpper(strings.ReplaceAll(breakers[name], "-", "_"))]),
			Opened:  v.registry.Counter(stats.BackendBreakerOpenedTotal, name).Load(),
			Wait:    admin.Duration(waits[name]),
		})
	}
	return all
}

func healthMessage(c *health.Component) adminv1.Health {
	switch {
	case c.OK:
		return adminv1.Health_HEALTH_OK
	case c.Degraded:
		return adminv1.Health_HEALTH_DEGRADED
	}
	return adminv1.Health_HEALTH_FAILING
}

// replicaStatus returns this replica's status for the other replicas.
func (v *Server) replicaStatus() string {
	r := &adminv1.Replica{Health: adminv1.Health_HEALTH_OK, IsDrained: !v.shutdown.drained().IsZero()}
	for _, c := range v.health.Components() {
		r.Health = max(r.GetHealth(), healthMessage(&c)) // the worst of them
	}
	if o := v.loads.Accepted(); o != nil {
		r.RulesVersion = o.Version
	}
	return admin.ReplicaText(r)
}

// rulesInUse returns the status of the rules, restricted to the domains that who may see.
func (v *Server) rulesInUse(who *access.Who) *adminv1.RulesStatus {
	m, files := &adminv1.RulesStatus{Missing: v.rules.why(), LastChange: changeMessage(v.loads.Changed(), who)}, 0
	if set := v.limiter.Rules(); set != nil {
		files = len(set.Files())
		for r := range set.Rules() {
			if who.Sees(r.DomainName()) {
				m.Rules++
			}
		}
		for d := range set.Domains() {
			if who.Sees(d.Name) {
				m.Domains++
			}
		}
	}
	m.Source = v.origin(files)
	if o := v.loads.Accepted(); o != nil {
		m.Version, m.Loaded, m.Age = o.Version, timestamppb.New(o.Since), durationpb.New(time.Since(o.Since))
		m.Warnings, m.TotalWarnings = admin.Problems(who, o.Problems)
	}
	if since := v.rules.behind.Load(); since != nil {
		m.Behind = timestamppb.New(*since)
	}
	return m
}

// problems returns the problems of an update. If the update failed without problems, its error becomes the first one.
func problems(o *configwatch.Outcome) descriptors.Problems {
	if o.Err != nil && !o.Problems.Failed() {
		return append(descriptors.Problems{{Text: o.Err.Error()}}, o.Problems...)
	}
	return o.Problems
}

// ReloadRules implements [admin.Process].
func (v *Server) ReloadRules(ctx context.Context, who *access.Who, dry bool) (*adminv1.ReloadRulesResponse, error) {
	if dry {
		o, err := v.watcher.Try()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", admin.ErrNoPreview, err)
		}
		return v.reloaded(*o, who), nil
	}
	before, none := v.loads.Last(), v.limiter.Rules() == nil
	if err := v.watcher.ReloadNow(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", admin.ErrNoRulesCame, err)
	}
	var o configwatch.Outcome
	if last := v.loads.Last(); last != before && last != nil { // otherwise the update was ignored, as with XDS_KEEP_ON_EMPTY
		o = *last
	}
	if set := v.limiter.Rules(); none && set != nil && o.Err == nil { // an outcome lists no changes for the first rules
		o.Changes = compare(nil, set)
	}
	return v.reloaded(o, who), nil
}

func (v *Server) reloaded(o configwatch.Outcome, who *access.Who) *adminv1.ReloadRulesResponse {
	r := &adminv1.ReloadRulesResponse{Invalid: o.Err != nil, Rules: v.rulesInUse(who)}
	r.Problems, r.TotalProblems = admin.Problems(who, problems(&o))
	if o.Changes != nil {
		lines, more := o.Changes.Lines(admin.MaxShown)
		r.Changes, r.TotalChanges = lines, uint32(len(lines)+more)
	}
	return r
}

// Drain implements [admin.Process].
func (v *Server) Drain(undo, dry bool) (*adminv1.DrainResponse, error) {
	return v.shutdown.drain(undo, dry)
}

// shutdown is the health component that fails while the server is stopping or drained.
type shutdown struct {
	health    *health.Tracker
	component *health.Part

	mu       sync.Mutex
	stopping bool
	since    time.Time // when an operator drained the server; zero if it is not drained
}

// drained returns when an operator drained the server, or the zero time.
func (d *shutdown) drained() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since
}

// stop makes health fail permanently. It returns how long the server has been drained by an operator.
func (d *shutdown) stop() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopping = true
	d.component.Set(false, "the server is stopping")
	if d.since.IsZero() {
		return 0
	}
	return time.Since(d.since)
}

// drain implements [Server.Drain].
func (d *shutdown) drain(undo, dry bool) (*adminv1.DrainResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	since, out := d.since, &adminv1.DrainResponse{Changed: undo == !d.since.IsZero(), OtherwiseHealthy: true}
	for _, c := range d.health.Components() {
		out.OtherwiseHealthy = out.GetOtherwiseHealthy() && (c.OK || c.Degraded || c.Name == draining)
	}
	switch {
	case d.stopping:
		return nil, admin.ErrStopping
	case !out.GetChanged():
	case undo:
		since = time.Time{}
	default:
		since = time.Now()
	}
	out.Drained = admin.Timestamp(since)
	if dry || !out.GetChanged() {
		return out, nil
	}
	if d.since = since; undo {
		d.component.Set(true, "")
	} else {
		d.component.Set(false, "an operator has drained the server")
	}
	return out, nil
}
