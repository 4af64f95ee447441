package limiter

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/controls"
	"github.com/ratelimitd/ratelimitd/internal/stats"
	"github.com/ratelimitd/ratelimitd/internal/top"
	"github.com/ratelimitd/ratelimitd/internal/watch"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Scratch is the memory for deciding a request, which its owner keeps for the next one, so that deciding allocates
// nothing. It is for one request at a time; the zero value is ready for use. Its slices only ever grow: what points into
// an array that was outgrown stays valid until the next plan.
type Scratch struct {
	verdict Verdict
	late    bool // this process has no time for the request: policies decide
	shed    bool // the request is counted as shed
	counts  *domain
	steered steered
	groups  []int // for each part, the first of its quota group, or anyGroup; empty where there are no groups
	groupBy []string
	sums    []uint64 // hashes of the values that make the groups

	parts   []part
	ops     []backend.Op           // one for each part with limits, in order
	owners  []int                  // the index of that part, for each op
	kept    descriptors.RateLimits // of overrides, and of lists of which some limits were replaced
	batch   []backend.Op           // the ops of one call of the backend
	picked  []int                  // their indices
	local   []backend.Op           // the ones that this process decides because the store failed
	failed  []int                  // their indices in the call that failed
	entries []descriptors.Entry    // of descriptors of which one was taken out
	name    engine.ReservationID   // of what the request reserves; zero if it reserves nothing
	text    []byte
	names   []byte // of the counters, if the backend wants the reference's

	sampler top.Sampler
	shown   watch.Decision
}

// part is the state of one descriptor.
type part struct {
	match     descriptors.Match
	rule      *rule                  // the snapshot's rule of the match; nil if none matched
	limits    descriptors.RateLimits // those in force, if any
	hits      uint64
	op        int // index into ops; −1 if there is none
	override  bool
	unlimited bool
	negative  bool
	ignored   ignored // why the request's override is ignored
	reason    error   // the same, in words
	unspent   bool    // admitted, but not charged because of other descriptors, or charged and given back

	numbered   bool  // the first of limits has the tenant's own number
	unnumbered error // why it has not, although the tenant has one

	control      *controls.Control // what decides, or has put another number in force; nil if the rules decide
	blocked      bool              // by it
	allowed      bool              // by it
	uncontrolled error             // why a control has no effect

	reserving reserving
	id        engine.ReservationID // of the reservation that it settles

	fell   descriptors.OnFailure // the policy that decided last because the store failed; FailDefault if the store decided
	counts *stats.Rule           // where to count what it takes; nil if it takes nothing
}

// plan finds the limits of r's descriptors and makes the operations for the backend.
func (p *Scratch) plan(s *snapshot, d *descriptors.Domain, r *Request) {
	n := len(r.Descriptors)
	p.parts = slices.Grow(p.parts[:0], n)[:n]
	p.ops, p.owners = p.ops[:0], p.owners[:0]
	p.name = engine.ReservationID{}
	p.kept.Clear()
	if cap(p.text) > maxText {
		p.text = nil
	}
	if cap(p.names) > maxText {
		p.names = nil
	}
	p.names = p.names[:0]
	replaces := false
	for i := range r.Descriptors {
		p.find(s, d, r, i)
		replaces = replaces || p.parts[i].replaces()
	}
	if replaces {
		p.dropReplaced()
	}
	for i := range r.Descriptors {
		p.addOp(s, d, &r.Descriptors[i], i)
	}
	if s.referenceNames {
		p.nameOps(d, r)
	}
	p.group(d, r)
}

// find fills in the i-th part: what its descriptor matches, and the limits that apply.
func (p *Scratch) find(s *snapshot, d *descriptors.Domain, r *Request, i int) {
	desc, t := &r.Descriptors[i], &p.parts[i]
	found, own := s.match(d, desc.Entries)
	*t = part{match: found, hits: r.hits(desc), negative: desc.Negative, op: -1}
	if m := found.Rule; m != nil {
		t.rule = &s.rules[m.Index]
		t.limits, t.unlimited = m.RateLimits, m.Unlimited
		if own.Numbered {
			p.number(t, own.Requests)
		}
	}
	if desc.HasOverride {
		p.override(d, desc, t)
	}
	if len(p.steered.found) > 0 {
		p.control(desc, i)
	}
	if t.rule != nil && t.match.Rule.Reserve != nil {
		p.reserve(s.sealer, r, desc, t)
	}
}

// override lets the limit that desc carries take the place of the rule's.
func (p *Scratch) override(d *descriptors.Domain, desc *Descriptor, t *part) {
	if !d.AllowOverride {
		t.ignored = ignoredNotAllowed
		return
	}
	item, err := t.match.Override(desc.Override)
	if err != nil {
		t.ignored, t.reason = ignoredInvalid, err
		return
	}
	t.override, t.unlimited = true, false
	t.limits = p.keep(&item, p.kept.Len())
}

