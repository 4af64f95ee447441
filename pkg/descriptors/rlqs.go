package descriptors

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// RLQS configures the division of a limit among clients that decide on their own, by Envoy's rate limit quota service.
type RLQS struct {
	Strict     bool   // never exceed the limit, at the price of following demand slowly
	WeightFrom string // key of the metadata with a client's weight; empty if all have the same weight
}

// Requirements for dividing a limit.
const (
	leastDivided = engine.Micros(60 * 1e6) // minimum window; clients report every 5 s, and an assignment lasts 15 s
	leastBurst   = second                  // minimum time to fill the burst; hits are debited a second ahead
	leastStrict  = engine.Micros(30 * 1e6) // the same for strict buckets
)

// The modes of rlqs.
const (
	modeFast   = "fast"
	modeStrict = "strict"
)

// rlqsOrder is the order of certain keys in rules with rlqs. Since a bucket's ID has no order, each set of keys has one order.
type rlqsOrder struct {
	keys []string // path of the first such rule
	path string   // of the first such rule
}

// rlqs validates the key rlqs of r, whose node is n.
func (c *compiler) rlqs(p rulefile.Field, reserves bool, r *Rule, n *Node) {
	if !p.At.Present() {
		return
	}
	c.divided++
	limits := r.RateLimits.Limits()
	if len(limits) == 0 { // invalid, which has been reported
		return
	}
	before, l := c.Found, &limits[0]
	mode, weight := p.Get(rulefile.KeyMode), p.Get(rulefile.KeyWeightFrom)
	out := RLQS{Strict: l.Algorithm == engine.FixedWindow, WeightFrom: strings.ToLower(weight.Value)}
	if c.word(mode, " of rlqs", r.Path) {
		out.Strict = mode.Value == modeStrict
	}
	if weight.Valid() && weight.Value == "" {
		c.Fail(weight.At, r.Path, "an empty weight_from of rlqs: use the metadata key with the weight of a client, such as x-weight")
	}
	c.divisible(p, reserves, r, l, out.Strict)
	c.rlqsBucket(p.At, r, n)
	if c.Found == before {
		r.RLQS = &out
	}
}

// usual returns the default of p for limit, which is being compiled from l. With rlqs, rejected hits do not count, because they would
// consume the hits that clients return.
func usual(p engine.Parameter, l *rulefile.Limit, limit *engine.Limit) uint64 {
	divided := l.Get(rulefile.KeyRLQS).At.Present()
	if p == engine.ParamCountRefused && divided && engine.ParamLateCharge.Get(limit) == 0 {
		return 0
	}
	return p.Usual(limit)
}

// divisible checks that the limit of r can be divided.
func (c *compiler) divisible(p rulefile.Field, reserves bool, r *Rule, l *engine.Limit, strict bool) {
	bucket, fixed := l.Algorithm.Family() == engine.FamilyBucket, l.Algorithm == engine.FixedWindow
	mode := p.Get(rulefile.KeyMode).Or(p.At)
	switch why := l.Undivided(); {
	case why == l.Algorithm.String():
		c.Fail(p.At, r.Path, "rlqs does not apply to %s: it belongs to fixed_window, sliding_window and token_bucket", why)
	case why != "":
		c.Fail(p.At, r.Path, "rlqs cannot be combined with %s: remove one of them", why)
	case r.Penalty != nil:
		c.Fail(p.At, r.Path, "rlqs cannot be combined with a penalty: remove one of them")
	case reserves:
		c.Fail(p.At, r.Path, "rlqs cannot be combined with reserve: remove one of them")
	case !bucket && l.Window < leastDivided:
		c.Fail(p.At, r.Path, "rlqs does not apply to a window of %s, since clients report every 5 s: use 1 minute or more, or token_bucket",
			spanText(l.Window))
	case bucket && fillsWithin(l, leastBurst):
		c.Fail(p.At, r.Path,
			"rlqs needs a burst that the rate takes %s or more to fill, since hits are debited a second ahead: use a burst of %d or more, or RLS",
			spanText(leastBurst), (uint64(leastBurst)*l.Hits+uint64(l.Window)-1)/uint64(l.Window))
	case !strict && fixed:
		c.Fail(mode, r.Path, "mode fast of rlqs does not apply to %s: use strict, or sliding_window", l.Algorithm)
	case strict && !bucket && !fixed:
		c.Fail(mode, r.Path, "mode strict of rlqs does not apply to %s: use fast, or fixed_window", l.Algorithm)
	case strict && bucket && fillsWithin(l, leastStrict):
		c.Fail(mode, r.Path,
			"mode strict of rlqs needs a burst that the rate takes %s or more to fill, or what clients hold uses it up: use a larger burst, or fast",
			spanText(leastStrict))
	}
}

