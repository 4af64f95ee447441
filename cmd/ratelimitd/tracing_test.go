package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit/tracingtest"
)

type collectorKey struct{}

// collectorOf returns the collector that a script has started.
func collectorOf(ts *testscript.TestScript) **tracingtest.Collector {
	return ts.Value(collectorKey{}).(**tracingtest.Collector)
}

func startCollector(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 1 {
		ts.Fatalf("collector: must be http or grpc")
	}
	c, err := tracingtest.Start(args[0])
	ts.Check(err)
	ts.Defer(c.Close)
	ts.Setenv("COLLECTOR", c.URL)
	*collectorOf(ts) = c
}

func printSpans(ts *testscript.TestScript, _ bool, _ []string) {
	c := *collectorOf(ts)
	_, err := fmt.Fprintf(ts.Stdout(), "%sresource %v\n", c.Tree(), c.Resource())
	ts.Check(err)
	for _, s := range c.Spans() {
		line := s.GetName()
		for _, name := range slices.Sorted(maps.Keys(s.Attributes)) {
			line += fmt.Sprintf(", %s=%s", name, s.Attributes[name])
		}
		_, err := fmt.Fprintf(ts.Stdout(), "%s, status %v, events %v\n", line, s.GetStatus(), s.GetEvents())
		ts.Check(err)
	}
}
