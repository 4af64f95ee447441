package limiter

import (
	"cmp"
	"errors"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Source says where limits come from.
type Source uint8

// The sources. A later one stands above an earlier one.
const (
	FromRule    Source = iota
	FromTenant         // the first of them has the tenant's own number
	FromRequest        // it is an override
	FromControl        // an operator's control has put a number in force
)

// Effective describes the limits in force for one descriptor, and why they are.
type Effective struct {
	Outcome  Outcome                // Undecided if the limits decide
	Source   Source                 // of Limits
	Rule     *descriptors.Rule      // the one that the descriptor matches; nil if none
	Limits   descriptors.RateLimits // those in force; of a blocked descriptor, the limit of 0 that is reported
	Override bool                   // the request has brought its limit along, which has a counter of its own, whatever its number is now
	Hits     uint64                 // what it spends or refunds
	Negative bool                   // it refunds or settles, so nothing can reject it

	Controls    []*override.Control // that are about it
	Control     *override.Control   // of those the one that decides, or the first one whose number is in force; nil if the rules decide
	Ineffective Ineffective

	OnFailure descriptors.OnFailure // what decides while the backend fails; never FailDefault
}

// Ineffective says why something that was asked for is not in force; an element is nil if it is, or if nothing was asked for.
type Ineffective struct {
	Override error // the request's override
	Tenant   error // the tenant's own number
	Control  error // a control
}

// Reasons of [Ineffective].
var (
	errNotAllowed = errors.New("the domain has allow_limit_override: false")
	errNotNamed   = errors.New("the rule has no limit of that name")
	errUnlimited  = errors.New("the plan is unlimited")
)

// resolution has the limits in force for each descriptor of a request.
type resolution struct {
	rules   *snapshot
	domain  *descriptors.Domain // nil if it has no rules
	counts  *domain             // likewise
	table   *override.Table     // nil if there are no controls
	counter bool                // a counter is asked for, not a verdict: of controls only limits count, and reservations do not
	blocked bool                // a descriptor is, so the request is rejected

	parts   []part                 // one for each descriptor
	kept    descriptors.RateLimits // limits that are in no rule
	entries []descriptors.Entry    // of descriptors of which one was taken out
}

// part is one descriptor on its way through the phases. Each phase adds its results.
type part struct {
	Effective                      // resolve, like the next four
	match     descriptors.Match    // of which Rule is a part
	rule      *rule                // what the limiter adds to Rule
	reserving reserving            // what it does about reservations
	id        engine.ReservationID // of the reservation that it settles

	op    int // plan: the index of its operation; −1 if it has none
	group int // plan: the first descriptor of its quota group, or AnyGroup

	spent    spent                 // charge
	fallback descriptors.OnFailure // charge: what has decided in place of the backend; FailDefault if nothing has
}

// resolve finds the limits in force for each descriptor of r.
func (v *resolution) resolve(s *snapshot, r *Request) {
	v.rules, v.domain, v.counts, v.blocked = s, s.set.Domain(r.Domain), nil, false
	v.kept.Clear()
	if v.domain != nil {
		v.counts = s.domains[v.domain]
		if v.domain.ReserveEntries != nil && !v.counter {
			v.findReservations(r)
		}
	}
	n := len(r.Descriptors)
	v.parts = slices.Grow(v.parts[:0], n)[:n]
	replaces := false
	for i := range v.parts {
		t := &v.parts[i]
		v.part(r, &r.Descriptors[i], t)
		v.blocked = v.blocked || t.Outcome == Blocked
		replaces = replaces || t.replaces()
	}
	if replaces {
		v.dropReplaced()
	}
}

// part finds the limits in force for one descriptor, before those that others replace are dropped.
func (v *resolution) part(r *Request, desc *Descriptor, t *part) {
	*t = part{op: -1}
	t.Hits, t.Negative = r.hits(desc), desc.Negative
	if v.domain != nil {
		v.match(desc, t)
		if desc.HasOverride {
			v.override(desc, t)
		}
	}
	if v.table != nil {
		v.control(r, desc, t)
	}
	t.OnFailure = v.rules.config.policy(t.Rule)
	if t.Rule != nil && t.Rule.Reserve != nil {
		t.reserve(v.rules.config.Reservations, r, desc)
	}
}

// match puts the limits of the rule that desc matches in force, with the tenant's own number.
func (v *resolution) match(desc *Descriptor, t *part) {
	var own plans.Entry
	if t.match, own = v.rules.match(v.domain, desc.Entries); t.match.Rule == nil {
		return
	}
	t.Rule = t.match.Rule
	t.rule = &v.rules.rules[t.Rule.Index]
	t.Outcome, t.Limits = Undecided, t.Rule.RateLimits
	switch {
	case t.Rule.Unlimited && own.Numbered:
		t.Outcome, t.Ineffective.Tenant = Unlimited, errUnlimited
	case t.Rule.Unlimited:
		t.Outcome = Unlimited
	case own.Numbered:
		v.number(t, own.Requests)
	}
}

// match returns where entries lead, and the entry of the tenant. Where the rule has plans, it is the rule of the tenant's plan. A
// tenant that is in no table, or whose plan the descriptor does not have, is on the default.
func (s *snapshot) match(d *descriptors.Domain, entries []descriptors.Entry) (m descriptors.Match, own plans.Entry) {
	m = d.Match(entries)
	name, ok := m.Tenant(entries)
	if !ok {
		return m, plans.Entry{}
	}
	e, from := s.config.Plans.Load().Find(name)
	if from == plans.Nowhere || !m.OnPlan(e.Plan) {
		return m, plans.Entry{}
	}
	return m, e
}

// number puts a tenant's own number in force, in place of that of the first limit of its plan.
func (v *resolution) number(t *part, requests uint32) {
	first := t.Limits.At(0)
	item, err := t.match.WithOverride(0, descriptors.Override{RequestsPerUnit: requests, Unit: first.Unit, Multiplier: first.Multiplier})
	if err != nil {
		t.Ineffective.Tenant = err
		return
	}
	since, all := v.kept.Len(), t.Limits
	t.Limits, t.Source = v.keep(&item, since), FromTenant
	for j := 1; j < all.Len(); j++ {
		t.Limits = v.keep(all.At(j), since)
	}
}

// override puts the limit that desc carries in force.
func (v *resolution) override(desc *Descriptor, t *part) {
	if !v.domain.AllowOverride {
		t.Ineffective.Override = errNotAllowed
		return
	}
	item, err := t.match.Override(desc.Override)
	if err != nil {
		t.Ineffective.Override = err
		return
	}
	t.Outcome, t.Source, t.Override = Undecided, FromRequest, true
	t.Limits = v.keep(&item, v.kept.Len())
}

// keep stores a copy of l, and returns all those kept from index since on.
func (v *resolution) keep(l *descriptors.RateLimit, since int) descriptors.RateLimits {
	v.kept.Append(l)
	return v.kept.From(since)
}

// control has the controls on desc decide: those with the most entries or, if these are limits without effect, the next ones that
// have an effect. So a limit without effect hides neither a block nor an allow.
func (v *resolution) control(r *Request, desc *Descriptor, t *part) {
	t.Controls = v.table.Find(r.Domain, desc.Entries)
	if len(t.Controls) == 0 || v.apply(t.Controls, desc, t) {
		return
	}
	why := t.Ineffective.Control
	for next := t.Controls; ; {
		if next = v.table.FindShorter(r.Domain, desc.Entries, len(next[0].Entries)); len(next) == 0 {
			t.Ineffective.Control = why
			return
		}
		if v.apply(next, desc, t) {
			t.Controls = next
			return
		}
	}
}

// apply has controls with the same entries decide, and reports whether they have an effect. A block and an allow always have one,
// even where they change nothing.
func (v *resolution) apply(found []*override.Control, desc *Descriptor, t *part) bool {
	t.Ineffective.Control = nil
	switch first := found[0]; {
	case first.Kind == override.Limit:
		v.limit(found, t)
		return t.Control != nil
	case v.counter:
	case first.Kind == override.Block && !desc.refunds():
		t.Control, t.Outcome, t.Override = first, Blocked, false
		t.Limits = v.nothing(t.Rule)
	case first.Kind == override.Allow && v.domain != nil:
		t.Control = first
		_, held := t.match.Holder(desc.Entries)
		if !desc.settles() && (!desc.Negative || !held) { // a holder's slots are known apart from those of others
			t.Outcome = Allowed
		}
	}
	return true
}

// nothing returns the limit that is reported for a blocked descriptor: 0, in the unit of the rule.
func (v *resolution) nothing(r *descriptors.Rule) descriptors.RateLimits {
	item := descriptors.RateLimit{Unit: descriptors.Second, Multiplier: 1}
	if r != nil && r.RateLimits.Len() > 0 && !r.Unlimited {
		first := r.RateLimits.At(0)
		item.Unit, item.Multiplier = first.Unit, first.Multiplier
	}
	return v.keep(&item, v.kept.Len())
}

// limit puts the numbers of controls in force. They take the place of the numbers of t's rule, even if the request brings a limit
// along. Where there is no rule, or it is unlimited, they take the place of the number that the request brings. A number that the
// rule cannot have has no effect.
func (v *resolution) limit(found []*override.Control, t *part) {
	if t.Rule != nil && !t.Rule.Unlimited {
		v.limitRule(found, t)
		return
	}
	i := slices.IndexFunc(found, func(c *override.Control) bool { return c.LimitName == "" })
	if !t.Override || i < 0 {
		return
	}
	item, err := t.match.Override(found[i].To)
	if t.Ineffective.Control = err; err == nil {
		t.Limits, t.Source, t.Control = v.keep(&item, v.kept.Len()), FromControl, found[i]
	}
}

func (v *resolution) limitRule(found []*override.Control, t *part) {
	since, limits := v.kept.Len(), &t.Rule.RateLimits
	if t.Source == FromTenant {
		limits = new(t.Limits)
	}
	var first *override.Control
	for j := range limits.Len() {
		item := *limits.At(j)
		for _, c := range found {
			if t.match.Named(c.LimitName) != j {
				continue
			}
			other, err := t.match.WithOverride(j, c.To)
			if t.Ineffective.Control = err; err == nil {
				item, first = other, cmp.Or(first, c)
			}
			break
		}
		v.keep(&item, since)
	}
	if first == nil {
		t.Ineffective.Control = cmp.Or(t.Ineffective.Control, errNotNamed)
		return
	}
	limits = new(v.kept.From(since))
	if len(found) > 1 { // each can be in force without the others, but perhaps not all together
		if t.Ineffective.Control = limits.Limits().Validate(); t.Ineffective.Control != nil {
			return
		}
	}
	t.Limits, t.Source, t.Override, t.Control = *limits, FromControl, false, first
}

// decider returns the control that put item, one of t's limits, in force; nil if none did.
func (t *part) decider(item *descriptors.RateLimit) *override.Control {
	if t.Control == nil || t.Control.Kind != override.Limit || t.Override {
		return t.Control
	}
	for _, c := range t.Controls {
		j := t.match.Named(c.LimitName)
		same := item.RequestsPerUnit == c.To.RequestsPerUnit && item.Unit == c.To.Unit && item.Multiplier == max(c.To.Multiplier, 1)
		if j >= 0 && same && t.Rule.RateLimits.At(j).Name == item.Name {
			return c
		}
	}
	return nil
}

// replaces reports whether a limit of t may replace others. Overrides have no names and replace nothing.
func (t *part) replaces() bool { return t.rule != nil && t.rule.replaces && !t.Override }

// dropReplaced drops every limit whose name a matched limit replaces, even if the latter is unlimited or itself
// replaced. Unlimited descriptors stay.
func (v *resolution) dropReplaced() {
	for i := range v.parts {
		t := &v.parts[i]
		if t.Outcome != Undecided || t.Override {
			continue
		}
		since, all := v.kept.Len(), t.Limits
		for j := range all.Len() {
			if l := all.At(j); !v.replaced(l.Name) {
				v.kept.Append(l)
			}
		}
		if t.Limits = v.kept.From(since); t.Limits.Len() == 0 {
			t.Outcome = Replaced
		}
	}
}

// replaced reports whether a matched limit has name among those it replaces. It reads the rules, not what is left of
// them, so limits that replace each other are both dropped.
func (v *resolution) replaced(name string) bool {
	if name == "" {
		return false
	}
	for i := range v.parts {
		if !v.parts[i].replaces() {
			continue
		}
		for _, l := range v.parts[i].Rule.RateLimits.All() {
			if slices.Contains(l.Replaces, name) {
				return true
			}
		}
	}
	return false
}
