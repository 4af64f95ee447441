package rls

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// crowdedGate returns a gate at which so much waits, until the test ends, that policies decide what else comes.
func crowdedGate(t *testing.T) *overload.Gate {
	t.Helper()
	const many, huge = 500, 65 << 20
	g := overload.New(overload.Config{MaxCalls: 2 * many, Patience: time.Minute})
	var turns atomic.Int64
	var over atomic.Bool
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { over.Store(true) })
	wait := func(calls int, domain uint32, size int) {
		for range calls {
			wg.Go(func() {
				for !over.Load() {
					g.Wait(overload.Call{Domain: domain, Size: size, Waited: time.Minute, Deadline: time.Now().Add(time.Minute)})
					turns.Add(1)
				}
			})
		}
	}
	wait(many, 2, 0)
	testkit.Eventually(t, "they wait", func() bool { return !g.Free(0) && turns.Load() >= 64 })
	wait(2, 1, huge)                                      // of which one waits when the other has its turn
	testkit.Eventually(t, "too much waits", func() bool { // a call that comes before the huge one waits itself, so not for long
		return g.Wait(overload.Call{Deadline: time.Now().Add(100 * time.Millisecond)}).Verdict == overload.Late
	})
	return g
}

// TestLateCallsAreDecidedByPolicy: a call that waits for its turn in vain is decided by policies while its caller still waits,
// and refused where nobody does any more.
func TestLateCallsAreDecidedByPolicy(t *testing.T) {
	late := decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		if !r.Late {
			t.Error("a call for which there is no room was decided")
		}
		return allow(ctx, r, v)
	})
	address := serve(t, NewServer(New(late, Config{Gate: crowdedGate(t)}), ServerConfig{}))
	c := ratelimitv3.NewRateLimitServiceClient(dial(t, address))
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
		if _, err := c.ShouldRateLimit(ctx, request("d", "k=v")); err != nil {
			t.Error(err)
		}
		cancel()
	}
}

// TestOriginOf: calls know their connection, in plain text and over TLS, and the address of this side is still what it was.
func TestOriginOf(t *testing.T) {
	for name, c := range transports(t) {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			clients := map[*boundedConn]int{}
			seen := decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
				mu.Lock()
				defer mu.Unlock()
				clients[originOf(ctx).conn]++
				return allow(ctx, r, v)
			})
			l, err := ListenTCP(t.Context(), "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			bounded := Bound(l, Connections{})
			serveOn(t, NewServer(New(seen, Config{}), c.server), bounded)
			for range 2 {
				client := ratelimitv3.NewRateLimitServiceClient(dial(t, l.Addr().String(), c.dial...))
				for range 3 {
					if _, err := client.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
						t.Fatal(err)
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if len(clients) != 2 || clients[nil] > 0 {
				t.Errorf("calls of each client: %v, want two with three each", clients)
			}
			for client := range clients {
				if a := (localAddr{l.Addr(), client}); a.String() != l.Addr().String() || a.Network() != "tcp" {
					t.Errorf("the address of this side is %v", a)
				}
			}
		})
	}
}

func TestDomainOf(t *testing.T) {
	t.Parallel()
	one, other := domainOf(marshal(t, request("one", "k=v"))), domainOf(marshal(t, request("other", "k=v")))
	if string(one) != "one" || string(other) != "other" || hashOf(one) == hashOf(other) {
		t.Errorf("the domains are %s and %s, with the numbers %d and %d", one, other, hashOf(one), hashOf(other))
	}
	for _, odd := range []string{"\x12\x00\x0a\x01a", "\x0a\x01b\x12\x00\x0a\x01a\x12\x00", "\x18\x01\x0a\x01a"} { // the last one counts, as when it is decided
		if domain := domainOf([]byte(odd)); string(domain) != "a" {
			t.Errorf("%q has the domain %q", odd, domain)
		}
	}
	for _, bad := range []string{"", "\x0a", "\x0a\xff", "\xff\xff", "\x0a\x01a\x12", strings.Repeat("\x12\x00", 1<<20)} {
		if n := hashOf(domainOf([]byte(bad))); n != 0 {
			t.Errorf("%q has the domain %d", bad, n)
		}
	}
}

// TestInventedDomains: each domain with rules has a share of its own, and all others together have one.
func TestInventedDomains(t *testing.T) {
	t.Parallel()
	s := New(decideFunc(allow), Config{Foresee: func(domain []byte) (known, fails bool) {
		return string(domain) == "one" || string(domain) == "other", string(domain) == "other"
	}})
	whose := func(domain string) uint32 {
		number, fails := s.whose(marshal(t, request(domain, "k=v")))
		if fails != (domain == "other") {
			t.Errorf("that policies can but fail %q is %v", domain, fails)
		}
		m := marshal(t, request(domain, "k=v"))
		if seen := s.seen(m); seen.Domain != number || seen.Size != len(m) {
			t.Errorf("of a call for %q that has the number %d, and %d bytes, %+v is seen", domain, number, len(m), seen)
		}
		return number
	}
	one, other, invented := whose("one"), whose("other"), whose("invented")
	if one == other || one == invented || other == invented {
		t.Errorf("two of three share a number: %d, %d, %d", one, other, invented)
	}
	for i := range 100 {
		if n := whose(fmt.Sprint("invented", i)); n != invented {
			t.Fatalf("an invented domain has the number %d, another one %d", n, invented)
		}
	}
}
