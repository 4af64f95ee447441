package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// clocked returns rules with a key for each algorithm, of the same limit.
func clocked(limit int, unit string) (rules string, keys []string) {
	keys = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}
	rules = "domain: shop\ndescriptors:\n"
	for _, a := range keys {
		rules += fmt.Sprintf("  - key: %s\n    rate_limit: {unit: %s, requests_per_unit: %d, algorithm: %[1]s}\n", a, unit, limit)
	}
	return rules, keys
}

// drained is what calls one after the other came to.
type drained struct {
	admitted, rejected int
	odd                string // an answer that cannot be
}

// quota is what a limit admits, and in what time.
type quota struct {
	limit uint32
	unit  time.Duration
}

// drain calls n times for a descriptor with a limit.
func drain(ctx context.Context, c rlsv3.RateLimitServiceClient, key string, n int, of quota) (d drained) {
	for range n {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		r, err := c.ShouldRateLimit(ctx, ask("shop", key+"=a"))
		cancel()
		if err != nil {
			d.odd = err.Error()
			continue
		}
		s := r.GetStatuses()[0]
		// Parts of a sliding window end as a whole, and a leaky bucket takes one more.
		longest := of.unit + max(of.unit/10, of.unit/time.Duration(of.limit))
		if reset := s.GetDurationUntilReset().AsDuration(); s.GetLimitRemaining() > of.limit || reset < 0 || reset > longest {
			d.odd = fmt.Sprintf("%s: %d of %d remain, for %v", key, s.GetLimitRemaining(), of.limit, reset)
		}
		if r.GetOverallCode() == rlsv3.RateLimitResponse_OK {
			d.admitted++
		} else {
			d.rejected++
		}
	}
	return d
}

const clockSteps = 1000 // of either clock

// clocksAndMemory is B17.
func clocksAndMemory(ctx context.Context, e *env) error {
	if err := emptyRestart(ctx, e); err != nil {
		return err
	}
	if err := clockOfServer(ctx, e); err != nil {
		return err
	}
	return clockOfRedis(ctx, e)
}

// emptyRestart kills Redis, which has nothing on disk.
func emptyRestart(ctx context.Context, e *env) error {
	const limit = 50
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	rules, keys := clocked(limit, "year")
	s, err := e.startServer(ctx, rules, "REDIS_URL="+r.addr)
	if err != nil {
		return err
	}
	c, err := s.rls()
	if err != nil {
		return err
	}
	admitted := map[string]int{}
	for round := range 2 {
		if round > 0 {
			r.Kill()
			if err := r.Start(ctx); err != nil {
				return err
			}
			if err := e.decides(ctx, c); err != nil {
				return err
			}
			if err := sleep(ctx, 1100*time.Millisecond); err != nil { // a rejection is remembered for a second
				return err
			}
		}
		for _, k := range keys {
			d := drain(ctx, c, k, limit+10, quota{limit, 366 * 24 * time.Hour})
			admitted[k] += d.admitted
			e.note("round %d, %s: %d admitted, %d rejected %s", round, k, d.admitted, d.rejected, d.odd)
		}
	}
	extra, less := 0, 0
	for _, k := range keys {
		extra, less = max(extra, admitted[k]-limit), max(less, 2*limit-admitted[k])
	}
	e.measured(extra <= limit+2 && less == 0, "Redis that returns empty admits %d more of %d (a leaky bucket leaks one)", extra, limit)
	return nil
}

// decides waits until calls are decided.
func (e *env) decides(ctx context.Context, c rlsv3.RateLimitServiceClient) error {
	var last error
	_, ok := poll(ctx, patience, func() bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, last = c.ShouldRateLimit(ctx, ask("shop", "leaky_bucket=other"))
		return last == nil
	})
	if !ok {
		return fmt.Errorf("nothing is decided: %w", last)
	}
	return nil
}

// clockOfServer sets the clock of the server, by which nothing is decided.
func clockOfServer(ctx context.Context, e *env) error {
	const limit = 300
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	rules, keys := clocked(limit, "year")
	s, err := e.startServer(ctx, rules, "REDIS_URL="+r.addr)
	if err != nil {
		return err
	}
	c, err := s.rls()
	if err != nil {
		return err
	}
	k, err := s.clock(ctx)
	if err != nil {
		return fmt.Errorf("taking over the clock of the server: %w", err)
	}
	admitted := make([]int, len(keys))
	odd := ""
	at := int64(0)
	for range clockSteps {
		at += jump(e)
		if err := k.set(at); err != nil {
			return err
		}
		var wg sync.WaitGroup
		odds := make([]string, len(keys))
		for i, key := range keys {
			wg.Go(func() {
				d := drain(ctx, c, key, 1, quota{limit, 366 * 24 * time.Hour})
				admitted[i], odds[i] = admitted[i]+d.admitted, d.odd
			})
		}
		wg.Wait()
		for _, o := range odds {
			if o != "" {
				odd = o
				e.note("the server's clock at %+d s: %s", at, o)
			}
		}
	}
	extra := 0
	for i, n := range admitted {
		extra = max(extra, n-limit)
		e.note("the server's clock, %s: %d admitted of %d", keys[i], n, limit)
		if n < limit {
			odd = fmt.Sprintf("%s admitted %d of %d", keys[i], n, limit)
		}
	}
	e.measured(extra <= 1 && odd == "", "%d steps of the server's clock: %d extra%s", clockSteps, max(extra-1, 0), prefixed(odd)) // a leaky bucket leaks one
	return nil
}

