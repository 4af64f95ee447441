package redis

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// answer is the result of one call of a load.
type answer struct {
	at    time.Time
	took  time.Duration
	class remote.Class
}

// load is a stream of calls, each in its own goroutine.
type load struct {
	mu      sync.Mutex
	answers []answer
	stalls  []stall
	peak    int          // number of goroutines
	each    atomic.Int64 // interval of calls in ns
	stop    chan struct{}
	wg      sync.WaitGroup
}

// stall is a period in which this process did not run, because the machine was busy.
type stall struct{ from, to time.Time }

// newLoad makes rate calls per second to b, each with a deadline after wait.
func newLoad(b *Backend, rate int, wait time.Duration) *load {
	l := &load{stop: make(chan struct{})}
	l.each.Store(int64(time.Second) / int64(rate))
	l.wg.Go(l.watch)
	l.wg.Go(func() {
		next := time.Now()
		for i := 0; ; i++ {
			select {
			case <-l.stop:
				return
			default:
			}
			each := time.Duration(l.each.Load())
			switch d := time.Until(next); {
			case d > 0:
				time.Sleep(d)
			case d < -50*each:
				next = time.Now() // no burst after a stall
			}
			next = next.Add(each)
			if i%100 == 0 {
				l.peak = max(l.peak, runtime.NumGoroutine())
			}
			l.wg.Go(func() {
				begun := time.Now()
				op := oneIn(b, i%1000, wait)
				l.mu.Lock()
				defer l.mu.Unlock()
				l.answers = append(l.answers, answer{begun, time.Since(begun), class(op)})
			})
		}
	})
	return l
}

// watch records stalls of this process, during which a short sleep takes long.
func (l *load) watch() {
	const short, long = 2 * time.Millisecond, 10 * time.Millisecond
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		from := time.Now()
		time.Sleep(short)
		if to := time.Now(); to.Sub(from) > long {
			l.mu.Lock()
			l.stalls = append(l.stalls, stall{from, to})
			l.mu.Unlock()
		}
	}
}

// stood returns the total duration of stalls in a period.
func (l *load) stood(from, to time.Time) (sum time.Duration) {
	for _, s := range l.stalls {
		if s.from.Before(from) {
			s.from = from
		}
		if s.to.After(to) {
			s.to = to
		}
		sum += max(s.to.Sub(s.from), 0)
	}
	return sum
}

// healthy waits until most calls in half a second are answered. If other tests keep the processors too busy, it reduces the rate.
func (l *load) healthy(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "calls that are answered", func() bool {
		from := time.Now()
		time.Sleep(500 * time.Millisecond)
		l.mu.Lock()
		defer l.mu.Unlock()
		found := l.between(from, time.Now())
		if len(found) > 0 && 2*failures(found) <= len(found) {
			return true
		}
		l.each.Store(min(2*l.each.Load(), int64(time.Second/50)))
		return false
	})
}

// answered waits until n more calls have ended.
func (l *load) answered(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.answers)
	}
	want := count() + n
	testkit.Eventually(t, "calls that end", func() bool { return count() >= want })
}

// end ends the load and waits for calls in progress. It then subtracts stalls from the durations of calls.
func (l *load) end() {
	close(l.stop)
	l.wg.Wait()
	slices.SortFunc(l.answers, func(a, b answer) int { return a.at.Compare(b.at) })
	for i := range l.answers {
		a := &l.answers[i]
		a.took -= l.stood(a.at, a.at.Add(a.took))
	}
}

// between returns the calls made in a period.
func (l *load) between(from, to time.Time) (found []answer) {
	for _, a := range l.answers {
		if !a.at.Before(from) && a.at.Before(to) {
			found = append(found, a)
		}
	}
	return found
}

// p99 returns the 99th percentile of the durations of calls.
func p99(answers []answer) time.Duration {
	if len(answers) == 0 {
		return 0
	}
	took := make([]time.Duration, len(answers))
	for i, a := range answers {
		took[i] = a.took
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// failed returns the number of failed calls by error class.
func failed(answers []answer) map[remote.Class]int {
	found := map[remote.Class]int{}
	for _, a := range answers {
		if a.class != "" {
			found[a.class]++
		}
	}
	return found
}

// failures returns the number of failed calls.
func failures(answers []answer) (n int) {
	for _, count := range failed(answers) {
		n += count
	}
	return n
}

// recovery returns the time from since to the last failed call in a tenth of a second in which at least a tenth of the calls failed.
// Single later failures are due to the load of the machine.
func recovery(answers []answer, since time.Time) time.Duration {
	const span = 100 * time.Millisecond
	type tally struct {
		calls, failed int
		last          time.Duration
	}
	spans := map[time.Duration]tally{}
	for _, a := range answers {
		if after := a.at.Sub(since); after > 0 {
			n := spans[after/span]
			n.calls++
			if a.class != "" {
				n.failed++
				n.last = after
			}
			spans[after/span] = n
		}
	}
	last := time.Duration(0)
	for _, n := range spans {
		if 10*n.failed >= n.calls {
			last = max(last, n.last)
		}
	}
	return last
}

// figure prints a duration, and fails the test if it exceeds ten times the goal.
func figure(t *testing.T, what string, got, want time.Duration) {
	t.Helper()
	t.Logf("%s: %v, wanted %v", what, got.Round(10*time.Microsecond), want)
	if got > 10*want {
		t.Errorf("%s took %v, which is more than ten times %v", what, got, want)
	}
}
