package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"google.golang.org/grpc/codes"
)

// TestResults: docs/reliability.md has a result for each check.
func TestResults(t *testing.T) {
	text, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	_, results, _ := strings.Cut(string(text), pageBegin)
	results, _, _ = strings.Cut(results, pageEnd)
	seen := map[string]bool{}
	for _, k := range checks() {
		if seen[k.id] {
			t.Errorf("there are two checks %s", k.id)
		}
		seen[k.id] = true
		if !strings.Contains(results, "\n| ["+k.id+"](") {
			t.Errorf("docs/reliability.md lacks the result of %s: run make chaos WRITE=1", k.id)
		}
	}
}

// TestPublish: publish replaces the results of a page and leaves the rest unchanged.
func TestPublish(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	if err := os.Mkdir(filepath.Join(dir, "notes"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(page, []byte("before\n"+pageBegin+"old\n"+pageEnd+"\nafter\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config{server: program, redis: "redis-server", seed: 7, only: regexp.MustCompile(""), page: page, stdout: io.Discard, stderr: io.Discard}
	bad := check{id: "Z2", what: "what is done", figure: "two", play: func(_ context.Context, e *env) { e.measured(false, "one") }}
	for range 2 {
		if err := c.play(t.Context(), []check{bad}); !errors.Is(err, errFailed) {
			t.Errorf("a failing check: %v", err)
		}
	}
	const begin = `
On \d{4}-\d\d-\d\d, on \d+ cores of .* with .*, with seed 7,
0 of 1 passed\.
Versions: ratelimitd unknown, go1\.\S+, and Redis \d+\.\d+\.\d+\.
`
	for file, want := range map[string]string{
		page: `(?s)^before\n` + pageBegin + begin + `
\| check \| what happens \| passes with \| passed \|
\| --- \| --- \| --- \| --- \|
\| \[Z2\]\(notes/chaos-results\.md#z2\) \| what is done \| two \| \*\*no\*\* \|

` + pageEnd + `
after
$`,
		filepath.Join(dir, "notes", measurementsName): `(?s)^# What the checks measured\n.*` + begin + `A figure in bold is not met\. \[.*
## Z2

What happens: what is done\.

Passes with: two\.

Passed by ratelimitd: \*\*no\*\*, in 0 s\.

- \*\*one\*\*
$`,
	} {
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(want).Match(got) {
			t.Errorf("%s is\n%s\nwant\n%s", file, got, want)
		}
	}
}

// TestNotWritable: an unwritable page is an error before any check runs.
func TestNotWritable(t *testing.T) {
	dir := t.TempDir()
	page, none := filepath.Join(dir, "page.md"), filepath.Join(dir, "none.md")
	if err := os.WriteFile(page, []byte("a page without results\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"-write " + page, "has no lines"},
		{"-write " + none, "no such file"},
		{"-write " + page + " -run A1", "leave out -run"},
		{"-write " + page + " -soak 1s", "not for -soak"},
	} {
		if err := run(t.Context(), strings.Fields(tt.args), io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("chaos %s: %v, want an error with %q", tt.args, err, tt.want)
		}
	}
}

// TestEnvoy: Envoy's decision by the outcome of a call.
func TestEnvoy(t *testing.T) {
	for _, c := range []struct {
		outcome     outcome
		open, deny  bool
		description string
	}{
		{outcome{kind: okay}, true, true, "admitted"},
		{outcome{kind: unknown}, true, true, "answered with UNKNOWN"},
		{outcome{kind: over}, false, false, "rejected"},
		{outcome{kind: failed, code: codes.Unavailable}, true, false, "failed"},
		{outcome{kind: lost}, true, false, "lost"},
		{outcome{kind: over, took: envoyTimeout + 1}, true, false, "rejected too late"},
	} {
		all := outcomes{c.outcome}.asEnvoy()
		if got := all.through(false) == 1; got != c.open {
			t.Errorf("%s: passes %v, want %v", c.description, got, c.open)
		}
		if got := all.through(true) == 1; got != c.deny {
			t.Errorf("%s, failure_mode_deny: passes %v, want %v", c.description, got, c.deny)
		}
	}
}

// TestDetection: detection returns the duration of a fault as seen by callers.
func TestDetection(t *testing.T) {
	var all outcomes
	for due := time.Duration(0); due < time.Second; due += time.Millisecond {
		o := outcome{due: due, took: time.Millisecond}
		if due >= 100*time.Millisecond && due < 170*time.Millisecond || due == 600*time.Millisecond {
			o.took = 18 * time.Millisecond
		}
		all = append(all, o)
	}
	got := detection(all.between(100*time.Millisecond, time.Second), 100*time.Millisecond)
	if got < 60*time.Millisecond || got > 75*time.Millisecond {
		t.Errorf("detected after %v, want about 70 ms", got)
	}
}

// TestQuantile: quantiles are measured values.
func TestQuantile(t *testing.T) {
	var all outcomes
	for i := range 1000 {
		all = append(all, outcome{took: time.Duration(1000-i) * time.Millisecond})
	}
	for q, want := range map[float64]time.Duration{0: time.Millisecond, 0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 1: time.Second} {
		if got := all.p(q); got != want {
			t.Errorf("p(%v) is %v, want %v", q, got, want)
		}
	}
}

// TestFailure: a failing check makes the program fail, and is printed with its seed and history.
func TestFailure(t *testing.T) {
	var stdout, stderr bytes.Buffer
	c := config{server: "unused", seed: 7, only: regexp.MustCompile(""), stdout: &stdout, stderr: &stderr}
	good := check{id: "Z1", play: func(_ context.Context, e *env) { e.measured(true, "one") }}
	bad := check{id: "Z2", play: func(_ context.Context, e *env) {
		e.note("something happened")
		e.measured(false, "two")
	}}
	broken := check{id: "Z3", play: func(_ context.Context, e *env) {
		e.together(func() {}, func() { e.must(errors.New("no such thing")) })
		e.measured(false, "three, which is not reached")
	}}
	if err := c.play(t.Context(), []check{good}); err != nil {
		t.Errorf("a passing check: %v", err)
	}
	if stderr.Len() > 0 {
		t.Errorf("a passing check is printed with its history: %s", &stderr)
	}
	if err := c.play(t.Context(), []check{good, bad, broken}); !errors.Is(err, errFailed) {
		t.Errorf("failing checks: %v", err)
	}
	for _, want := range []string{"- **two**\n", "- **running Z3: no such thing**\n", "Passed by ratelimitd: **no**", "1 of 3 passed"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &stdout)
		}
	}
	if strings.Contains(stdout.String(), "three") {
		t.Errorf("an ended check continues:\n%s", &stdout)
	}
	for _, want := range []string{"Z2, seed 7", "something happened", "ended at chaos_test.go:"} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &stderr)
		}
	}
}

