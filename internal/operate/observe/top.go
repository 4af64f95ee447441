package observe

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"math"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Ranking is what descriptors are ranked by.
type Ranking uint8

// The rankings.
const (
	Busiest  Ranking = iota // hits asked for
	Rejected                // how often they were rejected
	rankings

	blocked = rankings // rejections by a control, which no rule made
)

// sums are of hits, rejections by rules, and rejections by controls.
type sums [rankings + 1]float64

func (s *sums) add(n *sums) {
	for i := range s {
		s[i] += n[i]
	}
}

// of returns the numbers of a ranking: those of rules leave out what controls rejected.
func (s *sums) of(rules bool) [rankings]float64 {
	if rules {
		return [rankings]float64{s[Busiest], s[Rejected]}
	}
	return [rankings]float64{s[Busiest], s[Rejected] + s[blocked]}
}

const (
	subWindow  = 10 * time.Second
	subWindows = 6         // complete ones in a minute
	maxText    = 192       // bytes of the domain and the entries of a descriptor
	maxBytes   = 1_200_000 // of the rows of a segment
	maxRest    = 1000      // rules of a segment with a row for what was dropped
)

// Query asks for the descriptors with the most.
type Query struct {
	Filter

	By   Ranking
	Most int // rows; 0 stands for all there are
}

// Row is what is known of one descriptor.
type Row struct {
	Subject

	Rule   string // path; empty for a descriptor that met no rule
	Counts [rankings]Count
}

// Rule is what all descriptors of a rule add up to.
type Rule struct {
	Domain, Path string // domains with dots in their names may have rules with one path
	Hits         [rankings]float64
}

// Count is a number of hits: with a probability of 99.7 % or more it is no further than Error from the truth, and it is exactly
// the truth if Error is 0.
type Count struct{ Hits, Error float64 }

// Answer is the descriptors with the most, the first of them having the most.
type Answer struct {
	Rows     []Row
	Rules    []Rule // those with the most, as many as rows at most, if the query names none
	From, To time.Time
	Total    [rankings]float64 // of the rule in the domains of the query or, if it names none, of all rules in all domains
	Missing  [rankings]float64 // what a descriptor may have that is not among the rows, unless the query left it out
	Every    uint32            // at times only one in so many hits was sampled
}

// segment counts the sample of a sub-window.
type segment struct {
	number int64
	rows   []row          // immutable once the sub-window is over
	index  map[uint64]int // of rows, by their hash; nil once the sub-window is over
	bytes  int            // of the rows, about
	every  uint32         // one in so many hits was drawn, at most
	floor  sums           // what a row that was dropped had, at most
	rest   int            // rows that are rests
}

// row counts one descriptor under the rule that it met.
type row struct {
	Subject

	hash uint64
	rule string
	rest bool // instead of a descriptor, it counts those of the rule that were dropped
	sums sums
}

// put adds r to the row with its hash.
func (s *segment) put(r *row) {
	i, ok := s.index[r.hash]
	if ok {
		s.rows[i].sums.add(&r.sums)
		return
	}
	s.index[r.hash] = len(s.rows)
	s.rows = append(s.rows, *r)
	s.bytes += 112 + len(r.Domain)
	for _, e := range r.Entries {
		s.bytes += 64 + len(e.Key) + len(e.Value)
	}
}

// prune drops half of the rows, those with the least. A descriptor that comes back may have lost as much as floor.
func (s *segment) prune(hash func(*limiter.Decision) uint64) {
	all, most := s.rows, sums{}
	slices.SortFunc(all, func(a, b row) int { return cmp.Compare(slices.Max(b.sums[:]), slices.Max(a.sums[:])) })
	s.rows, s.index, s.bytes, s.rest = nil, make(map[uint64]int), 0, 0
	for i := range all {
		r := &all[i]
		if i >= len(all)/2 && !r.rest {
			for k := range most {
				most[k] = max(most[k], r.sums[k])
			}
			if r.Entries, r.rest = nil, true; s.rest >= maxRest {
				r.rule, r.Domain = "", nil
			}
			r.hash = hash(&limiter.Decision{Domain: r.Domain, Facts: limiter.Facts{Rule: r.rule}}) + 1
		}
		if _, known := s.index[r.hash]; r.rest && !known {
			s.rest++
		}
		s.put(r)
	}
	s.floor.add(&most)
}

// add counts n for the descriptor of d, drawn as one in every.
func (o *Observer) add(d *limiter.Decision, n sums, every uint32) {
	hash, now := o.hash(d), time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.current(now)
	s.every = max(s.every, every)
	if i, ok := s.index[hash]; ok {
		s.rows[i].sums.add(&n)
		return
	}
	if s.bytes > maxBytes {
		s.prune(o.hash)
	}
	s.put(&row{Subject: subjectOf(d, maxText), hash: hash, rule: d.Rule, sums: n})
}

// number returns the number of the sub-window of a time.
func (o *Observer) number(now time.Time) int64 { return int64(now.Sub(o.start) / subWindow) }

