package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// profiled says where the processor time of a server goes.
type profiled struct {
	Seconds   float64 `json:"seconds"`  // of processor time that was sampled
	Packages  []share `json:"packages"` // by the package of the function that ran, the largest first
	Functions []share `json:"functions"`
}

// share is a part of all.
type share struct {
	Name string  `json:"name"`
	Part float64 `json:"part"`
}

// shown is how many of them are kept.
const shown = 12

// profileTime is how long a profile takes.
const profileTime = 5 * time.Second

// look loads ratelimitd with a row, not to be measured, and takes a profile meanwhile.
func (c config) look(ctx context.Context, s *servers, r row) (*profiled, error) {
	for _, w := range s.of(r) {
		if w.name != ratelimitd {
			continue
		}
		c.duration = profileTime + time.Second
		type loaded struct{ err error }
		done := make(chan loaded, 1)
		go func() {
			_, err := c.load(ctx, r, w)
			done <- loaded{err}
		}()
		time.Sleep(c.warmup)
		p, err := fetchProfile(ctx, w.server.debug)
		if l := <-done; err == nil {
			err = l.err
		}
		if err != nil {
			return nil, err
		}
		return digest(p), nil
	}
	return nil, nil
}

// fetchProfile takes a profile of a server.
func fetchProfile(ctx context.Context, addr string) (*profile.Profile, error) {
	text, err := proc.Get(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%.0f", addr, profileTime.Seconds()))
	if err != nil {
		return nil, err
	}
	return profile.ParseData([]byte(text))
}

// digest sums a profile up.
func digest(p *profile.Profile) *profiled {
	const cpu = 1 // the second value of a sample is nanoseconds
	packages, functions, all := map[string]float64{}, map[string]float64{}, 0.0
	for _, s := range p.Sample {
		if len(s.Location) == 0 || len(s.Location[0].Line) == 0 || len(s.Value) <= cpu {
			continue
		}
		name := s.Location[0].Line[0].Function.Name
		x := float64(s.Value[cpu])
		all += x
		packages[packageOf(name)] += x
		functions[name] += x
	}
	return &profiled{all / 1e9, largest(packages, all), largest(functions, all)}
}

// packageOf returns the package of a function, with what belongs together as one.
func packageOf(function string) string {
	path, name := "", function
	if i := strings.LastIndexByte(function, '/'); i >= 0 {
		path, name = function[:i+1], function[i+1:]
	}
	pkg, _, _ := strings.Cut(name, ".")
	return path + pkg
}

// largest returns the largest parts.
func largest(sums map[string]float64, all float64) (some []share) {
	for name, x := range sums {
		some = append(some, share{name, float64(int(1000*x/all+0.5)) / 1000})
	}
	slices.SortFunc(some, func(a, b share) int { return cmp.Or(cmp.Compare(b.Part, a.Part), cmp.Compare(a.Name, b.Name)) })
	return some[:min(shown, len(some))]
}
