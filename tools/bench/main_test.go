package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

func TestMedian(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		values []float64
		want   float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 3}, 2.5},
	} {
		if got := median(tt.values); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.values, got, tt.want)
		}
	}
	if got := median(nil); !math.IsNaN(got) {
		t.Errorf("median(nil) = %v, want NaN", got)
	}
}

// costing returns a sample with the given costs of a request.
func costing(rate, server, inRedis float64) sample {
	s := sample{Requests: 1000, Rate: rate, Good: rate, P50: 500, P99: 900}
	s.CPU.Server, s.CPU.Redis = server, inRedis
	return s
}

// oneEach returns rounds with one sample each.
func oneEach(samples ...sample) (rounds [][]sample) {
	for _, s := range samples {
		rounds = append(rounds, []sample{s})
	}
	return rounds
}

// example returns results of two rows.
func example() results {
	return results{proc.Machine{CPU: "a processor", Cores: 2, Kernel: "Linux 1"}, map[string]result{
		"memory: one key": {Servers: map[string][][]sample{
			idleServer: oneEach(costing(1000, 10, 0), costing(1000, 10, 0), costing(800, 20, 0)),
			ratelimitd: oneEach(costing(1200, 8, 0), costing(900, 12, 0), costing(1000, 18, 0)),
		}},
		"Redis, leases off: 100,000 keys": {Servers: map[string][][]sample{
			idleServer: oneEach(costing(1000, 10, 0)),
			ratelimitd: oneEach(costing(500, 20, 6)),
			peer:       oneEach(costing(250, 40, 12)),
		}, Pairs: []sample{costing(250_000, 0, 4)}},
	}}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := example().print(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"row server offered/s req/s good/s p50 ms p99 ms CPU µs/req ÷ idle ÷ peer Redis µs/req ÷ pair ÷ peer Envoy µs/req",
		"memory: one key idle – 1000 1000 0.50 0.90 10.0 – – – – – –",
		"ratelimitd – 1000 1000 0.50 0.90 12.0 0.90 (0.80–1.20) – – – – –",
		"Redis, leases off: 100,000 keys idle – 1000 1000 0.50 0.90 10.0 – – – – – –",
		"ratelimitd – 500 500 0.50 0.90 20.0 2.00 0.50 6.0 1.50 0.50 –",
		"peer – 250 250 0.50 0.90 40.0 – – 12.0 – – –",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestCompare: exactly the costs that increased by more than a fifth are reported.
func TestCompare(t *testing.T) {
	t.Parallel()
	const row = "Redis, leases off: 100,000 keys"
	set := func(ours, theirs sample) results {
		r := example()
		one := r.Rows[row]
		one.Servers = map[string][][]sample{idleServer: one.Servers[idleServer], ratelimitd: oneEach(ours), peer: oneEach(theirs)}
		r.Rows[row] = one
		return r
	}
	without := example()
	delete(without.Rows[row].Servers, peer)
	noisy := example()
	noisy.Rows["memory: one key"].Servers[ratelimitd][1][0].CPU.Server = 100 // one of three rounds
	for _, tt := range []struct {
		name string
		now  results
		want []string
	}{
		{"the same", example(), nil},
		{"nothing", results{}, nil},
		{"less", set(costing(500, 15, 3), costing(250, 40, 12)), nil},
		{"a little more", set(costing(500, 23.9, 7.1), costing(250, 40, 12)), nil},
		{"more for the server", set(costing(500, 25, 6), costing(250, 40, 12)), []string{
			row + ": server CPU ÷ idle server was 2.00, and is 2.50: 25 % more",
			row + ": server CPU ÷ peer was 0.50, and is 0.62: 25 % more",
		}},
		{"more for Redis", set(costing(500, 20, 9), costing(250, 40, 18)), []string{
			row + ": Redis CPU ÷ INCRBY and EXPIRE was 1.50, and is 2.25: 50 % more",
		}},
		{"no peer", without, nil},
		{"one bad round", noisy, nil},
	} {
		var out strings.Builder
		all, figures := compare(example(), tt.now)
		err := report(&out, all, figures)
		if (err != nil) != (len(tt.want) > 0 || figures == 0) {
			t.Errorf("%s: %v, want an error if anything is worse", tt.name, err)
		}
		if len(tt.want) == 0 {
			tt.want = []string{fmt.Sprintf("none of %d figures is more than 20 %% worse", figures)}
		}
		if figures == 0 {
			tt.want = []string{""}
		}
		if got := strings.Split(strings.TrimSpace(out.String()), "\n"); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestMerge: rows without new measurements stay, unless the machine differs.
func TestMerge(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "results.json")
	if err := example().write(path); err != nil {
		t.Fatal(err)
	}
	all, err := readResults(path)
	if err != nil || len(all.Rows) != 2 || all.Machine != example().Machine {
		t.Fatalf("readResults = %+v, %v", all, err)
	}
	again := results{all.Machine, map[string]result{"memory: one key": {Taken: taken{Rounds: 7}}, "no row": {}}}
	if err := all.merge(again); err != nil {
		t.Fatal(err)
	}
	if len(all.Rows) != 2 || all.Rows["memory: one key"].Taken.Rounds != 7 || len(all.Rows["Redis, leases off: 100,000 keys"].Servers) != 3 {
		t.Errorf("merged: %+v", all.Rows)
	}
	again.Machine.Cores = 64
	if err := all.merge(again); err == nil || !strings.Contains(err.Error(), "measure all rows") {
		t.Errorf("merging rows of another machine: %v, want an error", err)
	}
}

// TestLoad runs a generator that prints like the real one, and checks that useless numbers are rejected. Its cases are
// not parallel, because a script cannot start while a process forked by another test has it open for writing.
func TestLoad(t *testing.T) {
	some, err := proc.Start(exec.CommandContext(t.Context(), "sleep", "1h"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(some.Kill)
	server := &process{&proc.Server{Process: some}, "127.0.0.1:0", ""}
	inRedis := &process{server.Server, tellsOfScripts(t), ""}
	const cost = `,"rps":5,"cpu_us_per_request":{"server":2.5}}`
	for _, tt := range []struct {
		name, prints, wantErr string
		rejected, redis       bool
		part                  part
	}{
		{name: "good", prints: `{"requests":10,"ok":10,"over_limit":0,"failed":0` + cost},
		{name: "failed", prints: `{"requests":10,"ok":9,"failed":1` + cost, wantErr: "1 failed"},
		{name: "late", prints: `{"requests":10,"ok":9,"late":1` + cost, wantErr: "1 late"},
		{name: "late in overload", prints: `{"requests":10,"ok":9,"late":1` + cost, part: overloads},
		{name: "no CPU", prints: `{"requests":10,"ok":10,"rps":5}`, wantErr: "nothing to compare"},
		{name: "no JSON", prints: `oops`, wantErr: "reading what"},
		{name: "nothing", prints: ``, wantErr: "printed nothing"},
		{name: "no CPU of Redis", prints: `{"requests":10,"ok":10` + cost, wantErr: "Redis", redis: true},
		{name: "Redis", prints: `{"requests":10,"ok":10,"rps":5,"cpu_us_per_request":{"server":2.5,"redis":3}}`, redis: true},
		{name: "rejected", prints: `{"requests":10,"ok":8,"over_limit":2` + cost, wantErr: "2 requests were rejected"},
		{name: "passed", prints: `{"requests":10,"ok":8,"over_limit":2` + cost, wantErr: "8 requests passed", rejected: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "loadgen")
			if err := os.WriteFile(program, []byte("#!/bin/sh\necho '"+tt.prints+"'\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			r := row{template: "a=b", keys: 1, rejected: tt.rejected, part: tt.part}
			if tt.redis {
				r.store = exact
			}
			_, err := config{loadgen: program, duration: time.Second}.load(t.Context(), r, watched{name: ratelimitd, server: server, redis: inRedis})
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("load: %v", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("load: %v, want an error with %q", err, tt.wantErr)
			}
		})
	}
}

// tellsOfScripts returns the address of a server that answers every command with command statistics of Redis.
func tellsOfScripts(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, len("INFO commandstats\r\nQUIT\r\n")))
			_, _ = io.WriteString(conn, "$98\r\n# Commandstats\r\ncmdstat_evalsha:calls=7,usec=9\r\ncmdstat_eval:calls=1,usec=9\r\n\r\n+OK\r\n")
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestScripts(t *testing.T) {
	t.Parallel()
	w := watched{redis: &process{addr: tellsOfScripts(t)}}
	if n, err := w.scripts(t.Context()); n != 8 || err != nil {
		t.Errorf("scripts() = %d, %v; want 8", n, err)
	}
}

func TestLoadPairs(t *testing.T) {
	t.Parallel()
	s := &servers{c: config{redis: "redis-server"}, dir: t.TempDir(), stderr: io.Discard}
	redis, err := s.startRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Kill)
	pairs, err := config{duration: 100 * time.Millisecond}.loadPairs(t.Context(), redis.addr)
	if err != nil || pairs.Requests < pipelined || pairs.Rate <= 0 || pairs.CPU.Redis <= 0 {
		t.Errorf("loadPairs = %+v, %v; want at least %d pairs, and what they cost", pairs, err, pipelined)
	}
	stats, err := info(t.Context(), redis.addr, "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(pairs.Requests + pipelined) // plus the pipeline of the warmup
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdstat_incrby", "cmdstat_expire"} {
		if !strings.HasPrefix(stats[name], "calls="+string(want)+",") {
			t.Errorf("%s:%s, want calls=%s", name, stats[name], want)
		}
	}
}

// TestRows: names are unique, and goals have measurements.
func TestRows(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.name] {
			t.Errorf("there are two rows %q", r.name)
		}
		seen[r.name] = true
		if r.rejected && r.keys != 1 || r.keys < 1 || r.template == "" || r.part == "" {
			t.Errorf("%s: invalid row %+v", r.name, r)
		}
		for _, g := range r.goals {
			if r.store == memory && g.figure != toIdle && r.part != many {
				t.Errorf("%s has no %s", r.name, g.figure)
			}
		}
	}
	for _, text := range []string{rules, overloadRules} {
		if got := peerRules(text); strings.Contains(got, "algorithm") || strings.Contains(got, "on_failure") ||
			strings.Count(got, "rate_limit") != strings.Count(text, "rate_limit") {
			t.Errorf("rules of the peer\n%swant the same without ratelimitd's extensions", got)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"-rounds -1", "-rounds"},
		{"-write a -check b", "one of them"},
		{"-run (", "missing closing"},
		{"-run nothing.like.it", "Redis: one key over its limit"},
		{"-check " + t.TempDir(), "nothing to compare"},
		{"-page " + t.TempDir(), "no results"},
	} {
		err := run(t.Context(), strings.Fields(tt.args), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("bench %s: %v, want an error with %q", tt.args, err, tt.want)
		}
	}
}

// TestDigest: time counts for the running function and its package.
func TestDigest(t *testing.T) {
	t.Parallel()
	var p profile.Profile
	for i, name := range []string{"runtime.mallocgc", "google.golang.org/grpc/internal/transport.(*loopyWriter).run", "runtime.memmove", "main.main.func1"} {
		at := &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: name}}}}
		below := &profile.Location{Line: []profile.Line{{Function: &profile.Function{Name: "main.main"}}}}
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{at, below}, Value: []int64{1, int64(i+1) * 1e9}})
	}
	got := digest(&p)
	want := []share{{"main", 0.4}, {"runtime", 0.4}, {"google.golang.org/grpc/internal/transport", 0.2}}
	if got.Seconds != 10 || !slices.Equal(got.Packages, want) || got.Functions[0] != (share{"main.main.func1", 0.4}) || len(got.Functions) != 4 {
		t.Errorf("digest = %+v, want packages %v", got, want)
	}
}

// TestTellsFirst: an error that would prevent writing the results is reported before measuring. The test needs no programs.
func TestTellsFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "benchmarks"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := example().write(filepath.Join(dir, "benchmarks", "results.json")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := t.TempDir()
	if err := os.WriteFile(filepath.Join(taken, "benchmarks"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for docs, want := range map[string]string{dir: "measure all rows", file: "not a directory", taken: "not a directory"} {
		err := run(t.Context(), []string{"-server", "nowhere", "-run", "memory: one key$", "-write", docs}, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-write %s: %v, want an error with %q", docs, err, want)
		}
	}
}

// TestNotStarted: a missing program is an error, and programs started before it are stopped.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	s := &servers{c: config{idle: filepath.Join(t.TempDir(), "nothing")}, dir: t.TempDir(), stderr: io.Discard}
	if err := s.start(t.Context(), nil); err == nil {
		t.Error("starting a missing program: want an error")
	}
	s.stop()
}

// TestInterrupted: an interrupted run reports that it wrote nothing.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"-run", "memory: one key$", "-write", t.TempDir()}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "nothing was written") {
		t.Errorf("an interrupted run: %v", err)
	}
}
