package controls

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// parse parses a control in the tests' syntax: block shop a=1,b=2 below, limit shop a=1 of=day.
func parse(text string) *override.Control {
	words := strings.Fields(text)
	c := &override.Control{ID: text, Domain: words[1]}
	for c.Kind.String() != words[0] {
		c.Kind++
	}
	for _, w := range words[2:] {
		switch name, ok := strings.CutPrefix(w, "of="); {
		case ok:
			c.LimitName = name
		case w == "below":
			c.Below = true
		default:
			for pair := range strings.SplitSeq(w, ",") {
				k, v, _ := strings.Cut(pair, "=")
				c.Entries = append(c.Entries, override.Entry{Key: k, Value: v})
			}
		}
	}
	return c
}

func entriesOf(c *override.Control) (out []descriptors.Entry) {
	for _, e := range c.Entries {
		out = append(out, descriptors.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return out
}

func found(t *override.Table, domain, descriptor string) string {
	var names []string
	if t != nil {
		for _, c := range t.Find([]byte(domain), entriesOf(parse("block x "+descriptor))) {
			names = append(names, c.ID)
		}
	}
	return strings.Join(names, " + ")
}

// TestPrecedence: the longest match decides, then the kind, then the narrower scope, then the later control.
func TestPrecedence(t *testing.T) {
	for _, tt := range []struct{ controls, descriptor, want string }{
		{"", "a=1", ""},
		{"block shop a=1", "a=1", "block shop a=1"},
		{"block shop a=1", "a=1,b=2", ""},
		{"block shop a=1", "a=2", ""},
		{"block shop a=1", "", ""},
		{"block other a=1", "a=1", ""},
		{"block shop a=*", "a=1", ""},
		{"block shop a=*", "a=*", "block shop a=*"},
		{"block shop a", "a=1", ""},
		{"block shop a", "a", "block shop a"},
		{"block shop a,b=2", "a,b=2", "block shop a,b=2"},
		{"block shop a=1,b=2", "b=2,a=1", ""},
		{"block shop a=1 below", "a=1", "block shop a=1 below"},
		{"block shop a=1 below", "a=1,b=2,c=3", "block shop a=1 below"},
		{"block shop a=1 below", "a=11", ""},
		{"block shop below", "", "block shop below"},
		{"block shop below", "a=1,b=2", "block shop below"},
		{"block shop a=1 below|allow shop a=1,b=2", "a=1,b=2", "allow shop a=1,b=2"},
		{"block shop a=1 below|allow shop a=1,b=2", "a=1,b=2,c=3", "block shop a=1 below"},
		{"block shop a=1 below|limit shop a=1,b=2 below", "a=1,b=2,c=3", "limit shop a=1,b=2 below"},
		{"allow shop a=1|block shop a=1", "a=1", "block shop a=1"},
		{"allow shop a=1|block shop a=1 below", "a=1", "block shop a=1 below"},
		{"allow shop a=1 below|limit shop a=1", "a=1", "allow shop a=1 below"},
		{"block shop a=1 below|block shop a=1", "a=1", "block shop a=1"},
		{"limit shop a=1 below|limit shop a=1", "a=1", "limit shop a=1"},
		{"limit shop a=1 below of=day|limit shop a=1", "a=1", "limit shop a=1 + limit shop a=1 below of=day"},
		{"limit shop a=1 below of=day|limit shop a=1 of=day", "a=1,b=2", "limit shop a=1 below of=day"},
		{"limit shop a=1|limit shop a=1 of=day", "a=1", "limit shop a=1 of=day + limit shop a=1"},
		{"limit shop a=1 of=day|limit shop a=1", "a=1", "limit shop a=1 + limit shop a=1 of=day"},
		{"limit shop a=1 below|limit shop below of=day", "a=1,b=2", "limit shop a=1 below"},
	} {
		var all []*override.Control
		if tt.controls != "" {
			for text := range strings.SplitSeq(tt.controls, "|") {
				c := parse(text)
				c.Since = time.Unix(int64(len(all)), 0)
				all = append(all, c)
			}
		}
		if got := found(override.NewTable(all), "shop", tt.descriptor); got != tt.want {
			t.Errorf("with %s, %q is decided by %q, want %q", tt.controls, tt.descriptor, got, tt.want)
		}
	}
}

// naive is a slow Find: among the longest matching controls, it returns those of the strongest kind.
func naive(all []*override.Control, domain string, entries []descriptors.Entry) (out []*override.Control) {
	longest := -1
	for _, c := range all {
		own := entriesOf(c)
		if c.Domain != domain || len(own) > len(entries) || !c.Below && len(own) != len(entries) || fmt.Sprint(own) != fmt.Sprint(entries[:len(own)]) {
			continue
		}
		if len(own) > longest {
			longest, out = len(own), nil
		}
		if len(own) == longest {
			out = append(out, c)
		}
	}
	for _, k := range []override.Kind{override.Block, override.Allow} {
		for _, below := range []bool{false, true} {
			for _, c := range out {
				if c.Kind == k && c.Below == below {
					return []*override.Control{c}
				}
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *override.Control) int {
		return map[bool]int{true: 1}[a.Below] - map[bool]int{true: 1}[b.Below]
	})
	return slices.DeleteFunc(slices.Clone(out), func(c *override.Control) bool {
		first := slices.IndexFunc(out, func(o *override.Control) bool { return o.LimitName == c.LimitName })
		return out[first] != c
	})
}

// TestTable compares tables with naive.
func TestTable(t *testing.T) {
	entries := rapid.SliceOfN(rapid.Map(rapid.IntRange(0, 5), func(n int) override.Entry {
		return override.Entry{Key: []string{"a", "b"}[n%2], Value: []string{"", "1", "*"}[n/2]}
	}), 0, 4)
	domain := rapid.SampledFrom([]string{"shop", "other"})
	one := rapid.Custom(func(t *rapid.T) *override.Control {
		c := &override.Control{Kind: override.Kind(rapid.IntRange(0, 2).Draw(t, "kind")), Domain: domain.Draw(t, "domain"), Entries: entries.Draw(t, "entries")}
		c.Below = len(c.Entries) == 0 || rapid.Bool().Draw(t, "below")
		if c.Kind == override.Limit {
			c.LimitName = rapid.SampledFrom([]string{"", "day"}).Draw(t, "name")
		}
		c.ID = fmt.Sprintf("%d %t %q %q %q", c.Kind, c.Below, c.LimitName, c.Domain, c.Entries)
		return c
	})
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfNDistinct(one, 1, 40, func(c *override.Control) string { return c.ID }).Draw(t, "controls")
		table := override.NewTable(all)
		for range 20 {
			asked := entriesOf(&override.Control{Entries: entries.Draw(t, "asked")})
			name := domain.Draw(t, "domain asked")
			if got, want := table.Find([]byte(name), asked), naive(all, name, asked); !slices.Equal(got, want) {
				t.Fatalf("%s %q: found %v, want %v", name, asked, got, want)
			}
		}
	})
}

// BenchmarkFind measures the cost of controls for a request of three entries.
func BenchmarkFind(b *testing.B) {
	asked := entriesOf(parse("block x path=/a,method=GET,user=u1"))
	for _, n := range []int{1, 100, Max} {
		var all []*override.Control
		for i := range n {
			all = append(all, parse(fmt.Sprintf("block shop path=/a,method=GET,user=%d", i)))
		}
		table := override.NewTable(all)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if table.Find([]byte("shop"), asked) != nil {
					b.Fatal("found")
				}
			}
		})
	}
}
