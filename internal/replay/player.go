package replay

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Settings are the server settings that affect decisions. The zero value has the server's defaults.
type Settings struct {
	MaxKeys      int                          // MEMORY_MAX_KEYS; 0 means the server's default
	Quota        bool                         // QUOTA_MODE
	StopWhenOver bool                         // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	LocalCache   bool                         // LOCAL_CACHE_SIZE_IN_BYTES is set
	Plans        *atomic.Pointer[plans.Plans] // of tenants; without them, all tenants have the default plan
}

// maxLater is the maximum number of scheduled calls at the ends of requests.
const maxLater = 1 << 20

// Player decides like a server with one set of rules, in virtual time.
type Player struct {
	name    string
	set     *descriptors.Set
	now     engine.Micros
	store   *memory.Backend
	limiter *limiter.Limiter
	scratch limiter.Scratch
	aside   limiter.Scratch         // for call
	later   queue[*limiter.Request] // scheduled calls at the ends of requests

	charges uint64 // calls at the ends of requests
	hasty   uint64 // charges made too early, because too many were scheduled
	endless uint64 // slots of requests without a recorded end
}

// NewPlayer returns a Player with a set of rules, which has this name in reports.
func NewPlayer(name string, set *descriptors.Set, s Settings) *Player {
	p := &Player{name: name, set: set}
	p.store = memory.New(memory.Config{MaxKeys: s.MaxKeys, Now: func() engine.Micros { return p.now }})
	p.limiter = limiter.New(p.store, stats.New(), limiter.Config{
		Quota: s.Quota, StopWhenOver: s.StopWhenOver, LocalCache: s.LocalCache, Plans: s.Plans, Local: p.store,
	})
	p.limiter.SetRules(set)
	return p
}

// play decides a request at its time. The verdict is valid until the next call.
func (p *Player) play(ctx context.Context, e *Event) (*limiter.Verdict, error) {
	p.reach(ctx, e.At)
	p.now = e.At
	v, err := p.limiter.Decide(ctx, e.Request, &p.scratch)
	over := err == nil && v.Over
	if err == nil {
		p.hold(ctx, e, v)
	}
	if e.AtEnd != nil && !over {
		p.charges++
		p.wait(ctx, max(e.End, e.At), e.AtEnd)
	}
	return v, err
}

// reach makes the scheduled calls up to a time.
func (p *Player) reach(ctx context.Context, until engine.Micros) {
	for p.later.Len() > 0 && p.later.items[0].at <= until {
		p.now = max(p.now, p.later.items[0].at)
		p.call(ctx, p.later.pop())
	}
}

// call makes a call, ignoring the verdict.
func (p *Player) call(ctx context.Context, r *limiter.Request) {
	_, _ = p.limiter.Decide(ctx, r, &p.aside)
}

// wait schedules a call, or makes it immediately if too many are scheduled.
func (p *Player) wait(ctx context.Context, when engine.Micros, r *limiter.Request) {
	if p.later.Len() == maxLater {
		p.hasty++
		p.call(ctx, r)
		return
	}
	p.later.push(when, r)
}

// hold schedules the release of the slots that a request took: at its end, or immediately if it was rejected.
func (p *Player) hold(ctx context.Context, e *Event, v *limiter.Verdict) {
	if !e.Frees {
		return
	}
	for i := range v.Statuses {
		s, d := &v.Statuses[i], &e.Request.Descriptors[i]
		if s.Exceeded() || d.Negative || !holds(s) {
			continue
		}
		switch {
		case v.Over:
			p.wait(ctx, e.At, releaseOf(e.Request, d))
		case e.End == 0:
			p.endless++
		default:
			p.wait(ctx, max(e.End, e.At), releaseOf(e.Request, d))
		}
	}
}

// holds reports whether a descriptor took slots of a concurrency limit.
func holds(s *limiter.Status) bool {
	held := func(l engine.Limit) bool { return l.Algorithm.Holds() }
	return s.RateLimit != nil && (held(s.RateLimit.Limit) || s.Limits != nil && slices.ContainsFunc(s.Limits.Limits(), held))
}

// releaseOf returns the request that releases the slots of a descriptor of r.
func releaseOf(r *limiter.Request, d *limiter.Descriptor) *limiter.Request {
	back := *d
	back.Negative = true
	return &limiter.Request{Domain: r.Domain, Hits: r.Hits, Descriptors: []limiter.Descriptor{back}}
}
