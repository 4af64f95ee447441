package main

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

func TestPrintTable(t *testing.T) {
	t.Parallel()
	var r result
	r.add(sample{CPU: 10, Rate: 1000}, sample{CPU: 8, Rate: 1200})
	r.add(sample{CPU: 10, Rate: 1000}, sample{CPU: 12, Rate: 900})
	r.add(sample{CPU: 20, Rate: 800}, sample{CPU: 18, Rate: 1000})
	var out strings.Builder
	if err := printTable(&out, []traffic{{name: "one key"}}, []result{r}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if got, want := strings.Join(strings.Fields(lines[1]), " "), "one key 1000 10.0 1000 12.0 0.90 0.80 1.20 – –"; len(lines) != 2 || got != want {
		t.Errorf("table is\n%swant a second line of %q", out.String(), want)
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
			s, err := c.load(t.Context(), kind, watched{self, redis})
			if err == nil {
				err = s.check(kind)
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