// fillsWithin reports whether the rate of a token bucket fills its burst in less than span.
func fillsWithin(l *engine.Limit, span engine.Micros) bool {
	return float64(l.Capacity())*float64(l.Window) < float64(span)*float64(l.Hits)
}

// rlqsBucket checks that a bucket's ID identifies r and no other rule, and that no other ID has the same counter. An ID has each key
// once, without an order.
func (c *compiler) rlqsBucket(at rulefile.Mark, r *Rule, n *Node) {
	order := rlqsOrder{path: r.Path}
	for _, above := range n.path() {
		if above.keyGlob != nil {
			c.Fail(at, r.Path, "rlqs does not apply below the key '%s', which has a *: use a key that a bucket ID can contain", plain.Shorten(above.Key))
			return
		}
		if above.flags&shareThreshold != 0 && above.IsWildcard() {
			c.Fail(at, r.Path, "rlqs cannot be combined with share_threshold of '%s', whose values share one counter, while each is a bucket with the full limit: "+
				"use a key with one fixed value in the bucket ID, or RLS", plain.Shorten(above.Label()))
			return
		}
		if slices.Contains(order.keys, above.Key) {
			c.Fail(at, r.Path, "rlqs does not apply where the key '%s' appears twice: a bucket ID has each key only once", plain.Shorten(above.Key))
			return
		}
		order.keys = append(order.keys, above.Key)
	}
	id := bucketKeys(slices.Clone(order.keys))
	if other := c.domain.rlqs[id]; other != nil && !slices.Equal(other.keys, order.keys) {
		c.Fail(at, r.Path, "rlqs is on %s as well, which has the same keys in another order: a bucket ID has no order, so use one order",
			other.path)
		return
	}
	if c.domain.rlqs == nil {
		c.domain.rlqs = map[string]*rlqsOrder{}
	}
	if c.domain.rlqs[id] == nil {
		c.domain.rlqs[id] = &order
	}
}

// plansApart reports a plan with rlqs beside one with reserve. The entry that settles a reservation is removed from descriptors
// regardless of the tenant's plan, so buckets whose IDs differ only by that entry would share a counter.
func (c *compiler) plansApart(at rulefile.Mark, path string, plans []*Rule) {
	divided := slices.IndexFunc(plans, func(r *Rule) bool { return r.RLQS != nil })
	reserved := slices.IndexFunc(plans, func(r *Rule) bool { return r.Reserve != nil })
	if divided >= 0 && reserved >= 0 {
		c.Fail(at, path, "rlqs of the plan '%s' cannot be combined with reserve of the plan '%s', since buckets that differ by the entry '%s' would "+
			"share one counter: remove one of them", plans[divided].Plan, plans[reserved].Plan, plain.Shorten(cmp.Or(plans[reserved].Reserve.Entry, plans[reserved].Reserve.By)))
	}
}

// bucketKeys sorts keys and joins them.
func bucketKeys(keys []string) string {
	slices.Sort(keys)
	return strings.Join(keys, "\x00")
}

// Divides reports whether any rule of d has rlqs.
func (d *Domain) Divides() bool { return len(d.rlqs) > 0 }

// OfBucket returns the entries for a bucket's ID, in the order of the rules with rlqs that have its keys. It returns nil if there is no
// such rule.
func (d *Domain) OfBucket(id map[string]string) (entries []Entry) {
	order := d.rlqs[bucketKeys(slices.Collect(maps.Keys(id)))]
	if order == nil {
		return nil
	}
	for _, key := range order.keys {
		value, ok := id[key] // keys that contain a zero byte may join to the same text
		if !ok {
			return nil
		}
		entries = append(entries, Entry{Key: []byte(key), Value: []byte(value)})
	}
	return entries
}

// text describes q.
func (q *RLQS) text() string {
	text := modeFast
	if q.Strict {
		text = modeStrict
	}
	if q.WeightFrom != "" {
		text += ", weighed by " + plain.Quoted([]byte(q.WeightFrom))
	}
	return text
}
