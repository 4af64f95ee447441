// Command chaos tests the promises of ratelimitd with thirty checks against real processes, each with a figure to reach. It
// starts servers and Redis (single, Sentinel, Cluster), injects faults into connections and processes, and calls ShouldRateLimit
// like Envoy, with a timeout of 20 ms. It prints measured figures beside the required ones.
//
// Random choices of a check depend on a seed. Results also depend on timing, so a seed that failed once often fails again, but
// not always. A failed check is printed with its seed, its history, and the last log lines of each process.
//
// With -peer, applicable checks also run against another server, with the same environment variables and the same rules, without
// ratelimitd's extensions. -write writes the results to docs/reliability.md and the measurements to docs/notes/chaos-results.md.
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
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"
)

// config holds the options.
type config struct {
	server, peer string // paths
	redis        string
	only         *regexp.Regexp // selects IDs of checks
	seed         int64
	stdout       io.Writer
	stderr       io.Writer
	verbose      bool
	full         bool          // also measure published figures
	soak         time.Duration // length of the long run, which replaces the checks; 0 means none
	page         string        // page whose table of results is replaced; empty means none
	peerVersion  string        // build of the other server, if its binary does not contain it
}

// errFailed means that a check did not reach its figure.
var errFailed = errors.New("not every check has passed; see above")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, errFailed):
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c := config{stdout: stdout, stderr: stderr}
	var only, hostile string
	var list bool
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.server, "server", "bin/ratelimitd", "the server to check")
	flags.StringVar(&c.peer, "peer", "", "another server to play against, such as envoyproxy/ratelimit; its figures are printed beside")
	flags.StringVar(&c.redis, "redis", "redis-server", "the Redis to use")
	flags.StringVar(&only, "run", "", "a regular expression; play only checks whose whole ids match, such as 'B9|C18'")
	flags.Int64Var(&c.seed, "seed", 0, "what is drawn follows from it; 0 draws one")
	flags.DurationVar(&c.soak, "soak", 0, "instead of the checks, run for so long with a fault every 10 s")
	flags.BoolVar(&list, "list", false, "list the checks and end")
	flags.BoolVar(&c.verbose, "v", false, "print the history of each check, not only of those that fail")
	flags.BoolVar(&c.full, "full", false, "also measure what is published and not judged: C18 three times, its curves with one descriptor, and C21 beside less noise")
	flags.StringVar(&c.page, "write", "", "put the results of all checks into this page, in place of those that it has, and what was measured into notes/"+measurementsName+" beside it")
	flags.StringVar(&c.peerVersion, "peer-version", "", "of what the other server was built, if it does not say so itself")
	flags.StringVar(&hostile, "attack", "", "for D26: play this attack on the gRPC and HTTP addresses that follow")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if hostile != "" {
		return attackOf(ctx, hostile, flags.Args())
	}
	if flags.NArg() > 0 {
		return errors.New("want no arguments")
	}
	var err error
	if c.only, err = regexp.Compile("^(?:" + only + ")$"); err != nil {
		return fmt.Errorf("reading -run: %w", err)
	}
	if only == "" {
		c.only = regexp.MustCompile("")
	} else if c.page != "" {
		return errors.New("-write puts the results of one run into the page: leave out -run")
	}
	if err := c.writable(); err != nil {
		return err
	}
	if c.seed == 0 {
		c.seed = 1 + rand.Int64N(1_000_000_000)
	}
	checks := c.chosen()
	if c.soak > 0 {
		checks = []check{soaking(c.soak)}
	}
	if len(checks) == 0 {
		return fmt.Errorf("no check has an id that matches %q", only)
	}
	if list {
		for _, k := range checks {
			fmt.Fprintf(stdout, "%-4s %s: %s\n", k.id, k.what, k.figure)
		}
		return nil
	}
	return c.play(ctx, checks)
}

// chosen returns the selected checks.
func (c *config) chosen() (chosen []check) {
	for _, k := range checks() {
		if c.only.MatchString(k.id) {
			chosen = append(chosen, k)
		}
	}
	return chosen
}

