package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/controls"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// readyLimits is how many rules have a gauge of their limits.
const readyLimits = 1000

// maxControls is how many controls have a series of their own for what they decided, where those of further ones are counted
// together, and how many have one for the limit that they put in force.
const maxControls = controls.MaxNumbers

// steered is what controls have to say about a request.
type steered struct {
	found   [][]*controls.Control // by descriptor, those that decide; empty if there are no controls at all
	blocked bool                  // the request is refused, whatever else is asked
	only    bool                  // limits alone count: it is a counter that is asked for
	look    bool                  // what a block makes superfluous is looked at all the same
}

// table returns the controls in force, or nil.
func (l *Limiter) table() *controls.Table {
	if l.config.Controls == nil {
		return nil
	}
	return l.config.Controls.Table()
}

// steer finds the controls of r's descriptors. t may be nil.
func (p *Scratch) steer(t *controls.Table, set *snapshot, r *Request) {
	s := &p.steered
	s.found, s.blocked, s.only, s.look = s.found[:0], false, false, false
	if t == nil {
		return
	}
	for i := range r.Descriptors {
		desc := &r.Descriptors[i]
		found := t.Find(r.Domain, desc.Entries)
		if len(found) > 0 && found[0].Kind == controls.Limit {
			found = p.passOver(t, set, r, desc, found)
		}
		s.found = append(s.found, found)
		s.blocked = s.blocked || blocks(found, desc)
	}
}

// passOver returns the controls that decide on desc where found, which are limits, would: those with fewer entries if found has no
// effect on desc and they have, so that a limit which nothing can obey hides neither a block nor an allow.
func (p *Scratch) passOver(t *controls.Table, set *snapshot, r *Request, desc *Descriptor, found []*controls.Control) []*controls.Control {
	if len(t.FindShorter(r.Domain, desc.Entries, len(found[0].Entries))) == 0 {
		return found
	}
	d := set.set.Domain(r.Domain)
	for next := found; len(next) > 0; next = t.FindShorter(r.Domain, desc.Entries, len(next[0].Entries)) {
		if p.effective(set, d, desc, next) {
			return next
		}
	}
	return found
}

// effective reports whether found decides on desc, or changes its limit. d is nil where the domain has no rules.
func (p *Scratch) effective(set *snapshot, d *descriptors.Domain, desc *Descriptor, found []*controls.Control) bool {
	if found[0].Kind != controls.Limit || d == nil {
		return found[0].Kind != controls.Limit
	}
	var t part
	t.match, _ = set.match(d, desc.Entries)
	if m := t.match.Rule; m != nil {
		t.limits, t.unlimited = m.RateLimits, m.Unlimited
	}
	if desc.HasOverride {
		p.override(d, desc, &t)
	}
	p.relimit(found, &t)
	return t.control != nil
}

// blocks reports whether a descriptor is refused. Giving back never is.
func blocks(found []*controls.Control, d *Descriptor) bool {
	return len(found) > 0 && found[0].Kind == controls.Block && !d.gives()
}

// control lets what was found for the i-th descriptor decide on its part.
func (p *Scratch) control(desc *Descriptor, i int) {
	found, t := p.steered.found[i], &p.parts[i]
	if len(found) == 0 {
		return
	}
	switch k := found[0].Kind; {
	case k == controls.Limit:
		p.relimit(found, t)
	case p.steered.only || k == controls.Block && desc.gives():
	case k == controls.Block:
		t.control, t.blocked, t.override, t.unlimited = found[0], true, false, false
		t.limits = p.none(t)
	case k == controls.Allow:
		_, held := t.match.Holder(desc.Entries)
		t.control, t.allowed = found[0], !desc.settles() && (!desc.Negative || !held) // a holder's slots can be told from those of others
	}
}

// none returns the limit that is reported for what is blocked: 0, in the unit of t's rule.
func (p *Scratch) none(t *part) descriptors.RateLimits {
	item := descriptors.RateLimit{Unit: descriptors.Second, Multiplier: 1}
	if m := t.match.Rule; m != nil && m.RateLimits.Len() > 0 && !m.Unlimited {
		first := m.RateLimits.At(0)
		item.Unit, item.Multiplier = first.Unit, first.Multiplier
	}
	return p.keep(&item, p.kept.Len())
}

