package memcached

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// TestSRV: until DNS knows the servers, ops fail at once; then the servers are used, in the order of their names; and
// when DNS names others, those are used.
func TestSRV(t *testing.T) {
	t.Parallel()
	first, second := memcachedtest.Start(t), memcachedtest.Start(t)
	names := memcachedtest.NewDNS(t)
	events := make(chan remote.Event, 10_000)
	states := make(chan string, 10_000)
	b := run(t, Config{
		SRV: "_memcached._tcp.example.org", SRVRefresh: 10 * time.Millisecond, Resolver: names.Resolver(), KeyFormat: ReferenceKeys,
		OpTimeout: slow, DialTimeout: slow, Now: at(7200), Observer: remote.Observer{
			Event:   func(e remote.Event) { events <- e },
			Breaker: func(node, state string) { states <- node + " " + state },
		},
	}, false)
	if op := one(b, "a"); class(op) != remote.Refused {
		t.Errorf("before DNS knows: %v", op.Err)
	}
	if e := <-events; e.Kind != EventLookupFailed || e.Node != "_memcached._tcp.example.org" || e.Err == nil {
		t.Errorf("the first event is %+v", e)
	}
	targets := map[string]uint16{"m1.example.org.": uint16(first.Port())}
	names.Set(targets)
	testkit.Eventually(t, "a decision", func() bool { return one(b, "a").Err == nil })
	if _, ok := first.Items()["a_7200"]; !ok {
		t.Errorf("the server has %v", first.Items())
	}
	asked := names.Asked()
	testkit.Eventually(t, "another question", func() bool { return names.Asked() > asked+2 })

	names.Set(map[string]uint16{"m2.example.org.": uint16(second.Port())})
	testkit.Eventually(t, "the other server to be asked", func() bool {
		op := one(b, "b")
		_, ok := second.Items()["b_7200"]
		return op.Err == nil && ok
	})
	testkit.Eventually(t, "word that the servers changed", func() bool {
		for len(events) > 0 {
			if (<-events).Kind == EventServersChanged {
				return true
			}
		}
		return false
	})

	var told []string
	for len(states) > 0 {
		told = append(told, <-states)
	}
	gone, begun := fmt.Sprintf("m1.example.org.:%d gone", first.Port()), fmt.Sprintf("m2.example.org.:%d closed", second.Port())
	if !slices.Contains(told, gone) || !slices.Contains(told, begun) {
		t.Errorf("of breakers was told %q, want %q and %q among it", told, gone, begun)
	}

	names.Set(nil) // DNS has lost its mind: the last servers stay
	asked = names.Asked()
	testkit.Eventually(t, "two more questions", func() bool { return names.Asked() > asked+2 })
	if op := one(b, "b"); op.Err != nil {
		t.Errorf("after DNS has forgotten: %v", op.Err)
	}
}

// TestSRVOrder: servers are sorted by name, as in the reference.
func TestSRVOrder(t *testing.T) {
	t.Parallel()
	names := memcachedtest.NewDNS(t)
	names.Set(map[string]uint16{"m10.example.org.": 2, "m2.example.org.": 1, "m.example.org.": 3})
	b, err := New(Config{SRV: "_memcached._tcp.example.org", Resolver: names.Resolver()})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.lookUp(t.Context())
	if want := []string{"m.example.org.:3", "m10.example.org.:2", "m2.example.org.:1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("servers %q, %v, want %q", got, err, want)
	}
}

// TestSRVOnce: without a refresh DNS is not asked again once it has answered.
func TestSRVOnce(t *testing.T) {
	t.Parallel()
	s := memcachedtest.Start(t)
	names := memcachedtest.NewDNS(t)
	names.Set(map[string]uint16{"m1.example.org.": uint16(s.Port())})
	b := run(t, Config{SRV: "_memcached._tcp.example.org", Resolver: names.Resolver(), OpTimeout: slow, DialTimeout: slow}, true)
	for range 50 {
		if op := one(b, "a"); op.Err != nil {
			t.Fatal(op.Err)
		}
	}
	if n := names.Asked(); n != 1 {
		t.Errorf("DNS was asked %d times, want once", n)
	}
}
