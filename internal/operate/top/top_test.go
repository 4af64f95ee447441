package top_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/top"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// stream feeds a Top as a limiter does.
type stream struct {
	*top.Top
	sample   limiter.Sample
	decision top.Decision
	looked   int
}

func newStream() *stream {
	return &stream{Top: top.New(), decision: top.Decision{Domain: []byte("shop")}}
}

// ask asks for hits of a user, of which some are rejected.
func (s *stream) ask(rule, user string, hits, rejected uint64) {
	s.sample.Hits = hits
	if top.Passes(&s.sample) {
		return
	}
	weight, every := s.Draw(&s.sample, 1)
	if weight == 0 {
		return
	}
	s.looked++
	d := s.decision
	d.Rule, d.Hits, d.Rejected = rule, hits, rejected
	d.Entries = []descriptors.Entry{{Key: []byte("user"), Value: []byte(user)}}
	s.Add(&d, weight, every)
}

func text(a top.Answer) (lines []string) {
	for _, r := range a.Rows {
		var pairs []string
		for _, e := range r.Entries {
			pairs = append(pairs, e.Key+"="+e.Value)
		}
		lines = append(lines, fmt.Sprintf("%s %s %v", r.Rule, strings.Join(pairs, ","), r.Counts))
	}
	return lines
}

func check(t *testing.T, a top.Answer, want ...string) {
	t.Helper()
	if got := text(a); !slices.Equal(got, want) {
		t.Errorf("the rows are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFewAreCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		s.ask("shop.user", "ann", 3, 0)
		s.ask("shop.user", "bob", 1, 1)
		s.ask("shop.other", "ann", 2, 2)
		s.ask("", "eve", 1, 0)
		s.ask("shop.user", "nobody", 0, 0)
		check(t, s.Top.Top(top.Query{}),
			"shop.user user=ann [{3 0} {0 0}]", "shop.other user=ann [{2 0} {2 0}]", " user=eve [{1 0} {0 0}]", "shop.user user=bob [{1 0} {1 0}]")
		check(t, s.Top.Top(top.Query{By: top.Rejected}), "shop.other user=ann [{2 0} {2 0}]", "shop.user user=bob [{1 0} {1 0}]")
		check(t, s.Top.Top(top.Query{Rule: "shop.user", Most: 1}), "shop.user user=ann [{3 0} {0 0}]")
		check(t, s.Top.Top(top.Query{Rule: "shop.none"}))
	})
}

// TestSharedPath: a rule whose path one of another domain has is counted on its own, and with it only if both are asked for.
func TestSharedPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		s.ask("shop.eu.user", "ann", 3, 1)
		s.decision.Domain = []byte("shop.eu")
		s.ask("shop.eu.user", "bob", 20, 0)
		only := func(want string) func(string) bool { return func(domain string) bool { return domain == want } }
		for _, tt := range []struct {
			query top.Query
			total float64
			rows  []string
		}{
			{top.Query{In: only("shop")}, 3, []string{"shop.eu.user user=ann [{3 0} {1 0}]"}},
			{top.Query{In: only("shop.eu")}, 20, []string{"shop.eu.user user=bob [{20 0} {0 0}]"}},
			{top.Query{In: only("other")}, 0, nil},
			{top.Query{}, 23, []string{"shop.eu.user user=bob [{20 0} {0 0}]", "shop.eu.user user=ann [{3 0} {1 0}]"}},
		} {
			tt.query.Rule = "shop.eu.user"
			a := s.Top.Top(tt.query)
			check(t, a, tt.rows...)
			if a.Total[top.Busiest] != tt.total || !a.Own {
				t.Errorf("%v hits in all, want %v; own %t", a.Total, tt.total, a.Own)
			}
		}
	})
}

// A minute is the ten seconds that run and the sixty before, and an hour is likewise.
func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, start := newStream(), time.Now()
		s.ask("shop.user", "ann", 1, 1)
		time.Sleep(69 * time.Second)
		s.ask("shop.user", "ann", 1, 0)
		minute := top.Query{Rule: "shop.user"}
		a := s.Top.Top(minute)
		check(t, a, "shop.user user=ann [{2 0} {1 0}]")
		if !a.From.Equal(start) || a.To.Sub(start) != 69*time.Second {
			t.Errorf("the minute is from %v to %v", a.From.Sub(start), a.To.Sub(start))
		}
		time.Sleep(time.Second)
		a = s.Top.Top(minute)
		check(t, a, "shop.user user=ann [{1 0} {0 0}]")
		if a.From.Sub(start) != 10*time.Second {
			t.Errorf("the minute is from %v", a.From.Sub(start))
		}
		hour := top.Query{Rule: "shop.user", Window: top.Hour}
		check(t, s.Top.Top(hour), "shop.user user=ann [{2 0} {1 0}]")
		time.Sleep(70*time.Minute - 71*time.Second)
		check(t, s.Top.Top(minute))
		check(t, s.Top.Top(hour), "shop.user user=ann [{2 0} {1 0}]")
		time.Sleep(time.Second)
		check(t, s.Top.Top(hour))
		if a := s.Top.Top(hour); a.From.Sub(start) != 10*time.Minute {
			t.Errorf("the hour is from %v", a.From.Sub(start))
		}
	})
}

