package top

import (
	"cmp"
	"slices"
)

// key is a descriptor that a list knows, under the rule that it met. It is immutable but for what its list keeps in it.
type key struct {
	hash uint64
	rule string // path; empty if there is none
	text string // its domain and entries, as packed by pack
	cut  bool   // text is not all of it

	refs int32           // summaries that have a count for it
	at   [rankings]int32 // where its count is in the summary being worked on, plus 1; 0 if it has none there
}

// count is what a summary knows of one key: of the hits that were added for it there are at most hits, and at least
// hits−over.
type count struct {
	key        *key
	hits, over float64
}

// summary is a Space-Saving sketch (Metwally, Agrawal, El Abbadi: "Efficient computation of frequent and top-k elements
// in data streams"): of a stream of hits it keeps the keys with the most, without ever having room for all of them. A new
// key takes the place of the one with the least, and inherits its count as its possible error.
//
// The bound: in a summary with room for m keys, to which n hits were added, no count is too high by more than n/m, and
// every key that has no count has at most floor hits, which is at most n/m. Merging and pruning keep that bound (Agarwal and
// others: "Mergeable summaries"). Where room was less than m for some time, the bound is n/m for the smallest m; hits, over and
// floor are true in any case, because they are what happened and not an estimate of it.
type summary struct {
	number int64   // of the sub-window
	counts []count // while it is added to, a heap: the one with the least hits comes first
	floor  float64
	total  float64 // hits of all keys
	every  uint32  // one in how many hits was sampled, at most
}

// add counts hits for k. room is how many counts there may be; it may change at any time. r says which of k.at is the summary's.
func (s *summary) add(k *key, hits float64, r Ranking, room int) (dropped *key) {
	s.total += hits
	if i := k.at[r]; i > 0 {
		s.counts[i-1].hits += hits
		s.down(int(i-1), r)
		return nil
	}
	fresh := count{key: k, hits: s.floor + hits, over: s.floor}
	switch {
	case len(s.counts) < room:
		k.refs++
		s.counts = append(s.counts, fresh)
		k.at[r] = int32(len(s.counts))
		s.up(len(s.counts)-1, r)
	case len(s.counts) == 0: // no room at all
		s.floor += hits
	default:
		dropped = s.counts[0].key
		dropped.at[r] = 0
		dropped.refs--
		s.floor = max(s.floor, s.counts[0].hits)
		fresh.hits, fresh.over = s.floor+hits, s.floor
		k.refs++
		s.counts[0] = fresh
		k.at[r] = 1
		s.down(0, r)
	}
	return dropped
}

func (s *summary) up(i int, r Ranking) {
	for i > 0 {
		parent := (i - 1) / 2
		if s.counts[parent].hits <= s.counts[i].hits {
			return
		}
		s.swap(i, parent, r)
		i = parent
	}
}

func (s *summary) down(i int, r Ranking) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(s.counts); child++ {
			if s.counts[child].hits < s.counts[least].hits {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least, r)
		i = least
	}
}

func (s *summary) swap(i, j int, r Ranking) {
	s.counts[i], s.counts[j] = s.counts[j], s.counts[i]
	s.counts[i].key.at[r], s.counts[j].key.at[r] = int32(i+1), int32(j+1)
}

// take returns what s has counted, and empties s for the next sub-window.
func (s *summary) take(number int64, r Ranking) summary {
	done := *s
	done.number, done.counts = number, slices.Clone(s.counts)
	for i := range s.counts {
		s.counts[i].key.at[r] = 0
	}
	*s = summary{}
	return done
}

// merge adds what other has counted to s. No key may be in the summary that is added to.
func (s *summary) merge(other *summary, r Ranking) {
	for i := range s.counts {
		c := &s.counts[i]
		c.hits, c.over = c.hits+other.floor, c.over+other.floor // at most so many of a key that other does not have
		c.key.at[r] = int32(i + 1)
	}
	known := len(s.counts)
	for _, o := range other.counts {
		if i := o.key.at[r]; i > 0 {
			c := &s.counts[i-1]
			c.hits, c.over = c.hits+o.hits-other.floor, c.over+o.over-other.floor
			continue
		}
		o.key.refs++
		s.counts = append(s.counts, count{key: o.key, hits: o.hits + s.floor, over: o.over + s.floor})
	}
	for i := range s.counts[:known] {
		s.counts[i].key.at[r] = 0
	}
	s.floor += other.floor
	s.total += other.total
	s.every = max(s.every, other.every)
}

// prune drops all counts but those of the room keys with the most hits. It calls drop for each key that is dropped.
func (s *summary) prune(room int, drop func(*key)) {
	if len(s.counts) <= room {
		return
	}
	slices.SortFunc(s.counts, func(a, b count) int { return cmp.Compare(b.hits, a.hits) })
	s.floor = max(s.floor, s.counts[room].hits)
	for _, c := range s.counts[room:] {
		c.key.refs--
		drop(c.key)
	}
	s.counts = slices.Clone(s.counts[:room])
}
