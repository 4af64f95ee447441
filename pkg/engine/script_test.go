package engine_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the answers in testdata/*.txt")

// TestScripts runs the scripts testdata/*.txt; see [enginetest.PlayScript].
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("finding scripts: %v in %v", err, files)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := enginetest.PlayScript(t, string(want), deciding())
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("(-want +got, go test -rewrite takes got over):\n%s", diff)
			}
		})
	}
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
