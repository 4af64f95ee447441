package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

var _ admin.Process = (*Server)(nil)

// Status implements [admin.Process].
func (v *Server) Status() admin.Status {
	now := admin.Status{
		Version:    v.config.Release,
		Started:    v.started,
		Healthy:    v.health.OK(),
		Components: v.health.Components(),
		NotReady:   v.notReady(),
		Drained:    v.shutdown.drained(),
		Rules:      v.rulesInUse(),
		Store:      v.store.status(),
	}
	if r := v.loads.Rejected(); r != nil {
		now.Invalid = &admin.Invalid{At: r.At, Version: r.Version, Problems: problems(r), Over: v.loads.Last() != r}
	}
	if near := v.store.near; near != nil {
		n := near.Stats()
		now.Near = &admin.NearCache{
			Entries: n.Entries, Hits: n.Hits, Rejections: n.Rejections, Misses: n.Misses, Evictions: n.Evictions,
			HitsHeld: n.Held, HitsLeased: n.Leased, HitsSpent: n.Spent, HitsReturned: n.Returned + n.Full,
		}
	}
	gate, shed := v.gate.Stats(), v.shed()
	now.Load = admin.Load{Calls: gate.Calls, Limit: gate.Limit, Wait: gate.Wait, ByProcess: shed.process, ByStore: shed.store, AtHeader: shed.calls}
	return now
}

// says returns what this server says of itself to the others.
func (v *Server) says() string {
	s := admin.ReplicaState{Healthy: v.health.OK(), Drained: !v.shutdown.drained().IsZero()}
	for _, c := range v.health.Components() {
		s.Degraded = s.Degraded || c.Degraded
	}
	if o := v.loads.Accepted(); o != nil {
		s.Rules = o.Version
	}
	return s.String()
}

// rulesInUse returns what is known of the rules.
func (v *Server) rulesInUse() admin.Rules {
	files := 0
	if set := v.limiter.Rules(); set != nil {
		files = len(set.Files())
	}
	r := admin.Rules{Source: v.origin(files), Missing: v.rules.why()}
	if o := v.loads.Accepted(); o != nil {
		r.Version, r.Loaded = o.Version, o.Since
	}
	if o := v.loads.Changed(); o != nil {
		r.Changed = o.At
		r.Changes, _ = o.Changes.(admin.Changes)
	}
	if since := v.rules.behind.Load(); since != nil {
		r.Behind = *since
	}
	return r
}

// problems returns what was wrong with an update, with the error of one that had no problems and was invalid all the same.
func problems(o *configwatch.Outcome) descriptors.Problems {
	if o.Err != nil && !o.Problems.Failed() {
		return append(descriptors.Problems{{Text: o.Err.Error()}}, o.Problems...)
	}
	return o.Problems
}

// status returns what is known of the store.
func (v *store) status() admin.Store {
	return admin.Store{Text: v.what, Connections: v.Connections(), Nodes: v.Nodes(), MemoryKeys: v.local.Stats().Keys}
}

// ReloadRules implements [admin.Process].
func (v *Server) ReloadRules(ctx context.Context, dry bool) (admin.Reloaded, error) {
	if dry {
		o, err := v.watcher.Try()
		if err != nil {
			return admin.Reloaded{}, fmt.Errorf("%w: %w", admin.ErrNoPreview, err)
		}
		return v.reloaded(o), nil
	}
	before, none := v.loads.Last(), v.limiter.Rules() == nil
	if err := v.watcher.ReloadNow(ctx); err != nil {
		return admin.Reloaded{}, fmt.Errorf("%w: %w", admin.ErrNoRulesCame, err)
	}
	o := v.loads.Last()
	if o == before || o == nil { // what came was not even looked at, as with XDS_KEEP_ON_EMPTY
		o = new(configwatch.Outcome)
	}
	r := v.reloaded(o)
	if set := v.limiter.Rules(); none && set != nil && !r.Invalid { // an outcome says nothing of the first rules
		r.Changes, _ = compare(nil, set).(admin.Changes)
	}
	return r, nil
}

func (v *Server) reloaded(o *configwatch.Outcome) admin.Reloaded {
	r := admin.Reloaded{Invalid: o.Err != nil, Problems: problems(o), Rules: v.rulesInUse()}
	r.Changes, _ = o.Changes.(admin.Changes)
	return r
}

// Drain implements [admin.Process].
func (v *Server) Drain(undo, dry bool) (admin.Drained, error) { return v.shutdown.drain(undo, dry) }

// shutdown makes health fail once the server is stopping, or has been drained by an operator.
type shutdown struct {
	health    *health.Tracker
	component *health.Part

	mu       sync.Mutex
	stopping bool
	since    time.Time // when an operator has drained the server; zero if it is not drained
}

// drained returns since when an operator has drained the server, or the zero time.
func (d *shutdown) drained() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.since
}

// stop has health fail for good. It returns for how long an operator had drained the server before.
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

// drain is [Server.Drain].
func (d *shutdown) drain(undo, dry bool) (admin.Drained, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := admin.Drained{Changed: undo == !d.since.IsZero(), Since: d.since, Otherwise: true}
	for _, c := range d.health.Components() {
		out.Otherwise = out.Otherwise && (c.OK || c.Degraded || c.Name == draining)
	}
	switch {
	case d.stopping:
		return admin.Drained{}, admin.ErrStopping
	case !out.Changed:
		return out, nil
	case undo:
		out.Since = time.Time{}
	default:
		out.Since = time.Now()
	}
	if dry {
		return out, nil
	}
	if d.since = out.Since; undo {
		d.component.Set(true, "")
	} else {
		d.component.Set(false, "an operator has drained the server")
	}
	return out, nil
}
