package replay

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Limits of a report.
const (
	maxRules     = 10_000 // rules with their own counts; others are counted together
	maxLimits    = 20     // limits of a rule; requests may carry their own
	reported     = 1000   // descriptors
	charted      = 8      // rules with a time series
	maxValueText = 192    // bytes of a descriptor's text
)

// Others is the name of combined counts of excess rules or descriptors.
const Others = "(others)"

// tally runs events and counts the results.
type tally struct {
	players []*Player
	values  *values
	clock   clock
	last    engine.Micros

	r        Report
	recorded Recorded
	changed  Changed
	total    series
	rejected []series // for each player
	rules    map[string]*ruleTally
	over     []bool // the current event is rejected, for each player
	text     []byte
	known    []*value // for the current event's descriptors
}

// ruleTally counts the decisions of a rule.
type ruleTally struct {
	Rule

	series []series
	limits map[string]*Limit
}

func newTally(players []*Player, room int) *tally {
	n := len(players)
	t := &tally{
		players: players, values: newValues(room, n), rejected: make([]series, n), rules: map[string]*ruleTally{}, over: make([]bool, n),
	}
	for _, p := range players {
		t.r.Sets = append(t.r.Sets, Outcome{Rules: p.name})
	}
	return t
}

// play runs the next event. Events that are late run at the last event's time.
func (t *tally) play(ctx context.Context, e *Event) {
	if t.clock.begun && e.At < t.last {
		t.r.Late++
		e.At = t.last
	}
	bucket := t.reach(e.At)
	if e.Silent {
		t.r.Calls++
		for _, p := range t.players {
			_, _ = p.play(ctx, e) // its request was not rejected
		}
		return
	}
	t.r.Requests++
	t.total.add(bucket)
	if e.Decision != Unknown {
		t.recorded.Requests++
	}
	if e.Decision == Rejected {
		t.recorded.Rejected++
	}
	if e.Request == nil {
		t.r.Unasked++
		for i := range t.players {
			t.compare(e, i, false)
		}
		return
	}
	t.known = append(t.known[:0], make([]*value, len(e.Request.Descriptors))...)
	for i, p := range t.players {
		v, err := p.play(ctx, e)
		t.over[i] = t.count(e, i, v, err)
		t.compare(e, i, t.over[i])
		if t.over[i] {
			t.rejected[i].add(bucket)
		}
		if err == nil {
			t.descriptors(e, i, v, bucket)
		}
	}
	if len(t.players) == 2 {
		t.change()
	}
}

// reach advances the time, and returns its bucket.
func (t *tally) reach(at engine.Micros) (bucket int) {
	if !t.clock.begun {
		t.r.From = timeOf(at)
	}
	t.last = at
	bucket, doubled := t.clock.bucket(at)
	for range doubled {
		t.total.double()
		for _, s := range t.rejected {
			s.double()
		}
		for _, r := range t.rules {
			for _, s := range r.series {
				s.double()
			}
		}
	}
	return bucket
}

// count counts the decision of set i on a request, and reports whether it is rejected.
func (t *tally) count(e *Event, i int, v *limiter.Verdict, err error) (over bool) {
	o := &t.r.Sets[i]
	if err != nil {
		o.Failed++
		o.Error = cmp.Or(o.Error, err.Error())
		return false
	}
	met, shadowed, near := false, false, false
	for k := range v.Statuses {
		s := &v.Statuses[k]
		met = met || s.RateLimit != nil
		shadowed = shadowed || s.Shadowed()
		near = near || s.RateLimit != nil && nearBoundary(s)
	}
	if near {
		o.Close++
	}
	over = v.Over && v.Class != limiter.ClassLateCharge
	switch {
	case over:
		o.Rejected++
	case shadowed:
		o.Shadowed++
	case !met:
		o.NoLimit++
	}
	if set := t.players[i].set; !met && set.Domain(e.Request.Domain) == nil {
		if o.Unruled++; o.Unruled == 1 {
			o.UnknownDomain = set.Unknown(string(e.Request.Domain))
		}
	}
	return over
}

