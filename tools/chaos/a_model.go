package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Checks run the project's own tests of corpora and models at a larger size, from the source tree in the working directory, and
// count the cases in their output.

// goTest runs the tests of a package that match names, and returns their output. It returns an error if any test fails.
func (e *env) goTest(ctx context.Context, pkg, names string, args ...string) (string, error) {
	if e.other {
		return "", fmt.Errorf("%s is a package of ratelimitd", pkg)
	}
	args = append([]string{"test", "-count=1", "-v", "-timeout", "10m", "-run", names, pkg}, args...)
	e.note("go %s", strings.Join(args, " "))
	out, err := output(ctx, "go", args...)
	for line := range strings.Lines(out) {
		if line = strings.TrimRight(line, "\n"); err != nil || strings.Contains(line, "_test.go:") {
			e.note("%.300s", line)
		}
	}
	if err != nil {
		return out, fmt.Errorf("go %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// sum adds the numbers that match a pattern with one group.
func sum(out, pattern string) (n int) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		x, _ := strconv.Atoi(m[1])
		n += x
	}
	return n
}

// rapidSeed derives the seed of rapid tests from that of the check.
func (e *env) rapidSeed() string { return fmt.Sprintf("-rapid.seed=%d", 1+e.rand.Uint64()>>1) }

// random runs a number of random sequences for each kind of limit: six algorithms, lists, and penalties. It compares them with
// the engine and its slow twin.
func random(pkg, names string, each int) func(context.Context, *env) {
	return func(ctx context.Context, e *env) {
		least := 8 * each
		out, err := e.goTest(ctx, pkg, names, fmt.Sprintf("-rapid.checks=%d", each), e.rapidSeed())
		sequences, operations := sum(out, `(\d+) sequences, `), sum(out, `, (\d+) operations compared`)
		e.measured(err == nil && sequences >= least && operations >= 100*least, "%d sequences, %d operations compared with the engine, %d with the twin, the same: %s",
			sequences, operations, sum(out, `engine, (\d+) of them with the twin`), yes(err == nil))
	}
}

// leaseModels explores every short history of leases, and random long ones.
func leaseModels(ctx context.Context, e *env) {
	begin := time.Now()
	out, err := e.goTest(ctx, "./pkg/backend/nearcache", "^TestModel$", "-limits=6")
	states := sum(out, `limit \d+: (\d+) states`)
	e.measured(err == nil && states > 100_000, "model: %d states, 0 bad: %s, in %.0f s", states, yes(err == nil), time.Since(begin).Seconds())
	const games, algorithms = 1000, 2
	out, err = e.goTest(ctx, "./pkg/backend/nearcache", "^TestLeaseBound$", fmt.Sprintf("-rapid.checks=%d", games), e.rapidSeed())
	played := sum(out, `OK, passed (\d+) tests`)
	e.measured(err == nil && played >= games*algorithms, "property: %d histories, %d hits admitted", played, sum(out, `% of (\d+) admitted`))
}
