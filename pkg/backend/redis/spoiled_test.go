package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// spoiler writes values to the keys of counters that no script writes.
type spoiler struct {
	*rand.Rand

	client *redis.Client
	now    float64
}

func (s *spoiler) number() float64 {
	of := []float64{
		math.NaN(), math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), -1, -2, 0.5, 1, 2, 5, 1e300, -1e300, 5e-324,
		s.now, s.now + 0.5, s.now - 1, s.now - 3e7, s.now + 3e7, 1 << 31, 1 << 48, 1 << 52, 1<<53 - 1, 1 << 53, 1 << 63,
	}
	return of[s.IntN(len(of))]
}

func (s *spoiler) packed() string {
	var b []byte
	n, same := s.number(), s.IntN(4) == 0
	for range []int{1, 2, 3, 4, 5, 6, 6, 7, 12}[s.IntN(9)] {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
		if !same {
			n = s.number()
		}
	}
	return string(b)
}

func (s *spoiler) text() string {
	switch s.IntN(6) {
	case 0:
		b := make([]byte, s.IntN(60))
		for i := range b {
			b[i] = byte(s.Uint32())
		}
		return string(b)
	case 1:
		of := []string{"", "=", "nan", "inf", "-inf", "0x7fffffffffff", "-5", "9223372036854775807", "1e400", " 7 ", "1.5", "99999999999999999999"}
		return of[s.IntN(len(of))]
	case 2:
		return fmt.Sprintf("%.0f", s.number())
	case 3:
		return "=" + s.packed()
	}
	return s.packed()
}

// fits returns a field of a hash with the length of a valid one, or nearly.
func (s *spoiler) fits(name string) string {
	b := make([]byte, []int{34, 68, 34 * s.IntN(5), s.IntN(99)}[s.IntN(4)])
	if name == "" {
		b = make([]byte, []int{32, 61, 90, s.IntN(200)}[s.IntN(4)])
	}
	for i := range b {
		b[i] = byte(s.Uint32() >> (24 + s.IntN(8)))
	}
	for i := range len(b) / 8 {
		if s.IntN(2) == 0 {
			binary.LittleEndian.PutUint64(b[i*8:], math.Float64bits(s.number()))
		}
	}
	return string(b)
}

// write sets a key to a value of any type, and returns the type.
func (s *spoiler) write(tb testing.TB, key string) string {
	tb.Helper()
	ctx := tb.Context()
	var err error
	kind := []string{"string", "string", "list", "zset", "hash"}[s.IntN(5)]
	if err = s.client.Del(ctx, key).Err(); err != nil {
		tb.Fatal(err)
	}
	switch kind {
	case "string":
		err = s.client.Set(ctx, key, s.text(), 0).Err()
	case "list":
		for range 1 + s.IntN(6) {
			err = s.client.RPush(ctx, key, s.text()).Err()
		}
	case "zset":
		err = s.client.ZAdd(ctx, key, redis.Z{Member: s.text(), Score: 1}).Err()
	case "hash":
		for _, name := range []string{"", "1", "2", "!" + s.packed()[:8], s.text()} {
			if s.IntN(3) > 0 {
				err = s.client.HSet(ctx, key, name, s.fits(name)).Err()
			}
		}
	}
	if err != nil {
		tb.Fatal(err)
	}
	return kind
}

// spoil changes a number in the value that a script has written, if any.
func (s *spoiler) spoil(tb testing.TB, key string) {
	tb.Helper()
	ctx := tb.Context()
	change := func(state string) string {
		b := []byte(state)
		if at := len(b) / 8 * 8; at > 0 && len(b) > 16 {
			i := s.IntN(at/8)*8 + len(b)%8
			binary.LittleEndian.PutUint64(b[i:], math.Float64bits(s.number()))
			return string(b)
		}
		return s.text()
	}
	switch s.client.Type(ctx, key).Val() {
	case "string":
		s.client.Set(ctx, key, change(s.client.Get(ctx, key).Val()), redis.KeepTTL)
	case "list":
		i := s.Int64N(s.client.LLen(ctx, key).Val())
		s.client.LSet(ctx, key, i, change(s.client.LIndex(ctx, key, i).Val()))
	case "hash":
		all := s.client.HKeys(ctx, key).Val()
		field := all[s.IntN(len(all))]
		b := []byte(s.client.HGet(ctx, key, field).Val())
		switch s.IntN(4) {
		case 0:
			s.client.HDel(ctx, key, field)
			return
		case 1:
			b[s.IntN(len(b))] = byte(s.Uint32())
		case 2:
			b = []byte(s.fits(field))
		default:
			binary.LittleEndian.PutUint64(b[s.IntN(len(b)-7):], math.Float64bits(s.number()))
		}
		s.client.HSet(ctx, key, field, b)
	}
}

