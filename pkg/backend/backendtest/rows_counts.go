package backendtest

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func row01(t *testing.T, s *subject) {
	c := counter(t, s, fixed(3, second))
	c.every(200*time.Millisecond, "✓✓✓✗✗ ✓✓✓✗✗ ✓✓✓")
}

func row02(t *testing.T, s *subject) {
	c := counter(t, s, fixed(100, second))
	c.every(11*time.Millisecond, yes(80))
	c.at(900 * time.Millisecond)
	c.every(2*time.Millisecond, yes(20)+no(30))
}

func row03(t *testing.T, s *subject) {
	for _, of := range []struct {
		limit  engine.Limit
		second string
	}{
		{fixed(10, minute), yes(10)},
		{sliding(10, minute, 10), no(10)},
	} {
		if s.fixed && of.limit.Algorithm != engine.FixedWindow {
			continue
		}
		c := counter(t, s, of.limit)
		c.at(59 * time.Second)
		c.takes(yes(10))
		c.at(61 * time.Second)
		c.takes(of.second)
	}
}

func row04(t *testing.T, s *subject) {
	c := counter(t, s, slidingLog(5, minute))
	c.at(17 * time.Second)
	c.takes(yes(5) + no(15))
	c.at(77*time.Second - time.Microsecond)
	c.takes(no(1))
	c.after(time.Microsecond)
	c.takes(yes(5) + no(1))
}

func row05(t *testing.T, s *subject) {
	for _, precision := range []uint32{1, 6, 60} {
		c := counter(t, s, sliding(10, minute, precision))
		step := time.Minute / time.Duration(20*precision)
		c.at(700 * time.Millisecond)
		c.takes(yes(10))
		waited := time.Minute - step
		c.after(waited)
		for d := c.takes("✗"); d.RetryAfter > 0; d = c.do(backend.Op{Take: engine.Take{Cost: 1, Count: 1}}) {
			c.after(step)
			waited += step
		}
		if latest := time.Minute + time.Minute/time.Duration(precision); waited > latest {
			t.Errorf("precision %d: after a full burst it took %v, want at most %v", precision, waited, latest)
		}
		c.takes(yes(9) + no(1))
	}
}

func row16(t *testing.T, s *subject) {
	c := counter(t, s, slidingLog(3, minute))
	for range 5 {
		is(c, "what is left", c.looks(1, "✓").Left, 3)
	}
	c.takes(yes(3) + no(1))
	c.looks(1, "✗")
	c.resets(false)
	is(c, "what is left after a reset", c.looks(1, "✓").Left, 3)
	c.takes(yes(2))
	c.after(20 * time.Second)
	c.takes("✓")
	c.after(15 * time.Second)
	c.takes("✗")
	c.limits = engine.Limits{slidingLog(3, minute/2)}
	is(c, "what is left in 30 s", c.looks(1, "✓").Left, 2)
	c.takes(yes(2) + no(1))
}

func row26(t *testing.T, s *subject) {
	l := fixed(3, 10*second)
	l.Align = engine.AlignFirst
	c := counter(t, s, l)
	for _, take := range []struct {
		at   time.Duration
		mark string
	}{{7, "✓"}, {8, "✓"}, {12, "✓"}, {16, "✗"}, {17, "✓"}} {
		c.at(take.at * time.Second)
		c.takes(take.mark)
	}
}