// TestAlive: aliveOf computes the live heap from the next collection's size, for any percentage of growth.
func TestAlive(t *testing.T) {
	const alive = 14 << 20
	for _, percent := range []float64{50, 200, 342, 400} {
		if got := aliveOf(alive+alive*percent/100, percent); int(got) != alive {
			t.Errorf("with %v %%: %v bytes alive, want %d", percent, got, alive)
		}
	}
}

// TestGap: calls that fail together, or have no answer together, are a gap; single ones are not.
func TestGap(t *testing.T) {
	t.Parallel()
	const from, until = 200 * time.Millisecond, 700 * time.Millisecond
	for _, c := range []struct {
		name  string
		gap   outcome // outcome of calls in the gap
		every int     // one in this many
		long  bool
		n     int
	}{
		{"errors", outcome{kind: failed, code: codes.Unavailable}, 5, true, 100},
		{"few errors", outcome{kind: failed, code: codes.Unavailable}, 20, false, 25},
		{"no answers", outcome{kind: late}, 1, true, 0},
		{"out of time", outcome{kind: failed, code: codes.DeadlineExceeded}, 2, true, 0},
		{"some without an answer", outcome{kind: late}, 5, false, 0},
	} {
		var all outcomes
		for i := range 1000 {
			o := outcome{kind: okay}
			if due := time.Duration(i) * time.Millisecond; due >= from && due < until && i%c.every == 0 {
				o = c.gap
			}
			o.due = time.Duration(i) * time.Millisecond
			all = append(all, o)
		}
		first, last, n := all.gap(100 * time.Millisecond)
		if long := first == from && last >= until-20*time.Millisecond; long != c.long || n != c.n {
			t.Errorf("%s: from %v to %v, %d errors; want a gap: %t, %d errors", c.name, first, last, n, c.long, c.n)
		}
	}
}

// TestOutput: a command and its children end with the context.
func TestOutput(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	pid := filepath.Join(t.TempDir(), "pid")
	ended := make(chan error, 1)
	go func() {
		_, err := output(ctx, "sh", "-c", `sleep 600 & echo $! >"$0.new"; mv "$0.new" "$0"; wait`, pid)
		ended <- err
	}()
	var id string
	testkit.Eventually(t, "a process of the command", func() bool {
		text, err := os.ReadFile(pid)
		id = strings.TrimSpace(string(text))
		return err == nil
	})
	cancel()
	if err := <-ended; err == nil {
		t.Error("a killed command succeeded")
	}
	testkit.Eventually(t, "the end of what the command had started", func() bool {
		stat, err := os.ReadFile("/proc/" + id + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// TestTimeIsUp: the end of the fuzzing time is not a crash.
func TestTimeIsUp(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"fuzz: elapsed: 9s, execs: 91039 (0/sec), new interesting: 23 (total: 166)\n--- FAIL: FuzzLoad (9.03s)\n    context deadline exceeded\nFAIL\nexit status 1\n":                                 true,
		"--- FAIL: FuzzLoad (0.61s)\n    --- FAIL: FuzzLoad (0.00s)\n        load_test.go:9: context deadline exceeded\n    \n    Failing input written to testdata/fuzz/FuzzLoad/771e938e4458e983\n": false,
		"--- FAIL: FuzzLoad (2.00s)\n    fuzzing process hung or terminated unexpectedly: exit status 2\n    Failing input written to testdata/fuzz/FuzzLoad/771e\n":                                  false,
		"# github.com/ratelimitd/ratelimitd/pkg/descriptors\nload_test.go:9: undefined: x\nFAIL\n":                                                                                                    false,
	} {
		if got := timeIsUp(text); got != want {
			t.Errorf("%v, want %v of %s", got, want, text)
		}
	}
}

// TestCutShort: an interrupted check has not passed, and a quantile of no calls is not small.
func TestCutShort(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := config{server: "unused", only: regexp.MustCompile(""), stdout: io.Discard, stderr: io.Discard}
	k := check{id: "Z1", play: func(_ context.Context, e *env) {
		cancel()
		e.measured(true, "one")
	}}
	if r := c.try(ctx, k, c.server, false); r.pass() {
		t.Error("an interrupted check has passed")
	}
	if p := (outcomes{}).p(0.99); p <= time.Hour || ms(p) != "of no calls" {
		t.Errorf("quantile of no calls: %s", ms(p))
	}
}
