package descriptors_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// shapes returns typical forms of large sets of rules. Each function writes rule i of the top level; the last rule matches the descriptor
// of shapeEntries.
func shapes() map[string]func(b *strings.Builder, i int) {
	const limit = "rate_limit: {unit: minute, requests_per_unit: 10}"
	return map[string]func(b *strings.Builder, i int){
		"values": func(b *strings.Builder, i int) {
			fmt.Fprintf(b, "- key: user\n  value: u%d\n  descriptors: [{key: path, value: /api, descriptors: [{key: method, %s}]}]\n", i, limit)
		},
		"keys": func(b *strings.Builder, i int) {
			fmt.Fprintf(b, "- key: user%d\n  descriptors: [{key: path, value: /api, descriptors: [{key: method, %s}]}]\n", i, limit)
		},
		"wildcards": func(b *strings.Builder, i int) {
			fmt.Fprintf(b, "- key: user\n  value: u%d*\n  descriptors: [{key: path, value: /api, descriptors: [{key: method, %s}]}]\n", i, limit)
		},
	}
}

// shapeOf loads a number of rules of a shape, from several files if one would be too large.
func shapeOf(tb testing.TB, shape func(b *strings.Builder, i int), rules int) *descriptors.Domain {
	tb.Helper()
	var sources []descriptors.Source
	for i := 0; i < rules; {
		var b strings.Builder
		b.WriteString("domain: shop\ndescriptors:\n")
		for range min(50_000, rules-i) {
			shape(&b, i)
			i++
		}
		sources = append(sources, descriptors.Source{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(b.String())})
	}
	set, _, err := descriptors.Load(sources, descriptors.Options{MergeDomains: true})
	if err != nil {
		tb.Fatal(err)
	}
	return set.Domain([]byte("shop"))
}

func entries(pairs ...string) []descriptors.Entry {
	var out []descriptors.Entry
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, descriptors.Entry{Key: []byte(pairs[i]), Value: []byte(pairs[i+1])})
	}
	return out
}

func shapeEntries(shape string) []descriptors.Entry {
	first := map[string][]string{"values": {"user", "u7"}, "keys": {"user7", "x"}, "wildcards": {"user", "u7_of_them"}}[shape]
	return entries(append(first, "path", "/api", "method", "GET")...)
}

func mustLoad(tb testing.TB, data []byte) *descriptors.Set {
	tb.Helper()
	set, _, err := descriptors.Load([]descriptors.Source{{Name: "a.yaml", Data: data}}, descriptors.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return set
}

func BenchmarkMatch(b *testing.B) {
	for name, shape := range shapes() {
		for _, rules := range []int{10, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", name, rules), func(b *testing.B) {
				d := shapeOf(b, shape, rules)
				e := shapeEntries(name)
				if d.Match(e).Rule == nil {
					b.Fatal("no match")
				}
				b.ReportAllocs()
				for b.Loop() {
					d.Match(e)
				}
			})
		}
	}
}

func BenchmarkMatchParallel(b *testing.B) {
	d := shapeOf(b, shapes()["values"], 100_000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := shapeEntries("values")
		for pb.Next() {
			d.Match(e)
		}
	})
}

func BenchmarkName(b *testing.B) {
	d := shapeOf(b, shapes()["values"], 10)
	e := shapeEntries("values")
	m := d.Match(e)
	for name, secret := range map[string]*descriptors.Secret{"plain": nil, "secret": descriptors.NewSecret([]byte("key"))} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, 256)
			b.ReportAllocs()
			for b.Loop() {
				secret.Hash(m.AppendName(secret.Begin(buf), d, e, false))
			}
		})
	}
}

func BenchmarkOverride(b *testing.B) {
	set := mustLoad(b, []byte("domain: shop\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: token_bucket, burst: 20}}]"))
	m := set.Domain([]byte("shop")).Match(entries("a", "b"))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Override(descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Hour}); err != nil {
			b.Fatal(err)
		}
	}
}

func manyRules(n int) []byte {
	var b strings.Builder
	b.WriteString("domain: shop\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- key: user\n  value: u%d\n  rate_limit:\n    unit: minute\n    requests_per_unit: %d\n", i, i%100)
	}
	return []byte(b.String())
}

func BenchmarkLoad(b *testing.B) {
	data := manyRules(many)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		mustLoad(b, data)
	}
}

// cpu returns the processor time that this process has used. Unlike wall-clock time, it does not depend on other processes.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// TestLoadManyRules: the maximum cost of 100,000 rules is 2 s of processor time to load, and 1 KB of memory each. The test allows ten
// times that time.
func TestLoadManyRules(t *testing.T) {
	const rules = many
	data := manyRules(rules)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := cpu(t)
	set := mustLoad(t, data)
	took := cpu(t) - start
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / rules
	t.Logf("%d rules of %d bytes: %v, %d bytes a rule", rules, len(data), took, each)
	if took > 20*time.Second {
		t.Errorf("loading took %v, want 2s", took)
	}
	if each > 1024 {
		t.Errorf("%d bytes a rule, want at most 1024", each)
	}
	runtime.KeepAlive(set)
	runtime.KeepAlive(data)
}
