package descriptors

import (
	"fmt"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Reserve configures reservations: requests reserve hits before their cost is known, and settle them later.
type Reserve struct {
	engine.Reserve

	Estimate uint64 // hits to reserve for a request that does not specify them
	Entry    string // key of the entry with which a request settles a reservation
}

// Defaults of the keys of reserve.
const (
	usualTTL   = "10m"
	usualEntry = "reservation"
)

// reserve validates the key reserve of r, whose node is n.
func (c *compiler) reserve(p *rulefile.Policy, r *Rule, n *Node) {
	raw, before := &p.Reserve, c.Found
	if !raw.TTL.At.Present() {
		raw.TTL = rulefile.Text{Value: usualTTL, At: p.ReserveAt}
	}
	out := Reserve{Reserve: engine.Reserve{TTL: c.duration(rulefile.KeyTTL, raw.TTL, r.Path)}, Estimate: raw.Estimate.N, Entry: usualEntry}
	if raw.Entry.At.Present() && !raw.Entry.Broken {
		out.Entry = raw.Entry.Value
	}
	if t := raw.OnExpiry; t.At.Present() && !t.Broken {
		if out.Return = t.Value == rulefile.ExpiryReturn; !out.Return && t.Value != rulefile.ExpiryKeep {
			c.Fail(t.At, r.Path, "unknown on_expiry '%s' of a reserve: want keep or return", plain.Shorten(t.Value))
		}
	}
	c.reserveEntry(raw.Entry, out.Entry, r, n)
	switch {
	case !raw.Estimate.At.Present():
		c.Fail(p.ReserveAt, r.Path, "a reserve without estimate: set estimate to the number of hits to reserve by default, such as 2000")
	case raw.Estimate.N == 0:
		c.Fail(raw.Estimate.At, r.Path, "estimate 0 of a reserve: want 1 or more")
	}
	if limits := r.RateLimits.Limits(); len(limits) > 0 {
		c.reservable(p, r, &limits[0])
	}
	if c.Found == before {
		r.Reserve = &out
		if !slices.Contains(c.domain.ReserveEntries, out.Entry) {
			c.domain.ReserveEntries = append(c.domain.ReserveEntries, out.Entry)
		}
	}
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
func (c *compiler) reservable(p *rulefile.Policy, r *Rule, l *engine.Limit) {
	switch why := l.Unreserved(); {
	case why == l.Algorithm.String():
		c.Fail(p.ReserveAt, r.Path, "reserve does not apply to %s: it belongs to fixed_window, sliding_window and token_bucket", why)
	case why != "":
		c.Fail(p.ReserveAt, r.Path, "reserve cannot be combined with %s: remove one of them", why)
	case r.Penalty != nil:
		c.Fail(p.ReserveAt, r.Path, "reserve cannot be combined with a penalty: remove one of them")
	case l.Hits > 0 && p.Reserve.Estimate.N > l.MaxCost():
		c.Fail(p.Reserve.Estimate.At, r.Path,
			"estimate %d of a reserve never fits: want at most %d, the most that the limit admits at once", p.Reserve.Estimate.N, l.MaxCost())
	}
}

// SettlesBy reports whether r, or another plan of its descriptor, takes reservations that an entry with this key settles. All plans
// count, because a client sends the same requests regardless of the tenant's plan.
func (r *Rule) SettlesBy(key []byte) bool {
	by := func(r *Rule) bool { return r.Reserve != nil && r.Reserve.Entry == string(key) }
	return by(r) || slices.ContainsFunc(r.plans, by)
}

// text describes r.
func (r *Reserve) text() string {
	kept := "kept"
	if r.Return {
		kept = "returned"
	}
	text := fmt.Sprintf("%d unless the request says otherwise, %s if not settled within %s", r.Estimate, kept, spanText(r.TTL))
	if r.Entry != usualEntry {
		text += ", by entry " + plain.Quoted([]byte(r.Entry))
	}
	return text
}
