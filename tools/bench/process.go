package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a running server.
type process struct {
	cmd  *exec.Cmd
	addr string // address on which it serves gRPC
}

// startIdle starts the idle server, which decides nothing.
func startIdle(ctx context.Context, program string, stderr io.Writer) (*process, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program, addr), addr: addr}
	return p, p.start(ctx, stderr, listens(addr))
}

// listens returns a function that checks whether something listens on addr.
func listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// startRedis starts a redis-server that writes nothing to disk.
func startRedis(ctx context.Context, program, dir string, stderr io.Writer) (*process, error) {
	addr, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, program, "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir), addr: addr}
	return p, p.start(ctx, stderr, listens(addr))
}

// startServer starts ratelimitd, or a server with the same variables, with the rules of the benchmark, which are below dir, and with additional variables.
func startServer(ctx context.Context, program, dir string, stderr io.Writer, store ...string) (*process, error) {
	env := append([]string{
		"USE_STATSD=false", "DRAIN_DELAY=0s",
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=", "RUNTIME_WATCH_ROOT=false",
		"HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1",
	}, store...)
	addrs := map[string]string{}
	for _, name := range []string{"PORT", "GRPC_PORT", "DEBUG_PORT"} {
		addr, err := freeAddr(ctx)
		if err != nil {
			return nil, err
		}
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, err
		}
		addrs[name] = addr
		env = append(env, name+"="+port)
	}
	p := &process{cmd: exec.CommandContext(ctx, program), addr: addrs["GRPC_PORT"]}
	p.cmd.Env = append(os.Environ(), env...)
	return p, p.start(ctx, stderr, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addrs["PORT"]+"/healthcheck", http.NoBody)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/healthcheck says %s", resp.Status)
		}
		return nil
	})
}

// start starts the process and waits until ready returns nil, for at most ten seconds.
func (p *process) start(ctx context.Context, stderr io.Writer, ready func(context.Context) error) error {
	p.cmd.Stderr = stderr
	if err := p.cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			p.stop()
			return fmt.Errorf("waiting for %s: %w", p.cmd.Path, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stop ends the process. It gives it three seconds to end by itself.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	kill := time.AfterFunc(3*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	_ = p.cmd.Wait() // its exit status does not matter any more
}

// freeAddr returns an address of this machine that was free a moment ago.
func freeAddr(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// sample is loadgen's report on one server.
type sample struct {
	Requests int64   `json:"requests"`
	OK       int64   `json:"ok"`
	Over     int64   `json:"over_limit"`
	Failed   int64   `json:"failed"`
	Rate     float64 `json:"rps"`
	P99      float64 `json:"p99_us"`
	CPU      float64 `json:"cpu_us_per_req_server"`
	Redis    float64 `json:"cpu_us_per_req_redis"`
	Scripts  float64 `json:"-"` // scripts that Redis ran, per second
	Seconds  float64 `json:"-"` // the time over which this was measured
}

// load loads a server for c.warmup and c.duration.
func (c config) load(ctx context.Context, kind traffic, w watched) (sample, error) {
	watch := "server=" + strconv.Itoa(w.server.cmd.Process.Pid)
	if w.redis != nil {
		watch += ",redis=" + strconv.Itoa(w.redis.cmd.Process.Pid)
	}
	cmd := exec.CommandContext(ctx, c.loadgen, "-addr", w.server.addr, "-domain", "bench", "-template", kind.template,
		"-keys", strconv.Itoa(kind.keys), "-conns", strconv.Itoa(c.conns), "-inflight", strconv.Itoa(c.inflight),
		"-warmup", c.warmup.String(), "-duration", c.duration.String(), "-rate", strconv.FormatFloat(c.rate, 'f', -1, 64), "-watch", watch)
	before, err := w.scripts(ctx)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return sample{}, fmt.Errorf("%s: %w: %s", c.loadgen, err, exit.Stderr)
	}
	if err != nil {
		return sample{}, err
	}
	after, err := w.scripts(ctx)
	if err != nil {
		return sample{}, err
	}
	took := time.Since(begin).Seconds()
	s := sample{Scripts: float64(after-before) / took, Seconds: took}
	if err := json.Unmarshal(out, &s); err != nil {
		return sample{}, fmt.Errorf("reading what %s printed: %w: %q", c.loadgen, err, out)
	}
	if s.Requests == 0 || s.Failed > 0 || s.CPU <= 0 {
		return s, fmt.Errorf("%d requests, %d failed, %g µs each: nothing to compare", s.Requests, s.Failed, s.CPU)
	}
	return s, nil
}

// scripts returns how many scripts Redis has run, by whichever command; 0 if there is no Redis.
func (w watched) scripts(ctx context.Context) (sum int64, err error) {
	if w.redis == nil {
		return 0, nil
	}
	lines, err := info(ctx, w.redis.addr, "commandstats")
	if err != nil {
		return 0, err
	}
	for _, name := range []string{"cmdstat_eval", "cmdstat_evalsha"} {
		_, rest, _ := strings.Cut(lines[name], "calls=")
		calls, _, _ := strings.Cut(rest, ",")
		if calls == "" {
			continue // none yet
		}
		scripts, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading what Redis says of its commands: %w", err)
		}
		sum += scripts
	}
	return sum, nil
}

// firstScripts is how many scripts may be needed until many clients that start at the same time are known to be over
// their limit.
const firstScripts = 16

// check returns an error if a server's answers are not those that the rules give, or if ratelimitd asked Redis too often.
func (s sample) check(kind traffic, w watched) error {
	switch {
	case w.name == idleServer:
		return nil
	case kind.refused && kind.second == 0 && s.OK > 0 || s.OK > 1 && kind.refused:
		return fmt.Errorf("%d requests passed that are over their limit", s.OK)
	case !kind.refused && s.Over > 0:
		return fmt.Errorf("%d requests were refused that are under their limit", s.Over)
	case w.name == peer:
		return nil
	case kind.scripts > 0 && s.Scripts > kind.scripts*s.Rate:
		return fmt.Errorf("it took Redis %.0f scripts for %.0f requests a second", s.Scripts, s.Rate)
	case kind.second > 0 && s.Scripts*s.Seconds > kind.second*s.Seconds+firstScripts:
		return fmt.Errorf("it took Redis %.1f scripts a second", s.Scripts)
	case kind.redis && kind.scripts == 0 && kind.second == 0 && s.Redis <= 0:
		return errors.New("it used no processor time of Redis")
	}
	return nil
}
