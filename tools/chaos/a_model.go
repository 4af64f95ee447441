package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The corpora and models of the project stand where they are tested; a check runs those tests at its own size, in the
// source that it was started in, and counts what they say that they did.

// goTest runs tests of a package whose names match, and returns what they print. An error means that one has failed.
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

// sum adds up the numbers that a pattern with one group finds.
func sum(out, pattern string) (n int) {
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1) {
		x, _ := strconv.Atoi(m[1])
		n += x
	}
	return n
}

// rapidSeed makes the tests that draw by rapid follow from the seed of the check.
func (e *env) rapidSeed() string { return fmt.Sprintf("-rapid.seed=%d", 1+e.rand.Uint64()>>1) }

// compared counts what sequences have compared.
func compared(out string) (sequences, operations, twinned int) {
	return sum(out, `(\d+) sequences, `), sum(out, `, (\d+) operations compared`), sum(out, `engine, (\d+) of them with the twin`)
}

func modelMemory(ctx context.Context, e *env) error {
	const want, kinds = 10_000, 8 // six algorithms, lists, penalties
	out, err := e.goTest(ctx, "./pkg/backend/memory", "^TestBackend$/^Random$", fmt.Sprintf("-rapid.checks=%d", want/kinds), e.rapidSeed())
	sequences, operations, twinned := compared(out)
	e.measured(err == nil && sequences >= want && operations >= 100*want,
		"%d sequences, %d operations compared with the engine, %d with the twin%s", sequences, operations, twinned, different(err))
	return nil
}

func modelScripts(ctx context.Context, e *env) error {
	const each, kinds = 500, 8
	out, err := e.goTest(ctx, "./pkg/backend/redis", "^TestScripts$/^Random$", fmt.Sprintf("-rapid.checks=%d", each), e.rapidSeed())
	sequences, operations, twinned := compared(out)
	e.measured(err == nil && sequences >= kinds*each && operations >= 100*kinds*each,
		"%d sequences, %d operations compared with the engine, %d with the twin%s", sequences, operations, twinned, different(err))
	return nil
}

// leaseModels visits every short history of leases, and plays random long ones.
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

// different says whether there was a difference.
func different(err error) string {
	if err != nil {
		return ", and they differ"
	}
	return ", 0 differences"
}
