package main

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// seeds is the number of campaigns that the tests draw.
const seeds = 300

// TestDraw checks that servers load the rules of every game without warnings and with the same limits as the checker, and that
// draw is deterministic.
func TestDraw(t *testing.T) {
	t.Parallel()
	seen := map[proof.Algorithm]int{}
	for seed := int64(1); seed <= seeds; seed++ {
		c := draw(seed, time.Second)
		if !reflect.DeepEqual(c, draw(seed, time.Second)) {
			t.Fatalf("seed %d draws a different campaign the second time", seed)
		}
		checkGames(t, c, seen)
	}
	checkGames(t, past(time.Second), seen)
	for a := engine.FixedWindow; a <= engine.Concurrency; a++ {
		if n := seen[proof.Algorithm(a.String())]; n < seeds {
			t.Errorf("%d settings of %s in %d campaigns", n, a, seeds)
		}
	}
}

func checkGames(t *testing.T, c *campaign, seen map[proof.Algorithm]int) {
	t.Helper()
	for _, g := range c.games {
		for _, r := range g.rules {
			m, known := match(t, r, g.domain), counters{}
			same(t, r, r.setting(), m.Rule.RateLimits, known)
			for _, o := range g.overrides {
				item, err := m.Override(descriptors.Override{RequestsPerUnit: uint32(o.hits), Unit: descriptors.Unit(o.message().GetUnit())})
				if err == nil {
					var one descriptors.RateLimits
					one.Append(&item)
					same(t, r, o.on(r), one, known)
				}
			}
			for _, l := range r.limits {
				seen[l.Algorithm]++
			}
		}
	}
}

// match loads a rule and matches the game's descriptor.
func match(t *testing.T, r *rule, domain string) descriptors.Match {
	t.Helper()
	yaml := r.yaml(domain)
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(yaml)}}, descriptors.Options{})
	if err != nil || len(problems) > 0 {
		t.Fatalf("%s%v%v", yaml, problems, err)
	}
	tb := &table{game: &game{rules: []*rule{r}}}
	var entries []descriptors.Entry
	for _, e := range tb.entries("me") {
		entries = append(entries, descriptors.Entry{Key: []byte(e.GetKey()), Value: []byte(e.GetValue())})
	}
	m := set.Domain([]byte(domain)).Match(entries)
	if m.Rule == nil {
		t.Fatalf("%smatches no rule", yaml)
	}
	return m
}

// counters maps the checker's counters of a rule and its overrides to the server's.
type counters map[proof.Counter]engine.Slot

// same checks that the checker and the server have the same limits, and that the same limits share counters.
func same(t *testing.T, r *rule, s *proof.Setting, limits descriptors.RateLimits, known counters) {
	t.Helper()
	if len(s.Limits) != limits.Len() {
		t.Fatalf("%s: %d limits, the server has %d", r.text(), len(s.Limits), limits.Len())
	}
	for i, got := range s.Limits {
		l := limits.At(i).Limit
		want := proof.Limit{
			Algorithm: proof.Algorithm(l.Algorithm.String()), Hits: int64(l.Hits), Window: proof.Micros(l.Window),
			First: l.Align == engine.AlignFirst, CountRefused: l.CountRefused, Precision: int(l.Precision),
			Burst: int64(l.Burst), Debt: int64(l.Debt), Initial: int64(l.Initial), Fill: proof.Micros(l.FillInterval), Listed: l.Listed,
		}
		got.Lease, got.Calendar = 0, proof.Calendar{}
		if got != want {
			t.Errorf("%s of %s: checker\n%+v, server\n%+v", s.Name, r.text(), got, want)
		}
		if calendar := s.Limits[i].Calendar != (proof.Calendar{}); calendar != (l.Calendar != nil) {
			t.Errorf("%s of %s follows the calendar: checker %v, server %v", s.Name, r.text(), calendar, !calendar)
		}
		known[s.Limits[i].Counter()] = l.Slot()
		for c, slot := range known {
			if one := c == s.Limits[i].Counter(); one != (slot == l.Slot()) {
				t.Errorf("%s of %s shares the %s counter: checker %v, server %v", s.Name, r.text(), c, one, !one)
			}
		}
	}
	if strings.Contains(s.Name, "-") {
		t.Errorf("name %s: a dash is reserved for the number of the limit", s.Name)
	}
}
