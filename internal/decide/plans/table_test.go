package plans

import (
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTableIsAMap checks that a table behaves like a map, for any sequence of changes.
func TestTableIsAMap(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	table, twin := NewTable(maphash.MakeSeed()), map[string]Entry{}
	for range 200_000 {
		name := fmt.Sprint("t", random.IntN(20_000))
		if random.IntN(3) == 0 {
			_, had := twin[name]
			if table.Unset(name) != had {
				t.Fatalf("%s was there: want %t", name, had)
			}
			delete(twin, name)
			continue
		}
		e := Entry{Plan: fmt.Sprint("p", random.IntN(5))}
		if random.IntN(2) == 0 {
			e.Requests, e.Numbered = random.Uint64N(1e15), true
		}
		if random.IntN(2) == 0 {
			e.Until = time.Unix(random.Int64N(1<<33)+1, 0)
		}
		_, had := twin[name]
		if table.Set(name, &e, 0) != had {
			t.Fatalf("%s was there: want %t", name, had)
		}
		twin[name] = e
	}
	got := map[string]Entry{}
	for i := range Shards {
		for _, l := range table.List(i) {
			got[l.Name] = l.Entry
		}
	}
	if diff := cmp.Diff(twin, got); diff != "" {
		t.Errorf("all (-want +got):\n%s", diff)
	}
	plans, want := map[string]int{}, map[string]int{}
	for _, c := range table.Counts() {
		plans[c.Plan] = c.Tenants
	}
	want[""] = 0
	for name, e := range twin {
		want[e.Plan]++
		if found, ok := table.Find([]byte(name)); !ok || found != e {
			t.Fatalf("%s is %v, %t, want %v", name, found, ok, e)
		}
	}
	if !maps.Equal(plans, want) || table.Len() != len(twin) {
		t.Errorf("%v in %d, want %v in %d", plans, table.Len(), want, len(twin))
	}
}

// TestReadersSeeOldOrNew checks that a reader sees a changing entry either before or after the change, regardless of changes to other
// tenants.
func TestReadersSeeOldOrNew(t *testing.T) {
	t.Parallel()
	table := NewTable(maphash.MakeSeed())
	gold := Entry{Plan: "gold", Requests: 1, Numbered: true, Until: time.Unix(1<<33, 0)}
	free := Entry{Plan: "free"}
	table.Set("ann", &gold, 0)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if e, ok := table.Find([]byte("ann")); !ok || e != gold && e != free {
					t.Errorf("ann is on %v, %t", e, ok)
					return
				}
			}
		})
	}
	for i := range 50_000 {
		table.Set("ann", []*Entry{&gold, &free}[i%2], 0)
		name := fmt.Sprint("t", i%5000)
		if !table.Unset(name) {
			table.Set(name, &Entry{Plan: name[:2]}, 0)
		}
	}
	close(stop)
	readers.Wait()
}
