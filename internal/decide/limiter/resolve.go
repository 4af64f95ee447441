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

// Source identifies the origin of a descriptor's limits.
type Source uint8

// The sources, in increasing order of precedence.
const (
	FromRule    Source = iota
	FromTenant         // the first limit has the tenant's own number
	FromRequest        // the limit is an override of the request
	FromControl        // an operator's control replaced a number
)

// Effective describes the limits in force for one descriptor, and their origin.
type Effective struct {
	Outcome  Outcome                // Undecided if the limits decide
	Source   Source                 // of Limits
	Rule     *descriptors.Rule      // the matching rule; nil if none
	Limits   descriptors.RateLimits // the limits in force; for a blocked descriptor, the reported limit of 0
	Override bool                   // the request carries the limit, which has its own counter whatever number is in force
	Hits     uint64                 // hits that the descriptor consumes or refunds
	Negative bool                   // a refund or settlement, which cannot be rejected

	Controls    []*override.Control // the controls that match the descriptor
	Control     *override.Control   // the control that decides, or the first one whose number is in force; nil if the rules decide
	Ineffective Ineffective

	OnFailure descriptors.OnFailure // the fallback; never FailDefault
}

// Ineffective holds the reasons why requested changes are not in force. A nil element means that the change is in force or was not
// requested.
type Ineffective struct {
	Override error // the request's override
	Tenant   error // the tenant's own number
	Control  error // a control
}

// Reasons in [Ineffective].
var (
	errNotAllowed = errors.New("the domain has allow_limit_override: false")
	errNotNamed   = errors.New("the rule has no limit of that name")
)

// resolution holds the limits in force for each descriptor of a request.
type resolution struct {
	rules   *snapshot
	domain  *descriptors.Domain // nil if it has no rules
	counts  *domain             // nil if domain is nil
	table   *override.Table     // nil if there are no controls
	counter bool                // the caller wants a counter, not a verdict: ignore blocks, allows and reservations
	blocked bool                // a control blocks a descriptor, so the request is rejected

	parts   []part                 // one for each descriptor
	kept    descriptors.RateLimits // limits that belong to no rule
	entries []descriptors.Entry    // of descriptors whose reservation entry was removed
}

// part is the state of one descriptor. Each phase adds its results.
type part struct {
	Effective                      // set by resolve, like the next four
	match     descriptors.Match    // contains Rule
	rule      *rule                // the limiter's data for Rule
	reserving reserving            // its use of reservations
	id        engine.ReservationID // the reservation to settle, or the one that the request names

	op    int // plan: the index of its operation; −1 if none
	group int // plan: the first descriptor of its quota group, or AnyGroup

	spent    spent                 // charge
	fallback descriptors.OnFailure // charge: the fallback that decided; FailDefault if none did
}