const (
	zipfKeys    = 1_000_000
	zipfSeconds = 61
	zipfRate    = 100_000 // requests per second: more than this server decides on two cores
)

// Accuracy, memory and CPU at full load, for a minute: a million keys, the n-th of which is asked for 1/n as often as the first.
func TestZipf(t *testing.T) {
	names := make([]string, zipfKeys)
	for i := range names {
		names[i] = "customer-" + strconv.Itoa(i)
	}
	synctest.Test(t, func(t *testing.T) {
		zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.01, 1, zipfKeys-1)
		drawn := make([]uint32, zipfRate) // so that the loop below is not about drawing
		before := heap()
		s := newStream()
		asked, rejected := make([]float64, zipfKeys), make([]float64, zipfKeys)
		var spent time.Duration
		for second := range zipfSeconds {
			for i := range drawn {
				drawn[i] = uint32(zipf.Uint64())
			}
			began := cpu()
			for i, k := range drawn {
				if i%1000 == 0 {
					time.Sleep(time.Second / (zipfRate / 1000))
				}
				s.ask("shop.user", names[k], 1, uint64(k%3/2))
			}
			if second > 0 { // in the first it finds out how many to look at
				spent += cpu() - began
			}
			for _, k := range drawn {
				asked[k]++
				rejected[k] += float64(k % 3 / 2)
			}
		}
		for by, truth := range map[top.Ranking][]float64{top.Busiest: asked, top.Rejected: rejected} {
			for _, rule := range []string{"", "shop.user"} {
				checkZipf(t, s.Top.Top(top.Query{Rule: rule, By: by, Window: top.Hour, Most: 100}), by, truth)
			}
		}
		each := spent / ((zipfSeconds - 1) * zipfRate)
		t.Logf("%v of CPU per request; %d bytes; 1 in %d looked at", each, heap()-before, zipfSeconds*zipfRate/s.looked)
		if most := 300 * time.Nanosecond; each > most && !raceEnabled { // 3 % of the 10 µs that a request costs
			t.Errorf("a request costs %v, want at most %v", each, most)
		}
		if used := heap() - before - 2*8*zipfKeys; used > 10<<20 {
			t.Errorf("%d bytes are used, want at most 10 MB", used)
		}
		runtime.KeepAlive(s)
		runtime.KeepAlive(names)
	})
}

// checkZipf checks that the 20 with the most are in an answer, and that counts are as wrong as they say: three standard
// deviations, so 97 % allows for ten times as many as may be expected.
func checkZipf(t *testing.T, a top.Answer, by top.Ranking, truth []float64) {
	t.Helper()
	reported := make(map[int]bool)
	right := 0
	for _, row := range a.Rows {
		k, _ := strconv.Atoi(strings.TrimPrefix(row.Entries[0].Value, "customer-"))
		reported[k] = true
		if c := row.Counts[by]; math.Abs(c.Hits-truth[k]) <= c.Error {
			right++
		}
		if c := row.Counts[by]; len(reported) == 1 && c.Error > 0.1*c.Hits {
			t.Errorf("the error of the first is %v of %v", c.Error, c.Hits)
		}
	}
	if right < 97 || len(a.Rows) != 100 {
		t.Errorf("%d of %d counts are within their errors", right, len(a.Rows))
	}
	ranks := make([]int, len(truth))
	for i := range ranks {
		ranks[i] = i
	}
	slices.SortFunc(ranks, func(a, b int) int { return int(truth[b] - truth[a]) })
	for rank, k := range ranks[:20] {
		if !reported[k] {
			t.Errorf("customer-%d, which has rank %d with %v hits, is not among the first hundred", k, rank+1, truth[k])
		}
	}
	for _, k := range ranks {
		if !reported[k] && truth[k] > a.Missing[by] && len(reported) < 100 {
			t.Errorf("customer-%d is missing with %v hits, and at most %v may", k, truth[k], a.Missing[by])
		}
	}
}

