// Command bench compares the CPU time per request of ratelimitd, with counters in memory and in Redis, with that of an
// idle grpc-go server. All of them run at the same time on free ports of this machine and are loaded in turn, round
// after round, so that other load on the machine affects them all. Only the ratios are meaningful; absolute numbers
// depend on the machine. The cost of a request for Redis is given as processor time of redis-server, and as the number
// of scripts that it runs.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// traffic is one kind of load, and the result that it must have.
type traffic struct {
	name     string
	template string // as loadgen takes it: '%d' is the key's number, '|' separates descriptors
	keys     int
	refused  bool // every request is over its limit
	redis    bool // counters are in Redis

	scripts float64 // maximum number of scripts that Redis runs per request; 0 means any number
	second  float64 // and maximum number per second, after the first few
}

// traffics are the kinds of load. Except for the last, their rules are never exhausted.
func traffics() []traffic {
	return []traffic{
		{name: "100,000 keys", template: "user=u%d", keys: 100_000},
		{name: "one key", template: "user=hot", keys: 1},
		{name: "three descriptors", template: "user=u%d|path=p%d|tenant=t", keys: 100_000},
		{name: "one key over its limit", template: "banned=hot", keys: 1, refused: true},
		{name: "Redis, 100,000 fixed windows", template: "user=u%d", keys: 100_000, redis: true},
		{name: "Redis, 100,000 token buckets", template: "bucket=b%d", keys: 100_000, redis: true},
		{name: "Redis, one fixed window", template: "user=hot", keys: 1, redis: true, scripts: .01},
		{name: "Redis, one token bucket", template: "bucket=hot", keys: 1, redis: true, scripts: .01},
		{name: "Redis, one key over its limit", template: "spent=hot", keys: 1, redis: true, refused: true, second: 2}, // one of them is a replica that says that it is there
	}
}

const rules = `domain: bench
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: path, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: tenant, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: token_bucket}}
  - {key: banned, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: spent, rate_limit: {unit: year, requests_per_unit: 1}}
`

// config says what to run and for how long.
type config struct {
	server, idle, loadgen string // programs
	redis                 string // program; if empty, bench measures without
	only                  string // measure only traffics whose name contains this
	conns, inflight       int
	rounds                int
	warmup, duration      time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c config
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.server, "server", "bin/ratelimitd", "the server to measure")
	flags.StringVar(&c.idle, "idle", "bin/idle", "the server to compare with")
	flags.StringVar(&c.loadgen, "loadgen", "bin/loadgen", "the load generator")
	flags.StringVar(&c.redis, "redis", "redis-server", "the Redis to measure with; empty leaves it out")
	flags.StringVar(&c.only, "only", "", "load only the traffics in whose names this is")
	flags.IntVar(&c.conns, "conns", 4, "connections")
	flags.IntVar(&c.inflight, "inflight", 32, "open requests per connection")
	flags.IntVar(&c.rounds, "rounds", 3, "how often each server is loaded with each kind of traffic")
	flags.DurationVar(&c.warmup, "warmup", time.Second, "how long to load a server before measuring")
	flags.DurationVar(&c.duration, "duration", 4*time.Second, "how long to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || c.rounds < 1 || c.duration <= 0 || c.warmup < 0 {
		return fmt.Errorf("want no arguments, -rounds of at least 1, and a -duration above 0")
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return c.measure(ctx, dir, stdout, stderr)
}

