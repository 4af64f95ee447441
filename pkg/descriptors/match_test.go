package descriptors_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestMatchAmongManyWildcards: many wildcards under one key are found by their prefixes, and the first match in the file wins.
func TestMatchAmongManyWildcards(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	word := func(letters string, most int) string {
		var b strings.Builder
		for range random.IntN(most + 1) {
			b.WriteByte(letters[random.IntN(len(letters))])
		}
		return b.String()
	}
	for range 8 {
		var b strings.Builder
		var nodes []slowNode
		seen := map[string]bool{}
		b.WriteString("domain: shop\ndescriptors:\n")
		for range 300 {
			n := slowNode{key: "k", value: word("ab", 20) + "*" + word("ab*", 3)}
			if random.IntN(20) == 0 {
				n.key = "*"
			}
			if seen[n.key+n.value] {
				continue
			}
			seen[n.key+n.value] = true
			nodes = append(nodes, n)
			nodes[len(nodes)-1].limit = fmt.Sprintf("%d", len(nodes)-1)
			fmt.Fprintf(&b, "- {key: '%s', value: '%s', rate_limit: {unit: minute}}\n", n.key, n.value)
		}
		d := mustLoad(t, []byte(b.String())).Domain([]byte("shop"))
		for range 200 {
			e := entries([]string{"k", "l"}[random.IntN(2)], word("ab", 30))
			got := ""
			if r := d.Match(e).Rule; r != nil {
				got = fmt.Sprintf("%d", r.Index)
			}
			if want := slowMatch(nodes, e); got != want {
				t.Fatalf("%q: rule %q, want %q, of\n%s", e, got, want, b.String())
			}
		}
	}
}

// TestMatchAmongManyRules: matching among many rules costs at most twice as much as among 10. The test allows ten times that.
func TestMatchAmongManyRules(t *testing.T) {
	for name, shape := range shapes() {
		t.Run(name, func(t *testing.T) {
			e := shapeEntries(name)
			cost := func(rules int) time.Duration {
				d := shapeOf(t, shape, rules)
				if d.Match(e).Rule == nil {
					t.Fatalf("no match among %d rules", rules)
				}
				if allocs := testing.AllocsPerRun(100, func() { d.Match(e) }); allocs != 0 {
					t.Errorf("%v allocations among %d rules, want none", allocs, rules)
				}
				const rounds = 1000 // few enough for some rounds to run without interruption
				best := time.Hour
				for range 100 {
					start := time.Now()
					for range rounds {
						d.Match(e)
					}
					best = min(best, time.Since(start))
				}
				return best / rounds
			}
			few, lots := cost(10), cost(5_000)
			t.Logf("%v among 10 rules, %v among 5,000", few, lots)
			if lots > 20*few {
				t.Errorf("%v among many rules, %v among few: want at most twice as much", lots, few)
			}
		})
	}
}

// BenchmarkDiff compares the old with the new rules, as a reload does. It should cost no more than loading them.
func BenchmarkDiff(b *testing.B) {
	data := manyRules(many)
	was, set := mustLoad(b, data), mustLoad(b, data)
	for b.Loop() {
		if lines := rulediff.Between(was, set); len(lines) > 0 {
			b.Fatal(lines[0])
		}
	}
}

// checkLevels checks that AppendMetricKey and MetricLevels return the same name.
func checkLevels(m descriptors.Match, d *descriptors.Domain, e []descriptors.Entry) error {
	key, dynamic := m.AppendMetricKey(nil, d, e)
	levels := strings.Join(append([]string{d.Name}, m.MetricLevels(e)...), ".")
	if m.Rule != nil && levels != string(key) {
		return fmt.Errorf("levels %q, want those of %q", levels, key)
	}
	if m.Rule != nil && !m.Rule.DynamicMetric() && (dynamic || string(key) != m.Rule.Path) {
		return fmt.Errorf("metric key %q of a rule that says it has just %q", key, m.Rule.Path)
	}
	return nil
}

// TestOfBucket checks that an ID leads to the rule with rlqs that has its keys, if any.
func TestOfBucket(t *testing.T) {
	t.Parallel()
	text := "{domain: edge, descriptors: [{key: b, descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 1, rlqs: true}}]}]}"
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text)}}, descriptors.Options{})
	if err != nil {
		t.Fatal(problems)
	}
	for _, x := range []struct {
		id   map[string]string
		want int
	}{
		{map[string]string{"a": "1", "b": "2"}, 2},
		{map[string]string{"a": "1"}, 0},
		{map[string]string{"a\x00b": "1"}, 0},
		{map[string]string{"a": "1", "b": "2", "c": "3"}, 0},
	} {
		if got := set.Domain([]byte("edge")).OfBucket(x.id); len(got) != x.want {
			t.Errorf("%q: got %q, want %d entries", x.id, got, x.want)
		}
	}
}

// TestBucketsApart tries all pairs of descriptors of one or two levels, with and without wildcards that share a threshold. Either rlqs is
// invalid, or each bucket's ID has its own counter.
func TestBucketsApart(t *testing.T) {
	t.Parallel()
	const limit = "rate_limit: {unit: minute, requests_per_unit: 1, rlqs: true}"
	var levels []string // keys and values, without a limit
	for _, key := range []string{"a", "b"} {
		for _, value := range []string{"", ", value: x", ", value: x*", ", value: x*, share_threshold: true"} {
			levels = append(levels, "key: "+key+value)
		}
	}
	all := make([]string, 0, len(levels)*(1+len(levels)))
	for _, top := range levels {
		all = append(all, "{"+top+", "+limit+"}")
		for _, below := range levels {
			all = append(all, "{"+top+", descriptors: [{"+below+", "+limit+"}]}")
		}
	}
	var ids []map[string]string
	for _, a := range []string{"", "x", "xy", "x*"} {
		ids = append(ids, map[string]string{"a": a}, map[string]string{"b": a})
		for _, b := range []string{"", "x", "xy", "x*"} {
			ids = append(ids, map[string]string{"a": a, "b": b})
		}
	}
	valid := 0
	for i, first := range all {
		for _, second := range all[i:] {
			text := "{domain: edge, descriptors: [" + first
			if second != first {
				text += ", " + second
			}
			set, _, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(text + "]}")}}, descriptors.Options{})
			if err != nil {
				continue
			}
			valid++
			d, named := set.Domain([]byte("edge")), map[string]map[string]string{}
			for _, id := range ids {
				entries := d.OfBucket(id)
				m := d.Match(entries)
				if m.Rule == nil || m.Rule.RLQS == nil {
					continue
				}
				name := string(m.AppendName(nil, d, entries, false))
				if named[name] != nil {
					t.Errorf("%s, %s: %q and %q share a counter", first, second, named[name], id)
				}
				named[name] = id
			}
		}
	}
	if valid == 0 {
		t.Error("no rules are valid")
	}
}
