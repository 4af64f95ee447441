package throttle

import (
	"testing"
)

// TestPool checks that one caller may have almost everything until another one comes.
func TestPool(t *testing.T) {
	t.Parallel()
	p := NewPool[string](80, 0.25)
	evict := func(worst string) bool {
		if worst != "big" {
			t.Errorf("%s has to give way", worst)
		}
		p.Add(worst, -10)
		return p.Taken(worst) >= 0
	}
	for _, x := range []struct {
		caller string
		n      int
		ok     bool
		big    int // amount of big afterwards
	}{
		{"big", 80, true, 80}, // no other caller has any
		{"big", 1, false, 80},
		{"small", 5, true, 70}, // replaces 10 of big
		{"big", 1, false, 70},  // an eighth is reserved for others
		{"small", 15, true, 60},
		{"small", 1, false, 60}, // beyond its share
		{"other", 10, true, 50},
	} {
		if ok := p.Take(x.caller, x.n, evict); ok != x.ok || p.Taken("big") != x.big {
			t.Errorf("%d for %s: %v, and %d are left to big; want %v and %d", x.n, x.caller, ok, p.Taken("big"), x.ok, x.big)
		}
	}
	if n := p.Used(); n != 80 {
		t.Errorf("%d of 80 are used", n)
	}
}

// TestPoolWithoutShares checks that without a share no caller gives way, and nothing is reserved for others.
func TestPoolWithoutShares(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0, 1, 2} {
		p := NewPool[string](80, share)
		evict := func(worst string) bool {
			t.Errorf("%s has to give way", worst)
			return false
		}
		if !p.Take("a", 1, evict) || !p.Take("b", 79, evict) || p.Take("a", 1, evict) {
			t.Errorf("with a share of %v", share)
		}
	}
}

// TestPoolThatCannotEvict checks that there is no room if evict releases nothing.
func TestPoolThatCannotEvict(t *testing.T) {
	t.Parallel()
	p := NewPool[string](80, 0.25)
	p.Add("a", 80)
	if p.Take("b", 1, func(string) bool { return false }) {
		t.Error("there is room")
	}
}
