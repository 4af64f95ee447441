package main

import (
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestThrough: each row through a real Envoy, with ratelimitd and without a filter. A server that does not count is rejected.
func TestThrough(t *testing.T) {
	testkit.NotShort(t)
	envoy, err := exec.CommandContext(t.Context(), "../need", "envoy").Output()
	if err != nil {
		t.Skipf("NO ENVOY: nothing was measured through one: %v", err)
	}
	c := built(t)
	c.envoy, c.redis, c.duration = strings.TrimSpace(string(envoy)), "redis-server", 400*time.Millisecond
	s := &servers{c: c, dir: t.TempDir(), stderr: io.Discard}
	t.Cleanup(s.stop)
	if err := writeRules(s.dir); err != nil {
		t.Fatal(err)
	}
	through := slices.DeleteFunc(rows(), func(r row) bool { return r.part != throughEnvoy })
	if err := s.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	for _, r := range []row{through[0], through[len(through)-1]} {
		all, err := c.loadAll(t.Context(), s, r)
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		for _, name := range []string{noFilter, ourMemory, ourRedis} {
			if len(all[name]) != 1 || all[name][0].OK == 0 || all[name][0].CPU.Envoy <= 0 {
				t.Errorf("%s: %s: %+v, want answers, and processor time of Envoy", r.name, name, all[name])
			}
		}
	}
	if len(through) != 4 || len(s.through) != 3 {
		t.Errorf("%d rows of %d servers, want 4 of 3", len(through), len(s.through))
	}
	if v, err := c.programs(t.Context()); err != nil || v.Envoy == "" || strings.Contains(v.Envoy, "/") {
		t.Errorf("version of Envoy %q, %v", v.Envoy, err)
	}

	idle := &servers{c: c, dir: t.TempDir(), stderr: io.Discard}
	t.Cleanup(idle.stop)
	p, err := idle.startIdle(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	idle.through = []watched{{name: noFilter}, {name: idleServer, server: p}}
	if err := idle.startEnvoy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := counts(t.Context(), idle.through[1]); err == nil || !strings.Contains(err.Error(), "[200 200]") {
		t.Errorf("a server that rejects nothing: %v", err)
	}
}

// built returns a configuration with programs built for the test.
func built(t *testing.T) config {
	t.Helper()
	dir := t.TempDir()
	program := testkit.Build{Root: "../..", Packages: []string{"./cmd/ratelimitd"}}
	t.Cleanup(func() { _ = program.Remove() })
	c := config{server: program.Path(t, "ratelimitd"), loadgen: filepath.Join(dir, "loadgen"), idle: filepath.Join(dir, "idle"), duration: time.Second, seed: 1}
	for _, args := range [][]string{{"../loadgen", c.loadgen, "."}, {".", c.idle, "./idle"}} {
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", args[0], "-o", args[1], args[2]).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return c
}

// TestPageThrough: the page has a table for each measured row through Envoy, and the version of Envoy.
func TestPageThrough(t *testing.T) {
	t.Parallel()
	all := example()
	through := func(envoy, server float64) [][]sample {
		s := costing(1000, server, 0)
		s.CPU.Envoy = envoy
		return oneEach(s)
	}
	all.Rows["Envoy: 8 connections, one key"] = result{
		Taken:   taken{Versions: versions{Envoy: "1.40.0", Limitador: "2.4.0"}},
		Servers: map[string][][]sample{noFilter: through(40, 0), peer: through(80, 90), ourMemory: through(60, 30)},
	}
	text, err := all.text("")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n## Through Envoy\n", "Envoy 1.40.0, limitador 2.4.0", "\n8 connections, one key:\n",
		"| no filter | 1000 | 0.50 | 0.90 | 40.0 | – | – |\n" +
			"| ratelimitd in memory | 1000 | 0.50 | 0.90 | 60.0 | 30.0 | – |\n" +
			"| envoyproxy/ratelimit with Redis | 1000 | 0.50 | 0.90 | 80.0 | 90.0 | – |\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

// TestWithoutEnvoy: without Envoy, its rows are omitted, and selecting only such rows is an error.
func TestWithoutEnvoy(t *testing.T) {
	t.Parallel()
	if text, err := example().text(""); err != nil || strings.Contains(string(text), "\n## Through Envoy") {
		t.Errorf("a page without rows through Envoy has a section for them, or an error: %v", err)
	}
	all := rows()
	c, err := parse(nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if some, err := c.chosen(); err != nil || len(some) != len(all)-4 {
		t.Errorf("%d of %d rows, %v; want all but four", len(some), len(all), err)
	}
	if err := run(t.Context(), []string{"-run", "^Envoy"}, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "-envoy") {
		t.Errorf("only rows through Envoy, without -envoy: %v", err)
	}
}
