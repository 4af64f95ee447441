package throttle

import (
	"testing"
)

// TestPool: one caller may have everything, until another comes.
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
		big    int // afterwards
	}{
		{"big", 80, true, 80}, // no one else has any
		{"big", 1, false, 80},
		{"small", 5, true, 70}, // in the place of 10
		{"big", 1, false, 70},  // an eighth is for others
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

// TestPoolWithoutShares: no client gives way, and nothing is left to others.
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

// TestPoolThatCannotEvict: there is no room if the caller that has most keeps what it has.
func TestPoolThatCannotEvict(t *testing.T) {
	t.Parallel()
	p := NewPool[string](80, 0.25)
	p.Add("a", 80)
	if p.Take("b", 1, func(string) bool { return false }) {
		t.Error("there is room")
	}
}
