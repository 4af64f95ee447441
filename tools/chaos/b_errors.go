package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// storeError is an error with which Redis answers.
type storeError struct {
	name    string
	class   string   // as ratelimitd_backend_errors_total has it
	says    string   // what /readyz says meanwhile
	options []string // of Redis
	cluster bool
	cause   func(context.Context, *store) error
	cure    func(context.Context, *store) error
}

// set returns a function that sets a configuration of Redis.
func set(name, value string) func(context.Context, *store) error {
	return func(ctx context.Context, r *store) error { return r.ConfigSet(ctx, name, value).Err() }
}

// do returns a function that gives a command.
func do(args ...any) func(context.Context, *store) error {
	return func(ctx context.Context, r *store) error { return r.Do(ctx, args...).Err() }
}

// storeErrors are all but NOSCRIPT, which no caller notices.
func storeErrors() []storeError {
	const loadDelay = "key-load-delay" // microseconds for each key
	return []storeError{
		{name: "OOM", class: "oom", cause: set("maxmemory", "1"), cure: set("maxmemory", "0")},
		{
			name: "BUSY", class: "busy", options: []string{"--busy-reply-threshold", "50"},
			cause: func(ctx context.Context, r *store) error {
				go func() { _ = r.Eval(ctx, "while true do end", nil) }() // until the cure
				return sleep(ctx, 100*time.Millisecond)
			},
			cure: do("SCRIPT", "KILL"),
		},
		{
			name: "LOADING", class: "loading", options: []string{"--loading-process-events-interval-bytes", "1024", "--busy-reply-threshold", "10"},
			cause: func(ctx context.Context, r *store) error {
				if err := r.Do(ctx, "DEBUG", "POPULATE", "50000", "k", "64").Err(); err != nil {
					return err
				}
				go func() { _ = r.Do(ctx, "DEBUG", "RELOAD") }() // until the cure
				return set(loadDelay, "500")(ctx, r)
			},
			cure: func(ctx context.Context, r *store) error {
				if err := set(loadDelay, "0")(ctx, r); err != nil {
					return err
				}
				_, ok := poll(ctx, patience, func() bool { return errors.Is(r.Get(ctx, "x").Err(), redis.Nil) })
				if !ok {
					return errors.New("loading does not end")
				}
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
				dir, err := os.MkdirTemp("", "chaos")
				if err == nil {
					err = set("dir", dir)(ctx, r)
				}
				if err == nil {
					err = os.Remove(dir)
				}
				if err == nil {
					err = set("save", "1000 1000")(ctx, r)
				}
				if err == nil {
					err = r.BgSave(ctx).Err()
				}
				return err
			},
			cure: set("save", ""),
		},
		{name: "NOREPLICAS", class: "clusterdown", cause: set("min-replicas-to-write", "1"), cure: set("min-replicas-to-write", "0")},
		{
			name: "maxclients", class: "refused", says: "max number of clients",
			cause: func(ctx context.Context, r *store) error {
				if err := set("maxclients", "1")(ctx, r); err != nil {
					return err
				}
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
func errorZoo(ctx context.Context, e *env) error {
	good := 0
	all := storeErrors()
	for two := range slices.Chunk(all, 2) {
		oks, errs := make([]bool, len(two)), make([]error, len(two))
		var wg sync.WaitGroup
		for i, z := range two {
			wg.Go(func() { oks[i], errs[i] = z.play(ctx, e) })
		}
		wg.Wait()
		for i, z := range two {
			if errs[i] != nil {
				return fmt.Errorf("%s: %w", z.name, errs[i])
			}
			good += boolInt(oks[i])
		}
	}
	failures, calls, err := flushScripts(ctx, e)
	if err != nil {
		return err
	}
	good += boolInt(failures == 0)
	e.measured(good == len(all)+1, "%d of %d", good, len(all)+1)
	e.measured(failures == 0, "NOSCRIPT: %d of %d calls failed", failures, calls)
	return nil
}

// one leaves one connection to Redis, which holds it even where no other is let in.
func (r *store) one() {
	_ = r.Close()
	r.Client = redis.NewClient(&redis.Options{Addr: r.addr, DisableIdentity: true, Protocol: 2, PoolSize: 2, MaxRetries: 5, ReadTimeout: time.Minute})
}

// play has Redis answer with errors for a second, under a load whose fallback is to deny, and reports whether all was as it must be.
func (z storeError) play(ctx context.Context, e *env) (bool, error) {
	var r *store
	url, vars := "", []string{"DEFAULT_ON_FAILURE=deny"}
	if z.cluster {
		c, err := e.cluster(ctx, 1, false)
		if err != nil {
			return false, err
		}
		r, url, vars = c.nodes[0], c.url, append(vars, "REDIS_TYPE=cluster", "REDIS_PIPELINE_WINDOW=150us")
	} else {
		var err error
		if r, err = e.redis(ctx, z.options...); err != nil {
			return false, err
		}
		url = r.addr
	}
	r.one()
	defer func() { r.Kill() }()
	s, err := e.startServer(ctx, endless, append(vars, "REDIS_URL="+url)...)
	if err != nil {
		return false, err
	}
	defer s.Kill()
	l := load{addr: s.grpc, requests: values("user", 50), rate: 500, timeout: 100 * time.Millisecond}.start(ctx)
	err = sleep(ctx, 200*time.Millisecond)
	at := l.now()
	if err == nil {
		err = z.cause(ctx, r)
	}
	caused := l.now()
	if err == nil {
		err = sleep(ctx, 800*time.Millisecond)
	}
	metrics, err2 := s.metrics(ctx)
	page, _ := body(ctx, "http://"+s.http+"/readyz")
	ill := l.now()
	if err == nil {
		err = z.cure(ctx, r)
	}
	cured := l.now()
	if err == nil {
		err = sleep(ctx, 1200*time.Millisecond)
	}
	answers := l.stop()
	if err == nil {
		err = err2
	}
	if err != nil {
		return false, err
	}
	if !e.other && !strings.Contains(page, z.says) {
		e.note("%s: /readyz says %q, and not %q", z.name, page, z.says)
		metrics = nil
	}
	return z.judge(e, answers, metrics, [...]time.Duration{at, caused, ill, cured}), nil
}

// judge looks at what was answered before Redis failed, while it did, and after it had recovered.
func (z storeError) judge(e *env, answers outcomes, metrics map[string]float64, at [4]time.Duration) bool {
	byPolicy := func(o outcome) bool { return o.kind != okay && o.kind != late }
	_, last, _ := answers.gapOf(at[3], byPolicy)
	recovery := last - at[3]
	during := answers.between(at[1]+200*time.Millisecond, at[2])
	rejected := len(during.of(over))
	failures := len(answers.of(failed, lost))
	if e.other { // whose policy is an error, always
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

// flushScripts has Redis forget its scripts 20 times under load.
func flushScripts(ctx context.Context, e *env) (failures, calls int, err error) {
	r, err := e.redis(ctx)
	if err != nil {
		return 0, 0, err
	}
	s, err := e.startServer(ctx, endless, "REDIS_URL="+r.addr)
	if err != nil {
		return 0, 0, err
	}
	l := load{addr: s.grpc, requests: append(values("user", 50), values("listed", 50)...), rate: 1000, timeout: time.Second}.start(ctx)
	for range 20 {
		if err == nil {
			err = sleep(ctx, 100*time.Millisecond)
		}
		if err == nil {
			err = r.ScriptFlush(ctx).Err()
		}
	}
	all := l.stop()
	e.note("SCRIPT FLUSH × 20: %s", all)
	return len(all) - len(all.of(okay)), len(all), err
}

// writeFile writes a file of the check, and returns its path.
func (e *env) writeFile(name string, text []byte) (string, error) {
	path := filepath.Join(e.dir, name)
	return path, os.WriteFile(path, text, 0o600)
}
