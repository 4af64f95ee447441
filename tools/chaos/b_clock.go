package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// clocked returns rules with the same limit for each algorithm, and their keys.
func clocked(limit int, unit string) (rules string, keys []string) {
	keys = []string{"fixed_window", "sliding_window", "sliding_log", "token_bucket", "leaky_bucket"}
	rules = "domain: shop\ndescriptors:\n"
	for _, a := range keys {
		rules += fmt.Sprintf("  - key: %s\n    rate_limit: {unit: %s, requests_per_unit: %d, algorithm: %[1]s}\n", a, unit, limit)
	}
	return rules, keys
}

// drained counts the answers to consecutive calls.
type drained struct {
	admitted, rejected int
	odd                string // an impossible answer or an error
}

// quota is a limit and its unit.
type quota struct {
	limit uint32
	unit  time.Duration
}

// drain makes n calls for a descriptor with a limit.
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
		// Parts of a sliding window expire together, and a leaky bucket takes one hit more.
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

// drainAll makes n calls for each key, concurrently.
func drainAll(ctx context.Context, c rlsv3.RateLimitServiceClient, keys []string, n int, of quota) []drained {
	all := make([]drained, len(keys))
	var wg sync.WaitGroup
	for i, key := range keys {
		wg.Go(func() { all[i] = drain(ctx, c, key, n, of) })
	}
	wg.Wait()
	return all
}

const clockSteps = 1000 // for each clock

// clocksAndMemory is B17.
func clocksAndMemory(ctx context.Context, e *env) {
	emptyRestart(ctx, e)
	clockOfServer(ctx, e)
	clockOfRedis(ctx, e)
}

// emptyRestart restarts Redis without its data.
func emptyRestart(ctx context.Context, e *env) {
	const limit = 50
	r := e.redis(ctx)
	rules, keys := clocked(limit, "year")
	s := e.startServer(ctx, rules, "REDIS_URL="+r.addr)
	c := s.rls()
	admitted := map[string]int{}
	for round := range 2 {
		if round > 0 {
			r.Kill()
			e.must(r.Start(ctx))
			e.decides(ctx, c)
			e.sleep(ctx, 1100*time.Millisecond) // the near cache remembers a rejection for a second
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
}

// decides waits until calls are decided.
func (e *env) decides(ctx context.Context, c rlsv3.RateLimitServiceClient) {
	e.await(ctx, "a decision", func() bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := c.ShouldRateLimit(ctx, ask("shop", "leaky_bucket=other"))
		return err == nil
	})
}

// clockOfServer changes the clock of the server, which must not affect decisions.
func clockOfServer(ctx context.Context, e *env) {
	const limit = 300
	r := e.redis(ctx)
	rules, keys := clocked(limit, "year")
	s := e.startServer(ctx, rules, "REDIS_URL="+r.addr)
	c := s.rls()
	k := s.clock(ctx)
	admitted := make([]int, len(keys))
	odd := ""
	at := int64(0)
	for range clockSteps {
		at += jump(e)
		k.set(at)
		for i, d := range drainAll(ctx, c, keys, 1, quota{limit, 366 * 24 * time.Hour}) {
			if admitted[i] += d.admitted; d.odd != "" {
				odd = d.odd
				e.note("the server's clock at %+d s: %s", at, odd)
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
}

func prefixed(odd string) string {
	if odd == "" {
		return ""
	}
	return ", " + odd
}

// jump draws a step of a clock in seconds.
func jump(e *env) int64 { return []int64{1, -1, 3600, -3600}[e.rand.IntN(4)] }

// clockOfRedis changes the clock of Redis, which determines decisions. A jump ahead admits what the elapsed time would, at most
// the limit. A jump back admits nothing. No key is rejected for longer than an hour, the window.
func clockOfRedis(ctx context.Context, e *env) {
	const limit = 4
	r := e.redis(ctx)
	rules, keys := clocked(limit, "hour")
	s := e.startServer(ctx, rules, "REDIS_URL="+r.addr, "NEAR_CACHE_KEYS=0") // the near cache uses the server's clock
	c := s.rls()
	k := r.clock(ctx)
	before := r.Time(ctx).Val()
	k.set(3600)
	if d := r.Time(ctx).Val().Sub(before); d < 59*time.Minute {
		e.fail("the clock of Redis was set an hour ahead, and went by %v", d)
	}
	drainAll(ctx, c, keys, limit+2, quota{limit, time.Hour})
	t := redisTime{e: e, keys: keys, limit: limit, at: 3600, waited: make([]int64, len(keys))}
	for step := range clockSteps {
		by := jump(e)
		t.at += by
		k.set(t.at)
		all := drainAll(ctx, c, keys, limit+2, quota{limit, time.Hour})
		now := time.Now().Unix() + t.at
		for i, d := range all {
			t.judge(fmt.Sprintf("step %d, by %d s to %d", step, by, t.at), i, d, by, now)
		}
	}
	e.measured(t.extra == 0, "%d steps of the clock of Redis: %d admitted too much", clockSteps, t.extra)
	e.measured(t.stuck == 0 && t.odd == 0, "%d rejected for longer than their unit, %d odd answers", t.stuck, t.odd)
	forever, n := r.withoutTTL(ctx)
	e.measured(forever == 0, "%d of %d keys without TTL", forever, n)
}

// redisTime is the state of clockOfRedis.
type redisTime struct {
	e      *env
	keys   []string // algorithm names
	limit  int      // per hour
	at     int64    // offset of the clock from the machine's, in seconds
	waited []int64  // seconds since a hit was admitted or the clock went back, by key

	extra, stuck, odd int
}

// partOfHour is the length in seconds of the parts of a sliding window of an hour, which expire together.
const partOfHour = 360

// ends reports whether a window of an hour, or a part of one, ends within two seconds of now.
func ends(key string, now int64) bool {
	length := map[string]int64{"fixed_window": 3600, "sliding_window": partOfHour}[key]
	return length > 0 && (now-2)/length != (now+2)/length
}

// judge checks the answers for key i after a step of by seconds to the time now.
func (t *redisTime) judge(step string, i int, d drained, by, now int64) {
	key := t.keys[i]
	most := t.limit + 1 // a leaky bucket leaks one meanwhile
	switch {
	case by < 0:
		most = 0
	case by == 1 && !ends(key, now):
		most = 1 // one hit expired
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
