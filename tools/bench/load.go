package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// envoyTimeout is Envoy's default timeout of calls.
const envoyTimeout = 20 * time.Millisecond

// load runs all steps of a row on a server.
func (c config) load(ctx context.Context, r row, w watched) ([]sample, error) {
	scripts, err := w.scripts(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	cmd := proc.Command(ctx, w.load, c.loadgen, c.arguments(r, w)...)
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%s: %w: %s", c.loadgen, err, exit.Stderr)
	}
	if err != nil {
		return nil, err
	}
	took := time.Since(begin).Seconds()
	after, err := w.scripts(ctx)
	if err != nil {
		return nil, err
	}
	var all []sample
	for lines := json.NewDecoder(bytes.NewReader(out)); ; {
		s := sample{Scripts: float64(after-scripts) / took}
		err := lines.Decode(&s)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading what %s printed: %w: %q", c.loadgen, err, out)
		}
		if err := s.check(r, w, took); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s printed nothing", c.loadgen)
	}
	return all, nil
}

// arguments returns the arguments of loadgen.
func (c config) arguments(r row, w watched) []string {
	addr := w.listener
	if w.envoy == nil {
		addr = w.server.addr
	}
	var watch []string
	for name, p := range map[string]*process{"server": w.server, "redis": w.redis, "envoy": w.envoy} {
		if p != nil {
			watch = append(watch, name+"="+strconv.Itoa(p.PID()))
		}
	}
	args := []string{
		"-addr", addr, "-domain", "bench", "-template", r.template, "-keys", strconv.Itoa(r.keys), "-seed", strconv.FormatUint(c.seed, 10),
		"-warmup", c.warmup.String(), "-duration", c.duration.String(), "-watch", strings.Join(watch, ","),
	}
	if r.conns > 0 {
		args = append(args, "-conns", strconv.Itoa(r.conns))
	}
	if r.inflight > 0 {
		args = append(args, "-inflight", strconv.Itoa(r.inflight))
	}
	steps := make([]string, len(r.steps))
	for i, x := range r.steps {
		steps[i] = strconv.FormatFloat(x, 'f', -1, 64)
	}
	if r.once {
		args = append(args, "-once")
	}
	switch r.part {
	case rates:
		args = append(args, "-rates", strings.Join(steps, ","))
	case overloads:
		args = append(args, "-domain", "overload", "-times", strings.Join(steps, ","), "-timeout", envoyTimeout.String())
	case throughEnvoy:
		args = append(args, "-http")
	case costs, connections, many: // a closed loop
	}
	return args
}

// firstScripts is the number of scripts that may run until the near cache knows that many concurrent clients are over
// their limit, and until leases of the previous row are refunded.
const firstScripts = 64

// check returns an error if the answers of a server contradict the rules, or if ratelimitd called Redis too often. An
// open loop may exceed the capacity of the server.
func (s sample) check(r row, w watched, took float64) error {
	open := r.part == rates || r.part == overloads
	switch {
	case s.Requests == 0 || s.CPU.Server <= 0 && w.server != nil && !r.once || s.Failed+s.Late > 0 && !open:
		return fmt.Errorf("%d requests, %d failed, %d late, %g µs each: nothing to compare", s.Requests, s.Failed, s.Late, s.CPU.Server)
	case w.name == idleServer || w.name == tunedIdle || r.part == overloads:
		return nil
	case r.rejected && r.second == 0 && s.OK > 0 || s.OK > 1 && r.rejected:
		return fmt.Errorf("%d requests passed that are over their limit", s.OK)
	case !r.rejected && s.Over > 0:
		return fmt.Errorf("%d requests were rejected that are under their limit", s.Over)
	case w.name == peer:
		return nil
	case r.scripts > 0 && s.Scripts > r.scripts*s.Rate:
		return fmt.Errorf("it took Redis %.0f scripts for %.0f requests a second", s.Scripts, s.Rate)
	case r.second > 0 && s.Scripts*took > r.second*took+firstScripts:
		return fmt.Errorf("it took Redis %.1f scripts a second", s.Scripts)
	case r.store != memory && r.scripts == 0 && r.second == 0 && s.CPU.Redis <= 0:
		return errors.New("it used no processor time of Redis")
	}
	return nil
}

// scripts returns the number of scripts that Redis has run, by any command; 0 without Redis.
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
			continue // none so far
		}
		scripts, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading what Redis says of its commands: %w", err)
		}
		sum += scripts
	}
	return sum, nil
}