// measure starts both servers, loads them in turn and prints the table.
func (c config) measure(ctx context.Context, dir string, stdout, stderr io.Writer) error {
	idle, err := startIdle(ctx, c.idle, stderr)
	if err != nil {
		return err
	}
	defer idle.stop()
	servers, err := c.startServers(ctx, dir, stderr)
	if err != nil {
		return err
	}
	defer servers.stop()

	kinds := slices.DeleteFunc(traffics(), func(k traffic) bool {
		return k.redis && c.redis == "" || !strings.Contains(k.name, c.only)
	})
	if len(kinds) == 0 {
		return fmt.Errorf("-only %q: no traffic has a name like this", c.only)
	}
	each := c.warmup + c.duration
	fmt.Fprintf(stderr, "%d rounds, about %v\n", c.rounds, time.Duration(2*c.rounds*len(kinds))*each)
	results := make([]result, len(kinds))
	for range c.rounds {
		for i, kind := range kinds {
			a, err := c.load(ctx, kind, watched{server: idle})
			if err != nil {
				return fmt.Errorf("loading the idle server with %s: %w", kind.name, err)
			}
			b, err := c.load(ctx, kind, servers.of(kind))
			if err != nil {
				return fmt.Errorf("loading ratelimitd with %s: %w", kind.name, err)
			}
			if err := b.check(kind); err != nil {
				return fmt.Errorf("loading ratelimitd with %s: %w", kind.name, err)
			}
			results[i].add(a, b)
		}
	}
	return printTable(stdout, kinds, results)
}

// watched is a server under load and the Redis that it uses, or nil.
type watched struct{ server, redis *process }

// servers are the servers to measure.
type servers struct{ memory, shared, redis *process }

// startServers starts ratelimitd on counters in memory, and another with a Redis to use.
func (c config) startServers(ctx context.Context, dir string, stderr io.Writer) (s servers, err error) {
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if err := writeRules(dir); err != nil {
		return s, err
	}
	if s.memory, err = startServer(ctx, c.server, dir, stderr, "BACKEND_TYPE=memory"); err != nil || c.redis == "" {
		return s, err
	}
	if s.redis, err = startRedis(ctx, c.redis, dir, stderr); err != nil {
		return s, err
	}
	s.shared, err = startServer(ctx, c.server, dir, stderr, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+s.redis.addr, "REDIS_OP_TIMEOUT=1s")
	return s, err
}

// of returns what serves a kind of traffic.
func (s servers) of(kind traffic) watched {
	if kind.redis {
		return watched{s.shared, s.redis}
	}
	return watched{server: s.memory}
}

func (s servers) stop() {
	for _, p := range []*process{s.memory, s.shared, s.redis} {
		if p != nil {
			p.stop()
		}
	}
}

// result has the measurements of the rounds of one kind of traffic.
type result struct {
	idleCPU, serverCPU   []float64 // µs per request
	idleRate, serverRate []float64 // requests per second
	redisCPU             []float64 // µs of Redis per request
	scripts              []float64 // of scripts per 100 requests
	ratios               []float64 // of the CPU times, one per round
}

func (r *result) add(idle, server sample) {
	r.idleCPU = append(r.idleCPU, idle.CPU)
	r.serverCPU = append(r.serverCPU, server.CPU)
	r.redisCPU = append(r.redisCPU, server.Redis)
	r.scripts = append(r.scripts, 100*server.Scripts/server.Rate)
	r.idleRate = append(r.idleRate, idle.Rate)
	r.serverRate = append(r.serverRate, server.Rate)
	r.ratios = append(r.ratios, server.CPU/idle.CPU)
}

// printTable prints the medians of the rounds, and the range of the ratios.
func printTable(w io.Writer, kinds []traffic, results []result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "traffic\tidle req/s\tidle µs/req\tratelimitd req/s\tratelimitd µs/req\tCPU ratio\tfrom\tto\tRedis µs/req\tcalls/100 req\t")
	for i, kind := range kinds {
		r := results[i]
		redis, scripts := "–", "–"
		if kind.redis {
			redis, scripts = fmt.Sprintf("%.1f", median(r.redisCPU)), fmt.Sprintf("%.2f", median(r.scripts))
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.1f\t%.0f\t%.1f\t%.2f\t%.2f\t%.2f\t%s\t%s\t\n", kind.name,
			median(r.idleRate), median(r.idleCPU), median(r.serverRate), median(r.serverCPU),
			median(r.ratios), slices.Min(r.ratios), slices.Max(r.ratios), redis, scripts)
	}
	return t.Flush()
}

// median returns the middle value; of an even number of values, the mean of the middle two.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// writeRules writes the rules for the load to where startServer makes the server look for them.
func writeRules(dir string) error {
	path := filepath.Join(dir, "config")
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, "bench.yaml"), []byte(rules), 0o600)
}
