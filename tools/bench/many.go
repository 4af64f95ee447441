package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// fillTime is the timeout of calling with each key once.
const fillTime = 2 * time.Minute

// few is the number of rules or counters of the server for comparison.
const few = 10

// state is the memory and the start of a server that was started for a sample.
type state struct {
	Of       int     `json:"of"`             // number of rules or counters
	Ready    float64 `json:"ready_s"`        // from its start until it was ready
	Starting float64 `json:"starting_cpu_s"` // processor time until it was ready
	Live     float64 `json:"live_bytes"`     // live heap after a collection
	Resident float64 `json:"resident_bytes"` // maximum
	Pause    float64 `json:"pause_ms"`       // longest stop of the world by the garbage collector
}

// of returns the number of rules or counters of a row.
func (r row) of() int { return max(r.rules, r.keys) }

// withFew returns the row with few rules or counters to compare a row with.
func (r row) withFew() row {
	r.rules, r.keys = min(r.rules, few), min(r.keys, few)
	return r
}

// directory returns the directory of a row's rules, below that of all rules.
func (r row) directory() string {
	if r.rules == 0 {
		return "ours"
	}
	return strconv.Itoa(r.rules) + "-rules"
}

// writeMany writes the rules of a row with a number of them, a limit for each value of a key.
func writeMany(dir string, r row) error {
	if r.rules == 0 {
		return nil
	}
	var text strings.Builder
	text.WriteString("domain: bench\ndescriptors:\n")
	for i := range r.rules {
		fmt.Fprintf(&text, "  - {key: user, value: u%d, rate_limit: {unit: year, requests_per_unit: 4294967295}}\n", i)
	}
	path := filepath.Join(dir, r.directory(), "config")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, "bench.yaml"), []byte(text.String()), 0o600)
}

// loadMany starts a server with many rules or counters and one with few, loads one directly after the other, and stops
// them.
func (c config) loadMany(ctx context.Context, s *servers, r row) (map[string][]sample, error) {
	both := []row{r.withFew(), r}
	var started [2]*process
	var states [2]state
	defer func() {
		for _, p := range started {
			if p != nil {
				_, _ = p.Stop() // its shutdown is not measured
			}
		}
	}()
	for i, r := range both {
		var err error
		if started[i], states[i], err = c.startMany(ctx, s, r); err != nil {
			return nil, fmt.Errorf("with %d: %w", r.of(), err)
		}
	}
	all := map[string][]sample{}
	for i, name := range []string{fewServer, ratelimitd} {
		samples, err := c.load(ctx, both[i], watched{name: name, server: started[i], load: s.load})
		if err != nil {
			return nil, fmt.Errorf("with %d: %w", both[i].of(), err)
		}
		samples[0].State, all[name] = &states[i], samples
	}
	for i := range both {
		if err := states[i].look(ctx, started[i], both[i].keys); err != nil {
			return nil, fmt.Errorf("with %d: %w", both[i].of(), err)
		}
	}
	return all, nil
}

// startMany starts a server for a row, and calls with each key once. If p is not nil, the caller must stop it.
func (c config) startMany(ctx context.Context, s *servers, r row) (p *process, now state, err error) {
	begin := time.Now()
	if p, err = s.startServer(ctx, c.server, filepath.Join(s.dir, r.directory()), "BACKEND_TYPE=memory"); err != nil {
		return nil, now, err
	}
	now = state{Of: r.of(), Ready: time.Since(begin).Seconds()}
	busy, err := proc.Busy(p.PID())
	if err != nil {
		return p, now, err
	}
	now.Starting = busy.Seconds()
	r.once = true
	filling, cancel := context.WithTimeout(ctx, fillTime)
	defer cancel()
	if _, err := c.load(filling, r, watched{name: ratelimitd, server: p, load: s.load}); err != nil {
		return p, now, fmt.Errorf("calling with each key once: %w", err)
	}
	return p, now, nil
}

// look records the memory of a server with this number of counters, and its longest stop by the garbage collector.
func (s *state) look(ctx context.Context, p *process, counters int) error {
	metrics, err := proc.Get(ctx, "http://"+p.debug+"/metrics")
	if err != nil {
		return err
	}
	if proc.Series(metrics)["ratelimitd_memory_keys"] != float64(counters) {
		return fmt.Errorf("it does not have %d counters", counters)
	}
	resident, err := p.Memory("VmHWM")
	if err != nil {
		return err
	}
	s.Resident = float64(resident)
	var heap string
	for range 2 { // pools survive one collection
		if heap, err = proc.Get(ctx, "http://"+p.debug+"/debug/pprof/heap?gc=1&debug=1"); err != nil {
			return err
		}
	}
	return s.read(heap)
}

// read reads Go's memory statistics at the end of a heap profile in text form.
func (s *state) read(profile string) error {
	s.Live, s.Pause = math.NaN(), math.NaN()
	for line := range strings.Lines(profile) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		switch name {
		case "# HeapAlloc":
			s.Live, _ = strconv.ParseFloat(value, 64) // 0 is rejected below
		case "# PauseNs": // the last 256 collections
			s.Pause = 0
			for ns := range strings.FieldsSeq(strings.Trim(value, "[]")) {
				x, err := strconv.ParseFloat(ns, 64)
				if err != nil {
					return fmt.Errorf("reading what Go says of pauses: %w", err)
				}
				s.Pause = max(s.Pause, x/1e6)
			}
		}
	}
	if !(s.Live > 0 && s.Pause > 0) {
		return errors.New("the heap profile says nothing of memory or of pauses")
	}
	return nil
}

// states returns a number of the server's state in each round, or nil if one is missing.
func states(samples []sample, number func(state) float64) (all []float64) {
	for _, s := range samples {
		if s.State == nil {
			return nil
		}
		all = append(all, number(*s.State))
	}
	return all
}

// eachTakes returns the bytes per additional rule or counter, from the live heaps with many and with few.
func eachTakes(ours, withFew []sample) (all []float64) {
	if len(ours) != len(withFew) {
		return nil
	}
	for i, s := range ours {
		a, b := s.State, withFew[i].State
		if a == nil || b == nil || a.Of <= b.Of {
			return nil
		}
		all = append(all, (a.Live-b.Live)/float64(a.Of-b.Of))
	}
	return all
}

// Numbers of states to print.
func ready(s state) float64    { return s.Ready }
func starting(s state) float64 { return s.Starting }
func live(s state) float64     { return s.Live / (1 << 20) }
func resident(s state) float64 { return s.Resident / (1 << 20) }
func pauses(s state) float64   { return s.Pause }
