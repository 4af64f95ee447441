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

// operations are the operations on counters that a request needs.
type operations struct {
	ops    []backend.Op         // one for each descriptor whose limits decide, in order
	owners []int                // the index of that descriptor, for each op
	name   engine.ReservationID // of what the request reserves; zero if it reserves nothing

	names  []byte       // of the counters, if the backend wants the reference's
	hash   maphash.Hash // of the values that make quota groups
	hashes []uint64     // by descriptor
}

// maxText is the size of the largest buffer for names that is kept for the next request.
const maxText = 64 << 10

// plan makes the operations for the limits in force. For a blocked request there are only refunds, unless the request is explained.
func (p *Scratch) plan(r *Request, explained bool) {
	p.ops, p.owners, p.name = p.ops[:0], p.owners[:0], engine.ReservationID{}
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

// addOp makes the operation for the i-th descriptor.
func (p *Scratch) addOp(r *Request, i int) {
	secret, desc, t := p.rules.config.Secret, &r.Descriptors[i], &p.parts[i]
	var key backend.Key
	if !r.Late || t.OnFailure == descriptors.FailLocal { // others need no counter now
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
	if rule.Reserve != nil {
		p.reserveOp(t, op)
	}
	if holder, ok := t.match.Holder(desc.Entries); ok {
		op.Take.Owner = p.owner(secret, holder)
	}
}

// wait returns how long the operation of t may wait.
func (t *part) wait() backend.Wait {
	if t.OnFailure == descriptors.FailError {
		return backend.WaitFull
	}
	return backend.WaitShort
}

// mode returns the operation that t needs on its counter.
func (t *part) mode() backend.Mode {
	switch {
	case t.reserving == settles:
		return backend.Settle
	case t.Negative:
		return backend.Refund
	}
	return backend.Take
}

// nameOps gives each operation the reference's name for its counter.
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

// maxOwner is the length of the longest holder's name that is used as it is.
const maxOwner = 64

// owner returns the engine's name for a holder. Where there is a secret it says nothing about the holder. The hashed text begins
// with a zero, which keeps it apart from names of counters: these begin with the length of a domain.
func (p *Scratch) owner(secret *descriptors.Secret, holder []byte) string {
	if secret == nil {
		return owner(holder)
	}
	p.text = append(append(secret.Begin(p.text[:0]), 0), holder...)
	key := secret.Hash(p.text)
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

// AnyGroup is the group of a descriptor in quota mode that has none of the keys of quota_group_by: it belongs to all.
const AnyGroup = -1

// group finds, for each descriptor, the first one with the same values of the keys of quota_group_by: those form a group. The
// first entry with a key counts, and a missing one equals a missing one. Without such keys each is a group of its own.
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

// groupHash returns a hash of the values of keys, and whether there is any.
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

// sameGroup reports whether the values of keys are equal.
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