// played is a check and its results.
type played struct {
	check

	ours   result
	theirs *result // nil if there is no other server, or the check does not apply to it
}

// play runs checks and prints their results in order. Checks that are independent of timing run first, two at a time, and then
// the others one after the other.
func (c *config) play(ctx context.Context, checks []check) error {
	fmt.Fprintf(c.stdout, "seed %d\n\n", c.seed)
	var all []played
	passed, applied, theirs := 0, 0, 0
	begin := time.Now()
	early := c.untimed(ctx, checks)
	for _, k := range checks {
		p, found := early[k.id]
		if !found {
			p = c.both(ctx, k)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		all = append(all, p)
		fmt.Fprintln(c.stdout, p.section())
		passed += boolInt(p.ours.pass())
		c.tell(&p.ours, p.check, "")
		if p.theirs != nil {
			applied++
			theirs += boolInt(p.theirs.pass())
			c.tell(p.theirs, p.check, ", the other server")
		}
	}
	fmt.Fprintf(c.stdout, "%d of %d passed, in %.0f s, seed %d\n", passed, len(all), time.Since(begin).Seconds(), c.seed)
	if c.peer != "" {
		fmt.Fprintf(c.stdout, "the other server: %d of the %d that apply\n", theirs, applied)
	}
	if c.page != "" {
		counts := fmt.Sprintf("%d of %d passed", passed, len(all))
		if c.peer != "" {
			counts += fmt.Sprintf(", and with the other server %d of the %d that apply", theirs, applied)
		}
		if err := c.publish(ctx, begin, counts, all); err != nil {
			return err
		}
	}
	if passed < len(all) {
		return errFailed
	}
	return nil
}

// untimed runs the checks that are independent of timing, two at a time, and returns them by ID.
func (c *config) untimed(ctx context.Context, checks []check) map[string]played {
	all := map[string]played{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	turns := make(chan struct{}, 2)
	for _, id := range untimedIDs() {
		i := slices.IndexFunc(checks, func(k check) bool { return k.id == id })
		if i < 0 {
			continue // not selected
		}
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			p := c.both(ctx, checks[i])
			mu.Lock()
			defer mu.Unlock()
			all[id] = p
		})
	}
	wg.Wait()
	return all
}

// tell prints the history of a failed check, or of any check with -v.
func (c *config) tell(r *result, k check, whose string) {
	if !r.pass() || c.verbose {
		r.tell(c.stderr, k, c.seed, whose)
	}
}

// both runs a check against the server and the other server.
func (c *config) both(ctx context.Context, k check) played {
	p := played{check: k, ours: c.try(ctx, k, c.server, false)}
	if c.peer != "" && k.peer && ctx.Err() == nil {
		p.theirs = new(c.try(ctx, k, c.peer, true))
	}
	return p
}

// try runs a check against a server.
func (c *config) try(ctx context.Context, k check, server string, peer bool) result {
	e, err := newEnv(c, k, server, peer)
	if err != nil {
		return result{err: err}
	}
	others := othersShare()
	c.playIn(ctx, k, e)
	e.close()
	const (
		much = 0.05
		long = time.Second // below this the share is imprecise, because CPU times have a resolution of 10 ms
	)
	if share := others(); share > much && e.result.took > long && !k.untimed() {
		e.published("DISTURBED: others took %.0f %% of the processors", 100*share)
	}
	return e.result
}

// playIn runs a check. Its processes end with e.
func (c *config) playIn(ctx context.Context, k check, e *env) {
	ctx, cancel := context.WithTimeout(ctx, c.longest()+c.soak)
	defer cancel()
	begin := time.Now()
	finish(func() {
		k.play(ctx, e)
		e.must(ctx.Err()) // an interrupted check proves nothing
	})
	e.result.took = time.Since(begin)
	if e.result.err != nil {
		e.result.err = fmt.Errorf("running %s: %w", k.id, e.result.err)
	}
	if !e.result.pass() || c.verbose {
		e.gatherLogs()
	}
}

// longest bounds the duration of a check.
func (c *config) longest() time.Duration {
	if c.full {
		return 20 * time.Minute
	}
	return 8 * time.Minute
}
