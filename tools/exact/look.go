package main

import (
	"context"
	"fmt"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// names returns the entries of the game's descriptor for the admin API.
func (t *table) names(owner string) []*adminv1.Entry {
	var all []*adminv1.Entry
	for _, e := range t.entries(owner) {
		all = append(all, &adminv1.Entry{Key: e.GetKey(), Value: e.GetValue()})
	}
	return all
}

// looked records a call of the admin API, which consumes nothing.
func (c *client) looked(a ask, note string, call func() error) {
	n := proof.Call{Replica: a.replica + 1, Kind: proof.Peek, Note: note, Owner: a.owner, Under: c.every, Sent: now()}
	if a.over >= 0 {
		n.Under = c.over[a.over]
	}
	if err := call(); err == nil {
		n.Outcome = proof.Admitted
	}
	n.Done = now() + 1
	c.calls = append(c.calls, n)
}

func (c *client) peek(ctx context.Context, a ask) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	c.looked(a, "peek", func() error {
		_, err := c.on[a.replica].admin.Peek(ctx, &adminv1.PeekRequest{Domain: c.domain, Entries: c.names(a.owner)})
		return err
	})
}

func (c *client) explain(ctx context.Context, a ask) {
	ctx, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	c.looked(a, "explain", func() error {
		_, err := c.on[a.replica].admin.Explain(ctx, c.question(a))
		return err
	})
}

// question returns a request for the state of the counter, by the rule or an override.
func (t *table) question(a ask) *adminv1.ExplainRequest {
	hits := uint64(a.hits)
	d := &adminv1.Descriptor{Entries: t.names(a.owner), HitsAddend: &hits}
	if a.over >= 0 {
		o := t.overrides[a.over]
		m := o.message()
		d.Limit = &adminv1.Override{RequestsPerUnit: m.GetRequestsPerUnit(), Unit: adminv1.Unit(m.GetUnit()), UnitMultiplier: 1}
	}
	return &adminv1.ExplainRequest{Domain: t.domain, Descriptors: []*adminv1.Descriptor{d}}
}

// account compares the game's counters, as read through witness, with calls. witness is a replica that has answered no call and
// serves the game's widest rule.
func (t *table) account(ctx context.Context, witness *replica, calls []proof.Call, lost bool) (all []*proof.Mismatch, counted int, err error) {
	wide := t.widest()
	seen := map[proof.Counter]bool{}
	for over := -1; over < len(t.overrides); over++ {
		a := ask{over: over, owner: "nobody"}
		var limits []proof.Limit
		if over < 0 {
			limits = wide.setting().Limits
		} else {
			limits = t.overrides[over].on(wide).Limits
		}
		s := proof.Seen{Sent: now()}
		answer, err := witness.admin.Explain(ctx, t.question(a))
		if err != nil {
			return nil, 0, fmt.Errorf("asking how the counter of %s stands: %w", t.domain, err)
		}
		s.Done = now() + 1
		e := answer.GetDescriptors()[0]
		if over >= 0 && !e.GetIsOverride() { // the rule does not support the override
			continue
		}
		i := int(e.GetCounter().GetStrictest())
		if i >= len(limits) {
			return nil, 0, fmt.Errorf("the counter of %s has limits that are not its rule's: %v", t.domain, e.GetCounter())
		}
		s.Limit, s.Left = &limits[i], int64(e.GetCounter().GetLeft())
		if c := s.Limit.Counter(); seen[c] {
			continue
		} else {
			seen[c] = true
		}
		m, ok := proof.Account(calls, s, lost)
		if ok {
			counted++
		}
		if m != nil {
			all = append(all, m)
		}
	}
	return all, counted, nil
}

// widest returns the rule that leaves the most hits, so that the least is hidden.
func (t *table) widest() *rule {
	wide := t.game.rules[0]
	for _, r := range t.game.rules {
		if l, w := &r.limits[0], &wide.limits[0]; max(l.Burst, 1)*l.Hits > max(w.Burst, 1)*w.Hits {
			wide = r
		}
	}
	return wide
}