// TestWideRequests: what is looked at is bounded by descriptors, of which a request may have many.
func TestWideRequests(t *testing.T) {
	const wide, rate, seconds = 96, 2000, 20
	synctest.Test(t, func(t *testing.T) {
		s, looked := newStream(), 0
		for second := range seconds {
			for range rate {
				time.Sleep(time.Second / rate)
				s.sample.Hits = 1
				if top.Passes(&s.sample) {
					continue
				}
				if weight, _ := s.Draw(&s.sample, wide); weight > 0 && second >= seconds/2 { // then the pace is found
					looked += wide
				}
			}
		}
		if got := looked / (seconds / 2); got < 500 || got > 2000 {
			t.Errorf("%d descriptors are looked at in a second, want about 1000", got)
		}
	})
}

// Whatever is asked for, it fits in 10 MB: here many rules, each with descriptors that never come again, are long, and
// rejected.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rules := range []int{1, 10, 500, 20_000} {
			before, long := heap(), strings.Repeat("x", 500)
			s := newStream()
			running, stop := context.WithCancel(t.Context())
			go func() { _ = s.Run(running) }()
			most, n := int64(0), 0
			for range 8 * 7 {
				for range 4 {
					time.Sleep(time.Second)
					for range 1000 {
						n++
						s.ask("shop.rule"+strconv.Itoa(n*7919%rules), long+strconv.Itoa(n), 1, uint64(n%2))
					}
				}
				most = max(most, heap()-before)
				if time.Sleep(7 * time.Second); n%(7*4000) == 0 {
					time.Sleep(9 * time.Minute)
				}
			}
			t.Logf("%d rules: %d bytes", rules, most)
			if most > 10<<20 {
				t.Errorf("with %d rules %d bytes are used, want at most 10 MB", rules, most)
			}
			if a := s.Top.Top(top.Query{By: top.Rejected, Window: top.Hour}); len(a.Rows) == 0 || !a.Rows[0].Cut || a.Missing[top.Busiest] == 0 {
				t.Errorf("with %d rules there are %d rows, and %v are missing", rules, len(a.Rows), a.Missing)
			}
			time.Sleep(2 * time.Hour)
			s.ask("shop.rule0", "ann", 1, 0)
			if a := s.Top.Top(top.Query{Rule: "shop.rule0", Window: top.Hour}); len(a.Rows) != 1 || a.Missing[top.Busiest] != 0 {
				t.Errorf("two hours later there are %d rows of %d rules, and %v are missing", len(a.Rows), rules, a.Missing)
			}
			if left := heap() - before; left > 2<<20 {
				t.Errorf("with %d rules %d bytes are left", rules, left)
			}
			runtime.KeepAlive(s)
			stop()
		}
	})
}

// A rule for whose descriptors there is no room has those of its own among all that are busiest.
func TestCrowdedRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		for i := range 20_000 {
			if i%1000 == 0 {
				time.Sleep(time.Second)
			}
			s.ask("shop.rule"+strconv.Itoa(i), "ann", 1, 0)
		}
		s.ask("shop.last", "ann", 1_000_000, 0)
		a := s.Top.Top(top.Query{Rule: "shop.last"})
		if a.Own || len(a.Rows) != 1 || a.Rows[0].Counts[top.Busiest].Hits < 1_000_000 {
			t.Errorf("own is %t, and the rows are %q", a.Own, text(a))
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	all := top.New()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			s := &stream{Top: all, decision: top.Decision{Domain: []byte("shop")}}
			for i := range 20_000 {
				s.ask("shop.rule"+strconv.Itoa(i%20), strconv.Itoa(i), 1, 1)
				if i%1000 == 0 {
					all.Top(top.Query{Rule: "shop.rule3", Window: top.Hour})
				}
			}
		})
	}
	group.Wait()
	a := all.Top(top.Query{})
	if total := a.Total[top.Busiest]; math.Abs(total-80_000) > 20_000 {
		t.Errorf("there were %v hits, want about 80,000", total)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkTop is what a request costs beside deciding it: when most are not looked at, and when each is.
func BenchmarkTop(b *testing.B) {
	names := make([]string, zipfKeys)
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.01, 1, zipfKeys-1)
	drawn := make([]uint32, 1<<20)
	for i := range drawn {
		drawn[i] = uint32(zipf.Uint64())
	}
	b.Run("full_load", func(b *testing.B) {
		s, i := newStream(), 0
		b.ReportAllocs()
		for b.Loop() {
			s.ask("shop.user", names[drawn[i%len(drawn)]], 1, 0)
			i++
		}
		b.ReportMetric(float64(i)/float64(s.looked), "requests/sample")
	})
	b.Run("each", func(b *testing.B) {
		s, i := newStream(), 0
		d := s.decision
		d.Rule, d.Hits, d.Rejected = "shop.user", 1, 1
		b.ReportAllocs()
		for b.Loop() {
			d.Entries = []descriptors.Entry{{Key: []byte("user"), Value: []byte(names[drawn[i%len(drawn)]])}}
			s.Add(&d, 1, 1)
			i++
		}
	})
}