// resolve finds the limits in force for each descriptor of r.
func (v *resolution) resolve(s *snapshot, r *Request) {
	v.rules, v.domain, v.counts, v.blocked = s, s.set.Domain(r.Domain), nil, false
	v.kept.Clear()
	v.entries = v.entries[:0]
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

// part finds the limits in force for one descriptor. Replaced limits are dropped later.
func (v *resolution) part(r *Request, desc *Descriptor, t *part) {
	*t = part{op: -1}
	t.Hits, t.Negative = r.hits(desc), desc.Negative
	if v.domain != nil {
		v.match(r, desc, t)
		if desc.HasOverride {
			v.override(desc, t)
		}
	}
	if v.table != nil {
		v.control(r, desc, t)
	}
	t.OnFailure = v.rules.config.policy(t.Rule)
	if t.Rule != nil && t.Rule.Reserve != nil {
		if t.Rule.Reserve.By == "" {
			t.reserve(v.rules.config.Reservations, r, desc)
		} else if !v.counter {
			t.reserveBy(r, desc)
		}
	}
}

// match puts the limits of desc's rule in force, with the tenant's own number.
func (v *resolution) match(r *Request, desc *Descriptor, t *part) {
	var own plans.Entry
	entries := desc.Entries
	if desc.HasReservation {
		entries = v.domain.Complete(entries) // r has been resolved before
	}
	if t.match, own = v.rules.match(v.domain, entries); t.match.Rule == nil {
		return
	}
	if at := t.match.ReserveBy(); at >= 0 && !desc.HasReservation {
		desc.Reservation, desc.HasReservation = desc.Entries[at].Value, true
		desc.Entries = v.without(desc.Entries, at)
		desc.Opens = t.match.Rule.Reserve == nil || r.hitless(desc)
	}
	t.Rule = t.match.Rule
	t.rule = &v.rules.rules[t.Rule.Index]
	t.Outcome, t.Limits = Undecided, t.Rule.RateLimits
	if own.Numbered {
		v.number(t, own.Requests)
	}
	if t.Rule.Unlimited {
		t.Outcome = Unlimited
	}
}

// match matches entries against the rules of d, and returns the match and the tenant's entry. If the rule has plans, the match is the
// rule of the tenant's plan. A tenant without an entry, or with a plan that the descriptor lacks, is on the default plan.
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

// number replaces the number of the plan's first limit by the tenant's own.
func (v *resolution) number(t *part, requests uint64) {
	item, err := t.match.WithNumber(requests)
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

// keep stores a copy of l and returns all limits kept from index since on.
func (v *resolution) keep(l *descriptors.RateLimit, since int) descriptors.RateLimits {
	v.kept.Append(l)
	return v.kept.From(since)
}

// control applies the controls on desc. Those with the most entries win; if they are limits without effect, the next shorter ones that
// have an effect apply. So a limit without effect hides neither a block nor an allow.
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

// apply applies controls with the same entries and reports whether they have an effect. Blocks and allows always have one, even if they
// change nothing.
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
		if !desc.settles() && (!desc.Negative || !held) { // a holder's refund releases only its own slots
			t.Outcome = Allowed
		}
	}
	return true
}

// nothing returns the limit reported for a blocked descriptor: 0, in the unit of its rule.
func (v *resolution) nothing(r *descriptors.Rule) descriptors.RateLimits {
	item := descriptors.RateLimit{Unit: descriptors.Second, Multiplier: 1}
	if r != nil && r.RateLimits.Len() > 0 && !r.Unlimited {
		first := r.RateLimits.At(0)
		item.Unit, item.Multiplier = first.Unit, first.Multiplier
	}
	return v.keep(&item, v.kept.Len())
}

// limit puts the numbers of controls in force. They replace the numbers of t's rule, even if the request carries an override. Without a
// rule, or with an unlimited one, they replace the number of the override. A number that the rule cannot have has no effect.
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

// limitRule replaces the numbers of t's rule by those of the controls found, unless the resulting limits are invalid.
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
	if len(found) > 1 { // each number is valid on its own, but the combination may not be
		if t.Ineffective.Control = limits.Limits().Validate(); t.Ineffective.Control != nil {
			return
		}
	}
	t.Limits, t.Source, t.Override, t.Control = *limits, FromControl, false, first
}

// decider returns the control that put item, one of t's limits, in force, or nil.
func (t *part) decider(item *descriptors.RateLimit) *override.Control {
	if t.Control == nil || t.Control.Kind != override.Limit || t.Override {
		return t.Control
	}
	for _, c := range t.Controls {
		j := t.match.Named(c.LimitName)
		same := item.Number() == c.To.Number() && item.Unit == c.To.Unit && item.Multiplier == max(c.To.Multiplier, 1)
		if j >= 0 && same && t.Rule.RateLimits.At(j).Name == item.Name {
			return c
		}
	}
	return nil
}

// replaces reports whether a limit of t may replace others. Overrides have no names and replace nothing.
func (t *part) replaces() bool { return t.rule != nil && t.rule.replaces && !t.Override }

// dropReplaced drops every limit that a matched limit replaces by name, even if the latter is unlimited or itself replaced. Unlimited
// descriptors stay.
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

// replaced reports whether a matched limit replaces the limits called name. It reads the rules, not the remaining limits, so two limits
// that replace each other are both dropped.
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
