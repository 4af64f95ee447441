package overload_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

const ms = time.Millisecond

func TestLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		waited, left time.Duration
		want         bool
	}{
		{"unloaded", ms / 2, 0, false},
		{"early", 2 * ms, 18 * ms, false},
		{"three more waits and the way back", 4 * ms, 14 * ms, false},
		{"less than that", 4*ms + 1, 14 * ms, true},
		{"much time", 50 * ms, 950 * ms, false},
	} {
		g := overload.New(overload.Config{MaxCalls: 10})
		for range 10 { // so that it has had its share
			g.Late(overload.Request{Domain: 1, Descriptors: 1, Waited: ms, Left: 19 * ms})
		}
		if got := g.Late(overload.Request{Domain: 1, Descriptors: 1, Waited: c.waited, Left: c.left}); got != c.want {
			t.Errorf("%s: late is %v after %v with %v left, want %v", c.name, got, c.waited, c.left, c.want)
		}
	}
}

// TestShare: a domain that takes less than its share is let in for longer than one that takes more.
func TestShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.New(overload.Config{MaxCalls: 10})
		request := func(domain uint32, waited time.Duration) bool {
			return !g.Late(overload.Request{Domain: domain, Descriptors: 16, Waited: waited, Left: 20*ms - waited})
		}
		for range 100 {
			for range 10 {
				request(1, 4*ms)
			}
			if !request(1, 4*ms) || !request(2, 4*ms) {
				t.Fatal("a request with time enough was shed")
			}
			time.Sleep(ms)
		}
		if request(1, 7*ms) {
			t.Error("the domain that takes ten times its share was let in although calls wait for long")
		}
		if !request(2, 7*ms) {
			t.Error("the domain that takes less than its share was shed with the other")
		}
		if request(2, 11*ms) {
			t.Error("a request that cannot be answered in time was let in")
		}
		time.Sleep(time.Second)
		if !request(1, 4*ms) || request(1, 7*ms) {
			t.Error("a domain that is alone has a share that it stays below")
		}
	})
}

// TestLimit: where even answers of policies come too late fewer calls are let in, and more again when there is time.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.New(overload.Config{MaxCalls: 1000})
		for range 800 {
			g.Enter()
		}
		if g.Full() {
			t.Fatal("full with 800 of 1000 calls")
		}
		for range 200 {
			time.Sleep(ms)
			if !g.Hopeless(15*ms, 5*ms) {
				t.Fatal("an answer that comes too late was not found to be hopeless")
			}
		}
		if s := g.Stats(); s.Limit != 64 || !g.Full() || s.Wait < 10*ms {
			t.Errorf("after 200 ms of overload: %+v, want a limit of 64, and a wait of about 15 ms", s)
		}
		for range 1000 {
			g.Late(overload.Request{Domain: 1, Descriptors: 1, Waited: 2 * ms, Left: 18 * ms})
		}
		if s := g.Stats(); s.Limit != 1000 {
			t.Errorf("after 1000 calls with time enough: %+v, want the limit to be 1000 again", s)
		}
		for range 800 {
			g.Leave()
		}
		time.Sleep(time.Second)
		if s := g.Stats(); s != (overload.Stats{Limit: 1000}) {
			t.Errorf("at rest: %+v, want no calls and no wait", s)
		}
	})
}

func TestHopeless(t *testing.T) {
	t.Parallel()
	g := overload.New(overload.Config{MaxCalls: 10})
	for _, c := range []struct {
		waited, left time.Duration
		want         bool
	}{{ms / 2, 0, false}, {9 * ms, 11 * ms, false}, {9 * ms, 11*ms - 1, true}} {
		if got := g.Hopeless(c.waited, c.left); got != c.want {
			t.Errorf("hopeless after %v with %v left is %v", c.waited, c.left, got)
		}
	}
}
