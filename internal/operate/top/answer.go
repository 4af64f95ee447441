package top

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"
)

// Query asks for the descriptors with the most.
type Query struct {
	Rule    string // path, which rules of several domains may have; of all rules if it is empty
	By      Ranking
	Window  Window
	Most    int                      // rows; 0 stands for all there are
	In      func(domain string) bool // which domains; nil stands for all
	Matches func(*Row) bool          // which rows of these; nil stands for all
}

// Row is what is known of one descriptor.
type Row struct {
	Domain, Rule string // Rule is a path; empty for a descriptor that met no rule
	Entries      []Entry
	Cut          bool // Entries are not all there are, or not all of them, because they are too long
	Counts       [rankings]Count
}

// Rule is what all descriptors of a rule add up to.
type Rule struct {
	Domain, Path string
	Hits         [rankings]float64
}

// Entry is a key and a value.
type Entry struct{ Key, Value string }

// Count is a number of hits: with a probability of 99.7 % or more it is no further than Error from the truth, and it is exactly
// the truth if Error is 0.
type Count struct{ Hits, Error float64 }

// Answer is the descriptors with the most, the first of them having the most.
type Answer struct {
	Rows     []Row
	Rules    []Rule // those in the domains with the most, as many as rows at most, if all rules are asked for
	From, To time.Time
	Total    [rankings]float64 // hits of all descriptors that are counted: of the rule in these domains or, unless Own, of all rules in all domains
	Missing  [rankings]float64 // hits that a descriptor which is not among the rows may have, unless In, Matches or Most left it out
	Every    uint32            // at times only one in so many hits was looked at
	Own      bool              // the rule has a list of its own; otherwise its rows are those of all rules that are its
}

// Top answers a query.
func (t *Top) Top(q Query) Answer {
	now := time.Now()
	at := t.number(now)
	lists, own := t.lists(&q, at)
	a := Answer{From: t.from(at, q.Window), To: now, Own: own, Every: t.every.Load()}
	parts := make([][rankings][]summary, len(lists))
	for i, l := range lists {
		for r := range rankings {
			parts[i][r] = l.summaries(at, r, q.Window)
			for k := range parts[i][r] {
				a.Every = max(a.Every, parts[i][r][k].every)
			}
		}
	}
	for i := range parts {
		for _, row := range a.rows(&parts[i]) {
			if q.selects(row) {
				a.Rows = append(a.Rows, *row)
			}
		}
	}
	slices.SortFunc(a.Rows, func(x, y Row) int {
		return cmp.Or(cmp.Compare(y.Counts[q.By].Hits, x.Counts[q.By].Hits), cmp.Compare(x.Rule, y.Rule),
			slices.CompareFunc(x.Entries, y.Entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value)) }))
	})
	if q.Rule == "" {
		a.Rules = t.byRule(&q, at)
	}
	if q.Most > 0 && len(a.Rows) > q.Most {
		a.Rows = a.Rows[:q.Most]
	}
	return a
}

// byRule returns the rules with the most. One that has no list, for lack of memory, is not among them.
func (t *Top) byRule(q *Query, at int64) (all []Rule) {
	t.mu.RLock()
	lists := maps.Clone(t.rules)
	t.mu.RUnlock()
	for id, l := range lists {
		if q.In != nil && !q.In(id.domain) {
			continue
		}
		if hits := l.totals(at, q.Window); hits[q.By] > 0 {
			all = append(all, Rule{Domain: id.domain, Path: id.path, Hits: hits})
		}
	}
	slices.SortFunc(all, func(x, y Rule) int {
		return cmp.Or(cmp.Compare(y.Hits[q.By], x.Hits[q.By]), cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Path, y.Path))
	})
	if q.Most > 0 {
		all = all[:min(len(all), q.Most)]
	}
	return all
}

// lists returns the lists of the rules that q is about, and whether they have lists of their own.
func (t *Top) lists(q *Query, at int64) (all []*list, own bool) {
	if q.Rule == "" {
		return []*list{t.overall}, true
	}
	t.mu.RLock()
	for id, l := range t.rules {
		if id.path == q.Rule && (q.In == nil || q.In(id.domain)) {
			all = append(all, l)
		}
	}
	t.mu.RUnlock()
	crowded := t.crowded.Load()
	switch {
	case len(all) > 0:
		return all, true
	case crowded == 0 || crowded <= at-(subWindows+1)*perHour: // every rule that was met has one
		return nil, true
	}
	return []*list{t.overall}, false
}

// selects reports whether a row is to be in the answer.
func (q *Query) selects(row *Row) bool {
	return (q.Rule == "" || row.Rule == q.Rule) && row.Counts[q.By].Hits > 0 && (q.In == nil || q.In(row.Domain)) && (q.Matches == nil || q.Matches(row))
}

// from returns since when a window counts.
func (t *Top) from(at int64, w Window) time.Time {
	if w == Hour {
		return t.start.Add(time.Duration(max(at/perHour-subWindows, 0)) * perHour * subWindow)
	}
	return t.start.Add(time.Duration(max(at-subWindows, 0)) * subWindow)
}

// rows returns the rows of a list of which these are the summaries, and adds what it counts.
func (a *Answer) rows(parts *[rankings][]summary) map[*key]*Row {
	rows := make(map[*key]*Row)
	var missing [rankings]float64
	for r := range rankings {
		missing[r] = a.add(rows, parts[r], r)
		a.Missing[r] = max(a.Missing[r], missing[r])
	}
	for _, row := range rows {
		for r := range rankings {
			if row.Counts[r].Error < 0 {
				row.Counts[r].Error = missing[r]
			}
		}
	}
	return rows
}

// add adds the summaries of a ranking to the rows. A summary that does not have a key may have missed as many of its hits
// as its floor says. It returns how many hits a key may have that none of them has.
func (a *Answer) add(rows map[*key]*Row, parts []summary, r Ranking) (missing float64) {
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
	return math.Ceil(floor + a.missed(floor))
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
