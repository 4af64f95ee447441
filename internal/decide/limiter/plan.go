package limiter

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash/maphash"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// operations holds the operations on counters of a request.
type operations struct {
	ops    []backend.Op         // one for each descriptor whose limits decide, in order
	owners []int                // index of the descriptor of each op
	name   engine.ReservationID // of the reservations that the request makes; zero if none

	reserving bool // the request makes reservations

	names  []byte       // buffer for the reference's names of counters
	hash   maphash.Hash // hashes the values that form quota groups
	hashes []uint64     // by descriptor
}

// maxText is the capacity of the largest buffer that is kept for the next request.
const maxText = 64 << 10

// plan builds the operations on the limits in force. A blocked request has only refunds, unless it is being explained.
func (p *Scratch) plan(r *Request, explained bool) {
	p.ops, p.owners, p.name, p.reserving = p.ops[:0], p.owners[:0], engine.ReservationID{}, false
	if p.domain == nil {
		return
	}
	if cap(p.text) > maxText {
		p.text = nil
	}
	for i := range p.parts {
		t := &p.parts[i]
		t.group = i
		if t.Outcome == Undecided && (!p.blocked || t.Negative || explained) {
			p.addOp(r, i)
		}
	}
	if p.rules.config.ReferenceNames {
		p.nameOps(r)
	}
	if keys := p.domain.QuotaGroupBy; len(keys) > 0 {
		p.group(r, keys)
	}
}

// addOp adds the operation of the i-th descriptor.
func (p *Scratch) addOp(r *Request, i int) {
	secret, desc, t := p.rules.config.Secret, &r.Descriptors[i], &p.parts[i]
	var key backend.Key
	if !r.OutOfTime || t.OnFailure == descriptors.FailLocal { // other late operations need no counter
		p.text = t.match.AppendName(secret.Begin(p.text[:0]), p.domain, desc.Entries, t.Override)
		key = secret.Hash(p.text)
	}
	t.op = len(p.ops)
	p.owners = append(p.owners, i)
	p.ops = append(p.ops, backend.Op{
		Key:    key,
		Limits: t.Limits.Limits(),
		Mode:   t.mode(),
		Flow:   backend.Flow(p.domain.ID),
		Take:   engine.Take{Cost: t.Hits, Count: 1},
		Wait:   t.wait(),
	})
	rule := t.Rule
	if rule == nil {
		return
	}
	op := &p.ops[t.op]
	op.Penalty, op.Lease = rule.Penalty, backend.Lease(rule.Lease)
	if t.checksBudget() {
		op.Mode, op.Take.Cost = backend.Peek, 1 // a take of 0 would pass at exactly the limit
	}
	if rule.Reserve != nil {
		p.reserveOp(t, op, desc)
	}
	if holder, ok := t.match.Holder(desc.Entries); ok {
		op.Take.Owner = p.owner(secret, holder)
	}
}

// wait returns the patience of t's operation.
func (t *part) wait() backend.Wait {
	if t.OnFailure == descriptors.FailError {
		return backend.WaitFull
	}
	return backend.WaitShort
}

// mode returns the kind of operation that t needs.
func (t *part) mode() backend.Mode {
	switch {
	case t.reserving == settles:
		return backend.Settle
	case t.Negative:
		return backend.Refund
	}
	return backend.Take
}

// nameOps sets the reference's name of the counter on each operation.
func (p *Scratch) nameOps(r *Request) {
	if cap(p.names) > maxText {
		p.names = nil
	}
	p.names = p.names[:0]
	for k := range p.ops {
		i := p.owners[k]
		since := len(p.names)
		p.names = p.parts[i].match.AppendReferenceName(p.names, p.domain, r.Descriptors[i].Entries, p.parts[i].Override)
		n := len(p.names)
		p.ops[k].Name = p.names[since:n:n]
	}
}

// maxOwner is the length of the longest holder's name that is used unchanged.
const maxOwner = 64

// owner returns the engine's name of a holder. With a secret, it reveals nothing about the holder. The hashed text begins with a zero
// byte to differ from names of counters, which begin with the length of a domain.
func (p *Scratch) owner(secret *descriptors.Secret, holder []byte) string {
	if secret == nil {
		return owner(holder)
	}
	p.text = append(append(secret.Begin(p.text[:0]), 0), holder...)
	key := secret.Hash(p.text)
	return string(key[:])
}

// owner returns the engine's name of a holder. A long name is replaced by its hash, because clients choose the lengths of names and a
// counter may have thousands of holders. The hash is marked and too long to equal a short name. The empty name is hashed too, because to
// the engine it means no owner.
func owner(name []byte) string {
	if n := len(name); n > 0 && n <= maxOwner {
		return string(name)
	}
	sum := sha256.Sum256(name)
	return "#" + hex.EncodeToString(sum[:])
}

// AnyGroup is the group of a descriptor in quota mode that has no key of quota_group_by. It belongs to all groups.
const AnyGroup = -1

// group assigns each descriptor to the group of the first one with the same values of the keys of quota_group_by. The first entry with a
// key counts; two missing entries are equal. A descriptor without any of the keys belongs to AnyGroup. In a domain without
// quota_group_by, each descriptor is its own group.
func (p *Scratch) group(r *Request, keys []string) {
	p.hashes = p.hashes[:0]
	for i := range p.parts {
		t, entries := &p.parts[i], r.Descriptors[i].Entries
		sum, found := p.groupHash(entries, keys)
		if !found {
			t.group = AnyGroup
		}
		for j := 0; j < i && found; j++ {
			if p.hashes[j] == sum && p.parts[j].group == j && sameGroup(r.Descriptors[j].Entries, entries, keys) {
				t.group = j
				break
			}
		}
		p.hashes = append(p.hashes, sum)
	}
}

// groupHash returns a hash of the values of keys, and whether entries has any of them.
func (p *Scratch) groupHash(entries []descriptors.Entry, keys []string) (sum uint64, found bool) {
	p.hash.Reset()
	for _, key := range keys {
		e := entryOf(entries, key)
		if e == nil {
			_ = p.hash.WriteByte(0) // never fails
			continue
		}
		found = true
		_ = p.hash.WriteByte(1)
		_, _ = p.hash.Write(e.Value)
	}
	return p.hash.Sum64(), found
}

// sameGroup reports whether a and b have equal values of all keys.
func sameGroup(a, b []descriptors.Entry, keys []string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool {
		x, y := entryOf(a, key), entryOf(b, key)
		return (x == nil) != (y == nil) || x != nil && !bytes.Equal(x.Value, y.Value)
	})
}

// entryOf returns the first entry with a key, or nil.
func entryOf(entries []descriptors.Entry, key string) *descriptors.Entry {
	for i := range entries {
		if string(entries[i].Key) == key {
			return &entries[i]
		}
	}
	return nil
}
