package backendtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// testScripts runs the scripts of pkg/engine, which contain the engine's decisions. For a backend that supports only fixed windows, it
// skips the other counters.
func testScripts(t *testing.T, h Harness) {
	s := open(t, h)
	module := "."
	for _, err := os.Stat("go.mod"); err != nil; _, err = os.Stat(filepath.Join(module, "go.mod")) {
		if module = filepath.Join(module, ".."); len(module) > 100 {
			t.Fatal("there is no go.mod above")
		}
	}
	files, err := filepath.Glob(filepath.Join(module, "pkg/engine/testdata/*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("finding scripts: %v in %v", err, files)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			counters := map[int]*trace{}
			enginetest.PlayScript(t, string(text), func(call enginetest.Call) engine.Decision {
				c := counters[call.Counter]
				if c == nil {
					c = &trace{T: t, p: s.player(), key: s.key()}
					c.p.now, c.p.last, c.p.twins = call.Now, call.Now, nil // twins take one after the other, and scripts up to 2^64
					counters[call.Counter] = c
				}
				c.limits, c.penalty, c.reserve = call.Limits, call.Penalty, call.Reserve
				return c.play(call)
			})
		})
	}
}

// play makes the call of a script.
func (c *trace) play(call enginetest.Call) engine.Decision {
	c.Helper()
	op := backend.Op{Take: call.Take}
	for m, verb := range []string{"take", "look", "give", "reset", "settle"} {
		if verb == call.Verb {
			op.Mode = backend.Mode(m)
		}
	}
	if call.Force {
		op.Mode = backend.ForceReset
	}
	if c.p.fixed && (len(c.limits) > 1 || c.limits[0].BeyondCount() != "" || c.penalty != nil || c.reserve != nil || call.Now < c.p.now) {
		return engine.Decision{}
	}
	c.p.now = call.Now
	return c.do(op)
}
