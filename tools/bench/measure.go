package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// measure starts the servers, loads them alternately, and returns the results.
func (c config) measure(ctx context.Context, stderr io.Writer) (all results, err error) {
	some, err := c.chosen()
	if err != nil {
		return all, err
	}
	if c.envoy == "" && !c.check {
		fmt.Fprintln(stderr, "rows through Envoy are left out: there is no -envoy")
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return all, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := writeRules(dir); err != nil {
		return all, err
	}
	how := taken{Date: time.Now().UTC().Truncate(time.Second), Seed: c.seed}
	if how.Versions, err = c.programs(ctx); err != nil {
		return all, err
	}
	all = results{proc.ThisMachine(), map[string]result{}}
	// Rows through Envoy have their own servers, and overload has servers on their own processors. They do not run while
	// others are measured.
	const pinned = 2
	var groups [3][]row
	for _, r := range some {
		i := map[part]int{throughEnvoy: 1, overloads: pinned}[r.part]
		groups[i] = append(groups[i], r)
		at := c.at(r.part)
		how.Rounds, how.Seconds = at.rounds, at.duration.Seconds()
		all.Rows[r.name] = result{Taken: how, Servers: map[string][][]sample{}}
	}
	theirs, ours, err := proc.Processors()
	if err != nil && len(groups[pinned]) > 0 {
		return all, err
	}
	for i, group := range groups {
		if len(group) == 0 {
			continue
		}
		s := &servers{c: c, dir: dir, stderr: stderr}
		if i == pinned {
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

// play loads the servers with all rows in each round.
func (c config) play(ctx context.Context, s *servers, some []row, all results) error {
	if err := s.start(ctx, some); err != nil {
		return err
	}
	fmt.Fprintf(s.stderr, "%d rows, about %v\n", len(some), c.estimate(s, some).Round(time.Second))
	for n := 0; ; n++ {
		now := slices.DeleteFunc(slices.Clone(some), func(r row) bool { return n >= c.at(r.part).rounds })
		if len(now) == 0 {
			break
		}
		fmt.Fprintf(s.stderr, "round %d\n", n+1)
		if err := c.round(ctx, s, now, all); err != nil {
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
func (c config) round(ctx context.Context, s *servers, some []row, all results) error {
	for _, r := range some {
		fmt.Fprintf(s.stderr, "\t%s\n", r.name)
		one := all.Rows[r.name]
		if paired(r) {
			pair, err := c.at(r.part).loadPairs(ctx, s.redis.addr)
			if err != nil {
				return fmt.Errorf("loading Redis with INCRBY and EXPIRE: %w", err)
			}
			one.Pairs = append(one.Pairs, pair)
		}
		now, err := c.at(r.part).loadAll(ctx, s, r)
		if err != nil {
			return fmt.Errorf("loading servers for %s: %w", r.name, err)
		}
		for name, samples := range now {
			one.Servers[name] = append(one.Servers[name], samples)
		}
		all.Rows[r.name] = one
	}
	return nil
}

// loadAll loads each server once with a row, and returns the samples by server.
func (c config) loadAll(ctx context.Context, s *servers, r row) (map[string][]sample, error) {
	if r.part == many {
		return c.loadMany(ctx, s, r)
	}
	all := map[string][]sample{}
	for _, w := range s.of(r) {
		samples, err := c.load(ctx, r, w)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		all[w.name] = samples
	}
	return all, nil
}

// paired reports whether a row is compared with pairs of INCRBY and EXPIRE.
func paired(r row) bool { return r.store != memory && (r.part == costs || r.part == connections) }

// estimate returns the duration of rows.
func (c config) estimate(s *servers, some []row) (sum time.Duration) {
	for _, r := range some {
		at := c.at(r.part)
		loads := max(1, len(r.steps)) * len(s.of(r))
		if r.part == overloads {
			loads += len(s.of(r))
		}
		if paired(r) {
			loads++
		}
		if r.part == many {
			loads = 2
			sum += time.Duration(at.rounds*r.of()) * 10 * time.Microsecond // time to fill the counters
		}
		sum += time.Duration(at.rounds*loads) * (at.warmup + at.duration)
	}
	return sum
}

// at returns the configuration for a part. Unless flags set them, it uses more rounds for ratios, because the speed of a
// machine may change within seconds.
func (c config) at(p part) config {
	rounds, lasts := 3, 2*time.Second
	switch p {
	case costs, many:
		rounds, lasts = 8, time.Second
	case connections, throughEnvoy:
		rounds, lasts = 5, time.Second
	case rates, overloads: // for latencies and goodput
	}
	c.rounds, c.duration = cmp.Or(c.rounds, rounds), cmp.Or(c.duration, lasts)
	return c
}
