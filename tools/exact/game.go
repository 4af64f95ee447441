package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// table is a running game: its settings and servers.
type table struct {
	*game

	on       []*replica
	rules    map[string]*proof.Setting // by name
	every    []*proof.Setting          // all rules
	over     [][]*proof.Setting        // settings that each override may result in
	patience time.Duration             // timeout of clients
}

func newTable(g *game, on []*replica, patience time.Duration) *table {
	t := &table{game: g, on: on, rules: map[string]*proof.Setting{}, patience: patience}
	for _, r := range g.rules {
		s := r.setting()
		t.rules[r.name] = s
		t.every = append(t.every, s)
	}
	for _, o := range g.overrides {
		var may []*proof.Setting
		for _, r := range g.rules {
			may = append(may, o.on(r))
		}
		t.over = append(t.over, may)
	}
	return t
}

// play plays until end, and returns all calls.
func (t *table) play(ctx context.Context, seed uint64, end time.Time) []proof.Call {
	var wg sync.WaitGroup
	clients := make([]*client, t.clients)
	for i := range clients {
		c := &client{table: t, drawer: drawer{rand.New(rand.NewPCG(seed, uint64(i+1)))}, has: map[string]int64{}}
		clients[i] = c
		if t.game.rules[0].holder {
			for k := range 1 + c.IntN(6) {
				c.owners = append(c.owners, fmt.Sprintf("c%d-%d", i, k))
			}
		}
		wg.Go(func() { c.run(ctx, end) })
	}
	if t.reload > 0 {
		wg.Go(func() { t.alternate(drawer{rand.New(rand.NewPCG(seed, 1000))}, end) })
	}
	wg.Wait()
	var all []proof.Call
	for _, c := range clients {
		all = append(all, c.calls...)
	}
	return all
}

// alternate makes replicas serve other rules from time to time.
func (t *table) alternate(d drawer, end time.Time) {
	for {
		rest := time.Duration(d.ExpFloat64() * float64(t.reload))
		if time.Now().Add(rest).After(end) {
			return
		}
		time.Sleep(rest)
		r, to := t.on[d.IntN(len(t.on))], pick(d, t.game.rules...)
		if err := r.serve(t.domain, to.yaml(t.domain)); err != nil {
			return // the directory was removed at the end of the run
		}
	}
}

// client makes one call after the other.
type client struct {
	*table
	drawer

	calls  []proof.Call
	owners []string
	has    map[string]int64 // admitted hits that can be refunded, by owner
}

func (c *client) run(ctx context.Context, end time.Time) {
	for time.Now().Before(end) && ctx.Err() == nil {
		c.step(ctx)
		rest := time.Duration(c.ExpFloat64() * float64(c.pause))
		if c.odds(1) {
			rest += time.Duration(c.IntN(800)) * time.Millisecond // lets leases cool down
		}
		time.Sleep(min(rest, max(time.Until(end), 0)))
	}
}

// step draws and makes a call.
func (c *client) step(ctx context.Context) {
	m := &c.mix
	n := c.IntN(m.take + m.look + m.over + m.overLook + m.peek + m.explain + m.give)
	next := func(weight int) bool {
		n -= weight
		return n < 0
	}
	a := ask{replica: c.IntN(replicas), over: -1, hits: 1 + c.Int64N(c.most)}
	if c.odds(c.hugeOdds) {
		a.hits = c.huge
	}
	if len(c.owners) > 0 {
		a.owner = pick(c.drawer, c.owners...)
	}
	if len(c.overrides) > 0 {
		a.over = c.IntN(len(c.overrides))
	}
	rule := a
	rule.over = -1
	switch {
	case next(m.take):
		c.call(ctx, c.loud(rule))
	case next(m.over):
		c.call(ctx, c.loud(a))
	case next(m.look):
		rule.hits = 0
		c.call(ctx, rule)
	case next(m.overLook):
		a.hits = 0
		c.call(ctx, a)
	case next(m.peek):
		c.peek(ctx, rule)
	case next(m.explain):
		if c.odds(50) {
			a = rule
		}
		c.explain(ctx, a)
	default:
		c.refund(ctx, rule)
	}
}

// loud redirects a take to a replica that is not quiet.
func (c *client) loud(a ask) ask {
	for c.quiet[a.replica] {
		a.replica = (a.replica + 1) % replicas // the first is never quiet
	}
	return a
}

func (c *client) refund(ctx context.Context, a ask) {
	has := c.has[a.owner]
	if has == 0 {
		return
	}
	a.give, a.hits = true, min(has, a.hits)
	c.call(ctx, c.loud(a))
}

// ask describes a call.
type ask struct {
	replica int
	over    int // index of an override, or −1
	hits    int64
	owner   string
	give    bool
}

// entries returns the entries of the game's descriptor.
func (t *table) entries(owner string) []*commonv3.RateLimitDescriptor_Entry {
	all := []*commonv3.RateLimitDescriptor_Entry{{Key: "k", Value: "v"}}
	if t.game.rules[0].holder {
		all = append(all, &commonv3.RateLimitDescriptor_Entry{Key: "who", Value: owner})
	}
	return all
}

// call calls ShouldRateLimit and records the call.
func (c *client) call(ctx context.Context, a ask) {
	d := &commonv3.RateLimitDescriptor{
		Entries: c.entries(a.owner), HitsAddend: wrapperspb.UInt64(uint64(a.hits)), IsNegativeHits: a.give,
	}
	n := proof.Call{Replica: a.replica + 1, Hits: a.hits, Owner: a.owner, Under: c.every}
	if a.over >= 0 {
		d.Limit = c.overrides[a.over].message()
		n.Under = append(append([]*proof.Setting{}, c.over[a.over]...), c.every...)
	}
	switch {
	case a.give:
		n.Kind = proof.Refund
	case a.hits == 0:
		n.Kind = proof.Peek
	}
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	n.Sent = now()
	resp, err := c.on[a.replica].rls.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{
		Domain: c.domain, Descriptors: []*commonv3.RateLimitDescriptor{d},
	})
	n.Done = now() + 1 // now rounds down
	if err == nil && len(resp.GetStatuses()) == 1 {
		c.answered(&n, a, resp)
	}
	c.calls = append(c.calls, n)
}

// answered records the answer in n.
func (c *client) answered(n *proof.Call, a ask, resp *rlsv3.RateLimitResponse) {
	status := resp.GetStatuses()[0]
	n.Outcome = proof.Admitted
	if status.GetCode() != rlsv3.RateLimitResponse_OK {
		n.Outcome = proof.Rejected
	}
	name, _, ruled := strings.Cut(status.GetCurrentLimit().GetName(), "-")
	switch {
	case ruled: // overrides have no names
		n.Under = []*proof.Setting{c.rules[name]}
	case a.over >= 0:
		n.Under = c.over[a.over]
	}
	if n.Outcome == proof.Admitted && n.Kind == proof.Take {
		if a.over < 0 { // after an override, a refund by the rule may go to another counter
			c.took(a)
		}
		meta := resp.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
		if len(meta) == 1 {
			n.Wait = proof.Micros(meta[0].GetStructValue().GetFields()["wait_ms"].GetNumberValue()) * proof.WaitUnit
		}
	}
	if n.Kind == proof.Refund {
		c.has[a.owner] -= a.hits
	}
}

// took records hits that can be refunded.
func (c *client) took(a ask) {
	if a.owner != "" {
		c.has[a.owner] = max(c.has[a.owner], a.hits)
		return
	}
	c.has[a.owner] += a.hits
}

func now() proof.Micros { return proof.Micros(time.Now().UnixMicro()) }
