package redis

import (
	_ "embed"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

//go:embed testdata/manyruns.lua
var manyRuns string

// TestF27_LargeStates checks that states with many more elements than any counter has keep no script busy for long, in any mode, alone,
// in a list and behind a penalty. TestF28_SlotsCostLittle covers slots.
func TestF27_LargeStates(t *testing.T) {
	const now = engine.Micros(1_800_000_000_000_000)
	const n = 31_000                // elements
	const longest = 2 * time.Second // mostly for a stall of the process
	server := redistest.Start(t)
	p := newPlain(t, server, func() engine.Micros { return now })
	if err := p.client.ConfigSet(t.Context(), "slowlog-log-slower-than", "0").Err(); err != nil {
		t.Fatal(err)
	}
	other := engine.Limit{Algorithm: engine.TokenBucket, Hits: 10, Window: minute, Burst: 10, Initial: 10, Listed: true}
	for name, l := range eachLimit() {
		if l.Algorithm.Family() != engine.FamilyRuns {
			continue
		}
		size, ticks := 32, 10/6e7 // bytes per run, ticks per µs
		if l.Algorithm == engine.SlidingLog {
			size, ticks = 40, 1
		}
		l = l.Prepared()
		listed := l
		listed.Listed, listed.CountRefused = true, false
		for _, how := range []string{"old", "now", "from then", "back in time", "all but no run"} {
			for i, op := range []backend.Op{
				{Limits: engine.Limits{l}},
				{Limits: engine.Limits{listed, other}},
				{Limits: engine.Limits{l}, Penalty: &engine.Penalty{For: second, Max: minute, Escalate: 2}},
			} {
				op.Key = keyOf(i)
				for _, first := range []backend.Mode{backend.Take, backend.Refund, backend.Reset} {
					key := string(p.base(nil, &op)) + op.Limits[0].Slot().String()
					if err := p.client.Eval(t.Context(), manyRuns, []string{key}, how, int64(now), n, size, ticks).Err(); err != nil {
						t.Fatalf("%s, %s: %v", name, how, err)
					}
					if took := p.slowest(t, op, first); took > longest {
						t.Errorf("%s, %s, mode %d: a call takes %v", name, how, first, took)
					}
				}
			}
		}
	}
}

// slowest runs op in all modes, beginning with first, and returns the time of the slowest call, according to Redis.
func (p *plain) slowest(t *testing.T, op backend.Op, first backend.Mode) (took time.Duration) {
	t.Helper()
	if err := p.client.Do(t.Context(), "SLOWLOG", "RESET").Err(); err != nil {
		t.Fatal(err)
	}
	for _, op.Mode = range []backend.Mode{first, backend.Peek, backend.Take, backend.Refund} {
		for _, owner := range []string{"", "ann"} {
			op.Take = engine.Take{Cost: 3, Count: 2, Owner: owner}
			ops := []backend.Op{op}
			if p.Apply(t.Context(), ops); ops[0].Err != nil {
				t.Fatalf("mode %d: %v", op.Mode, ops[0].Err)
			}
		}
	}
	slow, err := p.client.SlowLogGet(t.Context(), 128).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range slow {
		took = max(took, c.Duration)
	}
	return took
}
