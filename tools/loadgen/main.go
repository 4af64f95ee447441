// Command loadgen loads a RateLimitService over raw HTTP/2 frames. It prints a line of JSON with the outcomes of the calls, their
// latencies, and the processor time that other processes spent on them.
//
// By default, it runs a closed loop, which keeps -inflight calls open on each connection. With -rates, it runs an open loop at each of
// these rates for -duration, regardless of the answers; latencies count from when calls were due. With -once, it calls with each key
// once and ends. With -times, it first measures the maximum rate in a closed loop, and then offers these multiples of it. Each step
// prints a line.
//
// With -http, it runs a closed loop over HTTP/1.1, for a proxy that calls a RateLimitService. Status 200 counts as OK, 429
// as over the limit, and others as failed.
//
//	loadgen -addr 127.0.0.1:8081 -domain shop -template 'user=u%d' -keys 100000 -watch server=1234,redis=1235
//	loadgen -addr 127.0.0.1:8081 -domain shop -template 'user=u%d|path=/x' -rates 1000,5000 -conns 50
//	loadgen -addr 127.0.0.1:10000 -http -template 'x-user: u%d' -keys 10000 -conns 8
//	taskset -c 1 loadgen -addr 127.0.0.1:8081 -domain shop -template 'user=u%d' -times 0.5,1,2,5 -timeout 20ms
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
)

