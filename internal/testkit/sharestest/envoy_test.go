package sharestest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

const ms = second / 1000

// assign returns an assignment of a token bucket for a minute.
func assign(most, fill uint32, interval shares.Micros) Assignment {
	return Assignment{Strategy{TokenBucket, most, fill, interval}, 60 * second}
}

// offer sends one request per step, and returns the times of the admitted ones.
func offer(b *Bucket, from, to, step shares.Micros) (at []shares.Micros) {
	for t := from; t < to; t += step {
		if b.Request(t, 1) == 1 {
			at = append(at, t)
		}
	}
	return at
}

// TestRefill compares with the number of requests that a real Envoy 1.40 admitted of 200 per second in 10 s.
func TestRefill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		a        Assignment
		admitted int
		gap      shares.Micros // between two admitted requests once the bucket is empty; 0 if there are none
	}{
		{"smooth", assign(10, 5, second), 59, 200 * ms},
		{"interval of 2 s", assign(10, 5, 2*second), 34, 400 * ms},
		{"1.5 s is 1 s", assign(10, 5, 1500*ms), 59, 200 * ms},
		{"2.9 s is 2 s", assign(10, 5, 2900*ms), 34, 400 * ms},
		{"fill above the tokens", assign(5, 20, second), 204, 50 * ms},
		{"no limit below 1 s", assign(10, 5, 999*ms), 2000, 5 * ms},
		{"no limit without an interval", assign(10, 5, 0), 2000, 5 * ms},
		{"no fill", assign(10, 0, second), 10, 0},
		{"an hour, every 2 s", assign(1, 1800, 3600*second), 5, 2 * second},
		{"an hour, 5 a second", assign(2, 18000, 3600*second), 51, 200 * ms},
		{"an hour, 50 a second", assign(10, 180000, 3600*second), 509, 20 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := &Bucket{}
			b.Assign(0, c.a)
			at := offer(b, 0, 10*second, 5*ms)
			if got := len(at); got != c.admitted {
				t.Errorf("admitted %d, Envoy %d", got, c.admitted)
			}
			var gaps []shares.Micros
			for i := 1; i < len(at); i++ {
				if at[i-1] >= 2*second || c.gap == 2*second {
					gaps = append(gaps, at[i]-at[i-1])
				}
			}
			slices.Sort(gaps)
			if c.gap != 0 && (gaps[0] < c.gap-5*ms || gaps[len(gaps)-1] > c.gap+5*ms) {
				t.Errorf("gaps from %d to %d µs, Envoy %d", gaps[0], gaps[len(gaps)-1], c.gap)
			}
		})
	}
}

// TestStepped checks that a client according to gRFC A77 gets the tokens of an interval together.
func TestStepped(t *testing.T) {
	t.Parallel()
	b := &Bucket{Settings: Settings{Stepped: true}}
	b.Assign(0, assign(5, 5, second))
	at := offer(b, 0, 3*second, 10*ms)
	if len(at) != 15 || at[5] != second || at[10] != 2*second {
		t.Errorf("admitted at %v", at)
	}
}

// TestReplace tests the remaining tokens after another assignment, when 50 or all of 100 tokens were taken before.
func TestReplace(t *testing.T) {
	t.Parallel()
	deny := Assignment{Strategy{Kind: DenyAll}, 60 * second}
	allow := Assignment{Strategy{Kind: AllowAll}, 60 * second}
	base := assign(100, 1, second)
	short := base
	short.TTL = second
	for _, c := range []struct {
		name          string
		then          []Assignment
		half, drained uint64 // admitted after the second assignment
	}{
		{"same again", []Assignment{base}, 50, 0},
		{"more tokens", []Assignment{assign(200, 1, second)}, 100, 0},
		{"fewer tokens", []Assignment{assign(50, 1, second)}, 25, 0},
		{"another fill", []Assignment{assign(100, 2, second)}, 50, 0},
		{"another interval", []Assignment{assign(100, 1, 2*second)}, 50, 0},
		{"back and forth", []Assignment{assign(101, 1, second), base}, 49, 0},
		{"after deny", []Assignment{deny, base}, 100, 100},
		{"after allow", []Assignment{allow, base}, 100, 100},
		{"dropped", []Assignment{{Strategy{Kind: RequestsPerTimeUnit}, 60 * second}, base}, 50, 0},
	} {
		for taken, want := range map[uint64]uint64{50: c.half, 100: c.drained} {
			b := &Bucket{}
			b.Assign(0, base)
			b.Request(1, taken)
			for _, a := range c.then {
				b.Assign(2, a)
			}
			if got := b.Request(3, 1000); got != want {
				t.Errorf("%s, %d of 100 taken: %d more, Envoy %d", c.name, taken, got, want)
			}
		}
	}
}

