package backendtest

import (
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Marks of a trace.
const (
	admitted = "✓"
	rejected = "✗"
)

// trace runs a hand-written sequence against one counter. Its methods fail the test if the backend's decision differs from the expected
// one or from the oracle's.
type trace struct {
	*testing.T
	p       *player
	key     backend.Key
	limits  engine.Limits
	penalty *engine.Penalty
	reserve *engine.Reserve
	owner   string
}

// counter starts a trace of a new counter under limits, at the time 0.
func counter(t *testing.T, s *subject, limits ...engine.Limit) *trace {
	t.Helper()
	for _, l := range limits {
		if err := l.Validate(); err != nil {
			t.Fatalf("%+v: %v", l, err)
		}
	}
	return &trace{T: t, p: s.player(), key: s.key(), limits: limits}
}

// at sets the time since the start of the trace.
func (c *trace) at(d time.Duration) { c.p.now = start + engine.Micros(d.Microseconds()) }

// after moves the clock forward.
func (c *trace) after(d time.Duration) { c.p.now += engine.Micros(d.Microseconds()) }

// takes makes a take of cost 1 for each mark, all at the current time, and returns the last decision.
func (c *trace) takes(marks string) engine.Decision {
	c.Helper()
	return c.spend(1, marks)
}

// spend is like takes, but with the given cost.
func (c *trace) spend(cost uint64, marks string) engine.Decision {
	c.Helper()
	return c.spaced(0, cost, marks)
}

// every makes a take of cost 1 for each mark, the first at the current time and each other one step later. It ignores spaces in marks.
// Afterwards the time is one step after the last take.
func (c *trace) every(step time.Duration, marks string) {
	c.Helper()
	c.spaced(step, 1, marks)
}

func (c *trace) spaced(step time.Duration, cost uint64, marks string) (d engine.Decision) {
	c.Helper()
	var got strings.Builder
	for _, mark := range marks {
		if mark == ' ' {
			got.WriteRune(mark)
			continue
		}
		d = c.do(backend.Op{Take: engine.Take{Cost: cost, Count: 1, Owner: c.owner}})
		got.WriteString(markOf(d))
		c.after(step)
	}
	if got.String() != marks {
		c.Fatalf("takes of cost %d were answered\n  %s, want\n  %s", cost, got.String(), marks)
	}
	return d
}

// looks makes a check with the given cost, expects the mark, and returns the decision.
func (c *trace) looks(cost uint64, mark string) engine.Decision {
	c.Helper()
	d := c.do(backend.Op{Mode: backend.Peek, Take: engine.Take{Cost: cost, Count: 1, Owner: c.owner}})
	if got := markOf(d); got != mark {
		c.Fatalf("a look with cost %d was answered %s, want %s: %+v", cost, got, mark, d)
	}
	return d
}

// gives refunds hits.
func (c *trace) gives(hits uint64) {
	c.Helper()
	c.do(backend.Op{Mode: backend.Refund, Take: engine.Take{Cost: hits, Count: 1, Owner: c.owner}})
}

// resets resets the counter. If force is true, it does so even during a penalty.
func (c *trace) resets(force bool) engine.Decision {
	c.Helper()
	if force {
		return c.do(backend.Op{Mode: backend.ForceReset})
	}
	return c.do(backend.Op{Mode: backend.Reset})
}

// do runs one op on the counter.
func (c *trace) do(op backend.Op) engine.Decision {
	c.Helper()
	op.Key, op.Limits, op.Penalty, op.Reserve = c.key, c.limits, c.penalty, c.reserve
	ops := []backend.Op{op}
	c.p.apply(c, ops...)
	return ops[0].Decision
}

// is fails the test unless got equals want.
func is[T comparable](c *trace, what string, got, want T) {
	c.Helper()
	if got != want {
		c.Fatalf("%s is %v, want %v, %v after the start", what, got, want, time.Duration(c.p.now-start)*time.Microsecond)
	}
}

func markOf(d engine.Decision) string {
	if d.Admitted == 0 {
		return rejected
	}
	return admitted
}
