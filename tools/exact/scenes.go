package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// scene is a sequence of calls whose answers docs/algorithms.md defines exactly, however long each call takes.
type scene struct {
	domain string // title
	limit  string // limit of its rule
	play   func(*stage)
}

func scenes() []scene {
	return []scene{
		{"reservations leave their sub-window", "unit: second, unit_multiplier: 4, requests_per_unit: 100, algorithm: sliding_window, precision: 4, reserve: {ttl: 1m, estimate: 93}", ownCell},
		{"a new bucket is given tokens", "unit: hour, requests_per_unit: 10, algorithm: token_bucket, initial: 0", givenFirst},
		{"a forgotten bucket is given tokens", "unit: second, requests_per_unit: 2, algorithm: token_bucket, initial: 0", givenAgain},
		{"a check behind a penalty starts no bucket", "unit: second, unit_multiplier: 4, requests_per_unit: 4, algorithm: token_bucket, initial: 0, penalty: {for: 10s, on: exceeded}", lookedBehind},
		{"what can never pass says a window", "unit: hour, requests_per_unit: 10, algorithm: token_bucket", neverPasses},
		{"rejections tell the time of their cost", "unit: minute, requests_per_unit: 3, algorithm: sliding_log", timeOfCost},
		{"a full count opens nothing", "unit: year, requests_per_unit: 10", fullCount},
		{"an override shares its rule's log", "unit: minute, requests_per_unit: 10, algorithm: sliding_log", sharedLog},
		{"RLQS and calls share a counter", fmt.Sprintf("unit: year, requests_per_unit: %d, rlqs: true", quotaLimit), withQuotas},
	}
}

// playScenes plays every scene concurrently, on three replicas with Redis that take turns, and on a server with counters in
// memory.
func (c *config) playScenes(ctx context.Context, sum *tally) error {
	dir, err := os.MkdirTemp("", "exact")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cl, err := newCluster(ctx, *c, dir)
	if err != nil {
		return err
	}
	defer cl.stop()
	rules := map[string]string{}
	for i, s := range scenes() {
		domain := fmt.Sprintf("scene%d", i)
		rules[domain] = fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: k, rate_limit: {%s}}\n", domain, s.limit)
	}
	for range replicas {
		if _, err := cl.add(ctx, rules, "NEAR_CACHE_LEASES=false", "REDIS_OP_TIMEOUT=10s"); err != nil {
			return err
		}
	}
	if _, err := cl.add(ctx, rules, "BACKEND_TYPE=memory"); err != nil {
		return err
	}
	var all []*stage
	var wg sync.WaitGroup
	for i, s := range scenes() {
		for store, on := range map[string][]*replica{"Redis": cl.all[:replicas], "memory": cl.all[replicas:]} {
			g := &stage{ctx: ctx, title: s.domain + ", " + store, domain: fmt.Sprintf("scene%d", i), on: on}
			all = append(all, g)
			wg.Go(func() { s.play(g) })
		}
	}
	wg.Wait()
	for _, g := range all {
		sum.calls += g.calls
		if g.wrong != "" {
			sum.found++
			fmt.Fprintf(c.stdout, "FOUND in a scene: %s: %s\n", g.title, g.wrong)
		}
	}
	fmt.Fprintf(c.stdout, "%d scenes with a known end: %d findings\n", len(all), sum.found)
	return ctx.Err()
}

// stage is a running scene.
type stage struct {
	ctx    context.Context //nolint:containedctx // a scene depends on nothing else
	title  string
	domain string
	on     []*replica
	calls  int
	wrong  string // the first violation
}

// call describes a call of a scene.
type call struct {
	hits        int64
	give        bool
	reservation string   // value of an additional entry
	over        override // its limit, unless hits is 0
	key         string   // suffix of k's value, for a separate counter
}

func (c call) String() string {
	s := fmt.Sprintf("take %d", c.hits)
	if c.give {
		s = fmt.Sprintf("refund %d", c.hits)
	}
	if c.reservation != "" {
		s += ", reservation " + c.reservation
	}
	if c.over.hits > 0 {
		s += ", " + c.over.String()
	}
	return s
}

// told is an answer.
type told struct {
	ok          bool
	left        uint32
	reset       time.Duration
	reservation string
}

