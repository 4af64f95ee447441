package limiter

import (
	"bytes"
	"math"
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// AnyGroup is the group of a descriptor in quota mode that has none of the keys of quota_group_by: it belongs to all.
const AnyGroup = -1

// QuotaGroup is the descriptors in quota mode of a request that have equal values of the keys of quota_group_by.
type QuotaGroup struct {
	First     int    // index of the first descriptor
	Over      bool   // a limit of the group, or one that belongs to all groups, is over
	Remaining uint32 // the least that is left of them; 0 if the group is over
}

// group finds, for each part, the first one with the same values of the keys of quota_group_by, where the domain has any.
// The first entry with a key counts, and a missing one equals a missing one.
func (p *Scratch) group(d *descriptors.Domain, r *Request) {
	p.groups, p.groupBy = p.groups[:0], d.QuotaGroupBy
	if len(d.QuotaGroupBy) == 0 {
		return
	}
	p.sums = p.sums[:0]
	for i := range r.Descriptors {
		entries := r.Descriptors[i].Entries
		sum, any := groupSum(entries, d.QuotaGroupBy)
		p.sums = append(p.sums, sum)
		group := AnyGroup
		if any {
			group = i
			for j, leader := range p.groups {
				if leader == j && p.sums[j] == sum && sameGroup(r.Descriptors[j].Entries, entries, d.QuotaGroupBy) {
					group = j
					break
				}
			}
		}
		p.groups = append(p.groups, group)
	}
}

// groupSum returns a hash of the values of keys, and whether there is any.
func groupSum(entries []descriptors.Entry, keys []string) (sum uint64, any bool) {
	const offset, prime = 14695981039346656037, 1099511628211 // of FNV-1a
	sum = offset
	for _, key := range keys {
		e := entryOf(entries, key)
		sum *= prime
		if e == nil {
			continue
		}
		any = true
		sum = (sum ^ 1) * prime
		for _, c := range e.Value {
			sum = (sum ^ uint64(c)) * prime
		}
	}
	return sum, any
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

// groupsOver is over where descriptors in quota mode form groups: whether a descriptor that is not in quota mode is over,
// or one that belongs to all groups, or there are groups and each has a descriptor that is over.
func (l *Limiter) groupsOver(p *Scratch) bool {
	groups, over := 0, 0
	for i := range p.parts {
		switch {
		case p.parts[i].op < 0:
		case !l.quota(&p.parts[i]) || p.groups[i] == AnyGroup:
			if p.isOver(i) {
				return true
			}
		case l.leads(p, i):
			groups++
			if l.groupOver(p, p.groups[i]) {
				over++
			}
		}
	}
	return groups > 0 && groups == over
}

// isOver reports whether the limits of the i-th part refused it, and its rule is not in shadow mode.
func (p *Scratch) isOver(i int) bool { return p.refused(&p.parts[i]) && !p.parts[i].shadow() }

// member reports whether the i-th part has a limit in quota mode and belongs to a group.
func (l *Limiter) member(p *Scratch, i, group int) bool {
	return p.groups[i] == group && p.parts[i].op >= 0 && l.quota(&p.parts[i])
}

// leads reports whether the i-th part, which is in quota mode, is the first such of its group.
func (l *Limiter) leads(p *Scratch, i int) bool {
	for j := range i {
		if l.member(p, j, p.groups[i]) {
			return false
		}
	}
	return true
}

func (l *Limiter) groupOver(p *Scratch, group int) bool {
	for i := range p.parts {
		if l.member(p, i, group) && p.isOver(i) {
			return true
		}
	}
	return false
}

// quotaGroups fills in the groups of the verdict.
func (l *Limiter) quotaGroups(p *Scratch) {
	v := &p.verdict
	if len(p.groups) == 0 {
		return
	}
	v.GroupBy = p.groupBy
	all := QuotaGroup{Remaining: math.MaxUint32} // what belongs to all groups
	for i := range p.parts {
		if !l.member(p, i, p.groups[i]) {
			continue
		}
		s := &v.Statuses[i]
		s.Group = AnyGroup
		into := &all
		if p.groups[i] != AnyGroup {
			s.Group = slices.IndexFunc(v.Groups, func(g QuotaGroup) bool { return p.groups[g.First] == p.groups[i] })
			if s.Group < 0 {
				s.Group = len(v.Groups)
				v.Groups = append(v.Groups, QuotaGroup{First: i, Remaining: math.MaxUint32})
			}
			into = &v.Groups[s.Group]
		}
		into.add(s)
	}
	for i := range v.Groups {
		g := &v.Groups[i]
		g.Over, g.Remaining = g.Over || all.Over, min(g.Remaining, all.Remaining)
	}
}

// add adds the status of a descriptor to its group. One in shadow mode that refused has nothing left, and is not over.
func (g *QuotaGroup) add(s *Status) {
	g.Over = g.Over || s.Over
	if s.Over || !s.Refused {
		g.Remaining = min(g.Remaining, s.Remaining)
	}
}