// nearBoundary reports whether a limit might decide differently a second earlier or later: in another fixed window, or with the hits
// that refill in that time.
func nearBoundary(s *limiter.Status) bool {
	l, until := &s.RateLimit.Limit, engine.Micros(s.Decision.ResetAfter.Microseconds())
	if s.Endless() {
		return false
	}
	if l.Algorithm == engine.FixedWindow {
		return until <= second || until > l.Window-second
	}
	soon := s.Decision.RetryAfter > 0 && s.Decision.RetryAfter <= time.Second
	last := float64(s.Remaining) < float64(l.Hits)*float64(second)/float64(l.Window)
	return !l.Algorithm.Holds() && (s.Exceeded() && soon || !s.Exceeded() && last)
}

// compare compares the decision of set i on a request with the recorded one.
func (t *tally) compare(e *Event, i int, over bool) {
	switch {
	case e.Decision == Passed && over:
		t.r.Sets[i].NewlyRejected++
	case e.Decision == Rejected && !over:
		t.r.Sets[i].NewlyPassed++
	}
}

func (t *tally) change() {
	switch {
	case t.over[0] && t.over[1]:
		t.changed.Both++
	case t.over[0]:
		t.changed.First++
	case t.over[1]:
		t.changed.Second++
	}
}

// descriptors counts the decisions of set i on the descriptors of a request.
func (t *tally) descriptors(e *Event, i int, v *limiter.Verdict, bucket int) {
	for k := range v.Statuses {
		s, d := &v.Statuses[k], &e.Request.Descriptors[k]
		if s.RateLimit == nil || d.Negative {
			continue
		}
		r := t.rule(s, e.Request.Domain, i)
		r.Requested[i]++
		if known := t.known[k]; known == nil || known.rule != r.Path {
			t.text = append(append(append(t.text[:0], e.Request.Domain...), ' '), d.Text(maxValueText)...)
			t.known[k] = t.values.find(r.Path, t.text)
		}
		switch {
		case s.Outcome == limiter.Shadowed:
			r.Shadowed[i]++
			continue
		case s.Outcome != limiter.Rejected:
			continue
		}
		r.reject(i, bucket, t.last)
		t.known[k].rejected[i]++
		if s.Limits != nil && s.Limits.Len() > 1 {
			r.limit(s).Rejected[i]++
		}
	}
}

// rule returns the counts of a status's rule under set i.
func (t *tally) rule(s *limiter.Status, domain []byte, i int) *ruleTally {
	path, place := string(domain)+" (limits from requests, without a rule)", ""
	if s.Rule != nil {
		path, place = s.Rule.Path, s.Rule.Place()
	}
	r := t.rules[path]
	if r == nil && len(t.rules) >= maxRules {
		path, place = Others, ""
		r = t.rules[path]
	}
	if r == nil {
		n := len(t.players)
		r = &ruleTally{Rule: Rule{
			Path: path, Places: make([]string, n), Requested: make([]uint64, n), Rejected: make([]uint64, n), Shadowed: make([]uint64, n),
			First: make([]*time.Time, n), Last: make([]*time.Time, n),
		}, series: make([]series, n), limits: map[string]*Limit{}}
		t.rules[path] = r
	}
	r.Places[i] = place
	return r
}

// reject counts a rejection under set i.
func (r *ruleTally) reject(i, bucket int, at engine.Micros) {
	r.Rejected[i]++
	r.series[i].add(bucket)
	now := timeOf(at)
	r.First[i], r.Last[i] = cmp.Or(r.First[i], &now), &now
}

// limit returns the counts of the status's limit in a rule with several.
func (r *ruleTally) limit(s *limiter.Status) *Limit {
	text := s.RateLimit.String()
	if s.RateLimit.Name != "" {
		text = s.RateLimit.Name + ": " + text
	}
	if r.limits[text] == nil && len(r.limits) >= maxLimits {
		text = Others
	}
	if r.limits[text] == nil {
		r.limits[text] = &Limit{Limit: text, Rejected: make([]uint64, len(r.Rejected))}
	}
	return r.limits[text]
}

