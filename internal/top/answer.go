package top

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Query asks for the descriptors with the most.
type Query struct {
	Rule    string // path; of all rules if it is empty
	By      Ranking
	Window  Window
	Most    int             // rows; 0 stands for all there are
	Matches func(*Row) bool // which rows; nil stands for all
}

// Row is what is known of one descriptor.
type Row struct {
	Domain, Rule string // Rule is a path; empty for a descriptor that met no rule
	Entries      []Entry
	Cut          bool // Entries are not all there are, or not all of them, because they are too long
	Counts       [rankings]Count
}

// Entry is a key and a value.
type Entry struct{ Key, Value string }

// Count is a number of hits: with a probability of 99.7 % or more it is no further than Error from the truth, and it is exactly
// the truth if Error is 0.
type Count struct{ Hits, Error float64 }

// Answer is the descriptors with the most, the first of them having the most.
type Answer struct {
	Rows     []Row
	From, To time.Time
	Total    [rankings]float64 // hits of all descriptors that the list counts
	Missing  [rankings]float64 // hits that a descriptor which is not among the rows may have, unless Matches or Most left it out
	Every    uint32            // at times only one in so many hits was looked at
	Own      bool              // the rule has a list of its own; otherwise its rows are those of all rules that are its
}

// Top answers a query.
func (t *Top) Top(q Query) Answer {
	now := time.Now()
	at := t.number(now)
	l, own := t.overall, q.Rule == ""
	if q.Rule != "" {
		t.mu.RLock()
		if its := t.rules[q.Rule]; its != nil {
			l, own = its, true
		}
		t.mu.RUnlock()
		crowded := t.crowded.Load()
		own = own || crowded == 0 || crowded <= at-(subWindows+1)*perHour // every rule that was met has one
	}
	a := Answer{From: t.from(at, q.Window), To: now, Own: own, Every: t.every.Load()}
	var parts [rankings][]summary
	for r := range rankings {
		parts[r] = l.summaries(at, r, q.Window)
		for i := range parts[r] {
			a.Every = max(a.Every, parts[r][i].every)
		}
	}
	rows := make(map[*key]*Row)
	for r := range rankings {
		a.add(rows, parts[r], r)
	}
	for _, row := range rows {
		if q.Rule != "" && row.Rule != q.Rule || row.Counts[q.By].Hits == 0 {
			continue
		}
		if q.Matches == nil || q.Matches(row) {
			a.Rows = append(a.Rows, *row)
		}
	}
	slices.SortFunc(a.Rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(y.Counts[q.By].Hits, x.Counts[q.By].Hits), cmp.Compare(x.Rule, y.Rule),
			slices.CompareFunc(x.Entries, y.Entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value)) }))
	})
	if q.Most > 0 && len(a.Rows) > q.Most {
		a.Rows = a.Rows[:q.Most]
	}
	return a
}

// from returns since when a window counts.
func (t *Top) from(at int64, w Window) time.Time {
	if w == Hour {
		return t.start.Add(time.Duration(max(at/perHour-subWindows, 0)) * perHour * subWindow)
	}
	return t.start.Add(time.Duration(max(at-subWindows, 0)) * subWindow)
}

// add adds the summaries of a ranking to the rows. A summary that does not have a key may have missed as many of its hits
// as its floor says.
func (a *Answer) add(rows map[*key]*Row, parts []summary, r Ranking) {
	floor := 0.0
	for i := range parts {
		floor += parts[i].floor
		a.Total[r] += parts[i].total
	}
	sums := make(map[*key]count)
	for i := range parts {
		p := &parts[i]
		for _, c := range p.counts {
			sum, ok := sums[c.key]
			if !ok {
				sum.hits, sum.over = floor, floor
			}
			sum.hits, sum.over = sum.hits+c.hits-p.floor, sum.over+c.over-p.floor
			sums[c.key] = sum
		}
	}
	for k, sum := range sums {
		row := rows[k]
		if row == nil {
			row = rowOf(k)
			rows[k] = row
			for other := range rankings {
				row.Counts[other].Error = -1 // to be filled in
			}
		}
		row.Counts[r] = Count{Hits: math.Round(sum.hits), Error: math.Ceil(sum.over + a.missed(sum.hits))}
	}
	a.Missing[r] = math.Ceil(floor + a.missed(floor))
	for _, row := range rows {
		for other := range r + 1 {
			if row.Counts[other].Error < 0 {
				row.Counts[other].Error = a.Missing[other]
			}
		}
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

func rowOf(k *key) *Row {
	row := &Row{Rule: k.rule, Cut: k.cut}
	for i, part := range unpack(k.text) {
		switch {
		case i == 0:
			row.Domain = part
		case i%2 == 1:
			row.Entries = append(row.Entries, Entry{Key: part})
		default:
			row.Entries[len(row.Entries)-1].Value = part
		}
	}
	return row
}
