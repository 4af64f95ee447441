package descriptors

import (
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Bounds and defaults of the keys of a descriptor. longestTime is 2^48 µs in whole hours.
const (
	usualEscalate = 1

	defaultMax  = 24 * 3600 * second // maximum of a penalty that escalates, unless its first length is longer
	longestTime = "78187h"
)

// OnFailure is the fallback of a rule: the decision while the backend fails. Backends ignore it; the calling program must implement it.
type OnFailure uint8

// The fallbacks.
const (
	FailDefault OnFailure = iota // DEFAULT_ON_FAILURE
	FailError                    // return an error; Envoy's failure_mode_deny decides
	FailAllow                    // admit the request
	FailDeny                     // reject the request
	FailLocal                    // count in this process
)

// String returns the name of the fallback in rules, or default.
func (f OnFailure) String() string {
	return [...]string{"default", "error", "allow", "deny", "local"}[f]
}

// ParseOnFailure returns the fallback called name in rules and in DEFAULT_ON_FAILURE: error, allow, deny or local.
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

// leaseText returns a lease as in rules.
func leaseText(n int32) string {
	switch n {
	case leaseAuto:
		return "auto"
	case leaseOff:
		return "off"
	}
	return strconv.Itoa(int(n))
}

// policy validates the keys that apply to a descriptor rather than to one limit.
func (c *compiler) policy(p *rulefile.Policy, r *Rule, n *Node) {
	if p == nil {
		return
	}
	if r.Unlimited {
		for _, w := range p.Written() {
			c.Fail(w.At, r.Path, "%s does not apply when unlimited", w.Key)
		}
		return
	}
	c.onFailure(p.OnFailure, r)
	c.holder(p.Holder, r, n)
	if p.PenaltyAt.Present() {
		c.penalty(p, r)
	}
	if p.ReserveAt.Present() {
		c.reserve(p, r, n)
	}
	if p.RLQSAt.Present() {
		c.divided++
		c.rlqs(p, r, n)
	}
	c.lease(p.Lease, r)
	c.headers(p.Headers, r)
}

// onFailure parses on_failure.
func (c *compiler) onFailure(t rulefile.Text, r *Rule) {
	if !t.At.Present() || t.Broken {
		return
	}
	f, ok := ParseOnFailure(t.Value)
	if !ok {
		c.Fail(t.At, r.Path, "unknown on_failure '%s': want error, allow, deny or local", plain.Shorten(t.Value))
	}
	r.OnFailure = f
}

// holder checks that the key is on the path from the domain to the rule. If it occurs twice, the occurrence nearer to the rule counts.
func (c *compiler) holder(t rulefile.Text, r *Rule, n *Node) {
	if !t.At.Present() || t.Broken {
		return
	}
	held := func(l engine.Limit) bool { return l.Algorithm.Holds() }
	if limits := r.RateLimits.Limits(); len(limits) > 0 && !slices.ContainsFunc(limits, held) {
		c.Fail(t.At, r.Path, "holder does not apply to %s: it belongs to concurrency", limits[0].Algorithm.String())
		return
	}
	var keys []string
	for _, above := range n.path() {
		keys = append(keys, above.Key)
	}
	if !slices.Contains(keys, t.Value) {
		c.Fail(t.At, r.Path, "holder '%s' is not a key of this descriptor or of one above it: want one of %q", plain.Shorten(t.Value), keys)
		return
	}
	r.Holder = t.Value
}

// penalty parses penalty.
func (c *compiler) penalty(p *rulefile.Policy, r *Rule) {
	before := c.Found
	raw := &p.Penalty
	escalate := raw.Escalate
	if !escalate.At.Present() {
		escalate.N = usualEscalate
	}
	out := engine.Penalty{
		For:      c.duration(rulefile.KeyFor, raw.Duration, r.Path),
		Escalate: uint32(escalate.N),
		Max:      c.duration(rulefile.KeyMax, raw.Max, r.Path),
	}
	if raw.On.At.Present() && !raw.On.Broken {
		on, err := engine.ParseTrigger(raw.On.Value)
		if err != nil {
			c.Fail(raw.On.At, r.Path, "unknown on '%s' of a penalty: want exceeded or reached", plain.Shorten(raw.On.Value))
		}
		out.On = on
	}
	if !raw.Duration.At.Present() {
		c.Fail(p.PenaltyAt, r.Path, "a penalty without for: set for to its duration, such as 5m")
	}
	if !raw.Max.At.Present() {
		out.Max = out.For
		if out.Escalate > 1 {
			out.Max = max(out.For, defaultMax)
		}
	}
	if c.Found == before && out.Max < out.For {
		c.Fail(raw.Max.At, r.Path, "max %s of a penalty is shorter than its for %s", raw.Max.Value, raw.Duration.Value)
	}
	if out.Escalate == 0 {
		c.Fail(raw.Escalate.At, r.Path, "escalate 0 of a penalty: want 1, which means the same length again, or more")
	}
	if c.Found == before {
		if err := out.Validate(); err != nil {
			c.Fail(p.PenaltyAt, r.Path, "penalty: %v", err)
		}
	}
	if c.Found == before {
		r.Penalty = &out
		c.shortPenalty(r, raw.Duration.At)
	}
}

// lease parses lease: off, auto or a number. Only single fixed windows and token buckets support leases.
func (c *compiler) lease(t rulefile.Text, r *Rule) {
	if !t.At.Present() || t.Broken {
		return
	}
	n := leaseAuto
	switch t.Value {
	case "off":
		n = leaseOff
	case "auto":
	default:
		parsed, err := strconv.ParseUint(t.Value, 10, 32)
		if err != nil || parsed < rulefile.MinLease || parsed > rulefile.MaxLease {
			c.Fail(t.At, r.Path,
				"lease '%s': want off, auto or a number of hits from %d to %d", plain.Shorten(t.Value), rulefile.MinLease, rulefile.MaxLease)
			return
		}
		n = int(parsed)
	}
	if why := r.unleased(); n != leaseOff && why != "" {
		c.Fail(t.At, r.Path, "lease '%s' does not apply %s, where hits are never fetched in advance: set it to off, or remove it", t.Value, why)
		return
	}
	r.Lease = int32(n)
}

// headers parses headers: on or off. A queue does not support off, because its callers need to know their turn.
func (c *compiler) headers(t rulefile.Text, r *Rule) {
	if !t.At.Present() || t.Broken {
		return
	}
	switch t.Value {
	case rulefile.HeadersOn:
	case rulefile.HeadersOff:
		queues := func(l engine.Limit) bool { return l.Algorithm.Queues() }
		limits := r.RateLimits.Limits()
		if i := slices.IndexFunc(limits, queues); i >= 0 {
			c.Fail(t.At, r.Path, "headers 'off' does not apply to %s, whose callers need the time of their turn: set it to on, or remove it",
				limits[i].Algorithm.String())
			return
		}
		r.HeadersOff = true
	default:
		c.Fail(t.At, r.Path, "unknown headers '%s': want on or off", plain.Shorten(t.Value))
	}
}

// unleased returns the reason why the rule's hits cannot be leased, as part of a sentence, or "".
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

// duration parses a positive time in whole microseconds with [ParseSpan]. It returns 0 if t is absent or invalid.
func (c *compiler) duration(k string, t rulefile.Text, path string) engine.Micros {
	if !t.At.Present() || t.Broken {
		return 0
	}
	d, err := ParseSpan(t.Value)
	if err != nil || d <= 0 || d%time.Microsecond != 0 || d.Microseconds() > int64(rulefile.MaxWindow) {
		c.Fail(t.At, path, "%s '%s': want a time of 1us to %s, such as 500ms, 30s, 5m or 24h", k, plain.Shorten(t.Value), longestTime)
		return 0
	}
	return engine.Micros(d.Microseconds())
}
