package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// quotaLimit is the limit of the scene about RLQS. Its window does not end during the scene.
const quotaLimit = 3000

// The RLQS clients and the calls together ask for more than the limit.
const (
	quotaDemand = 60 // requests per second of each client
	quotaFor    = 20 * time.Second
)

// withQuotas tests RLQS clients, one at each replica, and calls on the same counter. Together they get no more than the limit.
func withQuotas(g *stage) {
	ctx, cancel := context.WithTimeout(g.ctx, quotaFor)
	defer cancel()
	var clients []*rlqstest.Client
	var all sync.WaitGroup
	for _, r := range g.on {
		c := rlqstest.New(g.domain, "k", "v", rlqstest.Config{NoAssignment: sharestest.DenyAll})
		clients = append(clients, c)
		all.Go(func() { c.Run(ctx, quotaDemand, r.conn) })
	}
	calls, decided := 0, uint64(0)
	for ctx.Err() == nil {
		if g.ask(take(1)).ok {
			calls++
		}
		time.Sleep(10 * time.Millisecond)
	}
	all.Wait()
	for _, c := range clients {
		decided += c.Admitted()
	}
	if sum := uint64(calls) + decided; sum > quotaLimit || calls == 0 || decided == 0 {
		g.finds("calls got %d and clients that decide by themselves %d of %d", calls, decided, quotaLimit)
	}
}

// trial is a random scene about RLQS, on two replicas with their own Redis.
type trial struct {
	drawer
	*cluster

	ctx    context.Context //nolint:containedctx // a scene depends on nothing else
	crowds []*crowd
	told   []string // measurements
	wrong  []string
	trail  []string // history of violations
}

// quotaReplicas is the number of servers that divide a limit.
const quotaReplicas = 2

// trials returns the scenes about RLQS by title.
func trials() map[string]func(*trial) error {
	return map[string]func(*trial) error{
		"Envoys beside callers":     besideCallers,
		"Envoys without a store":    withoutStore,
		"floods in a strict window": floodWindows,
	}
}

// playQuotas plays all trials with a seed concurrently.
func (c *config) playQuotas(ctx context.Context, seed int64, sum *tally) error {
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	stalls := watchStalls(ctx)
	for title, play := range trials() {
		all.Go(func() {
			t, err := c.playQuota(ctx, seed, play)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = fmt.Errorf("playing %s: %w", title, err)
				return
			}
			sum.found += len(t.wrong)
			for _, w := range t.crowds {
				sum.calls += w.calls
			}
			t.report(c, title)
		})
	}
	all.Wait()
	again := ""
	if sum.found > 0 {
		again = fmt.Sprintf("; these again with make exact QUOTAS=%d", seed)
	}
	fmt.Fprintf(c.stdout, "%d scenes with fake Envoys, seed %d, %s: %d findings in all%s\n", len(trials()), seed, stalls(), sum.found, again)
	return errorOf(ctx, failed)
}

// playQuota plays a trial.
func (c *config) playQuota(ctx context.Context, seed int64, play func(*trial) error) (*trial, error) {
	dir, err := os.MkdirTemp("", "exact")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cl, err := newCluster(ctx, *c, dir)
	if err != nil {
		return nil, err
	}
	defer cl.stop()
	t := &trial{cluster: cl, drawer: drawer{rand.New(rand.NewPCG(uint64(seed), 0))}, ctx: ctx}
	return t, errorOf(ctx, play(t))
}

// serve starts n replicas with the rules of one domain.
func (t *trial) serve(n int, domain string, rules ...string) error {
	yaml := fmt.Sprintf("domain: %s\ndescriptors:\n  - %s\n", domain, strings.Join(rules, "\n  - "))
	for range n {
		if _, err := t.add(t.ctx, map[string]string{domain: yaml}); err != nil {
			return err
		}
	}
	return nil
}

// joins adds a crowd.
func (t *trial) joins(domain, key string) *crowd {
	w := &crowd{domain: domain, key: key}
	t.crowds = append(t.crowds, w)
	return w
}

func (t *trial) says(format string, args ...any) {
	t.told = append(t.told, fmt.Sprintf(format, args...))
}

func (t *trial) finds(format string, args ...any) {
	t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
}

// trails records the history of a crowd between two times.
func (t *trial) trails(w *crowd, what string, from, to proof.Micros) {
	t.trail = append(append(t.trail, what+":"), w.trace(from, to)...)
}

// window is a minute.
const window = proof.Micros(60_000_000)

func secondsOf(m proof.Micros) float64 { return float64(m) / 1e6 }
func timeOf(m proof.Micros) time.Time  { return time.UnixMicro(int64(m)) }

// between draws a duration.
func (t *trial) between(least, most time.Duration) time.Duration {
	return least + time.Duration(t.Int64N(int64(most-least)))
}

// rest waits for d, or until the run ends.
func (t *trial) rest(d time.Duration) {
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	}
}

// report prints measurements and violations.
func (t *trial) report(c *config, title string) {
	fmt.Fprintf(c.stdout, "%s:\n", title)
	for _, text := range t.told {
		fmt.Fprintf(c.stdout, "  %s\n", text)
	}
	for _, text := range t.wrong {
		fmt.Fprintf(c.stdout, "FOUND in %s: %s\n", title, text)
	}
	for _, text := range t.trail {
		fmt.Fprintf(c.stdout, "    %s\n", text)
	}
}

// stall is the minimum length of a reported pause of this process, in which messages are late.
const stall = 100 * time.Millisecond

// watchStalls detects pauses of this process, which may affect the servers too. stop ends the watch and returns a summary.
func watchStalls(ctx context.Context) (stop func() string) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	times, longest, sum := 0, time.Duration(0), time.Duration(0)
	go func() {
		defer close(done)
		for last := time.Now(); ctx.Err() == nil; {
			time.Sleep(stall / 10)
			if d := time.Since(last); d > stall {
				times, longest, sum = times+1, max(longest, d), sum+d
			}
			last = time.Now()
		}
	}()
	return func() string {
		cancel()
		<-done
		return fmt.Sprintf("this process stood still %d times for more than %v, %v in all, and %v at most",
			times, stall, sum.Round(time.Millisecond), longest.Round(time.Millisecond))
	}
}
