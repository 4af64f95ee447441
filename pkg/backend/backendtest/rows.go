package backendtest

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// testTraces runs the traces of docs/algorithms.md, named after their rows there, unless they need a server.
func testTraces(t *testing.T, h Harness) {
	s := open(t, h)
	for _, row := range []struct {
		name string
		play func(*testing.T, *subject)
		all  bool // applies to all backends
	}{
		{"Row01_CounterPerWindow", row01, true},
		{"Row02_LateBurst", row02, true},
		{"Row03_EdgeOfTwoWindows", row03, true},
		{"Row04_RejectedDoNotProlong", row04, false},
		{"Row05_Precision", row05, false},
		{"Row06_LeakyMeter", row06, false},
		{"Row07_QueueTellsTheWait", row07, false},
		{"Row08_WorkQueue", row08, false},
		{"Row09_RefilledOnDemand", row09, false},
		{"Row11_TokensInSteps", row11, false},
		{"Row12_Costs", row12, false},
		{"Row13_Borrowing", row13, false},
		{"Row14_Throttle", row14, false},
		{"Row15_Lock", row15, false},
		{"Row16_LookResetShorten", row16, false},
		{"Row17_Semaphore", row17, false},
		{"Row17_LockWithHolder", row17Holder, false},
		{"Row21_LookThenCharge", row21, false},
		{"Row22_StrictSpacing", row22, false},
		{"Row23_StartsEmpty", row23, false},
		{"Row24_TokensFromOutside", row24, false},
		{"Row25_FailuresInARow", row25, false},
		{"Row26_WindowOfTheFirstRequest", row26, false},
	} {
		if h.FixedWindows && !row.all {
			continue
		}
		t.Run(row.name, func(t *testing.T) { row.play(t, s) })
	}
}

// Lengths of windows.
const (
	second engine.Micros = 1_000_000
	minute               = 60 * second
	hour                 = 60 * minute
	day                  = 24 * hour
)

// fixed returns a fixed window with default options.
func fixed(hits uint64, window engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.FixedWindow, Hits: hits, Window: window, CountRefused: true}
}

func sliding(hits uint64, window engine.Micros, precision uint32) engine.Limit {
	return engine.Limit{Algorithm: engine.SlidingWindow, Hits: hits, Window: window, Precision: precision}
}

func slidingLog(hits uint64, window engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.SlidingLog, Hits: hits, Window: window}
}

// bucket returns a token bucket that starts full.
func bucket(hits uint64, window engine.Micros, burst uint64) engine.Limit {
	return engine.Limit{Algorithm: engine.TokenBucket, Hits: hits, Window: window, Burst: burst, Initial: burst}
}

func leaky(hits uint64, window engine.Micros, burst uint64) engine.Limit {
	return engine.Limit{Algorithm: engine.LeakyBucket, Hits: hits, Window: window, Burst: burst}
}

func semaphore(hits uint64, window engine.Micros) engine.Limit {
	return engine.Limit{Algorithm: engine.Concurrency, Hits: hits, Window: window}
}

// yes and no return n marks.
func yes(n int) string { return strings.Repeat(admitted, n) }

func no(n int) string { return strings.Repeat(rejected, n) }
