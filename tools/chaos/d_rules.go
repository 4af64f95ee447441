package main

import (
	"context"
	"regexp"
	"strconv"
	"time"
)

// cases counts the results of test cases: tests without subtests.
type cases struct {
	passed, failed int
	longest        time.Duration
	which          string // the longest
}

// corpus runs the tests of a package that match names. If none can run, it counts a failure.
func (e *env) corpus(ctx context.Context, pkg, names string, args ...string) (c cases) {
	out, err := e.goTest(ctx, pkg, names, args...)
	verdicts := regexp.MustCompile(`(?m)^( *)--- (PASS|FAIL): (\S+) \((\d+\.\d+)s\)$`).FindAllStringSubmatch(out, -1)
	for i, v := range verdicts {
		if i+1 < len(verdicts) && len(verdicts[i+1][1]) > len(v[1]) { // it has subtests
			continue
		}
		if v[2] == "FAIL" {
			c.failed++
			e.note("%s %s failed", pkg, v[3])
			continue
		}
		c.passed++
		seconds, _ := strconv.ParseFloat(v[4], 64)
		if took := time.Duration(seconds * float64(time.Second)); took > c.longest {
			c.longest, c.which = took, v[3]
		}
	}
	if err != nil {
		e.note("%v", err)
		c.failed = max(1, c.failed)
	}
	return c
}

// asListed runs the cases of packages, and requires at least least.
func asListed(least int, names string, packages ...string) func(context.Context, *env) {
	return func(ctx context.Context, e *env) {
		passed, failed := 0, 0
		for _, pkg := range packages {
			c := e.corpus(ctx, pkg, names)
			passed, failed = passed+c.passed, failed+c.failed
		}
		e.measured(failed == 0 && passed >= least, "%d cases as listed, %d not", passed, failed)
	}
}

func oddRules(ctx context.Context, e *env) {
	const ofTenMB = "^(TestY18_|TestY19_TooLarge$)"
	files := e.corpus(ctx, "./pkg/descriptors", "^(TestLoad$|TestY)", "-skip", ofTenMB)
	e.measured(files.failed == 0 && files.passed >= 40, "%d files as listed, %d not", files.passed, files.failed)
	e.measured(files.longest <= 200*time.Millisecond, "slowest %s (%s)", files.longest, files.which)
	large := e.corpus(ctx, "./pkg/descriptors", ofTenMB)
	e.measured(large.failed == 0 && large.passed > 0 && large.longest <= 5*time.Second, "10 MB: %s", large.longest)
	for pkg, names := range map[string]string{"./internal/rules/configwatch/file": "^TestY", "./cmd/ratelimitd": "^TestF24_"} {
		c := e.corpus(ctx, pkg, names)
		e.measured(c.failed == 0 && c.passed > 0, "%s: %d cases of files that change, %d not as listed", pkg, c.passed, c.failed)
	}
}
