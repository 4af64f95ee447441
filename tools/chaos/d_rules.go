package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// cases is what came of the cases of a corpus that stands in tests of the project: those tests that have no others in
// them.
type cases struct {
	passed, failed int
	longest        time.Duration
	which          string // took longest
}

// corpus runs the cases of tests of a package whose names match.
func (e *env) corpus(ctx context.Context, pkg, names string, args ...string) (c cases, err error) {
	out, err := e.goTest(ctx, pkg, names, args...)
	var inner error
	verdicts := regexp.MustCompile(`(?m)^( *)--- (PASS|FAIL): (\S+) \((\d+\.\d+)s\)$`).FindAllStringSubmatch(out, -1)
	for i, v := range verdicts {
		if i+1 < len(verdicts) && len(verdicts[i+1][1]) > len(v[1]) { // it has cases of its own
			continue
		}
		if v[2] == "FAIL" {
			c.failed++
			inner = errors.Join(inner, fmt.Errorf("%s %s", pkg, v[3]))
			continue
		}
		c.passed++
		seconds, _ := strconv.ParseFloat(v[4], 64)
		if took := time.Duration(seconds * float64(time.Second)); took > c.longest {
			c.longest, c.which = took, v[3]
		}
	}
	if err != nil {
		e.note("failed: %v", inner)
	}
	return c, err
}

// oddRequests runs the rows G of docs/faults.md.
func oddRequests(ctx context.Context, e *env) error {
	passed, failed := 0, 0
	for _, pkg := range []string{"./internal/envoy/rls", "./internal/decide/limiter", "./pkg/descriptors"} {
		c, err := e.corpus(ctx, pkg, "^(TestG[0-9]|TestScripts$/^G)")
		if err != nil {
			e.note("%v", err)
			failed += max(1, c.failed)
		}
		passed += c.passed
	}
	e.measured(failed == 0 && passed >= 60, "%d cases as listed, %d not", passed, failed)
	return nil
}

func oddRules(ctx context.Context, e *env) error {
	const ofTenMB = "^(TestY18_|TestY19_TooLarge$)"
	files, err := e.corpus(ctx, "./pkg/descriptors", "^(TestLoad$|TestY)", "-skip", ofTenMB)
	if err != nil {
		e.note("%v", err)
	}
	e.measured(files.failed == 0 && err == nil && files.passed >= 40, "%d files as listed, %d not", files.passed, files.failed)
	e.measured(files.longest <= 200*time.Millisecond, "slowest %s (%s)", files.longest, files.which)
	large, err := e.corpus(ctx, "./pkg/descriptors", ofTenMB)
	e.measured(err == nil && large.passed > 0 && large.longest <= 5*time.Second, "10 MB: %s", large.longest)
	watched, err := e.corpus(ctx, "./internal/rules/configwatch/file", "^TestY")
	e.measured(err == nil && watched.passed > 0, "%d cases of files that change or are none, %d not as listed", watched.passed, watched.failed)
	return e.badReloads(ctx)
}

// badReloads shows a running server each of a few broken sets of rules: the last good one stays.
func (e *env) badReloads(ctx context.Context) error {
	s, err := e.startServer(ctx, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 7}}]\n", "BACKEND_TYPE=memory")
	if err != nil {
		return err
	}
	c, err := s.rls()
	if err != nil {
		return err
	}
	broken := []string{
		"domain: d\ndescriptors: [{key: k, rate_limit: {unit: moon, requests_per_unit: 9}}]\n", "{", "domain: ''\n", "\x00", "a: &a [*a]\n",
		"domain: d\ndescriptors: [{key: '', rate_limit: {unit: year, requests_per_unit: 9}}]\n", "domain: d\nrules: []\n",
	}
	kept := 0
	for i, text := range broken {
		if err := s.serve("rules.yaml", text); err != nil {
			return err
		}
		_, seen := poll(ctx, patience, func() bool { return s.metric(ctx, "ratelimitd_config_load_errors_total") >= float64(i+1) })
		answer, err := c.ShouldRateLimit(ctx, ask("d", "k=a"))
		if seen && err == nil && answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit() == 7 {
			kept++
		} else {
			e.note("%q: noticed %v, then %v, %v", text, seen, answer, err)
		}
	}
	e.measured(kept == len(broken), "old rules kept after %d of %d", kept, len(broken))
	return nil
}

func oddResources(ctx context.Context, e *env) error {
	c, err := e.corpus(ctx, "./internal/rules/configwatch/xds", "^TestX")
	if err != nil {
		e.note("%v", err)
	}
	e.measured(err == nil && c.failed == 0 && c.passed >= 20, "%d cases as listed, %d not", c.passed, c.failed)
	return nil
}
