package controls

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// methods are those of the acts that a process knows of, the latest first.
func methods(t *testing.T, c *Controls) (all []string) {
	t.Helper()
	acts, complete := c.Told(t.Context())
	for _, a := range acts {
		all = append(all, a.Method)
	}
	if !complete {
		all = append(all, "and what others know")
	}
	return all
}

// TestTold: the last 1,000 acts are kept, the latest first.
func TestTold(t *testing.T) {
	c := New(Config{})
	for i := range MaxTold + 100 {
		c.Tell(t.Context(), &Act{Method: fmt.Sprint(i)}, i%2 == 0)
	}
	got := methods(t, c)
	if len(got) != MaxTold || got[0] != fmt.Sprint(MaxTold+99) || got[MaxTold-1] != "100" {
		t.Errorf("%d acts are kept, from %s to %s", len(got), got[0], got[len(got)-1])
	}
}

// TestToldRedis: all replicas know of the acts of each, also once Redis has lost them, and there are no more than 1,000 in Redis.
func TestToldRedis(t *testing.T) {
	t.Parallel()
	const key = "test:rl:{notes}:told"
	db := redistest.Start(t, "user limiter on >secret ~test:rl:* +eval +evalsha +get +set +incrby +unlink +pexpire +time +lindex +llen +lrange +lset +ltrim +rpush +hdel +hmget +hset "+
		"+zadd +zcard +zrangebyscore +zrem +zremrangebyscore +zscore")
	all := []*Controls{replica(t, redis.Config{URL: db.Addr()}), replica(t, redis.Config{URL: db.Addr(), Auth: "limiter:secret"})}
	know := func(want ...string) {
		t.Helper()
		for i, c := range all {
			var got []string
			testkit.Eventually(t, fmt.Sprintf("replica %d knows of %v", i, want), func() bool {
				got = methods(t, c)
				return slices.Equal(got, want)
			}, func() string { return fmt.Sprint(got) })
		}
	}
	all[0].Tell(t.Context(), &Act{Method: "first"}, true)
	if n := db.CLI("ZCARD", key); n != "1" {
		t.Errorf("Redis has %s acts once Tell has waited for it, want 1", n)
	}
	all[1].Tell(t.Context(), &Act{Method: "second", Domain: []byte("\xff")}, false)
	know("second", "first")
	set(t, all[0], "block shop a=1", time.Hour)
	obey(t, all, "a=1", "block")
	db.CLI("FLUSHALL")
	testkit.Eventually(t, "Redis has both again", func() bool { return db.CLI("ZCARD", key) == "2" })
	all = append(all, replica(t, redis.Config{URL: db.Addr()}))
	know("second", "first")

	// What a process did that is gone is not lost with what Redis has.
	testkit.Eventually(t, "the first replica knows of all by itself", func() bool {
		all[0].mu.Lock()
		defer all[0].mu.Unlock()
		return len(all[0].told) == 2
	})

	for i := range MaxTold {
		all[0].Tell(t.Context(), &Act{Method: fmt.Sprint(i)}, i == MaxTold-1)
	}
	testkit.Eventually(t, "Redis has all acts", func() bool { return db.CLI("ZCARD", key) == fmt.Sprint(MaxTold) }) // on a busy machine by Run
	testkit.Eventually(t, "another replica knows of all", func() bool { return len(methods(t, all[2])) == MaxTold })
	if got := methods(t, all[2]); len(got) != MaxTold || got[0] != fmt.Sprint(MaxTold-1) || got[MaxTold-1] != "0" {
		t.Errorf("another replica knows of %d acts, from %s to %s", len(got), got[0], got[len(got)-1])
	}

	// While Redis is away each knows of its own, and says that there may be others; it gets them later.
	db.Kill()
	all[1].Tell(t.Context(), &Act{Method: "away"}, true)
	if got := methods(t, all[1]); got[0] != "away" || got[len(got)-1] != "and what others know" {
		t.Errorf("without Redis a replica knows of %v", got)
	}
	db.Restart()
	testkit.Eventually(t, "another replica knows of what was told while Redis was away", func() bool { return methods(t, all[0])[0] == "away" })
}
