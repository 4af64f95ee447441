package observe

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"maps"
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

// Window is the time that an answer covers.
type Window uint8

// The windows.
const (
	Minute Window = iota
	Hour
	windows
)

const (
	subWindow  = 10 * time.Second // of a minute
	subWindows = 6                // complete ones in a window
	perHour    = 60               // sub-windows of a minute in one of an hour
	maxText    = 192              // bytes of the domain and the entries of a descriptor
	maxBytes   = 600_000          // of the rows of a segment
	maxRests   = 1000             // rules of a segment whose dropped rows are counted by rule
)

// Query asks for the descriptors with the most.
type Query struct {
	Filter

	By     Ranking
	Window Window
	Most   int // rows; 0 stands for all there are
}

// Row is what is known of one descriptor.
type Row struct {
	Subject

	Rule   string // path; empty for a descriptor that met no rule
	Counts [rankings]Count
}

// Rule is what all descriptors of a rule add up to.
type Rule struct {
	Domain, Path string
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

// ruleID names a rule: domains with dots in their names may have rules with one path.
type ruleID struct{ domain, path string }

// segment counts the sample of a sub-window. It is immutable once the sub-window is over.
type segment struct {
	number int64
	rows   []row
	index  map[uint64]int // of rows, by their hash; nil once the sub-window is over
	rests  map[ruleID]sums
	bytes  int    // of the rows, about
	every  uint32 // one in so many hits was drawn, at most
	floor  sums   // the most that a descriptor may have had in rows that were dropped
}

// row counts one descriptor under the rule that it met.
type row struct {
	Subject

	rank int32 // among the rows of its rule, in prune
	hash uint64
	rule string
	sums sums
}

// put adds r to the row with its hash.
func (s *segment) put(r *row) {
	if i, ok := s.index[r.hash]; ok {
		s.rows[i].sums.add(&r.sums)
		return
	}
	s.index[r.hash] = len(s.rows)
	s.rows = append(s.rows, *r)
	s.bytes += 152 + len(r.Domain)
	for _, e := range r.Entries {
		s.bytes += 64 + len(e.Key) + len(e.Value)
	}
	if s.bytes > maxBytes {
		s.prune()
	}
}

// prune drops half of the rows. It keeps those with the most hits, those with the most rejections and, as rules with many
// descriptors must not displace others, the first of each rule.
func (s *segment) prune() {
	all, kept := s.rows, 0
	keep := func(share int, order func(a, b *row) int) {
		slices.SortFunc(all[kept:], func(a, b row) int { return order(&a, &b) })
		kept += len(all) / share
	}
	keep(8, func(a, b *row) int { return cmp.Compare(b.sums[Busiest], a.sums[Busiest]) })
	most := func(r *row) float64 { return r.sums[Rejected] + r.sums[blocked] }
	keep(8, func(a, b *row) int {
		return cmp.Or(cmp.Compare(most(b), most(a)), cmp.Compare(b.sums[Busiest], a.sums[Busiest]))
	})
	ranks := make(map[ruleID]int32)
	for i := range all[kept:] {
		r := &all[kept+i]
		r.rank = ranks[ruleID{string(r.Domain), r.rule}]
		ranks[ruleID{string(r.Domain), r.rule}]++
	}
	keep(4, func(a, b *row) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.sums[Busiest], a.sums[Busiest]))
	})
	var floor sums
	for i := range all[kept:] {
		r := &all[kept+i]
		for k := range floor {
			floor[k] = max(floor[k], r.sums[k])
		}
		s.rest(ruleID{string(r.Domain), r.rule}, &r.sums)
	}
	s.floor.add(&floor)
	s.rows, s.index, s.bytes = nil, make(map[uint64]int), 0
	for i := range all[:kept] {
		s.put(&all[i])
	}
}

// rest counts rows of a rule that were dropped.
func (s *segment) rest(id ruleID, n *sums) {
	if _, known := s.rests[id]; !known && len(s.rests) >= maxRests {
		id = ruleID{}
	}
	sum := s.rests[id]
	sum.add(n)
	s.rests[id] = sum
}

// merge adds what other has counted.
func (s *segment) merge(other *segment) {
	s.every = max(s.every, other.every)
	s.floor.add(&other.floor)
	for id, n := range other.rests {
		s.rest(id, &n)
	}
	for i := range other.rows {
		s.put(&other.rows[i])
	}
}

