package backendtest

import (
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

func row15(t *testing.T, s *subject) {
	c := counter(t, s, fixed(3, minute))
	c.penalty = &engine.Penalty{For: 300 * second, Max: 300 * second, On: engine.OnReached, Escalate: 1}
	c.takes(yes(3))
	for left := 300 * time.Second; left > 0; left -= 10 * time.Second {
		is(c, "RetryAfter", c.takes("✗").RetryAfter, left)
		is(c, "what is left of the penalty", c.looks(1, "✗").Penalty, left)
		c.after(10 * time.Second)
	}
	c.takes(yes(3) + no(1))
	is(c, "what is left of the penalty", c.resets(false).Penalty, 300*time.Second)
	c.takes("✗")
	c.resets(true)
	c.takes(yes(3) + no(1))
}

func row17(t *testing.T, s *subject) {
	c := counter(t, s, semaphore(2, minute))
	c.takes("✓✓✗")
	c.after(time.Second)
	c.gives(1)
	c.takes("✓✗")
	c.at(time.Minute - time.Microsecond)
	c.takes("✗")
	c.at(time.Minute)
	c.takes("✓✗")
}

func row17Holder(t *testing.T, s *subject) {
	c := counter(t, s, semaphore(1, minute))
	as := func(owner string) *trace { c.owner = owner; return c }
	as("alice").takes("✓")
	as("bob").takes("✗")
	as("bob").gives(1)
	as("bob").takes("✗")
	c.at(40 * time.Second)
	as("alice").takes("✓") // and renewed
	c.at(99 * time.Second)
	as("bob").takes("✗")
	as("alice").gives(1)
	as("bob").takes("✓")
	as("alice").takes("✗")
}

func row25(t *testing.T, s *subject) {
	c := counter(t, s, fixed(3, minute))
	c.penalty = &engine.Penalty{For: 300 * second, Max: 300 * second, On: engine.OnReached, Escalate: 1}
	c.every(time.Second, "✓✓")
	c.gives(1000)
	c.every(time.Second, "✓✓✓")
	c.gives(1000) // success does not end the penalty
	last := 4 * time.Second
	c.at(last + 300*time.Second - time.Microsecond)
	c.takes("✗")
	c.at(last + 300*time.Second)
	c.takes("✓")
}
