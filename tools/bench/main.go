// Command bench measures the cost of a request in ratelimitd, with counters in memory and in Redis, next to an idle
// grpc-go server. All servers run at the same time on free ports of this machine. They are loaded alternately in rounds,
// so that other load on the machine affects all of them. Only ratios are meaningful; absolute numbers depend on the
// machine. The cost in Redis is the processor time of redis-server, compared with a pair of INCRBY and EXPIRE, the minimum
// for counting with an expiry.
//
// With -peer, envoyproxy/ratelimit or another server with its environment variables is loaded too, on the same Redis. It
// has no token buckets, so fixed windows of ratelimitd are compared.
//
// With -envoy, HTTP calls are measured too, through an Envoy with one worker that calls ratelimitd, the peer, -limitador, or
// no server.
//
// It prints tables. With -write DIR, it also stores the results in DIR/benchmarks/results.json, where other rows stay, and
// writes DIR/benchmarks.md and its plots from all results; -page writes only those. With -check, it measures costs,
// including by number of connections and with many rules and counters, and lists those that are worse than in
// results.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
)

// config selects programs, measurements, and durations.
type config struct {
	server, idle, loadgen string // programs
	peer, peerEnv         string // program and its settings; without it, bench measures only ratelimitd
	peerVersion           string // version of the peer, if the program does not report it
	redis                 string // program
	envoy, limitador      string // programs; without Envoy, rows through it are omitted
	only                  *regexp.Regexp
	rounds                int
	warmup, duration      time.Duration
	seed                  uint64
	docs                  string // directory of the page; empty writes no page
	check, page           bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	c, err := parse(args, stderr)
	if err != nil {
		return err
	}
	path := filepath.Join(c.docs, "benchmarks", "results.json")
	before, err := readResults(path)
	switch {
	case err != nil:
		return err
	case c.page:
		return before.publish(c.docs)
	case c.check && len(before.Rows) == 0:
		return fmt.Errorf("%s has nothing to compare with", path)
	}
	if c.docs != "" && !c.check {
		if err := c.writable(before, filepath.Dir(path)); err != nil {
			return err
		}
	}
	now, err := c.measure(ctx, stderr)
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing was written")
	}
	if err != nil {
		return err
	}
	if err := now.print(stdout); err != nil {
		return err
	}
	switch {
	case c.check:
		if before.Machine != now.Machine {
			fmt.Fprintf(stderr, "results.json was measured on %s, and this is %s: ratios differ between machines\n", before.Machine, now.Machine)
		}
		all, figures := compare(before, now)
		return report(stdout, all, figures)
	case c.docs == "":
		return nil
	}
	if err := before.merge(now); err != nil {
		return err
	}
	return errors.Join(before.write(path), before.publish(c.docs))
}

// writable returns an error if the results could not be written, before spending a quarter of an hour on them.
func (c config) writable(before results, dir string) error {
	some, err := c.chosen()
	if err != nil {
		return err
	}
	if err := before.takes(proc.ThisMachine(), len(some)); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		f, err := os.CreateTemp(d, ".bench")
		if err != nil {
			return err
		}
		if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// parse parses the flags.
func parse(args []string, stderr io.Writer) (c config, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.server, "server", "bin/ratelimitd", "the server to measure")
	flags.StringVar(&c.idle, "idle", "bin/idle", "the server to compare with")
	flags.StringVar(&c.loadgen, "loadgen", "bin/loadgen", "the load generator")
	flags.StringVar(&c.redis, "redis", "redis-server", "the Redis to measure with")
	flags.StringVar(&c.peer, "peer", "", "another server to compare with on Redis, such as envoyproxy/ratelimit; empty leaves it out")
	flags.StringVar(&c.peerEnv, "peer-env", bestSettings, "variables of the other server, separated by spaces")
	flags.StringVar(&c.peerVersion, "peer-version", "", "of what the other server was built, if it does not say so itself")
	flags.StringVar(&c.envoy, "envoy", "", "the Envoy to measure through; empty leaves out the rows that need one")
	flags.StringVar(&c.limitador, "limitador", "", "a limitador-server to compare with through Envoy; empty leaves it out")
	only := flags.String("run", "", "measure only the rows whose names match this expression")
	flags.IntVar(&c.rounds, "rounds", 0, "how often each server is loaded with each row; 0 is 8 for costs, rules and counters, 5 for connections and through Envoy, and 3 for others")
	flags.DurationVar(&c.warmup, "warmup", 500*time.Millisecond, "how long to load a server before measuring")
	flags.DurationVar(&c.duration, "duration", 0, "how long to measure each time; 0 is 1s for rows of 5 or 8 rounds, and 2s for others")
	flags.Uint64Var(&c.seed, "seed", 1, "which keys are drawn")
	write := flags.String("write", "", "write the page and what it is made of to this directory")
	page := flags.String("page", "", "measure nothing, and write the page of this directory again")
	check := flags.String("check", "", "compare with what is in this directory")
	if err := flags.Parse(args); err != nil {
		return c, err
	}
	places := slices.DeleteFunc([]string{*write, *page, *check}, func(s string) bool { return s == "" })
	switch {
	case flags.NArg() > 0 || c.rounds < 0 || c.duration < 0 || c.warmup < 0:
		return c, errors.New("want no arguments, no negative -rounds, -duration or -warmup")
	case len(places) > 1:
		return c, errors.New("-write, -page and -check: want one of them")
	case len(places) == 1:
		c.docs, c.page, c.check = places[0], *page != "", *check != ""
	}
	if c.only, err = regexp.Compile(*only); err != nil {
		return c, fmt.Errorf("-run %q: %w", *only, err)
	}
	return c, nil
}

// chosen returns the rows to measure.
func (c config) chosen() ([]row, error) {
	some := slices.DeleteFunc(rows(), func(r row) bool {
		return !c.only.MatchString(r.name) || c.check && len(compared(r)) == 0 || c.envoy == "" && r.part == throughEnvoy
	})
	if len(some) > 0 {
		return some, nil
	}
	var names strings.Builder
	for _, r := range rows() {
		names.WriteString("\n\t" + r.name)
	}
	return nil, fmt.Errorf("no row matches; there are, some of them only with -envoy,%s", names.String())
}
