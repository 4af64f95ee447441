// Command exact is an adversary of ratelimitd: it tries to get more hits admitted than docs/algorithms.md permits, and to lose
// hits. It starts three replicas and one Redis, and plays random campaigns of gRPC calls: every algorithm, settings that differ
// between replicas and alternate, overrides, checks without hits, refunds, leases, reservations with repeated names, and replicas
// that die or are suspended. It reports only what the history of calls proves; see package proof. If no replicas die, it also
// compares the counters with the admitted hits. Before the campaigns it plays scenes, for which the page defines every answer, on
// such replicas and on a server with counters in memory. It also makes fake Envoys divide limits, within the bounds of package
// shares.
//
// All random choices depend on a seed, but results also depend on timing: a seed that failed once often fails again, but not
// always.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"time"
)

// config holds the options.
type config struct {
	server, redis string // paths
	seed          int64  // of the campaign to repeat; negative means random campaigns
	quotas        int64  // seed for only the trials of RLQS; negative means a random seed, and everything else too
	length        time.Duration
	each          time.Duration // length of a campaign
	stdout        io.Writer
	stderr        io.Writer
}

// errFound means that the server violated a bound.
var errFound = errors.New("found what must not be; see above")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, errFound):
		fmt.Fprintln(os.Stderr, "exact:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "exact:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c := config{stdout: stdout, stderr: stderr}
	flags := flag.NewFlagSet("exact", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.server, "server", "bin/ratelimitd", "the server to attack")
	flags.StringVar(&c.redis, "redis", "redis-server", "the Redis to use")
	flags.DurationVar(&c.length, "for", time.Minute, "how long to go on, with whole campaigns")
	flags.DurationVar(&c.each, "each", 7*time.Second, "how long a campaign lasts")
	flags.Int64Var(&c.seed, "seed", -1, "play the campaign with this seed again and again; 0 is that of what went wrong in the past")
	flags.Int64Var(&c.quotas, "quotas", -1, "play the scenes about Envoys that decide by themselves with this seed, and nothing else")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || c.length <= 0 || c.each <= 0 {
		return errors.New("want no arguments, and -for and -each above 0")
	}
	return c.attack(ctx)
}

// attack plays campaigns until the time is over: the one to repeat, or the past one followed by random ones.
func (c *config) attack(ctx context.Context) error {
	end := time.Now().Add(c.length)
	seed := max(c.seed, 0)
	var sum tally
	if c.quotas >= 0 {
		if err := c.playQuotas(ctx, c.quotas, &sum); err != nil {
			return err
		}
		return sum.err()
	}
	if c.seed <= 0 {
		if err := c.playScenes(ctx, &sum); err != nil {
			return fmt.Errorf("playing scenes: %w", err)
		}
		if err := c.playQuotas(ctx, someSeed(), &sum); err != nil {
			return err
		}
	}
	for sum.campaigns == 0 || time.Now().Add(c.each/2).Before(end) {
		k := past(c.each)
		if seed > 0 {
			k = draw(seed, c.each)
		}
		if err := c.try(ctx, k, &sum); err != nil {
			return err
		}
		if c.seed < 0 {
			seed = someSeed()
		}
	}
	fmt.Fprintln(c.stdout, sum.text())
	return sum.err()
}

// someSeed returns a random seed.
func someSeed() int64 { return 1 + rand.Int64N(1_000_000_000) }

// try plays a campaign and reports violations.
func (c *config) try(ctx context.Context, k *campaign, sum *tally) error {
	dir, err := os.MkdirTemp("", "exact")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	played, err := c.play(ctx, k, dir)
	if err != nil {
		return fmt.Errorf("playing %s: %w", k, err)
	}
	played.report(c.stdout, sum)
	return nil
}
