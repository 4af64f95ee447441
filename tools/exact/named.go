package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Constants of the game of named reservations.
const (
	namedDomain = "named"
	estimate    = 400
	begins      = 40                     // percentage of steps that begin a stream
	tenantFor   = 400 * time.Millisecond // time until clients use another tenant
)

// budgets returns the limits of tenants by the key of their rule. Tenants exhaust the tight ones.
func budgets() map[string]int64 {
	return map[string]int64{"tight window": 20_000, "tight sliding": 20_000, "window": 4_000_000_000, "sliding": 4_000_000_000}
}

// namedRules returns the rules of the game.
func namedRules() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", namedDomain)
	for key, hits := range budgets() {
		limit := "unit: year"
		if strings.HasSuffix(key, "sliding") {
			limit = "unit: month, algorithm: sliding_window"
		}
		limit += fmt.Sprintf(", requests_per_unit: %d, reserve: {by: stream, ttl: 15m, estimate: %d}", hits, estimate)
		fmt.Fprintf(&b, "  - {key: %s, descriptors: [{key: stream, rate_limit: {%s}}]}\n", key, limit)
	}
	return b.String()
}

// named is a game of reservations named by entries of requests. Streams reserve, settle, settle at zero, or never return. Hostile
// clients repeat names and charge unknown ones. A tenant's spent hits must match docs/llm-budgets.md for each call. They must not
// exceed the budget except for costs above estimates and charges of repeated names.
type named struct {
	on       []*replica
	patience time.Duration
	begun    time.Time

	mu      sync.Mutex
	tenants map[tenant]*account
	calls   int
	wrong   []string
}

// tenant identifies a counter by the key of its rule and its value.
type tenant struct{ key, value string }

// account is the spent part of a tenant's budget, as far as calls determine it.
type account struct {
	least, most int64 // bounds of the spent hits
	beyond      int64 // permitted hits beyond the budget: costs above estimates, and charges without a reservation
	late        int64 // charges by hostile clients
	streams     int
}

// outcome is a possible state of a name, with the hits spent so far.
type outcome struct {
	open  bool
	ended bool
	due   int64 // settlements of an ended name that are still charged
	spent int64
	over  int64 // part of spent that may exceed the budget
}

// ask returns the state after a call without hits that was answered OK or not.
func (o outcome) ask(ok bool) outcome {
	passed := int64(0)
	if ok {
		passed = 1
	}
	switch {
	case o.open:
		return outcome{ended: true, due: 1 + passed, spent: o.spent - estimate, over: o.over}
	case o.ended:
		o.due += passed
	case ok:
		o.open = true
		o.spent += estimate
	}
	return o
}

// charge returns the state after a call with hits.
func (o outcome) charge(hits int64) outcome {
	switch {
	case o.open:
		return outcome{ended: true, spent: o.spent + hits - estimate, over: o.over + max(0, hits-estimate)}
	case o.ended && o.due == 0:
		return o
	case o.ended:
		o.due--
	}
	o.spent += hits
	o.over += hits
	return o
}

// stream is a client's request, identified by the name of its reservation.
type stream struct {
	tenant  tenant
	name    string
	state   outcome
	others  []outcome // alternative states after a call without an answer
	hostile bool
}

// known reports whether all calls of s were answered. If not, no further call is made, because the last one may still take
// effect.
func (s *stream) known() bool { return s.others == nil }

// play plays until end.
func (g *named) play(ctx context.Context, seed uint64, end time.Time) {
	g.begun, g.tenants = time.Now(), map[tenant]*account{}
	var wg sync.WaitGroup
	for i := range 8 {
		d := drawer{rand.New(rand.NewPCG(seed, uint64(3000+i)))}
		wg.Go(func() { g.client(ctx, d, i, end) })
	}
	wg.Wait()
}

// client begins and continues streams, in random order, until end. Open streams stay open.
func (g *named) client(ctx context.Context, d drawer, number int, end time.Time) {
	var open []*stream
	for n := 0; time.Now().Before(end) && ctx.Err() == nil; n++ {
		var s *stream
		goesOn := false
		if len(open) == 0 || len(open) < 12 && d.odds(begins) {
			s, goesOn = g.begin(ctx, d, fmt.Sprintf("%d-%d-%d", number, n, d.Uint32()))
		} else {
			i := d.IntN(len(open))
			s = open[i]
			open = slices.Delete(open, i, i+1)
			goesOn = g.again(ctx, d, s)
		}
		if goesOn {
			open = append(open, s)
		} else {
			g.end(s)
		}
		time.Sleep(time.Duration(d.IntN(4)) * time.Millisecond)
	}
	for _, s := range open {
		g.end(s)
	}
}

