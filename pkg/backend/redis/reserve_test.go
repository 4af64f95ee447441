package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// reservationOf returns the i-th reservation ID, which looks random like those of requests.
func reservationOf(i int) (id engine.ReservationID) {
	r := rand.New(rand.NewPCG(uint64(i), 7)) //nolint:gosec // the same each time
	binary.BigEndian.PutUint64(id[:8], r.Uint64())
	binary.BigEndian.PutUint32(id[8:], r.Uint32())
	return id
}

// TestReservationsAreSmall checks that the maximum number of reservations of a counter takes at most 200 bytes each.
func TestReservationsAreSmall(t *testing.T) {
	t.Parallel()
	p := newPlain(t, redistest.Start(t), nil)
	ops := make([]backend.Op, 100)
	reserve := func(n int) {
		for i := range ops {
			ops[i] = backend.Op{
				Key: keyOf(1), Limits: engine.Limits{{Algorithm: engine.FixedWindow, Hits: 1 << 32, Window: 1 << 45}},
				Reserve: &engine.Reserve{TTL: 60 * minute}, Take: engine.Take{Cost: 2000, Count: 1, Reservation: reservationOf(n + i)},
			}
		}
		p.Apply(t.Context(), ops)
		for i := range ops {
			if d := ops[i].Decision; ops[i].Err != nil || d.Reservation != engine.ReservationOpen {
				t.Fatalf("%+v, %v, want an open reservation", d, ops[i].Err)
			}
		}
	}
	for n := 0; n < engine.MaxReservations; n += len(ops) {
		reserve(n)
	}
	var bytes int64
	for _, key := range p.client.Keys(t.Context(), "*").Val() {
		if ttl := p.client.PTTL(t.Context(), key).Val(); ttl <= 0 {
			t.Errorf("%s is kept for %v", key, ttl)
		}
		bytes += p.client.MemoryUsage(t.Context(), key, 0).Val() // samples all elements
	}
	each := bytes / engine.MaxReservations
	t.Logf("a reservation takes %d bytes", each)
	if each == 0 || each > 200 {
		t.Errorf("a reservation takes %d bytes, want at most 200", each)
	}
}

// TestF27_SpoiledReservations checks that invalid data in the keys of reservations are no error, unless the type is wrong, and admit no
// additional hits.
func TestF27_SpoiledReservations(t *testing.T) {
	const begin = engine.Micros(1_800_000_000_000_000)
	for _, a := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		now := begin
		p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
		s := &spoiler{Rand: rand.New(rand.NewPCG(1, 2)), client: p.client, now: float64(begin)}
		limit := engine.Limit{Algorithm: engine.FixedWindow, Hits: 50, Window: 60 * minute}
		switch a {
		case "sliding_window":
			limit.Algorithm, limit.Precision = engine.SlidingWindow, 10
		case "token_bucket":
			limit.Algorithm, limit.Burst, limit.Initial = engine.TokenBucket, 50, 50
		}
		for i := range 300 {
			now = begin
			op := backend.Op{Key: keyOf(i), Limits: engine.Limits{limit.Prepared()}, Reserve: &engine.Reserve{TTL: minute}}
			used := p.keysOf(&op)
			for n := range 3 {
				op.Take = engine.Take{Cost: 5, Count: 1, Reservation: reservationOf(n)}
				p.one(t, op)
			}
			wrongType := s.spoilReservations(t, used[1], used[2])
			admitted := uint64(15)
			for n := range 30 {
				op.Mode, op.Take = backend.Take, engine.Take{Cost: 2, Count: 1}
				if n%3 > 0 {
					op.Take.Reservation = reservationOf(n)
				}
				if n == 20 {
					op.Mode = backend.Peek
				}
				ops := []backend.Op{op}
				p.Apply(t.Context(), ops)
				if err := ops[0].Err; err != nil && (!wrongType || !strings.Contains(err.Error(), "WRONGTYPE")) {
					t.Fatalf("%s: %v", a, err)
				}
				if op.Mode == backend.Take {
					admitted += 2 * ops[0].Decision.Admitted
				}
				now += engine.Micros(s.IntN(int(10 * second)))
			}
			if admitted > limit.Hits+limit.Hits/10 { // the bucket continues to fill
				t.Fatalf("%s: %d hits were admitted, want at most %d", a, admitted, limit.Hits)
			}
		}
	}
}

// spoilReservations modifies or replaces the two keys of reservations. It reports whether one of them then has the wrong type.
func (s *spoiler) spoilReservations(t *testing.T, hash, set string) (wrongType bool) {
	t.Helper()
	ctx := t.Context()
	packed := func() []byte {
		b := binary.LittleEndian.AppendUint64(nil, math.Float64bits(s.number()))
		return binary.LittleEndian.AppendUint64(b, math.Float64bits(s.number()))[:16-s.IntN(2)*s.IntN(17)]
	}
	name := reservationOf(s.IntN(4))
	score := s.number()
	switch s.IntN(7) {
	case 0:
		s.client.HSet(ctx, hash, "", packed())
	case 1:
		s.client.HSet(ctx, hash, string(name[:]), packed())
	case 2:
		s.client.Del(ctx, hash)
	case 3:
		s.client.Del(ctx, set)
	case 4:
		if !math.IsNaN(score) {
			s.client.ZAdd(ctx, set, redis.Z{Member: string(name[:]), Score: score})
		}
	case 5:
		for n := range 100 {
			s.client.ZAdd(ctx, set, redis.Z{Member: fmt.Sprint(n), Score: float64(n)})
		}
	default:
		wrong := s.write(t, hash) != "hash"
		return wrong || s.IntN(2) == 0 && s.write(t, set) != "zset"
	}
	return false
}