// relimit puts the numbers of controls in force: in place of those of t's rule, even if the request brings a limit along; or,
// where there is no rule or it is unlimited, of that which the request brings. A number that the rule cannot take has no effect.
func (p *Scratch) relimit(found []*controls.Control, t *part) {
	switch m := t.match.Rule; {
	case m != nil && !m.Unlimited:
		p.relimitRule(found, t)
	case t.override:
		i := slices.IndexFunc(found, func(c *controls.Control) bool { return c.LimitName == "" })
		if i < 0 {
			return
		}
		item, err := t.match.Override(found[i].To)
		if t.uncontrolled = err; err == nil {
			t.limits, t.control = p.keep(&item, p.kept.Len()), found[i]
		}
	}
}

func (p *Scratch) relimitRule(found []*controls.Control, t *part) {
	since, limits := p.kept.Len(), &t.match.Rule.RateLimits
	if t.numbered && !t.override {
		limits = new(t.limits)
	}
	var first *controls.Control
	for j := range limits.Len() {
		item := *limits.At(j)
		for _, c := range found {
			if t.match.Named(c.LimitName) != j {
				continue
			}
			other, err := t.match.Relimited(j, c.To)
			if t.uncontrolled = err; err == nil {
				item, first = other, cmp.Or(first, c)
			}
			break
		}
		p.keep(&item, since)
	}
	if first == nil {
		t.uncontrolled = cmp.Or(t.uncontrolled, errNotNamed)
		return
	}
	limits = new(p.kept.From(since))
	if len(found) > 1 { // each alone can be in force, but perhaps not all together
		if t.uncontrolled = limits.Limits().Validate(); t.uncontrolled != nil {
			return
		}
	}
	t.limits, t.override, t.control = *limits, false, first
}

// decider returns that of the controls found for t that put item in force; nil if the rule did.
func (t *part) decider(found []*controls.Control, item *descriptors.RateLimit) *controls.Control {
	if found[0].Kind != controls.Limit || t.override {
		return t.control
	}
	for _, c := range found {
		j := t.match.Named(c.LimitName)
		same := item.RequestsPerUnit == c.To.RequestsPerUnit && item.Unit == c.To.Unit && item.Multiplier == max(c.To.Multiplier, 1)
		if j >= 0 && same && t.match.Rule.RateLimits.At(j).Name == item.Name {
			return c
		}
	}
	return nil
}

// refuse gives the verdict on a request that a control blocks: nothing is spent, on other descriptors neither, and the store is
// asked only to give back, if there is time for that.
func (l *Limiter) refuse(ctx context.Context, s *snapshot, d *descriptors.Domain, r *Request, p *Scratch) *Verdict {
	p.late = false
	p.plan(s, d, r)
	l.counts.before(s, d, r, p)
	switch {
	case len(p.ops) == 0:
	case r.Late:
		shed(p.ops) // nobody may take it for what the store says
		l.counts.giveBackErrors.Add(1)
	case l.charge(ctx, d, p) != nil:
		l.counts.giveBackErrors.Add(1)
	}
	l.fold(p)
	l.counts.after(p)
	l.counts.steered(p)
	return &p.verdict
}

// strangers gives the verdict on a request for a domain without rules.
func (l *Limiter) strangers(p *Scratch, r *Request) {
	v := &p.verdict
	v.unmatched(len(r.Descriptors))
	if !p.steered.blocked {
		return
	}
	p.kept.Clear()
	for i, found := range p.steered.found {
		if blocks(found, &r.Descriptors[i]) {
			t := part{control: found[0]}
			t.limits = p.none(&t)
			v.Statuses[i].block(&t)
			v.Over, v.Header = true, i
		}
	}
}

