package limiter

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

func keyOf(name any) backend.Key {
	sum := sha256.Sum256(fmt.Append(nil, name))
	return backend.Key(sum[:len(backend.Key{})])
}

// TestSingles: only a rule whose counters are used once each is reported, and not before it has been watched for a while.
func TestSingles(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // any will do
	begun := time.Unix(1_700_000_000, 0)
	for _, x := range []struct {
		name    string
		every   time.Duration
		hours   int
		counter func(i int) any // of the counter of the i-th check
		from    time.Duration   // when the first report comes; 0 means never
	}{
		{"each stream has a counter", time.Second, 1, func(i int) any { return i }, 1000 * time.Second},
		{"many streams a second", 10 * time.Millisecond, 1, func(i int) any { return i }, singlesAfter},
		{"few streams", 4 * time.Second, 3, func(i int) any { return i }, 0},
		{"some streams ask twice", time.Second, 1, func(i int) any { return i - i%50/49 }, 1000 * time.Second},
		{"one user", 100 * time.Millisecond, 2, func(int) any { return 0 }, 0},
		{"a hundred users", 50 * time.Millisecond, 2, func(int) any { return random.IntN(100) }, 0},
		{"100,000 users, who each call every half hour", 18 * time.Millisecond, 1, func(int) any { return random.IntN(100_000) }, 0},
		{
			"2,000 users at a time, with sessions of three calls within two minutes, and always others", 20 * time.Millisecond, 1,
			func(i int) any { return i/6000*6000 + i%2000 }, 0,
		},
		{"calls without a user share a counter, the others are streams", 10 * time.Millisecond, 1, func(i int) any {
			if i%10 == 0 {
				return "none"
			}
			return i
		}, singlesAfter},
	} {
		s, first := new(singles), time.Duration(0)
		for i := range x.hours * int(time.Hour/x.every) {
			at := time.Duration(i) * x.every
			if s.see(keyOf(x.counter(i)), begun.Add(at), singlesAfter) {
				first = at
				break
			}
			if len(s.seen) > maxSingles {
				t.Fatalf("%s: %d counters are remembered", x.name, len(s.seen))
			}
		}
		if diff := first - x.from; diff < -2*x.every || diff > 2*x.every {
			t.Errorf("%s: the first report comes after %v, want %v", x.name, first, x.from)
		}
	}
}
