package proof

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// ideal is a simple counter that keeps its bound while settings alternate.
type ideal struct {
	hits   []stamp // of logs, windows, and slots
	start  Micros  // of a window that begins with its first hit
	spent  float64 // of a bucket, at asOf
	asOf   Micros
	seen   bool
	free   float64 // end of the last turn in a queue
	owners map[string]stamp
}

type stamp struct {
	at, until Micros
	n         int64
}

// take takes n hits by l if they fit.
func (m *ideal) take(now Micros, n int64, l *Limit, owner string) (ok bool, wait Micros) {
	switch l.Algorithm {
	case TokenBucket, LeakyBucket:
		return m.fill(now, n, l)
	case Concurrency:
		if owner != "" {
			return m.hold(now, n, l, owner), 0
		}
	case FixedWindow, SlidingWindow, SlidingLog: // hits count for a while
	}
	if ok = m.counted(now, l)+n <= l.Hits; ok || l.CountRefused {
		if l.First && now >= m.start+l.Window {
			m.start = now
		}
		m.hits = append(m.hits, stamp{now, now + l.Window, n})
	}
	return ok, 0
}

// counted returns the hits that count against l.
func (m *ideal) counted(now Micros, l *Limit) (sum int64) {
	from := now - l.Window + 1
	switch {
	case l.Algorithm == FixedWindow && l.First:
		if from = m.start; now >= m.start+l.Window {
			return 0
		}
	case l.Algorithm == FixedWindow:
		from, _ = l.window(now)
	}
	for _, h := range m.hits {
		if h.at >= from && (l.Algorithm != Concurrency || h.until > now) {
			sum += h.n
		}
	}
	if l.Algorithm == Concurrency { // a slot lasts for the window it was taken with
		sum = 0
		for _, h := range m.hits {
			if h.until > now {
				sum += h.n
			}
		}
	}
	return sum
}

// settle credits a bucket for the time since its last write, at l's rate.
func (m *ideal) settle(now Micros, l *Limit) (spent float64) {
	if !m.seen {
		if l.Algorithm == TokenBucket {
			return float64(l.Burst - l.Initial)
		}
		return 0
	}
	from, to := m.asOf, now
	if l.Fill > 0 {
		from, to = from-from%l.Fill, to-to%l.Fill
	}
	return max(m.spent-l.rate()*float64(to-from), 0)
}

func (m *ideal) fill(now Micros, n int64, l *Limit) (ok bool, wait Micros) {
	spent := m.settle(now, l)
	switch {
	case l.Algorithm == LeakyBucket:
		ok = spent < float64(l.Burst-n+1)
	case l.Debt > 0:
		ok = spent < float64(l.Burst) && spent+float64(n) <= float64(l.Burst+l.Debt)
	default:
		ok = spent+float64(n) <= float64(l.Burst)
	}
	if !ok && m.seen { // writes nothing
		return false, 0
	}
	if ok {
		turn := max(float64(now)+spent/l.rate(), m.free)
		m.free = turn + float64(n)/l.rate()
		wait = Micros(turn) - now
		wait += WaitUnit - wait%WaitUnit
		spent += float64(n)
	}
	m.spent, m.asOf, m.seen = spent, now, true
	return ok, wait
}

func (m *ideal) hold(now Micros, n int64, l *Limit, owner string) bool {
	if m.owners == nil {
		m.owners = map[string]stamp{}
	}
	sum, own := int64(0), int64(0)
	for name, h := range m.owners {
		switch {
		case h.until <= now:
		case name == owner:
			own = h.n
		default:
			sum += h.n
		}
	}
	if n > own && sum+n > l.Hits {
		return false
	}
	m.owners[owner] = stamp{now, now + l.Window, max(n, own)}
	return true
}

// give refunds n hits.
func (m *ideal) give(now Micros, n int64, l *Limit, owner string) {
	switch {
	case l.Algorithm == LeakyBucket:
		return
	case l.Algorithm == TokenBucket:
		if m.seen {
			m.spent, m.asOf = max(m.settle(now, l)-float64(n), 0), now
		}
		return
	case owner != "":
		if h := m.owners[owner]; h.n > 0 {
			h.n = max(h.n-n, 0)
			m.owners[owner] = h
		}
		return
	}
	from := now - forever
	switch {
	case l.Algorithm == FixedWindow && !l.First:
		from, _ = l.window(now)
	case l.First:
		from = m.start
	}
	for i := range m.hits { // oldest first
		if h := &m.hits[i]; h.at >= from && h.until > now-forever && n > 0 && (l.Algorithm != Concurrency || h.until > now) {
			less := min(n, h.n)
			h.n, n = h.n-less, n-less
		}
	}
}

// left returns the remaining hits for an observer.
func (m *ideal) left(now Micros, l *Limit) int64 {
	switch {
	case l.Algorithm == TokenBucket || l.Algorithm == LeakyBucket:
		if !m.seen {
			return l.Burst
		}
		return max(l.Burst-int64(m.settle(now, l)+1-1e-9), 0)
	case l.Algorithm == Concurrency && m.owners != nil:
		sum := int64(0)
		for _, h := range m.owners {
			if h.until > now {
				sum += h.n
			}
		}
		return max(l.Hits-sum, 0)
	}
	return max(l.Hits-m.counted(now, l), 0)
}

