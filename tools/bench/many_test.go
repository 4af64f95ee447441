package main

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestMany: a real server with many rules, and one with many counters, next to ones with few. A server that keeps fewer
// counters than requested is not measured.
func TestMany(t *testing.T) {
	testkit.NotShort(t)
	c, dir := built(t), t.TempDir()
	s := &servers{c: c, dir: dir, stderr: io.Discard}
	if err := writeRules(dir); err != nil {
		t.Fatal(err)
	}
	for _, r := range manyRows() {
		r.conns, r.inflight = usualConns, usualInflight
		r.rules, r.keys = min(r.rules, 5000), min(r.keys, 5000)
		if err := s.startFor(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		all, err := c.loadMany(t.Context(), s, r)
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		one := result{Servers: map[string][][]sample{fewServer: {all[fewServer]}, ratelimitd: {all[ratelimitd]}}}
		if ours, withFew := all[ratelimitd][0].State, all[fewServer][0].State; ours.Of != 5000 || withFew.Of != few || withFew.Resident < withFew.Live {
			t.Errorf("%s: %+v, and with few %+v", r.name, ours, withFew)
		}
		for _, g := range append(r.goals, goal{toFew, 0}) {
			if values := one.values(g.figure); len(values) != 1 || values[0] <= 0 {
				t.Errorf("%s: %s is %v, want one number above 0", r.name, g.figure, values)
			}
		}
	}
	r := row{part: many, template: "user=u%d", keys: 5000, conns: usualConns, inflight: usualInflight}
	t.Setenv("MEMORY_MAX_KEYS", "1000")
	if _, err := c.loadMany(t.Context(), s, r); err == nil || !strings.Contains(err.Error(), "does not have 5000 counters") {
		t.Errorf("a server with at most 1000 counters: %v", err)
	}
}

// TestStateRead: read returns Go's memory statistics.
func TestStateRead(t *testing.T) {
	t.Parallel()
	runtime.GC()
	var now runtime.MemStats
	runtime.ReadMemStats(&now)
	longest := slices.Max(now.PauseNs[:])
	var got state
	text := fmt.Sprintf("heap profile: 1: 2 [3: 4]\n# runtime.MemStats\n# HeapAlloc = %d\n# PauseNs = %d\n# NumGC = 1\n", now.HeapAlloc, now.PauseNs)
	if err := got.read(text); err != nil || got.Live != float64(now.HeapAlloc) || got.Pause != float64(longest)/1e6 {
		t.Errorf("read = %+v, %v; want %d bytes and a pause of %d ns", got, err, now.HeapAlloc, longest)
	}
	for _, text := range []string{"", "# HeapAlloc = 5\n", "# PauseNs = [5 0]\n", "# HeapAlloc = 5\n# PauseNs = [x]\n", "# HeapAlloc = x\n# PauseNs = [5]\n"} {
		if err := new(state).read(text); err == nil {
			t.Errorf("%q: want an error", text)
		}
	}
}

// stated returns rounds of a server with a number of rules or counters.
func stated(of int, server float64, states ...state) (rounds [][]sample) {
	for _, x := range states {
		s := costing(1000, server, 0)
		x.Of = of
		s.State = &x
		rounds = append(rounds, []sample{s})
	}
	return rounds
}

// TestManyRules: figures of many rules are differences from few. They are judged by their goals and compared with earlier
// ones; times are only worse if they miss the goals.
func TestManyRules(t *testing.T) {
	t.Parallel()
	const row = "many: 100,000 rules"
	set := func(server, live, ready float64) results {
		return results{example().Machine, map[string]result{row: {Servers: map[string][][]sample{
			fewServer:  stated(few, 10, state{Live: 1000, Ready: 0.1, Pause: 1}),
			ratelimitd: stated(few+1000, server, state{Live: live, Ready: ready, Pause: 2}),
		}}}}
	}
	before := set(10, 801_000, 1)
	for _, tt := range []struct {
		name string
		now  results
		want []figure
	}{
		{"the same", before, nil},
		{"slower by more than a fifth", set(12.5, 801_000, 1), []figure{toFew}},
		{"more memory", set(10, 1_001_000, 1), []figure{each}},
		{"later, within the goal", set(10, 801_000, 1.9), nil},
		{"later than the goal", set(10, 801_000, 2.1), []figure{loading}},
	} {
		all, n := compare(before, tt.now)
		var got []figure
		for _, x := range all {
			got = append(got, x.figure)
		}
		if n != 3 || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %d figures, worse: %v; want %v", tt.name, n, got, tt.want)
		}
	}
	text, err := set(10, 1_101_000, 1).text("")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| 10 rules | 10.0 | – | 0.0 | 0 | 0.10 | 0.00 | 1.0 |",
		"| 100,000 rules | 10.0 | 1.00 | 1.0 | 0 | 1.00 | 0.00 | 2.0 |",
		"| many: 100,000 rules: live bytes each | ≤ 1024 | 1100 | **no** |",
		"| many: 100,000 rules: seconds from start to ready | ≤ 2 | 1.00 | yes |",
		"| many: 1,000,000 counters: longest pause for garbage, ms | ≤ 10 | – | not measured |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}
