package descriptors

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Reserve configures reservations: requests reserve hits before their cost is known, and settle them later.
type Reserve struct {
	engine.Reserve

	Estimate uint64 // hits to reserve for a request that does not specify them; with Learn, while too few true costs are known
	Learn    Learn
	Entry    string // key of the entry with which a request settles a reservation; empty with By
	By       string // key of the rule's path whose value is the same in both calls of a request; empty with Entry
}

// Learn makes the estimate a percentile of the rule's last true costs. The program that decides must implement it.
type Learn struct {
	Percentile uint64 // 1 to 100; 0 means that the estimate is constant
	Min, Max   uint64 // bounds of the estimate
}

// MaxReserveBy is the length of the longest value of the entry of [Reserve.By] that names a reservation.
const MaxReserveBy = 128

// ReserveBound describes the guarantee of a limit with reservations.
const ReserveBound = "admitted hits never exceed the limit by more than what open reservations cost beyond their estimates, and late charges of repeated values"

// Defaults of the keys of reserve.
const (
	usualTTL   = "10m"
	usualEntry = "reservation"

	usualPercentile = 90
)

// reserve validates the key reserve of r, whose node is n.
func (c *compiler) reserve(p rulefile.Field, r *Rule, n *Node) {
	if !p.At.Present() {
		return
	}
	before := c.Found
	ttl, estimate, entry, by := p.Get(rulefile.KeyTTL), p.Get(rulefile.KeyEstimate), p.Get(rulefile.KeyEntry), p.Get(rulefile.KeyBy)
	if !ttl.At.Present() {
		ttl.Text = rulefile.Text{Value: usualTTL, At: p.At}
	}
	out := Reserve{Reserve: engine.Reserve{TTL: c.duration(ttl, r.Path)}, Entry: usualEntry}
	if entry.Valid() {
		out.Entry = entry.Value
	}
	if f := p.Get(rulefile.KeyOnExpiry); c.word(f, " of a reserve", r.Path) {
		out.Return = f.Value == rulefile.ExpiryReturn
	}
	if by.At.Present() {
		out.Entry, out.By, out.Repeats = "", by.Value, true
		c.reserveBy(by, entry.At.Present(), r, n)
	} else {
		c.reserveEntry(entry.Text, out.Entry, r, n)
	}
	switch {
	case !estimate.Valid():
		c.Fail(p.At, r.Path, "a reserve without estimate: set estimate to the number of hits to reserve by default, such as 2000")
	case estimate.Fields != nil:
		out.Estimate, out.Learn = c.learnedEstimate(estimate, r)
	case c.number(estimate, " of a reserve", r.Path):
		out.Estimate = estimate.N
	}
	if limits := r.RateLimits.Limits(); len(limits) > 0 {
		c.reservable(p, estimate, r, &limits[0])
	}
	if c.Found == before {
		r.Reserve = &out
		keys, key := &c.domain.ReserveEntries, out.Entry
		if out.By != "" {
			keys, key = &c.domain.ReserveBy, out.By
		}
		if !slices.Contains(*keys, key) {
			*keys = append(*keys, key)
		}
	}
}

// learnedEstimate validates an estimate that is a map.
func (c *compiler) learnedEstimate(estimate rulefile.Field, r *Rule) (start uint64, l Learn) {
	for _, key := range []string{rulefile.KeyStart, rulefile.KeyMin, rulefile.KeyMax} {
		switch f := estimate.Get(key); {
		case f.Broken:
			return 0, Learn{}
		case !f.At.Present():
			c.Fail(estimate.At, r.Path, "an estimate without %s: set it to a number of hits", key)
			return 0, Learn{}
		}
	}
	first, smallest := estimate.Get(rulefile.KeyStart), estimate.Get(rulefile.KeyMin)
	l = Learn{usualPercentile, smallest.N, estimate.Get(rulefile.KeyMax).N}
	if f := estimate.Get(rulefile.KeyPercentile); c.number(f, " of an estimate", r.Path) {
		l.Percentile = f.N
	}
	if c.number(smallest, " of an estimate", r.Path) && (first.N < l.Min || first.N > l.Max) {
		c.Fail(first.At, r.Path, "start %d of an estimate is not between its min %d and its max %d", first.N, l.Min, l.Max)
	}
	return first.N, l
}

// reserveBy validates the key of the entry that names reservations.
func (c *compiler) reserveBy(by rulefile.Field, hasEntry bool, r *Rule, n *Node) {
	if by.Broken {
		return
	}
	if hasEntry {
		c.Fail(by.At, r.Path, "by and entry of a reserve: want one of them")
		return
	}
	switch found := c.above(by, " of a reserve", r.Path, n); {
	case found < 0:
	case n.path()[found].Value != "":
		c.Fail(by.At, r.Path, "by '%s' of a reserve is an entry with the value '%s': want a key without a value, which names each request",
			plain.Shorten(by.Value), plain.Shorten(n.path()[found].Value))
	case r.Quota && len(c.domain.QuotaGroupBy) > 0:
		c.Fail(by.At, r.Path, "reserve by an entry cannot be combined with quota groups: a request would reserve in each of them, and settle in one")
	}
}

