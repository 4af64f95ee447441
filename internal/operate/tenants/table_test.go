package tenants

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// million returns a file of a million tenants in CSV or JSON, with names like UUIDs.
func million(asJSON bool) []byte {
	var b bytes.Buffer
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 1_000_000 {
		id := fmt.Sprintf("%08x-%04x-4%03x-%04x-%012x", random.Uint32(), i&0xffff, i>>8&0xfff, random.IntN(1<<16), i)
		plan := []string{"free", "silver", "gold"}[i%3]
		if asJSON {
			fmt.Fprintf(&b, `{"tenant":"%s","plan":"%s","requests_per_unit":%d,"until":"2200-01-31T00:00:00Z"}`+"\n", id, plan, i)
		} else {
			fmt.Fprintf(&b, "%s,%s,%d,2200-01-31T00:00:00Z\n", id, plan, i)
		}
	}
	return b.Bytes()
}

// TestAMillion: loading a million tenants takes at most 3 s of processor time and 200 bytes each, with names as long as
// UUIDs.
func TestAMillion(t *testing.T) {
	testkit.NotShort(t)
	for _, asJSON := range []bool{false, true} {
		text := million(asJSON)
		v := New(Config{Files: true})
		v.SetPlans([]string{"default", "free", "gold", "silver"})
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		began := time.Now()
		if err := v.Load([]Input{{Name: "tenants", Reader: bytes.NewReader(text)}}); err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		runtime.GC()
		runtime.ReadMemStats(&after)
		each := float64(after.HeapAlloc-before.HeapAlloc) / 1e6
		t.Logf("JSON %t: %.0f bytes for each tenant, %v to load", asJSON, each, took)
		if n := v.Len(plans.File); n != 1_000_000 || each > 200 {
			t.Errorf("%d tenants of %.0f bytes, want a million of at most 200", n, each)
		}
		runtime.KeepAlive(text)
	}
}

func BenchmarkFind(b *testing.B) {
	v := New(Config{Files: true})
	text := million(false)
	if err := v.Load([]Input{{Name: "tenants.csv", Reader: bytes.NewReader(text)}}); err != nil {
		b.Fatal(err)
	}
	var names [][]byte
	for line := range bytes.Lines(text[:10_000*64]) {
		name, _, _ := bytes.Cut(line, []byte(","))
		names = append(names, name)
	}
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			if _, from := v.Plans().Load().Find(names[i%len(names)]); from != plans.File && i%len(names) < len(names)-1 {
				b.Error("not found")
				return
			}
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	for _, asJSON := range []bool{false, true} {
		text := million(asJSON)
		b.Run(fmt.Sprintf("JSON=%t", asJSON), func(b *testing.B) {
			for b.Loop() {
				v := New(Config{Files: true})
				if err := v.Load([]Input{{Name: "tenants", Reader: bytes.NewReader(text)}}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestFiles: errors in files have a place, and no names of tenants. The last good files stay.
func TestFiles(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ text, want string }{
		"a quote":     {"tenant,plan\nann,gold\nbob,\"gold\n" + strings.Repeat("c,gold\n", maxRow/7+1000), "f:3: a row of more than 4 MiB: is a closing quote missing?; the rest was not read"},
		"a list":      {"{\"tenants\": [\n" + strings.Repeat("{},\n", maxRow/4+1000), "f:1: unexpected EOF: write one object on each line"},
		"columns":     {"tenant,plan\nann,gold\n\n# a comment\nbob\n", "f:5: 1 columns: want tenant,plan[,requests_per_unit[,until]]"},
		"number":      {"ann,gold,many\n", "f:1: requests_per_unit 'many': want a number from 0 to 1000000000000000, or nothing"},
		"until":       {"ann,gold,,tomorrow\n", "f:1: until 'tomorrow': want a time such as 2030-01-31T00:00:00Z"},
		"quotes":      {"ann,gold\n\"bob,gold\n", `f:2: extraneous or missing " in quoted-field: want tenant,plan[,requests_per_unit[,until]]`},
		"twice":       {"ann,gold\nann,free\n", "f:2: this tenant is already listed above or in an earlier file: list each tenant once"},
		"no name":     {",gold\n", "f:1: a tenant without a name: use the value that descriptors have"},
		"no plan":     {"ann,\n", "f:1: a tenant without a plan: use the name of a plan, such as default"},
		"unknown":     {"ann,gold\nbob,golden\ncid,golden\n", "f:2: unknown plan 'golden': use one that a rule defines: default, free, gold (first of 2 lines)"},
		"long":        {strings.Repeat("n", 1025) + ",gold\n", "f:1: the tenant's name has 1025 bytes: want at most 1024"},
		"JSON":        {"{\"tenant\": \"ann\", \"plan\": \"gold\"}\n\n{\"tenant\": \"bob\", \"plann\": \"gold\"}\n", `f:3: unknown field "plann": write one object on each line, such as {"tenant": "acme", "plan": "gold", "requests_per_unit": 500, "until": "2030-01-31T00:00:00Z"}`},
		"JSON number": {`{"tenant": "ann", "plan": "gold", "requests_per_unit": -1}`, `f:1: cannot unmarshal number -1 into Go struct field`},
		"two objects": {`{"tenant": "ann", "plan": "gold"} {}`, `f:1: more than one object on the line`},
		"good CSV":    {"\ufefftenant,plan,requests_per_unit,until\r\nann,gold\r\n\"b,ob\", free, 7, 2200-01-01T00:00:00+01:00\r\n", ""},
		"good JSON":   {"\n{\"tenant\": \"ann\", \"plan\": \"gold\"}\n{\"tenant\": \"b,ob\", \"plan\": \"free\", \"requests_per_unit\": 7, \"until\": \"2200-01-01T00:00:00+01:00\"}\n", ""},
		"empty":       {"", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := New(Config{Files: true})
			v.SetPlans([]string{"default", "free", "gold"})
			if err := v.Load([]Input{{Name: "g", Reader: strings.NewReader("zoe,gold\n")}}); err != nil {
				t.Fatal(err)
			}
			err := v.Load([]Input{{Name: "f", Reader: strings.NewReader(tt.text)}})
			if tt.want != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
					t.Errorf("error %v, want %s", err, tt.want)
				}
				if _, from := v.Plans().Load().Find([]byte("zoe")); from != plans.File {
					t.Errorf("the last good table is gone")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if _, from := v.Plans().Load().Find([]byte("zoe")); from != plans.Nowhere {
				t.Errorf("a tenant of the table before is left")
			}
			if e, from := v.Plans().Load().Find([]byte("b,ob")); tt.text != "" && (from != plans.File || e.String() != "plan free, 7 requests_per_unit, until 2199-12-31T23:00:00Z") {
				t.Errorf("b,ob is on %v", e.String())
			}
		})
	}
}
