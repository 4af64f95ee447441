package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// measure starts the servers, loads them in turn, and returns what came of it.
func (c config) measure(ctx context.Context, stderr io.Writer) (all results, err error) {
	some, err := c.chosen()
	if err != nil {
		return all, err
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return all, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := writeRules(dir); err != nil {
		return all, err
	}
	how := taken{Date: time.Now().UTC().Truncate(time.Second), Rounds: c.rounds, Seconds: c.duration.Seconds(), Seed: c.seed}
	if how.Versions, err = c.programs(ctx); err != nil {
		return all, err
	}
	all = results{proc.ThisMachine(), map[string]result{}}
	// Overload has servers of its own, on a processor of their own, which are not there while the others are measured.
	var groups [2][]row
	for _, r := range some {
		i := 0
		if r.part == overloads {
			i = 1
		}
		groups[i] = append(groups[i], r)
		all.Rows[r.name] = result{Taken: how, Servers: map[string][][]sample{}}
	}
	theirs, ours, err := proc.Processors()
	if err != nil && len(groups[1]) > 0 {
		return all, err
	}
	for i, group := range groups {
		if len(group) == 0 {
			continue
		}
		s := &servers{c: c, dir: dir, stderr: stderr}
		if i == 1 {
			s.processors, s.load = strconv.Itoa(theirs), strconv.Itoa(ours)
		}
		err := c.play(ctx, s, group, all)
		s.stop()
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

// play loads the servers with rows, all of them in each round.
func (c config) play(ctx context.Context, s *servers, some []row, all results) error {
	if err := s.start(ctx, some); err != nil {
		return err
	}
	fmt.Fprintf(s.stderr, "%d rows, about %v\n", len(some), c.estimate(s, some).Round(time.Second))
	for n := range c.rounds {
		if err := c.round(ctx, s, some, all, n); err != nil {
			return err
		}
	}
	for _, r := range some {
		if !r.profile || c.check {
			continue
		}
		fmt.Fprintf(s.stderr, "profile: %s\n", r.name)
		one, err := all.Rows[r.name], error(nil)
		if one.Profile, err = c.look(ctx, s, r); err != nil {
			return fmt.Errorf("looking where the time of %s goes: %w", r.name, err)
		}
		all.Rows[r.name] = one
	}
	return nil
}

// round loads each server once with each row.
func (c config) round(ctx context.Context, s *servers, some []row, all results, n int) (err error) {
	var pair sample
	if slices.ContainsFunc(some, paired) {
		if pair, err = c.loadPairs(ctx, s.redis.addr); err != nil {
			return fmt.Errorf("loading Redis with INCRBY and EXPIRE: %w", err)
		}
	}
	for _, r := range some {
		fmt.Fprintf(s.stderr, "round %d of %d: %s\n", n+1, c.rounds, r.name)
		one := all.Rows[r.name]
		if paired(r) {
			one.Pairs = append(one.Pairs, pair)
		}
		for _, w := range s.of(r) {
			samples, err := c.load(ctx, r, w)
			if err != nil {
				return fmt.Errorf("loading %s with %s: %w", w.name, r.name, err)
			}
			one.Servers[w.name] = append(one.Servers[w.name], samples)
		}
		all.Rows[r.name] = one
	}
	return nil
}

// paired says whether a row is compared with pairs of INCRBY and EXPIRE.
func paired(r row) bool { return r.store != memory && (r.part == costs || r.part == connections) }

// estimate returns how long rows take.
func (c config) estimate(s *servers, some []row) time.Duration {
	loads := 0
	for _, r := range some {
		steps := max(1, len(r.steps))
		if r.part == overloads {
			steps++
		}
		loads += steps * len(s.of(r))
	}
	if slices.ContainsFunc(some, paired) {
		loads++
	}
	return time.Duration(c.rounds*loads) * (c.warmup + c.duration)
}
