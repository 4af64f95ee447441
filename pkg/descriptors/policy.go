package descriptors

import (
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Bounds and defaults of the keys that belong to a descriptor as a whole; longestTime is 2^48 µs in whole hours.
const (
	usualEscalate = 1

	minLease    = 2 // a single hit is not worth a lease
	maxLease    = 1_000_000
	defaultMax  = 24 * 3600 * second // of a penalty that escalates, unless its first one is longer
	longestTime = "78187h"
)

// OnFailure says how a rule decides while the store is failing.
type OnFailure uint8

// What to answer while the store is failing.
const (
	FailDefault OnFailure = iota // what DEFAULT_ON_FAILURE says
	FailError                    // an error; Envoy's failure_mode_deny decides
	FailAllow
	FailDeny
	FailLocal // count in this process
)

// String returns the policy as rules spell it, or default.
func (f OnFailure) String() string {
	return [...]string{"default", "error", "allow", "deny", "local"}[f]
}

// ParseOnFailure returns the policy with a name used in rules and in DEFAULT_ON_FAILURE: error, allow, deny or local.
func ParseOnFailure(name string) (f OnFailure, ok bool) {
	for f := FailError; f <= FailLocal; f++ {
		if name == f.String() {
			return f, true
		}
	}
	return FailDefault, false
}

// Leases other than a number of hits.
const (
	leaseAuto = 0
	leaseOff  = -1
)

func leaseText(n int32) string {
	switch n {
	case leaseAuto:
		return "auto"
	case leaseOff:
		return "off"
	}
	return strconv.Itoa(int(n))
}

// policy checks the keys that belong to the descriptor as a whole and not to one limit.
func (c *compiler) policy(p *rawPolicy, r *Rule, n *node) {
	if p == nil {
		return
	}
	if r.Unlimited {
		for _, w := range p.written() {
			c.fail(w.at, r.Path, "%s does not apply when unlimited", w.k)
		}
		return
	}
	c.onFailure(p.onFailure, r)
	c.holder(p.holder, r, n)
	if p.penaltyAt.present() {
		c.penalty(p, r)
	}
	if p.reserveAt.present() {
		c.reserve(p, r, n)
	}
	c.lease(p.lease, r)
	c.headers(p.headers, r)
}

func (c *compiler) onFailure(t text, r *Rule) {
	if !t.at.present() || t.broken {
		return
	}
	f, ok := ParseOnFailure(t.s)
	if !ok {
		c.fail(t.at, r.Path, "unknown on_failure '%s': want error, allow, deny or local", Shorten(t.s))
	}
	r.OnFailure = f
}

// holder checks that the key is on the path from the domain to the rule. If it is there twice, the one nearer to the
// rule counts.
func (c *compiler) holder(t text, r *Rule, n *node) {
	if !t.at.present() || t.broken {
		return
	}
	held := func(l engine.Limit) bool { return l.Algorithm.Holds() }
	if limits := r.RateLimits.Limits(); len(limits) > 0 && !slices.ContainsFunc(limits, held) {
		c.fail(t.at, r.Path, "holder does not apply to %s: it belongs to concurrency", limits[0].Algorithm.String())
		return
	}
	var keys []string
	for _, above := range n.path() {
		keys = append(keys, above.key)
	}
	if !slices.Contains(keys, t.s) {
		c.fail(t.at, r.Path, "holder '%s' is not a key of this descriptor or of one above it: want one of %q", Shorten(t.s), keys)
		return
	}
	r.Holder = t.s
}

func (c *compiler) penalty(p *rawPolicy, r *Rule) {
	before := len(c.problems)
	raw := &p.penalty
	escalate := raw.escalate
	if !escalate.at.present() {
		escalate.n = usualEscalate
	}
	out := engine.Penalty{
		For:      c.duration(kwFor, raw.duration, r.Path),
		Escalate: uint32(escalate.n),
		Max:      c.duration(kwMax, raw.max, r.Path),
	}
	if raw.on.at.present() && !raw.on.broken {
		on, err := engine.ParseTrigger(raw.on.s)
		if err != nil {
			c.fail(raw.on.at, r.Path, "unknown on '%s' of a penalty: want exceeded or reached", Shorten(raw.on.s))
		}
		out.On = on
	}
	if !raw.duration.at.present() {
		c.fail(p.penaltyAt, r.Path, "a penalty without for: want how long it lasts, such as 5m")
	}
	if !raw.max.at.present() {
		out.Max = out.For
		if out.Escalate > 1 {
			out.Max = max(out.For, defaultMax)
		}
	}
	if len(c.problems) == before && out.Max < out.For {
		c.fail(raw.max.at, r.Path, "max %s of a penalty is shorter than its for %s", raw.max.s, raw.duration.s)
	}
	if out.Escalate == 0 {
		c.fail(raw.escalate.at, r.Path, "escalate 0 of a penalty: want 1, which means the same length again, or more")
	}
	if len(c.problems) == before {
		if err := out.Validate(); err != nil {
			c.fail(p.penaltyAt, r.Path, "penalty: %v", err)
		}
	}
	if len(c.problems) == before {
		r.Penalty = &out
		c.shortPenalty(r, raw.duration.at)
	}
}

// lease reads off, auto or a number. Hits are fetched in advance only for single fixed windows and token buckets.
func (c *compiler) lease(t text, r *Rule) {
	if !t.at.present() || t.broken {
		return
	}
	n := leaseAuto
	switch t.s {
	case "off":
		n = leaseOff
	case "auto":
	default:
		parsed, err := strconv.ParseUint(t.s, 10, 32)
		if err != nil || parsed < minLease || parsed > maxLease {
			c.fail(t.at, r.Path, "lease '%s': want off, auto or a number of hits from %d to %d", Shorten(t.s), minLease, maxLease)
			return
		}
		n = int(parsed)
	}
	if why := r.unleased(); n != leaseOff && why != "" {
		c.fail(t.at, r.Path, "lease '%s' does not apply %s, where hits are never fetched in advance: want off, or no lease", t.s, why)
		return
	}
	r.Lease = int32(n)
}

// What headers may be.
const (
	headersOn  = "on"
	headersOff = "off"
)

// headers reads on or off. Callers of a queue must know when their turn comes, so it cannot be off there.
func (c *compiler) headers(t text, r *Rule) {
	if !t.at.present() || t.broken {
		return
	}
	switch t.s {
	case headersOn:
	case headersOff:
		queues := func(l engine.Limit) bool { return l.Algorithm.Queues() }
		limits := r.RateLimits.Limits()
		if i := slices.IndexFunc(limits, queues); i >= 0 {
			c.fail(t.at, r.Path, "headers 'off' does not apply to %s, whose callers have to be told when their turn comes: want on, or no headers",
				limits[i].Algorithm.String())
			return
		}
		r.HeadersOff = true
	default:
		c.fail(t.at, r.Path, "unknown headers '%s': want on or off", Shorten(t.s))
	}
}

// unleased returns the reason, as part of a sentence, why hits of the rule cannot be fetched in advance, or "".
func (r *Rule) unleased() string {
	limits := r.RateLimits.Limits()
	switch {
	case r.Penalty != nil:
		return "with a penalty"
	case r.Reserve != nil:
		return "with reserve"
	case len(limits) > 1:
		return "with rate_limits"
	case len(limits) == 0:
		return ""
	}
	switch why := limits[0].Unleased(); why {
	case "":
		return ""
	case limits[0].Algorithm.String():
		return "to " + why
	default:
		return "with " + why
	}
}

// duration reads a positive time in whole microseconds, as [ParseSpan] reads it. It returns 0 if there is none, or after an
// error.
func (c *compiler) duration(k string, t text, path string) engine.Micros {
	if !t.at.present() || t.broken {
		return 0
	}
	d, err := ParseSpan(t.s)
	if err != nil || d <= 0 || d%time.Microsecond != 0 || d.Microseconds() > int64(maxWindow) {
		c.fail(t.at, path, "%s '%s': want a time of 1us to %s, such as 500ms, 30s, 5m or 24h", k, Shorten(t.s), longestTime)
		return 0
	}
	return engine.Micros(d.Microseconds())
}