// current returns the segment of a time, and drops what is older than a minute.
func (o *Observer) current(now time.Time) *segment {
	at, n := o.number(now), len(o.ring)
	if n == 0 || o.ring[n-1].number < at {
		if n > 0 {
			o.ring[n-1].rows, o.ring[n-1].index = slices.Clone(o.ring[n-1].rows), nil
		}
		o.ring = append(o.ring, segment{number: at, index: make(map[uint64]int)})
		o.ring = slices.DeleteFunc(o.ring, func(s segment) bool { return s.number < at-subWindows })
	}
	return &o.ring[len(o.ring)-1]
}

// hash returns a number that stands for d's rule and descriptor. A client cannot choose descriptors that have the same one.
func (o *Observer) hash(d *limiter.Decision) uint64 {
	var h maphash.Hash
	h.SetSeed(o.seed)
	write := func(b []byte) {
		maphash.WriteComparable(&h, len(b))
		_, _ = h.Write(b) // a hash takes everything
	}
	_, _ = h.WriteString(d.Rule)
	write(d.Domain)
	for i := range d.Entries {
		write(d.Entries[i].Key)
		write(d.Entries[i].Value)
	}
	return h.Sum64()
}

// Top answers a query.
func (o *Observer) Top(q Query) Answer {
	now := time.Now()
	o.mu.Lock()
	s := o.current(now)
	ring := slices.Clone(o.ring)
	ring[len(ring)-1].rows = slices.Clone(s.rows)
	o.mu.Unlock()
	a := Answer{From: o.start.Add(time.Duration(max(o.number(now)-subWindows, 0)) * subWindow), To: now, Every: o.every.Load()}
	var floor sums
	all, rules := make(map[uint64]*row), make(map[[2]string]*sums)
	for i := range ring {
		a.Every = max(a.Every, ring[i].every)
		floor.add(&ring[i].floor)
		for k := range ring[i].rows {
			a.count(&q, &ring[i].rows[k], all, rules)
		}
	}
	dropped := floor.of(q.Rule != "")
	for _, r := range all {
		made := Row{Subject: r.Subject, Rule: r.rule}
		for k, hits := range r.sums.of(q.Rule != "") {
			made.Counts[k] = Count{Hits: math.Round(hits), Error: math.Ceil(dropped[k] + a.missed(hits))}
		}
		if made.Counts[q.By].Hits > 0 && q.meets(r.rule, r.Entries) {
			a.Rows = append(a.Rows, made)
		}
	}
	for k, hits := range dropped {
		a.Missing[k] = math.Ceil(hits + a.missed(hits))
	}
	slices.SortFunc(a.Rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(y.Counts[q.By].Hits, x.Counts[q.By].Hits), cmp.Compare(x.Rule, y.Rule),
			slices.CompareFunc(x.Entries, y.Entries, func(a, b descriptors.Entry) int {
				return cmp.Or(bytes.Compare(a.Key, b.Key), bytes.Compare(a.Value, b.Value))
			}))
	})
	for id, sum := range rules {
		if sum[q.By] > 0 {
			a.Rules = append(a.Rules, Rule{id[0], id[1], sum.of(true)})
		}
	}
	slices.SortFunc(a.Rules, func(x, y Rule) int {
		return cmp.Or(cmp.Compare(y.Hits[q.By], x.Hits[q.By]), cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Path, y.Path))
	})
	if q.Most > 0 {
		a.Rows, a.Rules = a.Rows[:min(len(a.Rows), q.Most)], a.Rules[:min(len(a.Rules), q.Most)]
	}
	return a
}

// count adds r to the totals, to its rule and to the row of its descriptor, as far as q asks for them.
func (a *Answer) count(q *Query, r *row, all map[uint64]*row, rules map[[2]string]*sums) {
	sees := q.sees(r.Domain)
	if q.Rule == "" || sees && q.Rule == r.rule {
		for k, hits := range r.sums.of(q.Rule != "") {
			a.Total[k] += hits
		}
	} else {
		return
	}
	if id := [2]string{string(r.Domain), r.rule}; sees && q.Rule == "" && r.rule != "" {
		if rules[id] == nil {
			rules[id] = new(sums)
		}
		rules[id].add(&r.sums)
	}
	if known := all[r.hash]; known != nil {
		known.sums.add(&r.sums)
	} else if sees && !r.rest {
		made := *r
		all[r.hash] = &made
	}
}

// missed returns by how many hits sampling may have got hits wrong. Of n hits each is drawn with the probability 1/Every, so
// n/Every are drawn on average, with a standard deviation of less than the root of that. So k were drawn of an n for which
// |n/Every − k| ≤ 3·√(n/Every), of which the larger solution is taken: it holds for small k too.
func (a *Answer) missed(hits float64) float64 {
	if a.Every <= 1 {
		return 0
	}
	every := float64(a.Every)
	return every * (4.5 + 3*math.Sqrt(hits/every+2.25))
}
