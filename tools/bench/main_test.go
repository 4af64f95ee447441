package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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
}

func TestPrint(t *testing.T) {
	t.Parallel()
	var memory, redis result
	memory.traffic.name, redis.traffic = "one key", traffic{name: "Redis, one key", redis: true}
	for _, s := range []struct{ idle, server sample }{
		{sample{CPU: 10, Rate: 1000, P99: 900}, sample{CPU: 8, Rate: 1200, P99: 800}},
		{sample{CPU: 10, Rate: 1000, P99: 900}, sample{CPU: 12, Rate: 900, P99: 900}},
		{sample{CPU: 20, Rate: 800, P99: 900}, sample{CPU: 18, Rate: 1000, P99: 1000}},
	} {
		memory.add(idleServer, s.idle)
		memory.add(ratelimitd, s.server)
	}
	redis.add(idleServer, sample{CPU: 10, Rate: 1000, P99: 900})
	redis.add(ratelimitd, sample{CPU: 20, Rate: 500, P99: 1000, Redis: 6, Scripts: 490})
	redis.add(peer, sample{CPU: 40, Rate: 250, P99: 2000, Redis: 12})
	var out strings.Builder
	if err := (&table{results: []result{memory, redis}, pairs: []sample{{Rate: 250_000, Redis: 4}}}).print(&out); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"traffic server req/s p99 ms CPU µs/req ÷ idle Redis µs/req ÷ pair scripts/100 req",
		"INCRBY and EXPIRE, 100,000 keys 32 in a pipeline 250000 – – – 4.0 1.00 –",
		"one key idle 1000 0.9 10.0 – – – –",
		"ratelimitd 1000 0.9 12.0 0.90 (0.80–1.20) – – –",
		"Redis, one key idle 1000 0.9 10.0 – – – –",
		"ratelimitd 500 1.0 20.0 2.00 6.0 1.50 98.00",
		"peer 250 2.0 40.0 4.00 12.0 3.00 –",
		"ratelimitd ÷ peer 2.00 0.50 0.50 – 0.50 – –",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestLoad runs a generator that prints what the real one would, and checks that useless numbers are refused. Its cases
// do not run in parallel, because a script cannot be started while a process forked by another test still has it open
// for writing.
func TestLoad(t *testing.T) {
	self := &process{cmd: &exec.Cmd{Process: &os.Process{Pid: os.Getpid()}}, addr: "127.0.0.1:0"}
	redis := &process{cmd: self.cmd, addr: tellsOfScripts(t)}
	for _, tt := range []struct {
		name, prints, wantErr string
		refused, redis        bool
	}{
		{name: "good", prints: `{"requests":10,"ok":10,"over_limit":0,"failed":0,"rps":5,"cpu_us_per_req_server":2.5}`},
		{name: "failed", prints: `{"requests":10,"ok":9,"failed":1,"rps":5,"cpu_us_per_req_server":2.5}`, wantErr: "1 failed"},
		{name: "no CPU", prints: `{"requests":10,"ok":10,"rps":5}`, wantErr: "nothing to compare"},
		{name: "no JSON", prints: `oops`, wantErr: "reading what"},
		{name: "no CPU of Redis", prints: `{"requests":10,"ok":10,"rps":5,"cpu_us_per_req_server":2.5}`, wantErr: "Redis", redis: true},
		{name: "Redis", prints: `{"requests":10,"ok":10,"rps":5,"cpu_us_per_req_server":2.5,"cpu_us_per_req_redis":3}`, redis: true},
		{name: "refused", prints: `{"requests":10,"ok":8,"over_limit":2,"rps":5,"cpu_us_per_req_server":2.5}`, wantErr: "2 requests were refused"},
		{name: "passed", prints: `{"requests":10,"ok":8,"over_limit":2,"rps":5,"cpu_us_per_req_server":2.5}`, wantErr: "8 requests passed", refused: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "loadgen")
			if err := os.WriteFile(program, []byte("#!/bin/sh\necho '"+tt.prints+"'\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			c := config{loadgen: program, conns: 1, inflight: 1, rounds: 1, duration: time.Second}
			kind := traffic{template: "a=b", keys: 1, refused: tt.refused, redis: tt.redis}
			s, err := c.load(t.Context(), kind, watched{ratelimitd, self, redis})
			if err == nil {
				err = s.check(kind, watched{name: ratelimitd})
			}
			switch {
			case tt.wantErr == "" && err != nil:
				t.Errorf("load: %v", err)
			case tt.wantErr != "" && (err == nil || !strings.Contains(err.Error(), tt.wantErr)):
				t.Errorf("load: %v, want an error with %q", err, tt.wantErr)
			}
		})
	}
}

// tellsOfScripts returns the address of a server that answers any command with the statistics that Redis has of
// commands.
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
	redis, err := startRedis(t.Context(), "redis-server", t.TempDir(), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.stop)
	s, err := config{duration: 100 * time.Millisecond}.loadPairs(t.Context(), redis.addr)
	if err != nil || s.Requests < pipelined || s.Rate <= 0 || s.Redis <= 0 {
		t.Errorf("loadPairs = %+v, %v; want at least %d pairs, and what they cost", s, err, pipelined)
	}
	stats, err := info(t.Context(), redis.addr, "commandstats")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdstat_incrby", "cmdstat_expire"} {
		if want := fmt.Sprintf("calls=%d,", s.Requests+pipelined); !strings.HasPrefix(stats[name], want) {
			t.Errorf("%s:%s, want %s with the pipeline of the warmup", name, stats[name], want)
		}
	}
}

func TestPeerRules(t *testing.T) {
	t.Parallel()
	if got := peerRules(); strings.Contains(got, "algorithm") || strings.Count(got, "rate_limit") != strings.Count(rules, "rate_limit") {
		t.Errorf("the peer's rules are\n%swant the same without algorithms", got)
	}
}