// ring is the segments of a window, the oldest first.
type ring []segment

// latest returns the segment with this number, which is not below that of the last one. It drops those that are too old.
func (r *ring) latest(number int64) *segment {
	all := *r
	if n := len(all); n == 0 || all[n-1].number < number {
		if n > 0 {
			all[n-1].rows, all[n-1].index = slices.Clone(all[n-1].rows), nil
		}
		all = slices.DeleteFunc(all, func(s segment) bool { return s.number < number-subWindows })
		*r = append(all, segment{number: number, index: make(map[uint64]int), rests: make(map[ruleID]sums)})
	}
	return &(*r)[len(*r)-1]
}

// copy returns the segments as they are now.
func (r ring) copy() ring {
	c := slices.Clone(r)
	last := &c[len(c)-1]
	last.rows, last.rests = slices.Clone(last.rows), maps.Clone(last.rests)
	return c
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
	s.put(&row{Subject: subjectOf(d, maxText), hash: hash, rule: d.Rule, sums: n})
}

// number returns the number of the sub-window of a time.
func (o *Observer) number(now time.Time) int64 { return int64(now.Sub(o.start) / subWindow) }

// current returns the segment of a time. If a sub-window is over, the hour takes its rows.
func (o *Observer) current(now time.Time) *segment {
	at, minute, hour := o.number(now), &o.rings[Minute], &o.rings[Hour]
	if n := len(*minute); n > 0 && (*minute)[n-1].number < at {
		over := &(*minute)[n-1]
		hour.latest(over.number / perHour).merge(over)
	}
	hour.latest(at / perHour)
	return minute.latest(at)
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

// parts returns the segments of a window, and when it begins.
func (o *Observer) parts(w Window, now time.Time) (parts ring, from time.Time) {
	at, span := o.number(now), subWindow
	o.mu.Lock()
	defer o.mu.Unlock()
	o.current(now)
	parts = o.rings[Minute].copy()
	if w == Hour {
		at, span = at/perHour, perHour*subWindow
		parts = append(o.rings[Hour].copy(), parts[len(parts)-1])
	}
	return parts, o.start.Add(time.Duration(max(at-subWindows, 0)) * span)
}

// Top answers a query.
func (o *Observer) Top(q Query) Answer {
	now := time.Now()
	parts, from := o.parts(q.Window, now)
	a := Answer{From: from, To: now, Every: o.every.Load()}
	var floor sums
	all, rules := make(map[uint64]*row), make(map[ruleID]*sums)
	for i := range parts {
		p := &parts[i]
		a.Every = max(a.Every, p.every)
		floor.add(&p.floor)
		for id, n := range p.rests {
			a.count(&q, &row{Subject: Subject{Domain: []byte(id.domain)}, rule: id.path, sums: n}, rules)
		}
		for k := range p.rows {
			r := &p.rows[k]
			if !a.count(&q, r, rules) {
				continue
			}
			if known := all[r.hash]; known != nil {
				known.sums.add(&r.sums)
				continue
			}
			made := *r
			all[r.hash] = &made
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
	a.rank(rules, q.By)
	if q.Most > 0 {
		a.Rows, a.Rules = a.Rows[:min(len(a.Rows), q.Most)], a.Rules[:min(len(a.Rules), q.Most)]
	}
	return a
}

// rank adds the rules that have any, those with the most first.
func (a *Answer) rank(rules map[ruleID]*sums, by Ranking) {
	for id, sum := range rules {
		if sum[by] > 0 {
			a.Rules = append(a.Rules, Rule{id.domain, id.path, sum.of(true)})
		}
	}
	slices.SortFunc(a.Rules, func(x, y Rule) int {
		return cmp.Or(cmp.Compare(y.Hits[by], x.Hits[by]), cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Path, y.Path))
	})
}

// count adds r to the totals and to its rule, and reports whether it may be in the answer.
func (a *Answer) count(q *Query, r *row, rules map[ruleID]*sums) bool {
	sees := q.sees(r.Domain) && (q.Rule == "" || q.Rule == r.rule)
	if q.Rule == "" || sees {
		for k, hits := range r.sums.of(q.Rule != "") {
			a.Total[k] += hits
		}
	}
	if id := (ruleID{string(r.Domain), r.rule}); sees && q.Rule == "" && r.rule != "" {
		if rules[id] == nil {
			rules[id] = new(sums)
		}
		rules[id].add(&r.sums)
	}
	return sees
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
