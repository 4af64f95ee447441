package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// figures are the tables of docs/benchmarks.md and docs/redis.md.
type figures struct {
	*testing.T

	pages map[string]string
}

// of returns the number that a cell begins with. The table is the first one after some text of the page that has the column; "–" is 0.
func (f figures) of(page, after, row, column string) float64 {
	f.Helper()
	_, text, found := strings.Cut(f.pages[page], after)
	if !found {
		f.Fatalf("%s has no %q", page, after)
	}
	cells := func(line string) []string {
		all := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range all {
			all[i] = strings.TrimSpace(all[i])
		}
		return all
	}
	at := -1
	for line := range strings.Lines(text) {
		c := cells(line)
		if at < 0 {
			at = slices.Index(c, column)
			continue
		}
		if at >= len(c) {
			break
		}
		if c[0] != row {
			continue
		}
		n, err := strconv.ParseFloat(regexp.MustCompile(`^[0-9.]+`).FindString(c[at]), 64)
		if err != nil && c[at] != "–" {
			f.Fatalf("%s, %q, %q: %q is not a number", page, row, column, c[at])
		}
		return n
	}
	f.Fatalf("%s has no row %q with a column %q after %q", page, row, column, after)
	return 0
}

// TestSizing: the figures of docs/sizing.md are those of the measurements; run with -rewrite, or make docs, to write them.
func TestSizing(t *testing.T) {
	t.Parallel()
	f := figures{t, map[string]string{"benchmarks.md": readPage(t, "benchmarks.md"), "redis.md": readPage(t, "redis.md")}}
	const begin, end = "<!-- figures: written by make docs from benchmarks.md and redis.md -->\n", "<!-- end of figures -->\n"
	page := readPage(t, "sizing.md")
	before, rest, begun := strings.Cut(page, begin)
	_, after, ended := strings.Cut(rest, end)
	if !begun || !ended {
		t.Fatalf("sizing.md has no lines %q and %q", begin, end)
	}
	want := before + begin + sizes(f) + "\n" + end + after
	if *rewrite {
		testkit.Check(t, os.WriteFile(filepath.Join(repository, "docs", "sizing.md"), []byte(want), 0o644))
		return
	}
	if diff := cmp.Diff(want, page); diff != "" {
		t.Errorf("docs/sizing.md does not have the figures of the measurements: run make docs (-want +got):\n%s", diff)
	}
}

// sizes writes the tables of docs/sizing.md.
func sizes(f figures) string {
	const bench, server, redis = "benchmarks.md", "server µs/request", "Redis µs/request"
	connections := "| connections | requests/s | p50 ms | p99 ms | server µs/request | ÷ idle | ÷ peer |"
	f.pages[bench] = strings.Replace(f.pages[bench], connections, "with Redis:\n"+connections, 1)
	out := "\n| traffic | measured requests/s | server, µs per request | Redis, µs per request |\n| --- | --- | --- | --- |\n"
	for _, x := range []struct{ traffic, after, row string }{
		{"one call in flight, 100,000 keys", "with Redis:\n", "1"},
		{"8 in flight through Envoy, 10,000 keys", "8 connections, 10,000 keys:", "ratelimitd with Redis"},
		{"10 in flight, 100,000 keys", "with Redis:\n", "10"},
		{"32 in flight through Envoy, 10,000 keys", "32 connections, 10,000 keys:", "ratelimitd with Redis"},
		{"100 in flight, 100,000 keys", "with Redis:\n", "100"},
		{"128 in flight, 100,000 keys", "With Redis and default settings.", "100,000 keys"},
		{"128 in flight, three descriptors", "With Redis and default settings.", "three descriptors"},
		{"128 in flight, one hot key", "With Redis and default settings.", "one key"},
	} {
		store := "–"
		if µs := f.of(bench, x.after, x.row, redis); µs > 0 {
			store = fmt.Sprintf("%.1f", µs)
		}
		out += fmt.Sprintf("| %s | %.0f | %.1f | %s |\n", x.traffic, f.of(bench, x.after, x.row, "requests/s"), f.of(bench, x.after, x.row, server), store)
	}
	out += "\n| replica with | live MiB | largest resident MiB |\n| --- | --- | --- |\n"
	for _, row := range []string{"10 rules", "100,000 rules", "1,000,000 counters"} {
		name := strings.Replace(row, "counters", "counters in memory", 1)
		out += fmt.Sprintf("| %s | %.1f | %.0f |\n", name, f.of(bench, "### With many rules", row, "live MiB"), f.of(bench, "### With many rules", row, "most resident MiB"))
	}
	out += "\n| 1,000,000 counters in Redis | MB | `maxmemory`, with half as much again |\n| --- | --- | --- |\n"
	for _, algorithm := range []string{"`fixed_window`", "`token_bucket`, `leaky_bucket`", "`sliding_window`"} {
		bytes := f.of("redis.md", "## Memory per counter", algorithm, "used_memory")
		out += fmt.Sprintf("| %s | %.0f | %.0f |\n", algorithm, bytes, 1.5*bytes)
	}
	busy, store := f.of(bench, "with Redis:\n", "100", server), f.of(bench, "with Redis:\n", "100", redis)
	bucket := f.of("redis.md", "## Memory per counter", "`token_bucket`, `leaky_bucket`", "used_memory")
	out += fmt.Sprintf("\n**Example.** 20,000 requests per second, a token bucket for each of 500,000 active users, 100 calls in flight: the servers need "+
		"%.2f cores,\nso two replicas with one core each. Redis needs %.2f cores, and %.0f MB for counters, so `maxmemory` is %.0f MB.\n",
		20_000*busy/1e6, 20_000*store/1e6, 0.5*bucket, 0.75*bucket)
	return out
}
