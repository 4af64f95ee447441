package engine_test

import (
	"flag"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the answers in testdata/*.txt")

// TestScripts runs the scripts testdata/*.txt; see [enginetest.PlayScript].
func TestScripts(t *testing.T) {
	goldentest.Scripts(t, *rewrite, func(t *testing.T, script string) string {
		t.Helper()
		return enginetest.PlayScript(t, script, deciding())
	})
}

// midnight is the time at which scripts and other tests begin.
const midnight = enginetest.Start

// deciding returns a function that keeps the counters of a script.
func deciding() func(enginetest.Call) engine.Decision {
	counters := map[int]*counter{}
	return func(call enginetest.Call) engine.Decision {
		c := counters[call.Counter]
		if c == nil {
			c = newCounter(nil, nil)
			counters[call.Counter] = c
		}
		c.limits, c.penalty, c.reserve = call.Limits, call.Penalty, call.Reserve
		switch call.Verb {
		case "take":
			return c.take(call.Now, call.Take)
		case "look":
			return c.look(call.Now, call.Take)
		case "give":
			return c.give(call.Now, call.Take)
		case "settle":
			return c.settle(call.Now, call.Take)
		}
		return c.reset(call.Now, call.Force)
	}
}
