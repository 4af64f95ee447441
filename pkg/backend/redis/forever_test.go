package redis

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// TestForever checks that a window that never ends is decided as by the engine at any time, alone and in a list, and that its key has no
// TTL.
func TestForever(t *testing.T) {
	var now engine.Micros
	s := redistest.Start(t)
	p := newPlain(t, s, func() engine.Micros { return now })
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 20 {
		l := engine.Limits{{Hits: 40, Window: 1 << 48, LateCharge: i%4 == 0, CountRefused: i%4 == 0, Calendar: enginetest.Calendar("UTC", engine.CalendarForever, 1)}}
		if i%4 == 1 {
			l = append(l, engine.Limit{Hits: 5, Window: minute})
			l[0].Listed, l[1].Listed = true, true
		}
		states := []*engine.State{{}, {}}[:len(l)]
		now = engine.Micros(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		for step := range 60 {
			now += engine.Micros(random.Int64N(1 << 45)) // up to a year
			if step == 40 {
				l[0].Hits = 1e15 - uint64(i) // an increased limit
			}
			take := engine.Take{Cost: random.Uint64N(9), Count: 1 + random.Uint64N(2)}
			mode, want := backend.Take, engine.Decision{}
			switch random.IntN(6) {
			case 0:
				mode, take.Count = backend.Refund, 0
				want = l.Refund(states, now, take)
			case 1:
				mode = backend.Peek
				want = l.Peek(states, now, take)
			default:
				want = l.Take(states, now, take)
			}
			if diff := cmp.Diff(want, p.one(t, backend.Op{Key: keyOf(i), Mode: mode, Limits: l, Take: take})); diff != "" {
				t.Fatalf("%d, step %d, mode %v, %+v: (-engine's +got):\n%s", i, step, mode, take, diff)
			}
			if len(l) == 1 && (want.ResetAfter != engine.Never || want.Admitted == 0 && mode == backend.Take && want.RetryAfter != engine.Never) {
				t.Fatalf("%+v, want no end", want)
			}
		}
	}
	client := s.Client()
	keys, err := client.Keys(t.Context(), "*fforever*").Result()
	if err != nil || len(keys) != 20 {
		t.Fatalf("%q, %v, want 20 keys", keys, err)
	}
	for _, key := range keys {
		if ttl, err := client.TTL(t.Context(), key).Result(); err != nil || ttl != -1 {
			t.Errorf("%q has a TTL of %v, %v, want none", key, ttl, err)
		}
	}
}