// plansReserve checks that plans of a descriptor name reservations by the same entry, and leaves it out of the counter of all: that is the
// same for all plans.
func (c *compiler) plansReserve(at rulefile.Mark, path string, plans []*Rule) {
	first := slices.IndexFunc(plans, func(r *Rule) bool { return r.byAt >= 0 })
	if first < 0 {
		return
	}
	by, way := plans[first].byAt, plans[first].path
	for _, r := range plans {
		switch {
		case by == r.planAt:
			c.Fail(at, path, "by and plan_of are the same entry '%s', whose values share one counter: want another one in one of them", r.PlanOf)
			return
		case r.Reserve != nil && r.byAt != by:
			c.Fail(at, path, "reserve of the plan '%s' differs in by from that of the plan '%s': want the same entry in both", r.Plan, plans[first].Plan)
		}
		r.byAt, r.rewritten, r.path = by, true, way
	}
}

// ReserveBy returns the index of the entry that names a request's reservation, and that has no part in anything else; −1 if there is none.
func (m Match) ReserveBy() int {
	if m.Rule == nil {
		return -1
	}
	return m.Rule.byAt
}

// entry returns the entry of the i-th node of m's path. The one at [Match.ReserveBy] may be missing in entries; its value is then empty.
func (m Match) entry(entries []Entry, i int) *Entry {
	switch by := m.Rule.byAt; {
	case by < 0 || i < by || len(entries) == len(m.Rule.path):
		return &entries[i]
	case i == by:
		return &Entry{Key: []byte(m.Rule.path[i].Key)}
	}
	return &entries[i-1]
}

// Complete returns entries, with an empty value for the entry at [Match.ReserveBy] if only that is missing, as where people name a counter.
func (d *Domain) Complete(entries []Entry) []Entry {
	if d == nil || d.ReserveBy == nil || d.Match(entries).Rule != nil {
		return entries
	}
	for _, key := range d.ReserveBy {
		for i := range len(entries) + 1 {
			all := slices.Insert(slices.Clone(entries), i, Entry{Key: []byte(key)})
			if d.Match(all).ReserveBy() == i {
				return all
			}
		}
	}
	return entries
}

// reserveEntry validates the key of the settling entry, which is removed from descriptors before matching.
func (c *compiler) reserveEntry(t rulefile.Text, entry string, r *Rule, n *Node) {
	if entry == "" {
		c.Fail(t.At, r.Path, "an empty entry of a reserve: use the key of the entry that settles, such as %s", usualEntry)
	}
	for _, above := range n.path() {
		if above.Key == entry {
			c.Fail(t.Or(n.at), r.Path,
				"entry '%s' of a reserve is a key of this descriptor or of one above it: use a key that no rule uses", plain.Shorten(entry))
			return
		}
	}
}

// reservable checks that the limit supports reservations, and that the estimate fits.
func (c *compiler) reservable(p, estimate rulefile.Field, r *Rule, l *engine.Limit) {
	largest, key := estimate, rulefile.KeyEstimate
	if estimate.Fields != nil {
		largest, key = estimate.Get(rulefile.KeyMax), "the max of the estimate"
	}
	switch why := l.Unreserved(); {
	case why == l.Algorithm.String():
		c.Fail(p.At, r.Path, "reserve does not apply to %s: it belongs to fixed_window, sliding_window and token_bucket", why)
	case why == engine.UnitForever:
		c.Fail(p.At, r.Path, "reserve cannot be combined with %s: remove it, and set late_charge: true to charge requests once they have run", why)
	case why != "":
		c.Fail(p.At, r.Path, "reserve cannot be combined with %s: remove one of them", why)
	case r.Penalty != nil:
		c.Fail(p.At, r.Path, "reserve cannot be combined with a penalty: remove one of them")
	case l.Hits > 0 && largest.N > l.MaxCost():
		c.Fail(largest.At, r.Path,
			"%s %d of a reserve never fits: want at most %d, the most that the limit admits at once", key, largest.N, l.MaxCost())
	}
}

// SettlesBy reports whether r, or another plan of its descriptor, takes reservations that an entry with this key settles. All plans
// count, because a client sends the same requests regardless of the tenant's plan.
func (r *Rule) SettlesBy(key []byte) bool {
	by := func(r *Rule) bool { return r.Reserve != nil && r.Reserve.Entry == string(key) }
	return by(r) || slices.ContainsFunc(r.plans, by)
}

// EstimateText describes an estimate, such as "2000 at first, then percentile 90 of the true costs (200 to 8000)".
func EstimateText(n uint64, l Learn) string {
	if l.Percentile == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d at first, then percentile %d of the true costs (%d to %d)", n, l.Percentile, l.Min, l.Max)
}

// text describes r.
func (r *Reserve) text() string {
	kept := "kept"
	if r.Return {
		kept = "returned"
	}
	text := fmt.Sprintf("%s unless the request says otherwise, %s if not settled within %s", EstimateText(r.Estimate, r.Learn), kept, spanText(r.TTL))
	switch {
	case r.By != "":
		text += ", each value of " + plain.Quoted([]byte(r.By)) + " is a request"
	case r.Entry != usualEntry:
		text += ", by entry " + plain.Quoted([]byte(r.Entry))
	}
	return text
}