// TestChurn tests the loss caused by frequent changes, each of which rounds the tokens down.
func TestChurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		every       shares.Micros
		one, other  Assignment
		lasts       shares.Micros
		least, most int
	}{
		{"1/s, each 300 ms", 300 * ms, assign(10, 1, second), assign(11, 1, second), 9 * second, 0, 0},
		{"1/s, each 1.5 s", 1500 * ms, assign(10, 1, second), assign(11, 1, second), 9 * second, 6, 6},
		{"1/s, the same each 300 ms", 300 * ms, assign(10, 1, second), assign(10, 1, second), 9 * second, 8, 9},
		{"deny and 10 each 500 ms", 500 * ms, assign(10, 1, second), Assignment{Strategy{Kind: DenyAll}, 60 * second}, 5 * second, 50, 51},
	} {
		b := &Bucket{}
		b.Assign(0, c.one)
		admitted := 0
		if c.other.Kind == TokenBucket {
			b.Request(0, 10)
		}
		for t := shares.Micros(0); t < c.lasts; t += 20 * ms {
			if t%c.every == 0 && t > 0 {
				b.Assign(t, []Assignment{c.one, c.other}[t/c.every%2])
			}
			admitted += int(b.Request(t, 1))
		}
		if admitted < c.least || admitted > c.most {
			t.Errorf("%s: admitted %d, Envoy %d to %d", c.name, admitted, c.least, c.most)
		}
	}
}

// TestTTL tests the lifetime of an assignment and the phase after it.
func TestTTL(t *testing.T) {
	t.Parallel()
	deny := Strategy{Kind: DenyAll}
	for ttl, want := range map[shares.Micros]shares.Micros{
		0: 0, 500 * ms: 0, 999 * ms: 0, second: second, 1999 * ms: second, 3 * second: 3 * second, -5 * second: 0,
	} {
		b := &Bucket{}
		b.Assign(0, Assignment{deny, ttl})
		if at := offer(b, 0, 5*second, 10*ms); at[0] != want {
			t.Errorf("TTL of %d µs: denied until %d µs, Envoy %d", ttl, at[0], want)
		}
	}
	b := &Bucket{Settings: Settings{Expired: &deny, ExpiredFor: 2 * second}}
	b.Assign(0, Assignment{Strategy{Kind: AllowAll}, second})
	b.Assign(500*ms, Assignment{Strategy{Kind: AllowAll}, second}) // restarts the lifetime
	var changes []shares.Micros
	last := false
	for t := shares.Micros(0); t < 5*second; t += 10 * ms {
		if now := b.Request(t, 1) == 1; now != last {
			changes, last = append(changes, t), now
		}
	}
	if diff := cmp.Diff([]shares.Micros{0, 1500 * ms, 3500 * ms}, changes); diff != "" {
		t.Errorf("allowed, denied by the fallback, and by no assignment allowed (-want +got):\n%s", diff)
	}
	b = &Bucket{}
	b.Assign(0, Assignment{Strategy{TokenBucket, 10, 1, second}, second})
	b.Request(0, 20)
	b.Assign(second, assign(10, 1, second))
	if got := b.Request(second, 20); got != 10 {
		t.Errorf("after a lapse the bucket had %d tokens, Envoy 10", got)
	}
	b.Abandon()
	b.Assign(second, assign(10, 1, second))
	if got := b.Request(second, 20); got != 10 {
		t.Errorf("after being abandoned the bucket had %d tokens, Envoy 10", got)
	}
}