// keep stores a copy of l until the next plan, and returns all those kept from index since on.
func (p *Scratch) keep(l *descriptors.RateLimit, since int) descriptors.RateLimits {
	p.kept.Append(l)
	return p.kept.From(since)
}

// replaces reports whether a limit of t may drop others. Overrides have no names and replace nothing.
func (t *part) replaces() bool { return t.rule != nil && t.rule.replaces && !t.override }

// dropReplaced drops every limit whose name a matched limit replaces, even if the latter is unlimited or itself
// replaced. Unlimited descriptors stay.
func (p *Scratch) dropReplaced() {
	for i := range p.parts {
		t := &p.parts[i]
		if t.rule == nil || t.override || t.unlimited || t.blocked || t.allowed || !p.anyReplaced(&t.limits) {
			continue
		}
		since, all := p.kept.Len(), t.limits
		t.limits = descriptors.RateLimits{}
		for j := range all.Len() {
			if l := all.At(j); !p.replaced(l.Name) {
				t.limits = p.keep(l, since)
			}
		}
	}
}

func (p *Scratch) anyReplaced(limits *descriptors.RateLimits) bool {
	for j := range limits.Len() {
		if p.replaced(limits.At(j).Name) {
			return true
		}
	}
	return false
}

// replaced reports whether a matched limit has name among those it replaces. It reads the rules, not what is left of
// them, so limits that replace each other are both dropped.
func (p *Scratch) replaced(name string) bool {
	if name == "" {
		return false
	}
	for i := range p.parts {
		if !p.parts[i].replaces() {
			continue
		}
		limits := &p.parts[i].match.Rule.RateLimits
		for j := range limits.Len() {
			if slices.Contains(limits.At(j).Replaces, name) {
				return true
			}
		}
	}
	return false
}

// addOp makes the operation for the i-th part, if it has limits.
func (p *Scratch) addOp(s *snapshot, d *descriptors.Domain, desc *Descriptor, i int) {
	t := &p.parts[i]
	if t.unlimited || t.limits.Len() == 0 || t.blocked || t.allowed || t.reserving == forged || p.steered.blocked && !t.negative && !p.steered.look {
		return
	}
	var key backend.Key
	if !p.late || t.policy(s.onFailure) == descriptors.FailLocal { // others need no counter now
		p.text = t.match.AppendName(s.secret.Begin(p.text[:0]), d, desc.Entries, t.override)
		key = s.secret.Hash(p.text)
	}
	t.op = len(p.ops)
	p.owners = append(p.owners, i)
	p.ops = append(p.ops, backend.Op{
		Key:     key,
		Limits:  t.limits.Limits(),
		Mode:    t.mode(),
		Flow:    backend.Flow(d.ID),
		Take:    engine.Take{Cost: t.hits, Count: 1},
		Patient: t.policy(s.onFailure) == descriptors.FailError,
	})
	rule := t.match.Rule
	if rule == nil {
		return
	}
	op := &p.ops[t.op]
	op.Penalty, op.Lease = rule.Penalty, backend.Lease(rule.Lease)
	if rule.Reserve != nil {
		p.reserveOp(s.sealer, t, op)
	}
	if holder, ok := t.match.Holder(desc.Entries); ok {
		op.Take.Owner = s.owner(p, holder)
	}
}

// nameOps gives each operation the reference's name for its counter.
func (p *Scratch) nameOps(d *descriptors.Domain, r *Request) {
	for k := range p.ops {
		i := p.owners[k]
		since := len(p.names)
		p.names = p.parts[i].match.AppendReferenceName(p.names, d, r.Descriptors[i].Entries, p.parts[i].override)
		n := len(p.names)
		p.ops[k].Name = p.names[since:n:n]
	}
}

// mode returns what t does to its counter.
func (t *part) mode() backend.Mode {
	if t.reserving == settles {
		return backend.Settle
	}
	if t.negative {
		return backend.Give
	}
	return backend.Take
}

// maxText is the size of the largest buffer for names that is kept for the next request.
const maxText = 64 << 10

// maxOwner is the length of the longest holder's name that is used as it is.
const maxOwner = 64

// owner returns the engine's name for a holder, from which nobody learns who that is where there is a secret. What is hashed begins
// with a zero, which keeps it apart from names of counters: these begin with the length of a domain.
func (s *snapshot) owner(p *Scratch, holder []byte) string {
	if s.secret == nil {
		return owner(holder)
	}
	p.text = append(append(s.secret.Begin(p.text[:0]), 0), holder...)
	key := s.secret.Hash(p.text)
	return string(key[:])
}

// owner returns the engine's name for a holder. A long name is replaced by its hash, because a counter may have
// thousands of holders and clients choose the lengths of their names; the hash is marked and too long to equal a short
// name. The empty name is replaced too: here it is a name like any other, but to the engine it means that there is no
// owner.
func owner(name []byte) string {
	if n := len(name); n > 0 && n <= maxOwner {
		return string(name)
	}
	sum := sha256.Sum256(name)
	return "#" + hex.EncodeToString(sum[:])
}