// TestF27_SpoiledStates checks that an invalid value in the key of a counter counts as absent, or as a state that rejects more. It is no
// error, unless its type is wrong, and admits no additional hits.
func TestF27_SpoiledStates(t *testing.T) {
	const begin = engine.Micros(1_800_000_000_000_000)
	now := begin
	p := newPlain(t, redistest.Start(t), func() engine.Micros { return now })
	type counter struct {
		limits  engine.Limits
		penalty *engine.Penalty
	}
	listed := func(limits ...engine.Limit) engine.Limits {
		for i := range limits {
			limits[i].Listed, limits[i].CountRefused = true, false
		}
		return limits
	}
	all := map[string]counter{}
	for name, l := range eachLimit() {
		all[name] = counter{limits: engine.Limits{l.Prepared()}}
		all[name+" in a list"] = counter{limits: listed(l, engine.Limit{Algorithm: engine.SlidingWindow, Hits: 20, Window: second, Precision: 7})}
	}
	for _, on := range []engine.Trigger{engine.OnExceeded, engine.OnReached} {
		all[fmt.Sprint("penalty ", on)] = counter{
			limits:  engine.Limits{eachLimit()["token_bucket"]},
			penalty: &engine.Penalty{For: second, Max: minute, On: on, Escalate: 2},
		}
	}
	types := map[engine.Family]string{engine.FamilyRuns: "list", engine.FamilySlots: "hash"}
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			s := &spoiler{Rand: rand.New(rand.NewPCG(1, uint64(len(name)))), client: p.client, now: float64(begin)}
			if err := p.client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			for i := range 80 {
				now = begin
				op := backend.Op{Key: keyOf(i), Limits: c.limits, Penalty: c.penalty}
				used := p.keysOf(&op)
				right := true
				if s.IntN(2) == 0 { // modify the existing value
					for range 1 + s.IntN(4) {
						op.Take = engine.Take{Cost: 1 + s.Uint64N(2), Count: 1, Owner: []string{"", "ann"}[s.IntN(2)]}
						p.one(t, op)
						now += engine.Micros(s.IntN(2 * int(second)))
					}
					s.spoil(t, used[s.IntN(len(used))])
				} else {
					at := s.IntN(len(used))
					want := "string"
					if at < len(c.limits) && types[c.limits[at].Algorithm.Family()] != "" {
						want = types[c.limits[at].Algorithm.Family()]
					}
					right = s.write(t, used[at]) == want || p.client.Exists(t.Context(), used[at]).Val() == 0
				}
				s.play(t, p, &op, right)
			}
		})
	}
}

// play runs operations on a spoiled counter at one time, and compares the admitted hits with the maximum of an intact counter.
func (s *spoiler) play(t *testing.T, p *plain, op *backend.Op, right bool) {
	t.Helper()
	ops := make([]backend.Op, 25)
	owner := []string{"", "ann"}[s.IntN(2)]
	gives := s.IntN(4) == 0
	most := uint64(math.MaxUint64)
	for _, l := range op.Limits {
		most = min(most, max(l.Hits, l.Burst)+l.Debt)
	}
	for i := range ops {
		ops[i] = *op
		ops[i].Take = engine.Take{Cost: 1, Count: 1 + s.Uint64N(2), Owner: owner}
		switch s.IntN(8) {
		case 0:
			ops[i].Mode = backend.Peek
		case 1:
			ops[i].Take.Cost = 0
		case 2:
			if gives {
				ops[i].Mode = []backend.Mode{backend.Refund, backend.Reset}[s.IntN(2)]
			}
		case 3:
			if op.Penalty == nil {
				ops[i].Take.Extra = 3
			}
		}
	}
	p.Apply(t.Context(), ops)
	admitted := uint64(0)
	for i := range ops {
		wrong := ops[i].Err != nil && strings.Contains(ops[i].Err.Error(), "WRONGTYPE")
		if ops[i].Err != nil && (right || !wrong) {
			t.Fatalf("mode %d, %+v: %v", ops[i].Mode, ops[i].Take, ops[i].Err)
		}
		if ops[i].Mode == backend.Take && ops[i].Take.Cost > 0 {
			admitted += ops[i].Decision.Admitted
		}
	}
	renews := owner != "" && slices.ContainsFunc(op.Limits, func(l engine.Limit) bool { return l.Algorithm == engine.Concurrency })
	if !gives && !renews && admitted > most {
		for _, o := range ops {
			t.Logf("mode %d, %+v: %+v", o.Mode, o.Take, o.Decision)
		}
		t.Fatalf("%d admitted, want at most %d", admitted, most)
	}
}
