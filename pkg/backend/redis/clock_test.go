package redis

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// TestF12_OurClock: the clock of this process is 25 years slow, and jumps ahead by a second a thousand times, and by an hour
// occasionally. Scripts use the clock of Redis, on which almost no time passes, so no additional hits must be admitted. Jumps back cannot
// be simulated here; this process measures durations with the monotonic clock.
func TestF12_OurClock(t *testing.T) {
	t.Parallel()
	const limit, steps = 300, 1000
	s := redistest.Start(t)
	s.CLI("PING")
	synctest.Test(t, func(t *testing.T) {
		if time.Now().Year() != 2000 {
			t.Fatal("the clock of this test is right")
		}
		b := run(t, Config{URL: s.Addr(), OpTimeout: time.Minute}, true)
		admitted, least := map[engine.Algorithm]uint64{}, map[engine.Algorithm]uint64{}
		kinds := clocked(limit)
		for _, l := range kinds {
			least[l.Algorithm] = limit
		}
		for i := range steps {
			if i%250 == 249 {
				time.Sleep(time.Hour)
			} else {
				time.Sleep(time.Second)
			}
			for k, l := range kinds {
				ops := []backend.Op{{Key: keyOf(k), Limits: engine.Limits{l}, Take: engine.Take{Cost: 1, Count: 1}}}
				for b.Apply(t.Context(), ops); ops[0].Err != nil; b.Apply(t.Context(), ops) {
					time.Sleep(time.Second) // after an hour, all connections have reached their maximum age
				}
				d := ops[0].Decision
				admitted[l.Algorithm] += d.Admitted
				if d.Left > least[l.Algorithm] {
					t.Errorf("step %d, %v: %d are left, after %d", i, l.Algorithm, d.Left, least[l.Algorithm])
				}
				least[l.Algorithm] = d.Left
			}
		}
		for _, l := range kinds {
			want := uint64(limit)
			if l.Algorithm == engine.LeakyBucket {
				want++ // a partly free place accepts a hit
			}
			if n := admitted[l.Algorithm]; n < limit || n > want {
				t.Errorf("%v: %d were admitted, want %d", l.Algorithm, n, want)
			}
		}
	})
}

// clocked returns a limit for each algorithm, with the given number of hits per year.
func clocked(hits uint64) []engine.Limit {
	const year = 365 * 86400e6
	return []engine.Limit{
		{Algorithm: engine.FixedWindow, Hits: hits, Window: year, CountRefused: true},
		{Algorithm: engine.SlidingWindow, Hits: hits, Window: year, Precision: 10},
		{Algorithm: engine.SlidingLog, Hits: hits, Window: year},
		{Algorithm: engine.TokenBucket, Hits: hits, Window: year, Burst: hits, Initial: hits},
		{Algorithm: engine.LeakyBucket, Hits: hits, Window: year, Burst: hits},
		{Algorithm: engine.Concurrency, Hits: hits, Window: year},
	}
}

// jumping is a Redis whose clock jumps: scripts get the time as an argument, and keys whose absolute expiry has passed are deleted.
type jumping struct {
	client *redis.Client
	now    atomic.Int64
}

// jump changes the clock.
func (j *jumping) jump(t *testing.T, by time.Duration) {
	t.Helper()
	j.now.Add(by.Microseconds())
	keys, err := j.client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		left := j.client.PTTL(t.Context(), key).Val()
		if left < 0 {
			t.Fatalf("key %s never expires", key)
		}
		if left -= by; left <= injectedSlack*time.Millisecond {
			err = j.client.Del(t.Context(), key).Err()
		} else {
			err = j.client.PExpire(t.Context(), key, left).Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestF13_ClockOfRedis: the clock of Redis jumps by an hour, the length of the window, and by a second, ahead and back. After a jump
// ahead, at most the limit is admitted once more, as if the time had passed. After a jump back, nothing additional is admitted, and no
// wait exceeds the window.
func TestF13_ClockOfRedis(t *testing.T) {
	t.Parallel()
	const (
		limit  = 20
		window = time.Hour
		steps  = 100
	)
	for _, l := range clocked(limit) {
		l.Window = engine.Micros(window.Microseconds())
		t.Run(l.Algorithm.String(), func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			j := &jumping{client: s.Client()}
			j.now.Store(time.Now().Truncate(window).UnixMicro())
			b := run(t, Config{URL: s.Addr(), OpTimeout: slow, Now: func() engine.Micros { return engine.Micros(j.now.Load()) }}, true)
			s.CLI("FLUSHALL") // counted by run
			drain := func() (admitted uint64) {
				t.Helper()
				for range limit + 5 {
					ops := []backend.Op{{Key: keyOf(1), Limits: engine.Limits{l}, Take: engine.Take{Cost: 1, Count: 1}}}
					b.Apply(t.Context(), ops)
					d := ops[0].Decision
					if ops[0].Err != nil || d.Left > limit || d.ResetAfter > window+window/10 || d.RetryAfter > window+window/10 {
						t.Fatalf("%+v, %v", d, ops[0].Err)
					}
					admitted += d.Admitted
				}
				return admitted
			}
			if n := drain(); n < limit || n > limit+1 { // a partly free place accepts a hit
				t.Fatalf("%d were admitted at first, want %d", n, limit)
			}
			jumps := []time.Duration{window, -window, time.Second, -time.Second}
			for i := range steps {
				by := jumps[rand.IntN(len(jumps))]
				if i < 2*len(jumps) {
					by = jumps[i%len(jumps)]
				}
				j.jump(t, by)
				extra, most := drain(), uint64(0)
				switch {
				case by >= window:
					most = limit + 1
				case by > 0: // a window may begin, and sub-windows or hits may expire, in between
					most = limit
				}
				if extra > most {
					t.Errorf("step %d: a jump by %v admitted %d, want at most %d", i, by, extra, most)
				}
			}
		})
	}
}