// block makes s that of a blocked part.
func (s *Status) block(t *part) {
	s.Over, s.Refused, s.Control, s.RateLimit = true, true, t.control, t.limits.At(0)
	left := max(time.Until(t.control.Until), 0)
	s.Decision.RetryAfter, s.Decision.ResetAfter = left, left
}

// allow makes s that of an allowed part.
func (s *Status) allow(t *part) {
	s.Control, s.Unlimited, s.Remaining = t.control, true, math.MaxUint32
}

// steered counts what controls decided.
func (c *counts) steered(p *Scratch) {
	for i := range p.verdict.Statuses {
		if t := p.verdict.Statuses[i].Control; t != nil {
			c.controlled(t)
		}
	}
}

func (c *counts) controlled(t *controls.Control) {
	var room [64]byte
	id := append(room[:0], t.ID...)
	n := c.controls.find(id)
	if n == nil {
		n = c.controls.add(id, func() *stats.Counter {
			return c.registry.Counter(stats.ControlDecisionsTotal, t.ID, t.Kind.String())
		}, func() *stats.Counter {
			return c.registry.Counter(stats.ControlDecisionsTotal, stats.Other, stats.Other)
		})
	}
	n.Add(1)
}

// Gauges reports how many controls are in force, and the limits of the first of them and of the first rules.
func (l *Limiter) Gauges(v *stats.Values) {
	table := l.table()
	for _, k := range controls.Kinds() {
		v.Gauge(stats.Controls, float64(table.Count(k)), k.String())
	}
	s := l.rules.Load()
	if s == nil {
		return
	}
	for _, c := range table.Numbers() {
		if d := s.set.Domain([]byte(c.Domain)); d != nil { // else no rules bound the label
			item := descriptors.RateLimit{Unit: c.To.Unit, Multiplier: max(1, c.To.Multiplier)}
			rule := ""
			if m, _ := s.match(d, c.Match()); m.Rule != nil {
				rule = m.Rule.Path
			}
			v.Gauge(stats.ControlLimit, float64(c.To.RequestsPerUnit), c.ID, c.Domain, c.LimitName, rule, item.WindowText())
		}
	}
	shown := 0
	for r := range s.set.Rules() {
		if shown++; shown > readyLimits {
			return
		}
		if r.Reserve != nil {
			v.Gauge(stats.ReservedHits, float64(s.rules[r.Index].reserved.sum()), r.Path)
		}
		for _, item := range r.RateLimits.All() {
			if !r.Unlimited {
				v.Gauge(stats.RuleLimit, float64(item.RequestsPerUnit), item.Limit.Algorithm.String(), item.Name, r.Path, item.WindowText())
			}
		}
	}
}

var (
	errNotNamed  = errors.New("the rule has no limit of that name")
	errUnlimited = errors.New("the plan is unlimited")
)

// explainControls adds the controls of the i-th descriptor of r, as far as t has them.
func (p *Scratch) explainControls(x *Explained, t *controls.Table, r *Request, i int) {
	if i >= len(p.steered.found) {
		return
	}
	x.Controls = p.steered.found[i]
	longest := t.Find(r.Domain, r.Descriptors[i].Entries)
	for _, c := range longest {
		if len(c.Entries) > len(x.Controls[0].Entries) {
			x.Steps = append(x.Steps, descriptors.Step{Text: fmt.Sprintf("%v is passed over: it has no effect here", c)})
		}
	}
	for _, c := range x.Controls {
		text := fmt.Sprintf("%v decides, until %s", c, c.Until.UTC().Format(time.RFC3339))
		if c.Kind == controls.Limit {
			text = fmt.Sprintf("%v puts %s in force, until %s", c, c.Number(), c.Until.UTC().Format(time.RFC3339))
		}
		if c.Reason != "" {
			text += ": " + c.Reason
		}
		switch {
		case i < len(p.parts) && p.parts[i].uncontrolled != nil:
			text += "; it has no effect: " + p.parts[i].uncontrolled.Error()
		case x.Control == nil && (i >= len(p.parts) || p.parts[i].control == nil):
			text += "; it has no effect here"
		}
		x.Steps = append(x.Steps, descriptors.Step{Text: text})
	}
}
