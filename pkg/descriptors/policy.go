package descriptors

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
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
func (c *compiler) policy(p rulefile.Fields, r *Rule, n *Node) {
	for _, f := range p {
		if r.Unlimited && f.Where&rulefile.InItem == 0 {
			c.Fail(f.At, r.Path, "%s does not apply when unlimited", f.Name)
		}
	}
	if r.Unlimited {
		return
	}
	if f := p.Get(rulefile.KeyOnFailure); c.word(f, "", r.Path) {
		r.OnFailure, _ = ParseOnFailure(f.Value)
	}
	c.holder(p.Get(rulefile.KeyHolder), r, n)
	c.penalty(p.Get(rulefile.KeyPenalty), r)
	c.reserve(p.Get(rulefile.KeyReserve), r, n)
	c.rlqs(p.Get(rulefile.KeyRLQS), p.Get(rulefile.KeyReserve).At.Present(), r, n)
	c.lease(p.Get(rulefile.KeyLease).Text, r)
	c.headers(p.Get(rulefile.KeyHeaders), r)
}

// word reports whether a field is present and has one of the words of its row in the grammar. It reports an error if it has another one.
// of follows the key in the message.
func (c *compiler) word(f rulefile.Field, of, path string) bool {
	if !f.Valid() || slices.Contains(f.Words, f.Value) {
		return f.Valid()
	}
	last := len(f.Words) - 1
	c.Fail(f.At, path, "unknown "+f.Name+" '%s'"+of+": want "+strings.Join(f.Words[:last], ", ")+" or "+f.Words[last], plain.Shorten(f.Value))
	return false
}

// number reports whether a field is present and within the bounds of its row in the grammar. It reports an error if it is out of them. of
// follows the number in the message.
func (c *compiler) number(f rulefile.Field, of, path string) bool {
	if !f.Valid() || f.Min <= f.N && f.N <= f.Max {
		return f.Valid()
	}
	bounds := fmt.Sprintf("%d to %d", f.Min, f.Max)
	if f.Max == math.MaxUint32 {
		bounds = fmt.Sprintf("%d or more", f.Min)
	}
	c.Fail(f.At, path, "%s %d%s: want %s", f.Name, f.N, of, bounds)
	return false
}

// above returns the index of the node on n's path that has a field's value as its key: of several the last one. If there is none, it reports
// an error and returns −1. of follows the value in the message.
func (c *compiler) above(f rulefile.Field, of, path string, n *Node) int {
	var keys []string
	found := -1
	for i, above := range n.path() {
		if keys = append(keys, above.Key); above.Key == f.Value {
			found = i
		}
	}
	if found < 0 {
		c.Fail(f.At, path, f.Name+" '%s'"+of+" is not a key of this descriptor or of one above it: want one of %q", plain.Shorten(f.Value), keys)
	}
	return found
}

// holder checks that the key is on the path from the domain to the rule.
func (c *compiler) holder(f rulefile.Field, r *Rule, n *Node) {
	held := func(l engine.Limit) bool { return l.Algorithm.Holds() }
	switch limits := r.RateLimits.Limits(); {
	case !f.Valid():
	case len(limits) > 0 && !slices.ContainsFunc(limits, held):
		c.Fail(f.At, r.Path, "holder does not apply to %s: it belongs to concurrency", limits[0].Algorithm.String())
	case c.above(f, "", r.Path, n) >= 0:
		r.Holder = f.Value
	}
}

// penalty parses penalty.
func (c *compiler) penalty(p rulefile.Field, r *Rule) {
	if !p.At.Present() {
		return
	}
	before := c.Found
	length, longest, escalate := p.Get(rulefile.KeyFor), p.Get(rulefile.KeyMax), p.Get(rulefile.KeyEscalate)
	if !escalate.Valid() {
		escalate.N = usualEscalate
	}
	out := engine.Penalty{For: c.duration(length, r.Path), Escalate: uint32(escalate.N), Max: c.duration(longest, r.Path)}
	if on := p.Get(rulefile.KeyOn); c.word(on, " of a penalty", r.Path) {
		out.On, _ = engine.ParseTrigger(on.Value)
	}
	if !length.At.Present() {
		c.Fail(p.At, r.Path, "a penalty without for: set for to its duration, such as 5m")
	}
	if !longest.At.Present() {
		out.Max = out.For
		if out.Escalate > 1 {
			out.Max = max(out.For, defaultMax)
		}
	}
	if c.Found == before && out.Max < out.For {
		c.Fail(longest.At, r.Path, "max %s of a penalty is shorter than its for %s", longest.Value, length.Value)
	}
	if out.Escalate == 0 {
		c.Fail(escalate.At, r.Path, "escalate 0 of a penalty: want 1, which means the same length again, or more")
	}
	if c.Found == before {
		if err := out.Validate(); err != nil {
			c.Fail(p.At, r.Path, "penalty: %v", err)
		}
	}
	if c.Found == before {
		r.Penalty = &out
		c.shortPenalty(r, length.At)
	}
}

// lease parses lease: off, auto or a number. Only single fixed windows and token buckets support leases.
func (c *compiler) lease(t rulefile.Text, r *Rule) {
	if !t.Valid() {
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
func (c *compiler) headers(f rulefile.Field, r *Rule) {
	if !c.word(f, "", r.Path) || f.Value == rulefile.HeadersOn {
		return
	}
	queues := func(l engine.Limit) bool { return l.Algorithm.Queues() }
	limits := r.RateLimits.Limits()
	if i := slices.IndexFunc(limits, queues); i >= 0 {
		c.Fail(f.At, r.Path, "headers 'off' does not apply to %s, whose callers need the time of their turn: set it to on, or remove it",
			limits[i].Algorithm.String())
		return
	}
	r.HeadersOff = true
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
func (c *compiler) duration(t rulefile.Field, path string) engine.Micros {
	if !t.Valid() {
		return 0
	}
	d, err := ParseSpan(t.Value)
	if err != nil || d <= 0 || d%time.Microsecond != 0 || d.Microseconds() > int64(rulefile.MaxWindow) {
		c.Fail(t.At, path, "%s '%s': want a time of 1us to %s, such as 500ms, 30s, 5m or 24h", t.Name, plain.Shorten(t.Value), longestTime)
		return 0
	}
	return engine.Micros(d.Microseconds())
}