// config describes the calls and their rates.
type config struct {
	load             calls.Load
	domain, template string
	keys             int
	zipf             float64
	seed             uint64
	rates, times     []float64
	once             bool
	warmup, duration time.Duration
	watch            []watched
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	if c.load.HTTP {
		c.load.Requests = calls.Get(c.template, c.keys)
	} else {
		c.load.Requests = calls.Numbered(c.domain, c.template, c.keys)
	}
	if n := slices.MaxFunc(c.load.Requests, func(a, b []byte) int { return len(a) - len(b) }); len(n) == 0 || len(n) > calls.Largest {
		return fmt.Errorf("-template: want UTF-8, and at most %d bytes for a request, not %d: a call is one frame", calls.Largest, len(n))
	}
	if err := reach(ctx, c.load); err != nil {
		return err
	}
	out := json.NewEncoder(stdout)
	rates := c.rates
	if len(c.times) > 0 {
		atOnce := c
		atOnce.load.Timeout = 0 // the peak must not depend on the number of open calls
		peak, err := atOnce.step(ctx, 0)
		if err != nil {
			return err
		}
		peak.Peak = true
		if err := out.Encode(peak); err != nil {
			return err
		}
		for _, k := range c.times {
			rates = append(rates, k*peak.Good)
		}
	}
	if len(rates) == 0 {
		rates = []float64{0}
	}
	for _, rate := range rates {
		r, err := c.measure(ctx, rate)
		if err != nil {
			return err
		}
		if err := out.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// reach returns an error if no server listens at the address.
func reach(ctx context.Context, l calls.Load) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, l.Network, l.Addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// parse parses the flags.
func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("loadgen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.load.Network, "network", "tcp", "tcp or unix")
	flags.StringVar(&c.load.Addr, "addr", "127.0.0.1:8081", "where the server is")
	flags.StringVar(&c.domain, "domain", "bench", "the domain of the requests; %d is the number of the key")
	flags.StringVar(&c.template, "template", "key1=hot", "their descriptors: '|' between descriptors, ',' between entries, %d is the number of the key")
	flags.IntVar(&c.keys, "keys", 1, "how many keys there are")
	flags.Float64Var(&c.zipf, "zipf", 0, "exponent, above 1, of a Zipf distribution of the keys; 0 draws each as often")
	flags.Uint64Var(&c.seed, "seed", 1, "which keys are drawn")
	flags.IntVar(&c.load.Conns, "conns", 4, "connections")
	flags.IntVar(&c.load.Inflight, "inflight", 32, "open calls on each connection, of a closed loop")
	flags.BoolVar(&c.once, "once", false, "a closed loop that calls with each key once, in turn, and measures all of that")
	flags.BoolVar(&c.load.HTTP, "http", false, "GET / over HTTP/1.1, one call at a time on each connection; -template is a header, such as 'x-user: u%d'")
	flags.DurationVar(&c.load.Timeout, "timeout", 0, "tell the server that there is so much time for a call, and reset it then, as Envoy does; 0 waits")
	flags.DurationVar(&c.warmup, "warmup", time.Second, "how long to call before measuring, at each rate")
	flags.DurationVar(&c.duration, "duration", 5*time.Second, "how long to measure, at each rate")
	flags.Func("rates", "calls a second in all, of an open loop, between commas", numbers(&c.rates))
	flags.Func("times", "the same, as multiples of the most that a closed loop reaches", numbers(&c.times))
	flags.Func("watch", "NAME=PID of processes whose processor time counts, between commas", func(s string) error {
		c.watch, err = watchedIn(s)
		return err
	})
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	switch {
	case flags.NArg() > 0:
		return c, fmt.Errorf("want flags alone, not %q", flags.Args())
	case len(c.rates) > 0 && len(c.times) > 0 || c.once && len(c.rates)+len(c.times) > 0:
		return c, fmt.Errorf("-rates, -times and -once: want one of them")
	case c.load.HTTP && (len(c.rates)+len(c.times) > 0 || c.load.Timeout > 0):
		return c, fmt.Errorf("-http is a closed loop without a time-out: want none of -rates, -times and -timeout")
	case c.once && c.zipf != 0:
		return c, fmt.Errorf("-zipf and -once: want one of them")
	case c.keys < 1 || c.load.Conns < 1 || c.load.Inflight < 1 || c.duration <= 0 || c.warmup < 0 || c.load.Timeout < 0:
		return c, fmt.Errorf("want at least one of -keys, -conns and -inflight, a -duration above 0, and no negative -warmup or -timeout")
	case c.zipf != 0 && (c.zipf <= 1 || c.keys < 2):
		return c, fmt.Errorf("-zipf %g: want 0, or more than 1 and several -keys", c.zipf)
	}
	return c, nil
}

// numbers returns a flag function that parses positive numbers.
func numbers(to *[]float64) func(string) error {
	return func(s string) error {
		for text := range strings.SplitSeq(s, ",") {
			x, err := strconv.ParseFloat(text, 64)
			if err != nil || !(x > 0) || x > 1e9 {
				return fmt.Errorf("want numbers above 0 between commas, not %q", text)
			}
			*to = append(*to, x)
		}
		return nil
	}
}

// measure measures calls at a rate, or in a closed loop if rate is 0.
func (c config) measure(ctx context.Context, rate float64) (report, error) {
	if c.once {
		return c.each(ctx)
	}
	return c.step(ctx, rate)
}

// each calls with each key once.
func (c config) each(ctx context.Context) (report, error) {
	l := c.load
	l.Total = c.keys
	t := newTally(0, math.MaxInt64, l.Timeout)
	l.Each = t.add
	before, err := spent(c.watch)
	if err != nil {
		return report{}, err
	}
	running := l.Start(ctx)
	running.Wait()
	took := time.Since(running.Began())
	after, err := spent(c.watch)
	if err := errors.Join(err, ctx.Err()); err != nil {
		return report{}, err
	}
	r := t.report(took)
	r.charge(before, after, took)
	return r, nil
}

// step calls at a rate, or in a closed loop if rate is 0.
func (c config) step(ctx context.Context, rate float64) (report, error) {
	l := c.load
	if rate > 0 {
		l.At = calls.Evenly(rate, l.Conns)
	}
	l.Pick = c.pick()
	t := newTally(c.warmup, c.warmup+c.duration, l.Timeout)
	l.Each = t.add
	running := l.Start(ctx)
	if err := sleep(ctx, time.Until(running.Began().Add(c.warmup))); err != nil {
		running.Stop()
		return report{}, err
	}
	before, err := spent(c.watch)
	if err == nil {
		err = sleep(ctx, time.Until(running.Began().Add(c.warmup+c.duration)))
	}
	took := time.Since(running.Began()) - c.warmup
	after, err2 := spent(c.watch)
	running.Stop()
	if err == nil {
		err = err2
	}
	if err != nil {
		return report{}, err
	}
	r := t.report(c.duration)
	r.Offered = rate
	r.charge(before, after, took)
	return r, nil
}

// pick returns a function by which each connection draws keys.
func (c config) pick() func(conn, n int) int {
	draws := make([]func() int, c.load.Conns)
	for i := range draws {
		rng := rand.New(rand.NewPCG(c.seed, uint64(i)))
		draws[i] = func() int { return rng.IntN(c.keys) }
		if c.zipf > 0 {
			z := rand.NewZipf(rng, c.zipf, 1, uint64(c.keys-1))
			draws[i] = func() int { return int(z.Uint64()) }
		}
	}
	return func(conn, _ int) int { return draws[conn]() }
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
