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

// Ranking selects the number to rank descriptors by.
type Ranking uint8

// The rankings.
const (
	Busiest  Ranking = iota // requested hits
	Rejected                // rejections
	rankings

	blocked = rankings // rejections by controls, which belong to no rule
)

// sums are numbers of hits, rejections by rules, and rejections by controls.
type sums [rankings + 1]float64

func (s *sums) add(n *sums) {
	for i := range s {
		s[i] += n[i]
	}
}

// of returns the numbers by ranking. With rules, rejections by controls are left out.
func (s *sums) of(rules bool) [rankings]float64 {
	if rules {
		return [rankings]float64{s[Busiest], s[Rejected]}
	}
	return [rankings]float64{s[Busiest], s[Rejected] + s[blocked]}
}

// Window is the period of an answer.
type Window uint8

// The windows.
const (
	Minute Window = iota
	Hour
	windows
)

const (
	subWindow  = 10 * time.Second // of Minute
	subWindows = 6                // completed ones in a window
	perHour    = 60               // sub-windows of Minute in one of Hour
	maxText    = 192              // bytes of the domain and the entries of a descriptor
	maxBytes   = 600_000          // of a segment's rows
	maxRests   = 1000             // rules in a segment with their own sums of dropped rows
)

// Query asks for the top descriptors.
type Query struct {
	Filter

	By      Ranking
	Window  Window
	MaxRows int // maximum number of rows; 0 means all
}

// Row has the counts of one descriptor.
type Row struct {
	Subject

	Rule   string // path; empty without a rule
	Counts [rankings]Count
}

// Rule has the totals of a rule's descriptors.
type Rule struct {
	Domain, Path string
	Hits         [rankings]float64
}

// Count is a number of hits. With a probability of at least 99.7 %, the true number differs by at most Error. An Error of 0
// means exact.
type Count struct{ Hits, Error float64 }

// Answer is the top descriptors in descending order.
type Answer struct {
	Rows     []Row
	Rules    []Rule // top rules, at most as many as rows; empty if the query names a rule
	From, To time.Time
	Total    [rankings]float64 // of the query's rule in its domains or, if it names none, of all rules in all domains
	Missing  [rankings]float64 // maximum counts of a descriptor that is not in Rows, unless the filter excludes it
	Every    uint32            // the largest sampling interval in the period, in hits
}

// ruleID identifies a rule. Domains with dots in their names may have rules with the same path.
type ruleID struct{ domain, path string }

// segment counts the sample of a sub-window. It is immutable after the sub-window.
type segment struct {
	number int64
	rows   []row
	index  map[uint64]int // index in rows by hash; nil after the sub-window
	rests  map[ruleID]sums
	bytes  int    // approximate size of the rows
	every  uint32 // the largest sampling interval, in hits
	floor  sums   // maximum counts of a descriptor in dropped rows
}

// row counts one descriptor of a rule.
type row struct {
	Subject

	rank int32 // position among the rows of its rule, used by prune
	hash uint64
	rule string
	sums sums
}

// put adds r to the row with the same hash, or as a new row.
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

// prune drops half of the rows. It keeps rows with the most hits, rows with the most rejections, and the top rows of each
// rule, so that a rule with many descriptors does not displace others.
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

// rest adds the sums of a dropped row to its rule's.
func (s *segment) rest(id ruleID, n *sums) {
	if _, known := s.rests[id]; !known && len(s.rests) >= maxRests {
		id = ruleID{}
	}
	sum := s.rests[id]
	sum.add(n)
	s.rests[id] = sum
}

// merge adds the counts of other.
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

// ring is the segments of a window, oldest first.
type ring []segment

// latest returns the segment with this number, which must not be below the last segment's. It drops segments that are
// too old.
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

// copy returns a snapshot of the segments.
func (r ring) copy() ring {
	c := slices.Clone(r)
	last := &c[len(c)-1]
	last.rows, last.rests = slices.Clone(last.rows), maps.Clone(last.rests)
	return c
}

// add counts n for the descriptor of d, sampled as one in every hits.
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

// number returns the number of the sub-window at a time.
func (o *Observer) number(now time.Time) int64 { return int64(now.Sub(o.start) / subWindow) }

// current returns the segment at a time. It merges a completed sub-window into the hour's.
func (o *Observer) current(now time.Time) *segment {
	at, minute, hour := o.number(now), &o.rings[Minute], &o.rings[Hour]
	if n := len(*minute); n > 0 && (*minute)[n-1].number < at {
		over := &(*minute)[n-1]
		hour.latest(over.number / perHour).merge(over)
	}
	hour.latest(at / perHour)
	return minute.latest(at)
}

// hash returns a hash of d's rule and descriptor. It is seeded, so clients cannot choose colliding descriptors.
func (o *Observer) hash(d *limiter.Decision) uint64 {
	var h maphash.Hash
	h.SetSeed(o.seed)
	write := func(b []byte) {
		maphash.WriteComparable(&h, len(b))
		_, _ = h.Write(b) // a hash never fails
	}
	_, _ = h.WriteString(d.Rule)
	write(d.Domain)
	for i := range d.Entries {
		write(d.Entries[i].Key)
		write(d.Entries[i].Value)
	}
	return h.Sum64()
}

// parts returns the segments of a window and its start.
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

// Top returns the top descriptors.
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
	if q.MaxRows > 0 {
		a.Rows, a.Rules = a.Rows[:min(len(a.Rows), q.MaxRows)], a.Rules[:min(len(a.Rules), q.MaxRows)]
	}
	return a
}

// rank adds the rules with any hits of the ranking, in descending order.
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

// count adds r to the totals and to its rule, and reports whether it matches the query's domains and rule.
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

// missed returns the sampling error of a number of hits. Each of n hits is drawn with the probability 1/Every, so the number
// of draws has the mean n/Every and a standard deviation below its root. The draws k are thus compatible with each n for
// which |n/Every − k| ≤ 3·√(n/Every). The error is the distance to the largest such n, which also holds for small k.
func (a *Answer) missed(hits float64) float64 {
	if a.Every <= 1 {
		return 0
	}
	every := float64(a.Every)
	return every * (4.5 + 3*math.Sqrt(hits/every+2.25))
}