// report returns the report of all events so far.
func (t *tally) report() *Report {
	r := &t.r
	r.To = timeOf(t.last)
	if t.recorded.Requests > 0 {
		r.Recorded = &t.recorded
	}
	if len(t.players) == 2 {
		r.Changed = &t.changed
	}
	for i, p := range t.players {
		o := &r.Sets[i]
		o.Charges, o.Hasty, o.Endless, o.ForcedOut = p.charges, p.hasty, p.endless, p.store.Stats().ForcedOut
	}
	t.reportRules()
	t.reportValues()
	buckets := t.clock.last + 1
	if r.Requests == 0 {
		buckets = 0
	}
	r.Timeline.Start, r.Timeline.Seconds = timeOf(t.clock.start), int64(t.clock.width/second)
	r.Timeline.Requests = t.total.first(buckets)
	for _, s := range t.rejected {
		r.Timeline.Rejected = append(r.Timeline.Rejected, s.first(buckets))
	}
	return r
}

func (t *tally) reportRules() {
	all := slices.SortedFunc(maps.Values(t.rules), func(a, b *ruleTally) int {
		return cmp.Or(
			-cmp.Compare(difference(a.Rejected), difference(b.Rejected)),
			-cmp.Compare(slices.Max(a.Rejected), slices.Max(b.Rejected)),
			-cmp.Compare(slices.Max(a.Shadowed), slices.Max(b.Shadowed)),
			-cmp.Compare(slices.Max(a.Requested), slices.Max(b.Requested)),
			cmp.Compare(a.Path, b.Path))
	})
	t.r.Rules = make([]Rule, 0, len(all))
	for n, r := range all {
		for _, l := range r.limits {
			r.Limits = append(r.Limits, *l)
		}
		slices.SortFunc(r.Limits, func(a, b Limit) int {
			return cmp.Or(-cmp.Compare(slices.Max(a.Rejected), slices.Max(b.Rejected)), cmp.Compare(a.Limit, b.Limit))
		})
		t.r.Rules = append(t.r.Rules, r.Rule)
		if n < charted && slices.Max(r.Rejected) > 0 {
			course := RuleSeries{Path: r.Path}
			for _, s := range r.series {
				course.Rejected = append(course.Rejected, s.first(t.clock.last+1))
			}
			t.r.Timeline.Rules = append(t.r.Timeline.Rules, course)
		}
	}
}

// difference returns the range of n; 0 if it has one element.
func difference(n []uint64) uint64 { return slices.Max(n) - slices.Min(n) }

func (t *tally) reportValues() {
	var all []*value
	for _, v := range t.values.byKey {
		for i, n := range v.rejected {
			if n > 0 {
				t.r.Sets[i].Affected++
			}
		}
		if slices.Max(v.rejected) > 0 {
			all = append(all, v)
		}
	}
	slices.SortFunc(all, func(a, b *value) int {
		return cmp.Or(
			-cmp.Compare(difference(a.rejected), difference(b.rejected)),
			-cmp.Compare(slices.Max(a.rejected), slices.Max(b.rejected)),
			cmp.Compare(a.text, b.text), cmp.Compare(a.rule, b.rule))
	})
	shown := all[:min(len(all), reported)]
	t.r.LeftOff = uint64(len(all) - len(shown))
	t.r.Forgotten = t.values.forgotten > 0
	t.r.Values = make([]Value, 0, len(shown))
	for _, v := range shown {
		t.r.Values = append(t.r.Values, Value{Rule: v.rule, Text: v.text, Requested: v.requested, Missed: v.missed, Rejected: v.rejected})
	}
}

// first returns at most the first n buckets.
func (s series) first(n int) []uint64 { return s[:min(n, len(s))] }