// ask calls the next replica.
func (g *stage) ask(c call) (t told) {
	entries := []*commonv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v" + c.key}}
	if c.reservation != "" {
		entries = append(entries, &commonv3.RateLimitDescriptor_Entry{Key: "reservation", Value: c.reservation})
	}
	d := &commonv3.RateLimitDescriptor{Entries: entries, HitsAddend: wrapperspb.UInt64(uint64(c.hits)), IsNegativeHits: c.give}
	if c.over.hits > 0 {
		d.Limit = c.over.message()
	}
	ctx, cancel := context.WithTimeout(g.ctx, 10*time.Second)
	defer cancel()
	r := g.on[g.calls%len(g.on)]
	g.calls++
	resp, err := r.rls.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: g.domain, Descriptors: []*commonv3.RateLimitDescriptor{d}})
	if err != nil || len(resp.GetStatuses()) != 1 {
		g.finds("a call was answered %v, %v", resp, err)
		return t
	}
	s := resp.GetStatuses()[0]
	return told{
		ok: s.GetCode() == rlsv3.RateLimitResponse_OK, left: s.GetLimitRemaining(), reset: s.GetDurationUntilReset().AsDuration(),
		reservation: resp.GetDynamicMetadata().GetFields()["reservation"].GetStringValue(),
	}
}

func (g *stage) finds(format string, args ...any) {
	if g.wrong == "" {
		g.wrong = fmt.Sprintf(format, args...)
	}
}

// expect makes a call and checks its code.
func (g *stage) expect(c call, ok bool) told {
	n := g.calls + 1
	t := g.ask(c)
	if t.ok != ok {
		g.finds("call %d, %s, passes: %v, want %v", n, c, t.ok, ok)
	}
	return t
}

func take(hits int64) call { return call{hits: hits} }
func give(hits int64) call { return call{hits: hits, give: true} }

// ownCell: a settled reservation leaves its own sub-window, so once that has expired, nothing counts.
func ownCell(g *stage) {
	for range replicas { // each replica needs the key of reservation IDs first
		for range 100 {
			if g.ask(call{key: "ready"}).reservation != "" {
				break
			}
			time.Sleep(50 * time.Millisecond)
			g.calls += replicas - 1
		}
	}
	g.expect(call{hits: 2, reservation: "none"}, true)
	second := time.Now().Truncate(time.Second)
	time.Sleep(time.Until(second.Add(2100 * time.Millisecond)))
	id := g.expect(take(93), true).reservation
	if id == "" {
		g.finds("nothing was reserved")
	}
	g.expect(call{reservation: id}, true)
	time.Sleep(time.Until(second.Add(5100 * time.Millisecond)))
	if left := g.expect(call{hits: 1, reservation: "none"}, true).left; left != 99 {
		g.finds("%d are left after one hit of 100, want 99", left)
	}
}

func givenFirst(g *stage) {
	g.expect(give(5), true)
	for range 5 {
		g.expect(take(1), true)
	}
	g.expect(take(1), false)
}

// givenAgain: a bucket that has been full for a window starts again.
func givenAgain(g *stage) {
	g.expect(take(2), false)
	time.Sleep(2100 * time.Millisecond)
	g.expect(give(2), true)
	g.expect(take(2), true)
}

// lookedBehind: a bucket that is forgotten after 8 s is empty at the end of the penalty. A check after the end, on a busy
// machine, proves nothing.
func lookedBehind(g *stage) {
	begin := time.Now()
	g.expect(take(1), false)
	started := time.Now()
	time.Sleep(8100 * time.Millisecond)
	g.expect(take(0), false)
	if time.Since(begin) >= 10*time.Second {
		return
	}
	time.Sleep(time.Until(started.Add(10100 * time.Millisecond)))
	g.expect(take(1), false)
}

func neverPasses(g *stage) {
	for _, hits := range []int64{11, 10, 11} {
		if t := g.expect(take(hits), hits == 10); t.reset != time.Hour {
			g.finds("%d hits of 10 per hour are told %v, want an hour", hits, t.reset)
		}
	}
}

// timeOfCost: a cost of 3 fits a minute after the last hit, not after the first.
func timeOfCost(g *stage) {
	g.on = g.on[:1] // its near cache remembers rejections
	g.expect(take(1), true)
	time.Sleep(3 * time.Second)
	last := time.Now()
	g.expect(take(1), true)
	late := func(want time.Duration, t told) {
		if least := want - time.Since(last); t.reset < least {
			g.finds("a rejection lasts for %v, want at least %v", t.reset, least)
		}
	}
	g.expect(take(2), false)
	late(time.Minute, g.expect(take(3), false))
	last = time.Now()
	g.expect(take(1), true)
	late(time.Minute, g.expect(take(3), false))
}

func fullCount(g *stage) {
	for range 3 {
		g.expect(take(1<<52), false)
	}
	g.expect(give(1<<52), true)
	g.expect(give(1<<52), true)
	g.expect(take(1), false)
}

func sharedLog(g *stage) {
	for range 10 {
		g.expect(take(1), true)
	}
	more := call{hits: 1, over: override{11, "minute"}}
	g.expect(more, true)
	g.expect(more, false)
	g.expect(take(1), false)
}
