// Command bench compares the CPU time per request of ratelimitd, with counters in memory and in Redis, with that of an
// idle grpc-go server. All of them run at the same time on free ports of this machine and are loaded in turn, round
// after round, so that other load on the machine affects them all. Only the ratios are meaningful; absolute numbers
// depend on the machine. The cost of a request for Redis is given as processor time of redis-server, beside what a pair
// of INCRBY and EXPIRE costs it, which is the least that a count with an expiry takes, and as the number of scripts that
// it runs.
//
// With -peer, envoyproxy/ratelimit or another server with its environment variables is loaded too, on the same Redis. It
// knows no token buckets, and counts fixed windows where ratelimitd is loaded with those.
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
		{name: "Redis, one key over its limit", template: "spent=hot", keys: 1, redis: true, refused: true, second: 1},
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
	peer, peerEnv         string // program, and its settings; if there is none, bench measures without
	redis                 string // program; if empty, bench measures without
	only                  string // measure only traffics whose name contains this
	conns, inflight       int
	rate                  float64 // requests per second in all; 0 for as many as there are answers
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
	flags.StringVar(&c.peer, "peer", "", "another server to compare with on Redis, such as envoyproxy/ratelimit; empty leaves it out")
	flags.StringVar(&c.peerEnv, "peer-env", bestSettings, "variables of the other server, separated by spaces")
	flags.StringVar(&c.only, "only", "", "load only the traffics in whose names this is")
	flags.IntVar(&c.conns, "conns", 4, "connections")
	flags.IntVar(&c.inflight, "inflight", 32, "open requests per connection")
	flags.Float64Var(&c.rate, "rate", 0, "requests per second in all, whether or not they are answered; 0 keeps -inflight of them open")
	flags.IntVar(&c.rounds, "rounds", 3, "how often each server is loaded with each kind of traffic")
	flags.DurationVar(&c.warmup, "warmup", time.Second, "how long to load a server before measuring")
	flags.DurationVar(&c.duration, "duration", 4*time.Second, "how long to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || c.rounds < 1 || c.duration <= 0 || c.warmup < 0 || c.rate < 0 {
		return fmt.Errorf("want no arguments, -rounds of at least 1, a -duration above 0, and a -rate of 0 or more")
	}
	if c.peer != "" && c.redis == "" {
		return fmt.Errorf("-peer %s is compared on Redis: give -redis too", c.peer)
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return c.measure(ctx, dir, stdout, stderr)
}

// measure starts the servers, loads them in turn and prints the table.
func (c config) measure(ctx context.Context, dir string, stdout, stderr io.Writer) error {
	kinds := slices.DeleteFunc(traffics(), func(k traffic) bool {
		return k.redis && c.redis == "" || !strings.Contains(k.name, c.only)
	})
	if len(kinds) == 0 {
		return fmt.Errorf("-only %q: no traffic has a name like this", c.only)
	}
	servers, err := c.startServers(ctx, dir, stderr)
	if err != nil {
		return err
	}
	defer servers.stop()

	loads, pairs := 0, slices.ContainsFunc(kinds, func(k traffic) bool { return k.redis })
	for _, kind := range kinds {
		loads += len(servers.of(kind))
	}
	if pairs {
		loads++
	}
	fmt.Fprintf(stderr, "%d rounds, about %v\n", c.rounds, time.Duration(c.rounds*loads)*(c.warmup+c.duration))
	t := table{results: make([]result, len(kinds))}
	for range c.rounds {
		if pairs {
			s, err := c.loadPairs(ctx, servers.redis.addr)
			if err != nil {
				return fmt.Errorf("loading Redis with INCRBY and EXPIRE: %w", err)
			}
			t.pairs = append(t.pairs, s)
		}
		for i, kind := range kinds {
			t.results[i].traffic = kind
			for _, w := range servers.of(kind) {
				s, err := c.load(ctx, kind, w)
				if err == nil {
					err = s.check(kind, w)
				}
				if err != nil {
					return fmt.Errorf("loading %s with %s: %w", w.name, kind.name, err)
				}
				t.results[i].add(w.name, s)
			}
		}
	}
	return t.print(stdout)
}

// watched is a server under load and the Redis that it uses, or nil.
type watched struct {
	name          string
	server, redis *process
}

// The names of servers.
const (
	idleServer = "idle"
	ratelimitd = "ratelimitd"
	peer       = "peer"
)

// servers are the servers to measure.
type servers struct{ idle, memory, shared, peer, redis *process }

// startServers starts the idle server, ratelimitd on counters in memory, and another and c.peer with a Redis to use.
func (c config) startServers(ctx context.Context, dir string, stderr io.Writer) (s servers, err error) {
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	if s.idle, err = startIdle(ctx, c.idle, stderr); err != nil {
		return s, err
	}
	if err := writeRules(dir, rules); err != nil {
		return s, err
	}
	if s.memory, err = startServer(ctx, c.server, dir, stderr, "BACKEND_TYPE=memory"); err != nil || c.redis == "" {
		return s, err
	}
	if s.redis, err = startRedis(ctx, c.redis, dir, stderr); err != nil {
		return s, err
	}
	store := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + s.redis.addr}
	if s.shared, err = startServer(ctx, c.server, dir, stderr, append(store, "REDIS_OP_TIMEOUT=1s")...); err != nil || c.peer == "" {
		return s, err
	}
	dir = filepath.Join(dir, peer)
	if err := writeRules(dir, peerRules()); err != nil {
		return s, err
	}
	s.peer, err = startServer(ctx, c.peer, dir, stderr, append(store, strings.Fields(c.peerEnv)...)...)
	return s, err
}

// bestSettings are the variables with which envoyproxy/ratelimit takes the least processor time.
const bestSettings = "LOCAL_CACHE_SIZE_IN_BYTES=67108864 REDIS_PIPELINE_WINDOW=150us DISABLE_STATS=true LOG_LEVEL=error"

// of returns what serves a kind of traffic.
func (s servers) of(kind traffic) []watched {
	all := []watched{{name: idleServer, server: s.idle}}
	if !kind.redis {
		return append(all, watched{name: ratelimitd, server: s.memory})
	}
	all = append(all, watched{ratelimitd, s.shared, s.redis})
	if s.peer != nil {
		all = append(all, watched{peer, s.peer, s.redis})
	}
	return all
}

func (s servers) stop() {
	for _, p := range []*process{s.idle, s.memory, s.shared, s.peer, s.redis} {
		if p != nil {
			p.stop()
		}
	}
}

// peerRules returns rules for a server that knows fixed windows alone: those of a year, which it begins once.
func peerRules() string {
	return strings.ReplaceAll(rules, "unit: second, requests_per_unit: 1000000, algorithm: token_bucket", "unit: year, requests_per_unit: 4294967295")
}

// writeRules writes rules for the load to where startServer makes the server look for them.
func writeRules(dir, rules string) error {
	path := filepath.Join(dir, "config")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(path, "bench.yaml"), []byte(rules), 0o600)
}