// begin makes the first call of a stream, and reports whether another one follows. A hostile stream may charge a name without a
// reservation.
func (g *named) begin(ctx context.Context, d drawer, name string) (s *stream, goesOn bool) {
	s = &stream{
		tenant: tenant{pick(d, slices.Sorted(maps.Keys(budgets()))...), fmt.Sprint(int(time.Since(g.begun) / tenantFor))},
		name:   name, hostile: d.odds(15),
	}
	if s.hostile && d.odds(30) {
		g.charge(ctx, d, s, 1+d.Int64N(2*estimate))
		return s, false
	}
	ok := g.ask(ctx, d, s)
	return s, s.known() && (ok || s.hostile) && !d.odds(5) // some have no second call
}

// again makes another call of a stream, and reports whether another one follows.
func (g *named) again(ctx context.Context, d drawer, s *stream) (goesOn bool) {
	switch {
	case s.hostile && d.odds(60):
		g.ask(ctx, d, s)
		goesOn = true
	case d.odds(10):
		g.ask(ctx, d, s)
	default:
		g.charge(ctx, d, s, 1+d.Int64N(2*estimate))
		goesOn = s.hostile && d.odds(50)
	}
	return goesOn && s.known()
}

// ask makes a call without hits, and reports whether it was answered OK.
func (g *named) ask(ctx context.Context, d drawer, s *stream) bool {
	ok, answered := g.call(ctx, d, s, 0)
	if answered {
		s.state = s.state.ask(ok)
	} else {
		s.others = []outcome{s.state.ask(true), s.state.ask(false)}
	}
	return ok
}

// charge makes a call with hits. Charges without a reservation are bounded, so that no counter reaches twice its limit, at which
// hits are dropped.
func (g *named) charge(ctx context.Context, d drawer, s *stream, hits int64) {
	next := s.state.charge(hits)
	if !s.state.open && next.spent > s.state.spent {
		g.mu.Lock()
		a := g.account(s.tenant)
		full := a.late+hits > budgets()[s.tenant.key]/4
		if !full {
			a.late += hits
		}
		g.mu.Unlock()
		if full {
			return
		}
	}
	if _, answered := g.call(ctx, d, s, hits); answered {
		s.state = next
	} else {
		s.others = []outcome{next}
	}
}

// account returns the account of a tenant. g.mu must be held.
func (g *named) account(t tenant) *account {
	a := g.tenants[t]
	if a == nil {
		a = &account{}
		g.tenants[t] = a
	}
	return a
}

// end adds the spent hits of a stream to its tenant.
func (g *named) end(s *stream) {
	least, most, beyond := s.state.spent, s.state.spent, s.state.over
	for _, o := range s.others {
		least, most, beyond = min(least, o.spent), max(most, o.spent), max(beyond, o.over)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	a := g.account(s.tenant)
	a.least += least
	a.most += most
	a.beyond += beyond
	a.streams++
}

// call calls a random replica.
func (g *named) call(ctx context.Context, d drawer, s *stream, hits int64) (ok, answered bool) {
	ctx, cancel := context.WithTimeout(ctx, g.patience)
	defer cancel()
	resp, err := g.on[d.IntN(len(g.on))].rls.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain: namedDomain,
		Descriptors: []*commonv3.RateLimitDescriptor{{
			Entries: []*commonv3.RateLimitDescriptor_Entry{
				{Key: s.tenant.key, Value: s.tenant.value}, {Key: "stream", Value: s.name},
			},
			HitsAddend: wrapperspb.UInt64(uint64(hits)),
		}},
	})
	g.mu.Lock()
	g.calls++
	g.mu.Unlock()
	return resp.GetOverallCode() == rlsv3.RateLimitResponse_OK, err == nil
}

// check compares the budgets, as read through witness, with the spent hits. witness is a replica that has answered no call.
func (g *named) check(ctx context.Context, witness *replica) error {
	for t, a := range g.tenants {
		answer, err := witness.admin.Explain(ctx, &adminv1.ExplainRequest{
			Domain: namedDomain, Descriptors: []*adminv1.Descriptor{{Entries: []*adminv1.Entry{{Key: t.key, Value: t.value}}}},
		})
		if err != nil {
			return fmt.Errorf("asking how the budget of %v stands: %w", t, err)
		}
		budget := budgets()[t.key]
		spent := budget - int64(answer.GetDescriptors()[0].GetCounter().GetLeft())
		find := func(format string, args ...any) {
			g.wrong = append(g.wrong, fmt.Sprintf("%s %s: %s; %d streams, %+v", t.key, t.value, fmt.Sprintf(format, args...), a.streams, *a))
		}
		switch {
		case a.least-a.beyond > budget:
			find("%d hits are admitted of %d, beside what may exceed it", a.least-a.beyond, budget)
		case spent < min(a.least, budget):
			find("hits were lost: %d are spent and at least %d were", spent, a.least)
		case spent > a.most:
			find("hits were counted twice: %d are spent and at most %d were", spent, a.most)
		}
	}
	return nil
}

// report prints violations.
func (g *named) report(w io.Writer, p *played, sum *tally) {
	for _, text := range g.wrong {
		fmt.Fprintf(w, "FOUND in %s: named reservations: %s\n", p.campaign, strings.TrimSpace(text))
	}
	sum.found += len(g.wrong)
	sum.calls += g.calls
	sum.counted += len(g.tenants)
}