func prefixed(odd string) string {
	if odd == "" {
		return ""
	}
	return ", " + odd
}

// jump draws a step of a clock, in seconds.
func jump(e *env) int64 { return []int64{1, -1, 3600, -3600}[e.rand.IntN(4)] }

// clockOfRedis sets the clock of Redis, by which everything is decided: what it admits after a jump ahead is what the
// time would have brought, but not more than the limit; after a jump back it is nothing, and after an hour, which is the
// window, no caller is rejected any more.
func clockOfRedis(ctx context.Context, e *env) error {
	const limit = 4
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	rules, keys := clocked(limit, "hour")
	s, err := e.startServer(ctx, rules, "REDIS_URL="+r.addr, "NEAR_CACHE_KEYS=0") // which remembers by its own clock
	if err != nil {
		return err
	}
	c, err := s.rls()
	if err != nil {
		return err
	}
	k, err := r.clock(ctx)
	if err != nil {
		return fmt.Errorf("taking over the clock of Redis: %w", err)
	}
	before := r.Time(ctx).Val()
	if err := k.set(3600); err != nil {
		return err
	}
	if d := r.Time(ctx).Val().Sub(before); d < 59*time.Minute {
		return fmt.Errorf("the clock of Redis was set an hour ahead, and went by %v", d)
	}
	for _, key := range keys {
		drain(ctx, c, key, limit+2, quota{limit, time.Hour})
	}
	t := redisTime{e: e, keys: keys, limit: limit, at: 3600, waited: make([]int64, len(keys))}
	for step := range clockSteps {
		by := jump(e)
		t.at += by
		if err := k.set(t.at); err != nil {
			return err
		}
		all := make([]drained, len(keys))
		var wg sync.WaitGroup
		for i, key := range keys {
			wg.Go(func() { all[i] = drain(ctx, c, key, limit+2, quota{limit, time.Hour}) })
		}
		wg.Wait()
		now := time.Now().Unix() + t.at
		for i, d := range all {
			t.judge(fmt.Sprintf("step %d, by %d s to %d", step, by, t.at), i, d, by, now)
		}
	}
	e.measured(t.extra == 0, "%d steps of the clock of Redis: %d admitted too much", clockSteps, t.extra)
	e.measured(t.stuck == 0 && t.odd == 0, "%d rejected for longer than their unit, %d odd answers", t.stuck, t.odd)
	forever, n, err := r.withoutTTL(ctx)
	if err != nil {
		return err
	}
	e.measured(forever == 0, "%d of %d keys without TTL", forever, n)
	return nil
}

// redisTime is what came of steps of the clock of Redis.
type redisTime struct {
	e      *env
	keys   []string // the algorithms
	limit  int      // of each, an hour
	at     int64    // where the clock is, in seconds before that of the machine
	waited []int64  // seconds, since something was admitted or the clock went back

	extra, stuck, odd int
}

// partOfHour is how many seconds of a sliding window of an hour are counted together, and come free together.
const partOfHour = 360

// ends reports whether a window of an hour, or a part of one, ends when the clock says about now.
func ends(key string, now int64) bool {
	length := map[string]int64{"fixed_window": 3600, "sliding_window": partOfHour}[key]
	return length > 0 && (now-2)/length != (now+2)/length
}

// judge looks at what the key i admitted after a step of by seconds, and when the clock says now.
func (t *redisTime) judge(step string, i int, d drained, by, now int64) {
	key := t.keys[i]
	most := t.limit + 1 // a leaky bucket leaks one meanwhile
	switch {
	case by < 0:
		most = 0
	case by == 1 && !ends(key, now):
		most = 1 // a place that came free
	}
	if d.admitted > most {
		t.extra++
		t.e.note("%s, %s: %d admitted, want at most %d", step, key, d.admitted, most)
	}
	t.waited[i] += by
	if by < 0 || d.admitted > 0 {
		t.waited[i] = 0
	}
	if most := int64(3600 + partOfHour*boolInt(key == "sliding_window")); t.waited[i] > most {
		t.stuck++
		t.e.note("%s, %s: nothing admitted for %d s", step, key, t.waited[i])
	}
	if d.odd != "" {
		t.odd++
		t.e.note("%s: %s", step, d.odd)
	}
}