// settingsOf draws settings that share a counter.
func settingsOf(r *rand.Rand, a Algorithm) []*Setting {
	var all []*Setting
	first := Limit{Algorithm: a, CountRefused: a == FixedWindow && r.IntN(2) == 0, First: a == FixedWindow && r.IntN(2) == 0}
	if a == SlidingWindow {
		first.Precision = 10
	}
	first.Window = Micros(1+r.IntN(5)) * 1_000_000
	bucket := a == TokenBucket || a == LeakyBucket
	for i := range 1 + r.IntN(3) {
		l := first
		l.Hits = 1 + r.Int64N(60)
		if bucket || a == SlidingLog || a == Concurrency {
			l.Window = Micros(1+r.IntN(10)) * 1_000_000
		}
		if bucket {
			l.Burst = 1 + r.Int64N(60)
		}
		if a == TokenBucket {
			l.Initial = l.Burst
			switch r.IntN(4) {
			case 0:
				l.Debt = r.Int64N(30)
			case 1:
				l.Fill = l.Window / 4
			case 2:
				l.Initial = r.Int64N(l.Burst + 1)
			}
		}
		all = append(all, &Setting{Name: fmt.Sprint(i), Limits: []Limit{l}})
	}
	return all
}

// history plays clients against an ideal counter. Timestamps have an error of up to blur.
func history(r *rand.Rand, m *ideal, settings []*Setting, blur int64) (calls []Call, end Micros) {
	at := Micros(1_800_000_000_000_000) + Micros(r.Int64N(10_000_000))
	owners := settings[0].Limits[0].Algorithm == Concurrency && r.IntN(2) == 0
	most := []int64{1, 5, 50}[r.IntN(3)]
	for range 20 + r.IntN(200) {
		at += Micros(r.ExpFloat64() * 40_000)
		s := settings[r.IntN(len(settings))]
		l := &s.Limits[0]
		c := Call{Sent: at - Micros(r.Int64N(blur)), Done: at + 1 + Micros(r.Int64N(blur)), Hits: 1 + r.Int64N(most), Under: []*Setting{s}, Outcome: Rejected}
		if owners {
			c.Owner = fmt.Sprint(r.IntN(4))
		}
		switch r.IntN(10) {
		case 0:
			c.Kind, c.Outcome = Refund, Admitted
			m.give(at, c.Hits, l, c.Owner)
		case 1:
			c.Kind, c.Hits = Peek, 0
		default:
			var ok bool
			if ok, c.Wait = m.take(at, c.Hits, l, c.Owner); ok {
				c.Outcome = Admitted
			}
		}
		if r.IntN(20) == 0 && c.Kind != Peek {
			c.Outcome, c.Under = Unanswered, settings
		}
		calls = append(calls, c)
	}
	r.Shuffle(len(calls), func(i, k int) { // clients report their calls separately
		if !owners {
			calls[i], calls[k] = calls[k], calls[i]
		}
	})
	return calls, at
}

// TestHonest checks that a counter within its bound is never accused, for any settings and any error of timestamps.
func TestHonest(t *testing.T) {
	t.Parallel()
	for _, a := range []Algorithm{FixedWindow, SlidingWindow, SlidingLog, TokenBucket, LeakyBucket, Concurrency} {
		t.Run(string(a), func(t *testing.T) {
			t.Parallel()
			accounted := 0
			for seed := range uint64(600) {
				r := rand.New(rand.NewPCG(seed, 1))
				settings := settingsOf(r, a)
				if r.IntN(2) == 0 { // windows that do not end
					for _, s := range settings {
						s.Limits[0].Window *= 1000
						s.Limits[0].Fill *= 1000
					}
				}
				m := &ideal{}
				calls, end := history(r, m, settings, []int64{1, 1000, 100_000}[r.IntN(3)])
				for _, e := range Check(calls, 3) {
					t.Errorf("seed %d, %+v: %s: %+v", seed, settings[0].Limits[0], e.Promise, e.Worst)
				}
				l := &settings[0].Limits[0]
				at := end + 200_000
				mismatch, ok := Account(calls, Seen{Sent: at, Done: at + 1, Limit: l, Left: m.left(at, l)}, false)
				if mismatch != nil {
					t.Errorf("seed %d, %+v: %+v", seed, *l, mismatch)
				}
				if ok {
					accounted++
				}
			}
			if accounted < 100 {
				t.Errorf("%d counters checked", accounted)
			}
		})
	}
}

// TestLost checks that Account finds one lost hit and one uncounted hit.
func TestLost(t *testing.T) {
	t.Parallel()
	for _, a := range []Algorithm{FixedWindow, SlidingWindow, SlidingLog, Concurrency} {
		found := 0
		for seed := range uint64(100) {
			r := rand.New(rand.NewPCG(seed, 2))
			l := Limit{Algorithm: a, Hits: 5000, Window: 3_600_000_000}
			if a == SlidingWindow {
				l.Precision = 10
			}
			m := &ideal{}
			calls, end := history(r, m, []*Setting{{Limits: []Limit{l}}}, 1)
			calls = slices.DeleteFunc(calls, func(c Call) bool { return c.Kind == Refund })
			if slices.ContainsFunc(calls, func(c Call) bool { return c.Outcome == Unanswered }) || m.owners != nil {
				continue
			}
			spent := int64(0)
			for _, c := range calls {
				spent += c.Hits
			}
			for _, wrong := range []int64{-1, 0, 1} {
				mismatch, ok := Account(calls, Seen{Sent: end, Done: end + 1, Limit: &l, Left: l.Hits - spent + wrong}, false)
				if ok && (mismatch != nil) != (wrong != 0) {
					t.Errorf("%s, seed %d: off by %d of %d, spent %d: %+v", a, seed, wrong, l.Hits, spent, mismatch)
				}
				if mismatch != nil {
					found++
				}
			}
		}
		if found == 0 {
			t.Errorf("%s: Account found no mismatch", a)
		}
	}
}
