// Command chaos holds ratelimitd to its promises: thirty checks, each with a figure to pass, against real processes. It
// starts servers and Redis (single, Sentinel, Cluster), puts faults on the wire and into the processes, calls
// ShouldRateLimit as Envoy does, with 20 ms to answer in, and prints what it measured beside what was promised.
//
// A check that is drawn follows from a seed. What happens depends on the time too: a seed that failed once fails often,
// not always. What failed is printed with its seed, the history of the check and the last lines of each process.
//
// With -peer those checks that apply are played against another server as well, with the same environment variables
// and the same rules, less what only ratelimitd knows. With -write the results go into docs/reliability.md, and what was
// measured into docs/notes/chaos-results.md.
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

// config says what to run.
type config struct {
	server, peer string // programs
	redis        string
	only         *regexp.Regexp // of the ids of checks
	seed         int64
	stdout       io.Writer
	stderr       io.Writer
	verbose      bool
	full         bool          // also what is published, not judged
	soak         time.Duration // how long to run instead of the checks, if not 0
	page         string        // the page whose table of results is replaced; empty leaves it
	peerVersion  string        // of what the other server was built, if it does not say that itself
}

// errFailed says that a check did not reach its figure.
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

// chosen returns the checks to play.
func (c *config) chosen() (chosen []check) {
	for _, k := range checks() {
		if c.only.MatchString(k.id) {
			chosen = append(chosen, k)
		}
	}
	return chosen
}

// played is a check, and what came of it.
type played struct {
	check

	ours   result
	theirs *result // nil if it does not apply to the other server, or there is none
}

// play plays checks, and prints what each measured, in their order: first those that need no clean timing, two at a time, and then one after the other.
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

// untimed plays those checks that need no clean timing, two at a time, and returns them by their ids.
func (c *config) untimed(ctx context.Context, checks []check) map[string]played {
	all := map[string]played{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	turns := make(chan struct{}, 2)
	for _, id := range untimedIDs() {
		i := slices.IndexFunc(checks, func(k check) bool { return k.id == id })
		if i < 0 {
			continue // not chosen
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

// tell prints all that is known of a check that did not pass, or of any if asked to.
func (c *config) tell(r *result, k check, whose string) {
	if !r.pass() || c.verbose {
		r.tell(c.stderr, k, c.seed, whose)
	}
}

// both plays a check against the server, and against the other one.
func (c *config) both(ctx context.Context, k check) played {
	p := played{check: k, ours: c.try(ctx, k, c.server, false)}
	if c.peer != "" && k.peer && ctx.Err() == nil {
		p.theirs = new(c.try(ctx, k, c.peer, true))
	}
	return p
}

// try plays a check against a server.
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
		long = time.Second // of less than that no share is known: processors' times are counted in hundredths of a second
	)
	if share := others(); share > much && e.result.took > long && !k.untimed() {
		e.published("DISTURBED: others took %.0f %% of the processors", 100*share)
	}
	return e.result
}

// playIn plays a check, whose processes end with e.
func (c *config) playIn(ctx context.Context, k check, e *env) {
	ctx, cancel := context.WithTimeout(ctx, c.longest()+c.soak)
	defer cancel()
	begin := time.Now()
	finish(func() {
		k.play(ctx, e)
		e.must(ctx.Err()) // what was cut short shows nothing
	})
	e.result.took = time.Since(begin)
	if e.result.err != nil {
		e.result.err = fmt.Errorf("running %s: %w", k.id, e.result.err)
	}
	if !e.result.pass() || c.verbose {
		e.gatherLogs()
	}
}

// longest is how long a check may take before it is given up.
func (c *config) longest() time.Duration {
	if c.full {
		return 20 * time.Minute
	}
	return 8 * time.Minute
}
