package backendtest

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func row06(t *testing.T, s *subject) {
	for _, l := range []engine.Limit{leaky(5, second, 100), bucket(5, second, 100)} {
		c := counter(t, s, l)
		c.spend(50, "✓")
		c.spend(10, "✓")
		c.spend(50, "✗")
		c.at(time.Second)
		c.spend(50, "✗")
		c.at(2 * time.Second)
		c.spend(50, "✓")
	}
}

func row07(t *testing.T, s *subject) {
	c := counter(t, s, leaky(10, second, 5))
	for i := range 5 {
		is(c, "the wait", c.takes("✓").Wait, time.Duration(i)*100*time.Millisecond)
	}
	c.takes("✗")
	c.at(50 * time.Millisecond)
	is(c, "the wait", c.takes("✓").Wait, 450*time.Millisecond)
}

func row08(t *testing.T, s *subject) {
	c := counter(t, s, leaky(5, second, 100))
	for i := range 100 {
		is(c, "the wait", c.takes("✓").Wait, time.Duration(i)*200*time.Millisecond)
	}
	c.takes("✗")
}

func row09(t *testing.T, s *subject) {
	c := counter(t, s, bucket(100, second, 100))
	c.every(time.Millisecond, yes(110))

	c = counter(t, s, bucket(100, second, 100))
	c.every(9*time.Microsecond, yes(100)+no(10))
}

func row11(t *testing.T, s *subject) {
	l := bucket(10, second, 10)
	l.FillInterval = second / 10
	c := counter(t, s, l)
	c.at(30 * time.Millisecond)
	c.takes(yes(10) + no(1))
	c.at(100*time.Millisecond - time.Microsecond)
	c.takes("✗")
	c.at(100 * time.Millisecond)
	c.takes("✓✗")
	c.at(200*time.Millisecond - time.Microsecond)
	c.takes("✗")
	c.at(200 * time.Millisecond)
	c.takes("✓✗")
}

func row12(t *testing.T, s *subject) {
	for _, l := range []engine.Limit{leaky(5, second, 100), bucket(100, second, 100)} {
		c := counter(t, s, l)
		is(c, "what is left", c.spend(101, "✗").Left, 100)
		c.spend(50, "✓")
		is(c, "what is left", c.spend(101, "✗").Left, 50)
		c.spend(7, "✓✓")
		c.spend(1, yes(36)+no(1))
		d := c.spend(101, "✗")
		is(c, "RetryAfter of what can never pass", d.RetryAfter, engine.Never)
	}
}

func row13(t *testing.T, s *subject) {
	l := bucket(10, second, 10)
	l.Debt = 30
	c := counter(t, s, l)
	c.spend(40, "✓")
	c.takes("✗")
	c.every(100*time.Millisecond, no(31)) // 0 s to 3 s
	c.takes("✓✗")
}

func row14(t *testing.T, s *subject) {
	c := counter(t, s, bucket(30, minute, 16))
	d := c.takes("✓")
	is(c, "what was left before", d.Left, 16)
	is(c, "RetryAfter", d.RetryAfter, 0)
	is(c, "ResetAfter", d.ResetAfter, 2*time.Second)
	c.takes(yes(15))
	d = c.takes("✗")
	is(c, "RetryAfter", d.RetryAfter, 2*time.Second)
	is(c, "ResetAfter", d.ResetAfter, 32*time.Second)

	c = counter(t, s, bucket(30, minute, 15)) // the values in the article, which counts the capacity itself
	is(c, "what was left before", c.takes("✓").Left, 15)
	c.takes(yes(14))
	d = c.takes("✗")
	is(c, "RetryAfter", d.RetryAfter, 2*time.Second)
	is(c, "ResetAfter", d.ResetAfter, 30*time.Second)
}

func row21(t *testing.T, s *subject) {
	l := bucket(1000, hour, 1000)
	l.CountRefused = true
	c := counter(t, s, l)
	c.looks(0, "✓")
	c.spend(900, "✓")
	c.looks(0, "✓")
	c.spend(300, "✗")
	c.looks(0, "✗")
	c.at(201*3600*time.Millisecond - time.Microsecond) // the balance is −200, and the cost 1; a token arrives every 3.6 s
	c.looks(0, "✗")
	c.after(time.Microsecond)
	c.looks(0, "✓")

	c = counter(t, s, fixed(1000, hour))
	c.looks(0, "✓")
	c.spend(900, "✓")
	c.looks(0, "✓")
	c.spend(300, "✗")
	c.looks(0, "✗")
	c.at(time.Hour - time.Microsecond)
	c.looks(0, "✗")
	c.at(time.Hour)
	c.looks(0, "✓")
}

func row22(t *testing.T, s *subject) {
	c := counter(t, s, engine.Limit{Algorithm: engine.TokenBucket, Hits: 2, Window: second, Burst: 1, FillInterval: second / 2})
	c.every(200*time.Millisecond, "✗✗✗✓✗ ✓✗✗✓✗ ✓")
}

func row23(t *testing.T, s *subject) {
	c := counter(t, s, engine.Limit{Algorithm: engine.TokenBucket, Hits: 10, Window: second, Burst: 10})
	c.every(200*time.Millisecond, no(1)+yes(20))
}

func row24(t *testing.T, s *subject) {
	c := counter(t, s, bucket(1, hour, 5))
	c.takes(yes(5) + no(3))
	c.gives(10)
	c.takes(yes(5) + no(1))
}
