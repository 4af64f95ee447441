package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"github.com/redis/go-redis/v9"
)

// storeError is an error reply of Redis.
type storeError struct {
	name    string
	class   string   // label in ratelimitd_backend_errors_total
	says    string   // text of /readyz during the error
	options []string // options of Redis
	cluster bool
	cause   func(context.Context, *store) error
	cure    func(context.Context, *store) error
}

// set returns a function that changes a setting of Redis.
func set(name, value string) func(context.Context, *store) error {
	return func(ctx context.Context, r *store) error { return r.ConfigSet(ctx, name, value).Err() }
}

// do returns a function that sends a command.
func do(args ...any) func(context.Context, *store) error {
	return func(ctx context.Context, r *store) error { return r.Do(ctx, args...).Err() }
}

// storeErrors returns all errors but NOSCRIPT, which callers never see.
func storeErrors() []storeError {
	const loadDelay = "key-load-delay" // microseconds per key
	return []storeError{
		{name: "OOM", class: "oom", cause: set("maxmemory", "1"), cure: set("maxmemory", "0")},
		{
			name: "BUSY", class: "busy", options: []string{"--busy-reply-threshold", "50"},
			cause: func(ctx context.Context, r *store) error {
				go func() { _ = r.Eval(ctx, "while true do end", nil) }() // until cure
				return sleep(ctx, 100*time.Millisecond)
			},
			cure: do("SCRIPT", "KILL"),
		},
		{
			name: "LOADING", class: "loading", options: []string{"--loading-process-events-interval-bytes", "1024", "--busy-reply-threshold", "10"},
			cause: func(ctx context.Context, r *store) error {
				r.e.must(r.Do(ctx, "DEBUG", "POPULATE", "50000", "k", "64").Err())
				go func() { _ = r.Do(ctx, "DEBUG", "RELOAD") }() // until cure
				return set(loadDelay, "500")(ctx, r)
			},
			cure: func(ctx context.Context, r *store) error {
				r.e.must(r.ConfigSet(ctx, loadDelay, "0").Err())
				r.e.await(ctx, "the end of loading", func() bool { return errors.Is(r.Get(ctx, "x").Err(), redis.Nil) })
				return nil
			},
		},
		{
			name: "MASTERDOWN", class: "clusterdown", options: []string{"--replica-serve-stale-data", "no"},
			cause: do("REPLICAOF", "127.0.0.1", "1"), cure: do("REPLICAOF", "NO", "ONE"),
		},
		{
			name: "MISCONF", class: "readonly", options: []string{"--enable-protected-configs", "yes"},
			cause: func(ctx context.Context, r *store) error {
				dir, err := os.MkdirTemp(r.e.dir, "")
				r.e.must(err)
				r.e.must(r.ConfigSet(ctx, "dir", dir).Err())
				r.e.must(os.Remove(dir))
				r.e.must(r.ConfigSet(ctx, "save", "1000 1000").Err())
				return r.BgSave(ctx).Err()
			},
			cure: set("save", ""),
		},
		{name: "NOREPLICAS", class: "clusterdown", cause: set("min-replicas-to-write", "1"), cure: set("min-replicas-to-write", "0")},
		{
			name: "maxclients", class: "refused", says: "max number of clients",
			cause: func(ctx context.Context, r *store) error {
				r.e.must(r.ConfigSet(ctx, "maxclients", "1").Err())
				return r.Do(ctx, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err()
			},
			cure: set("maxclients", "10000"),
		},
		{
			name: "CLUSTERDOWN", class: "clusterdown", cluster: true,
			cause: do("CLUSTER", "DELSLOTSRANGE", 0, slots-1), cure: do("CLUSTER", "ADDSLOTSRANGE", 0, slots-1),
		},
	}
}

// errorZoo is B15.
func errorZoo(ctx context.Context, e *env) {
	var good atomic.Int64
	all := storeErrors()
	for two := range slices.Chunk(all, 2) {
		var both []func()
		for _, z := range two {
			both = append(both, func() { good.Add(int64(boolInt(z.play(ctx, e)))) })
		}
		e.together(both...)
	}
	failures, calls := flushScripts(ctx, e)
	right, zoo := int(good.Load())+boolInt(failures == 0), len(all)+1
	e.measured(right == zoo, "%d of %d", right, zoo)
	e.measured(failures == 0, "NOSCRIPT: %d of %d calls failed", failures, calls)
}

// one replaces the client by one that keeps its connection, even while Redis accepts no others.
func (r *store) one() {
	_ = r.Close()
	r.Client = redis.NewClient(&redis.Options{Addr: r.addr, DisableIdentity: true, Protocol: 2, PoolSize: 2, MaxRetries: 5, ReadTimeout: time.Minute})
}

// play makes Redis answer with errors for a second under load, with the fallback deny, and reports whether the server behaves as
// it must.
func (z storeError) play(ctx context.Context, e *env) bool {
	var r *store
	url, vars := "", []string{"DEFAULT_ON_FAILURE=deny"}
	if z.cluster {
		c := e.cluster(ctx, 1, false)
		r, url, vars = c.nodes[0], c.url, append(vars, "REDIS_TYPE=cluster", "REDIS_PIPELINE_WINDOW=150us")
	} else {
		r = e.redis(ctx, z.options...)
		url = r.addr
	}
	r.one()
	defer func() { r.Kill() }()
	s := e.startServer(ctx, endless, append(vars, "REDIS_URL="+url)...)
	defer s.Kill()
	l := load{addr: s.GRPC, requests: values("user", 50), rate: 500, timeout: 100 * time.Millisecond}.start(ctx)
	e.sleep(ctx, 200*time.Millisecond)
	at := l.now()
	e.must(z.cause(ctx, r))
	caused := l.now()
	e.sleep(ctx, 800*time.Millisecond)
	metrics, err := s.metrics(ctx)
	e.must(err)
	page, _ := proc.Get(ctx, "http://"+s.HTTP+"/readyz")
	ill := l.now()
	e.must(z.cure(ctx, r))
	cured := l.now()
	e.sleep(ctx, 1200*time.Millisecond)
	answers := l.stop()
	if !e.other && !strings.Contains(page, z.says) {
		e.note("%s: /readyz says %q, and not %q", z.name, page, z.says)
		metrics = nil
	}
	return z.judge(e, answers, metrics, [...]time.Duration{at, caused, ill, cured})
}

// judge checks the answers before, during, and after the error.
func (z storeError) judge(e *env, answers outcomes, metrics map[string]float64, at [4]time.Duration) bool {
	byPolicy := func(o outcome) bool { return o.kind != okay && o.kind != late }
	_, last, _ := answers.gapOf(at[3], byPolicy)
	recovery := last - at[3]
	during := answers.between(at[1]+200*time.Millisecond, at[2])
	rejected := len(during.of(over))
	failures := len(answers.of(failed, lost))
	if e.other { // its fallback is always an error
		rejected, failures = len(during.of(over, failed)), 0
	}
	passed := len(during.of(okay, unknown))
	var seen strings.Builder
	for series, n := range metrics {
		if class, found := strings.CutPrefix(series, `ratelimitd_backend_errors_total{class="`); found && n > 0 {
			seen.WriteString(" " + strings.TrimSuffix(class, `"}`))
		}
	}
	classes := seen.String()
	right := e.other || strings.Contains(classes, z.class) && !strings.Contains(classes, "other")
	ok := right && rejected > 0 && passed == 0 && failures == 0 && recovery <= time.Second
	e.note("%s: class%s, want %s; while it failed %s; %d errors; recovery %s", z.name, classes, z.class, during, failures, ms(recovery))
	if !ok {
		e.measured(false, "%s: class%s, %d by the fallback, %d passed, %d errors, recovery %s", z.name, classes, rejected, passed, failures, ms(recovery))
	}
	return ok
}

// flushScripts flushes the scripts of Redis 20 times under load.
func flushScripts(ctx context.Context, e *env) (failures, calls int) {
	r := e.redis(ctx)
	s := e.startServer(ctx, endless, "REDIS_URL="+r.addr)
	l := load{addr: s.GRPC, requests: append(values("user", 50), values("listed", 50)...), rate: 1000, timeout: time.Second}.start(ctx)
	for range 20 {
		e.sleep(ctx, 100*time.Millisecond)
		e.must(r.ScriptFlush(ctx).Err())
	}
	all := l.stop()
	e.note("SCRIPT FLUSH × 20: %s", all)
	return len(all) - len(all.of(okay)), len(all)
}
