package observe_test

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
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// stream feeds an Observer like a limiter.
type stream struct {
	*observe.Observer

	sample limiter.Sample
	domain string
	looked int
}

func newStream() *stream { return &stream{Observer: newObserver(), domain: "shop"} }

// ask requests hits for a user, with rejections.
func (s *stream) ask(rule, user string, hits, rejected uint64) {
	if s.sample.Hits = hits; !s.Wants(&s.sample) {
		return
	}
	s.looked++
	s.Observe(context.Background(), &s.sample, []limiter.Decision{s.decision(rule, user, hits, rejected)})
}

func (s *stream) decision(rule, user string, hits, rejected uint64) limiter.Decision {
	d := limiter.Decision{
		Domain: []byte(s.domain), Entries: []descriptors.Entry{{Key: []byte("user"), Value: []byte(user)}},
		Facts: limiter.Facts{Rule: rule, Hits: hits, Outcome: limiter.Admitted},
	}
	if rejected > 0 {
		d.Over, d.Outcome = true, limiter.Rejected
	}
	return d
}

func text(a observe.Answer) (lines []string) {
	for _, r := range a.Rows {
		var pairs []string
		for _, e := range r.Entries {
			pairs = append(pairs, string(e.Key)+"="+string(e.Value))
		}
		lines = append(lines, fmt.Sprintf("%s %s %v", r.Rule, strings.Join(pairs, ","), r.Counts))
	}
	return lines
}

func check(t *testing.T, a observe.Answer, want ...string) {
	t.Helper()
	if got := text(a); !slices.Equal(got, want) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFewAreCountedExactly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		s.ask("shop.user", "ann", 3, 0)
		s.ask("shop.user", "bob", 1, 1)
		s.ask("shop.other", "ann", 1, 1)
		s.ask("shop.other", "ann", 1, 1)
		s.ask("", "eve", 1, 0)
		s.ask("shop.user", "nobody", 0, 0)
		check(t, s.Top(observe.Query{}),
			"shop.user user=ann [{3 0} {0 0}]", "shop.other user=ann [{2 0} {2 0}]", " user=eve [{1 0} {0 0}]", "shop.user user=bob [{1 0} {1 0}]")
		check(t, s.Top(observe.Query{By: observe.Rejected}), "shop.other user=ann [{2 0} {2 0}]", "shop.user user=bob [{1 0} {1 0}]")
		check(t, s.Top(observe.Query{Filter: observe.Filter{Rule: "shop.user"}, MaxRows: 1}), "shop.user user=ann [{3 0} {0 0}]")
		check(t, s.Top(observe.Query{Filter: observe.Filter{Rule: "shop.none"}}))
	})
}

// TestSharedPath: rules of two domains with the same path are counted separately, and merged only in queries for both.
func TestSharedPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		s.ask("shop.eu.user", "ann", 3, 1)
		s.domain = "shop.eu"
		s.ask("shop.eu.user", "bob", 20, 0)
		for _, tt := range []struct {
			filter observe.Filter
			total  float64
			rows   []string
		}{
			{observe.Filter{Domains: []string{"shop"}}, 3, []string{"shop.eu.user user=ann [{3 0} {1 0}]"}},
			{observe.Filter{Domain: "shop.eu"}, 20, []string{"shop.eu.user user=bob [{20 0} {0 0}]"}},
			{observe.Filter{Domains: []string{"other"}}, 0, nil},
			{observe.Filter{Domain: "shop", Domains: []string{"shop.eu"}}, 0, nil},
			{observe.Filter{}, 23, []string{"shop.eu.user user=bob [{20 0} {0 0}]", "shop.eu.user user=ann [{3 0} {1 0}]"}},
		} {
			tt.filter.Rule = "shop.eu.user"
			a := s.Top(observe.Query{Filter: tt.filter})
			check(t, a, tt.rows...)
			if a.Total[observe.Busiest] != tt.total {
				t.Errorf("total %v, want %v", a.Total, tt.total)
			}
		}
	})
}

// TestBlocked: rejections by a control count for the descriptor among all rules, but not for the rule.
func TestBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStream()
		d := s.decision("shop.user", "ann", 2, 1)
		d.Outcome = limiter.Blocked
		s.sample.Hits = 2
		s.Wants(&s.sample)
		s.Observe(t.Context(), &s.sample, []limiter.Decision{d})
		a := s.Top(observe.Query{})
		check(t, a, "shop.user user=ann [{2 0} {1 0}]")
		if want := []observe.Rule{{Domain: "shop", Path: "shop.user", Hits: [2]float64{2, 0}}}; !slices.Equal(a.Rules, want) {
			t.Errorf("rules %v, want %v", a.Rules, want)
		}
		check(t, s.Top(observe.Query{Filter: observe.Filter{Rule: "shop.user"}}), "shop.user user=ann [{2 0} {0 0}]")
	})
}

// TestWindows: a minute is the current ten seconds and the sixty before, and an hour is analogous.
func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, start := newStream(), time.Now()
		s.ask("shop.user", "ann", 1, 1)
		time.Sleep(69 * time.Second)
		s.ask("shop.user", "ann", 1, 0)
		minute := observe.Query{Filter: observe.Filter{Rule: "shop.user"}}
		a := s.Top(minute)
		check(t, a, "shop.user user=ann [{2 0} {1 0}]")
		if !a.From.Equal(start) || a.To.Sub(start) != 69*time.Second {
			t.Errorf("minute from %v to %v", a.From.Sub(start), a.To.Sub(start))
		}
		time.Sleep(time.Second)
		a = s.Top(minute)
		check(t, a, "shop.user user=ann [{1 0} {0 0}]")
		if a.From.Sub(start) != 10*time.Second {
			t.Errorf("minute from %v", a.From.Sub(start))
		}
		hour := minute
		hour.Window = observe.Hour
		check(t, s.Top(hour), "shop.user user=ann [{2 0} {1 0}]")
		time.Sleep(70*time.Minute - 71*time.Second)
		check(t, s.Top(minute))
		check(t, s.Top(hour), "shop.user user=ann [{2 0} {1 0}]")
		time.Sleep(time.Second)
		check(t, s.Top(hour))
		if a := s.Top(hour); a.From.Sub(start) != 10*time.Minute {
			t.Errorf("hour from %v", a.From.Sub(start))
		}
	})
}

const (
	zipfKeys    = 1_000_000
	zipfSeconds = 61
	zipfRate    = 100_000 // requests per second, above the server's capacity on two cores
)

// TestZipf: accuracy, memory, and CPU at full load for a minute, with a million keys. The n-th key gets 1/n of the first one's
// requests.
func TestZipf(t *testing.T) {
	names := make([]string, zipfKeys)
	for i := range names {
		names[i] = "customer-" + strconv.Itoa(i)
	}
	synctest.Test(t, func(t *testing.T) {
		zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.01, 1, zipfKeys-1)
		drawn := make([]uint32, zipfRate) // precomputed, so that the loop does not measure drawing
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
			if second > 0 { // the first second determines the sampling interval
				spent += cpu() - began
			}
			for _, k := range drawn {
				asked[k]++
				rejected[k] += float64(k % 3 / 2)
			}
		}
		for by, truth := range map[observe.Ranking][]float64{observe.Busiest: asked, observe.Rejected: rejected} {
			for _, rule := range []string{"", "shop.user"} {
				for _, window := range []observe.Window{observe.Minute, observe.Hour} {
					checkZipf(t, s.Top(observe.Query{Filter: observe.Filter{Rule: rule}, By: by, Window: window, MaxRows: 100}), by, truth)
				}
			}
		}
		each := spent / ((zipfSeconds - 1) * zipfRate)
		t.Logf("%v of CPU per request; %d bytes; 1 in %d sampled", each, heap()-before, zipfSeconds*zipfRate/s.looked)
		if most := 300 * time.Nanosecond; each > most && !raceEnabled { // 3 % of the 10 µs of a request
			t.Errorf("a request costs %v, want at most %v", each, most)
		}
		if used := heap() - before - 2*8*zipfKeys; used > 10<<20 {
			t.Errorf("%d bytes in use, want at most 10 MB", used)
		}
		runtime.KeepAlive(s)
		runtime.KeepAlive(names)
	})
}

// checkZipf checks that an answer has the true top 20, and that errors are correct: within three standard deviations.
// 97 % allows ten times the expected number of exceptions.
func checkZipf(t *testing.T, a observe.Answer, by observe.Ranking, truth []float64) {
	t.Helper()
	reported := make(map[int]bool)
	right := 0
	for _, row := range a.Rows {
		k, _ := strconv.Atoi(strings.TrimPrefix(string(row.Entries[0].Value), "customer-"))
		reported[k] = true
		if c := row.Counts[by]; math.Abs(c.Hits-truth[k]) <= c.Error {
			right++
		}
		if c := row.Counts[by]; len(reported) == 1 && c.Error > 0.1*c.Hits {
			t.Errorf("the first row has an error of %v of %v", c.Error, c.Hits)
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
			t.Errorf("customer-%d with rank %d and %v hits is not among the first hundred", k, rank+1, truth[k])
		}
	}
	for _, k := range ranks {
		if !reported[k] && truth[k] > a.Missing[by] && len(reported) < 100 {
			t.Errorf("customer-%d is missing with %v hits; want at most %v", k, truth[k], a.Missing[by])
		}
	}
}

// TestWideRequests: the sample is limited by descriptors, of which a request may have many.
func TestWideRequests(t *testing.T) {
	const wide, rate, seconds = 96, 2000, 20
	synctest.Test(t, func(t *testing.T) {
		s, looked := newStream(), 0
		for second := range seconds {
			for range rate {
				time.Sleep(time.Second / rate)
				if s.sample.Hits = 1; !s.Wants(&s.sample) {
					continue
				}
				s.Observe(t.Context(), &s.sample, slices.Repeat([]limiter.Decision{s.decision("shop.user", "ann", 1, 0)}, wide))
				if second >= seconds/2 { // the pace has settled
					looked += wide
				}
			}
		}
		if got := looked / (seconds / 2); got < 500 || got > 2000 {
			t.Errorf("%d descriptors sampled per second, want about 1000", got)
		}
	})
}

// TestMemoryIsBounded: any requests fit into 10 MB, here with many rules whose descriptors are long, new, and rejected.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, rules := range []int{1, 10, 500, 20_000} {
			before, long := heap(), strings.Repeat("x", 500)
			s := newStream()
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
				t.Errorf("%d rules: %d bytes in use, want at most 10 MB", rules, most)
			}
			if a := s.Top(observe.Query{By: observe.Rejected, Window: observe.Hour}); len(a.Rows) == 0 || !a.Rows[0].Cut || a.Missing[observe.Busiest] == 0 {
				t.Errorf("%d rules: %d rows, missing %v", rules, len(a.Rows), a.Missing)
			}
			time.Sleep(2 * time.Hour)
			s.ask("shop.rule0", "ann", 1, 0)
			if a := s.Top(observe.Query{Filter: observe.Filter{Rule: "shop.rule0"}, Window: observe.Hour}); len(a.Rows) != 1 || a.Missing[observe.Busiest] != 0 {
				t.Errorf("two hours later: %d rows of %d rules, missing %v", len(a.Rows), rules, a.Missing)
			}
			if left := heap() - before; left > 2<<20 {
				t.Errorf("%d rules: %d bytes in use after two hours", rules, left)
			}
			runtime.KeepAlive(s)
		}
	})
}

// TestFlood: when there are more descriptors than fit into memory, the busiest, the most rejected, and those of quiet rules stay.
// Totals of rules are exact, and errors are correct.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, long := newStream(), strings.Repeat("x", 150)
		for i := range 9000 {
			time.Sleep(1500 * time.Microsecond) // slow enough to count all
			s.ask("shop.flood", strconv.Itoa(i)+long, 3, 0)
			if i%100 == 0 {
				s.ask("shop.flood", "ann", 3, 0)
			}
			if i%1000 == 0 {
				s.ask("shop.flood", "bob", 1, 1)
				s.ask("shop.quiet", strconv.Itoa(i), 1, 0)
			}
		}
		hour := observe.Query{Window: observe.Hour}
		for _, window := range []observe.Window{observe.Minute, observe.Hour} {
			a := s.Top(observe.Query{Window: window, MaxRows: 5})
			ann := a.Rows[0].Counts[observe.Busiest]
			if string(a.Rows[0].Entries[0].Value) != "ann" || ann.Hits+ann.Error < 270 || ann.Hits > 270 || a.Missing[observe.Busiest] == 0 {
				t.Errorf("first row %q with %v, missing %v", a.Rows[0].Entries, ann, a.Missing)
			}
			if want := [2]float64{27_279, 9}; len(a.Rules) != 2 || a.Rules[0].Path != "shop.flood" || a.Rules[0].Hits != want || a.Rules[1].Hits[0] != 9 {
				t.Errorf("rules %v", a.Rules)
			}
			if want := [2]float64{27_288, 9}; a.Total != want {
				t.Errorf("totals %v, want %v", a.Total, want)
			}
			check(t, s.Top(observe.Query{Window: window, By: observe.Rejected}), fmt.Sprintf("shop.flood user=bob [{9 %v} {9 0}]", a.Missing[observe.Busiest]))
			if quiet := s.Top(observe.Query{Window: window, Filter: observe.Filter{Rule: "shop.quiet"}}); len(quiet.Rows) != 9 {
				t.Errorf("rows of the quiet rule: %q", text(quiet))
			}
		}
		if minute, hour := s.Top(observe.Query{}), s.Top(hour); hour.Missing[observe.Busiest] < minute.Missing[observe.Busiest] {
			t.Errorf("missing %v in the hour, and %v in the minute", hour.Missing, minute.Missing)
		}
		time.Sleep(2 * time.Minute)
		if a := s.Top(hour); a.Total[observe.Busiest] != 27_288 || len(a.Rules) != 2 || a.Rules[1].Hits[0] != 9 {
			t.Errorf("total of the hour %v, rules %v", a.Total, a.Rules)
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	all := newObserver()
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			s := &stream{Observer: all, domain: "shop"}
			for i := range 20_000 {
				s.ask("shop.rule"+strconv.Itoa(i%20), strconv.Itoa(i), 1, 1)
				if i%1000 == 0 {
					all.Top(observe.Query{Filter: observe.Filter{Rule: "shop.rule3"}, Window: observe.Hour})
				}
			}
		})
	}
	group.Wait()
	a := all.Top(observe.Query{})
	if total := a.Total[observe.Busiest]; math.Abs(total-80_000) > 20_000 {
		t.Errorf("%v hits, want about 80,000", total)
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

// BenchmarkTop measures the cost of sampling per request, with few and with all requests sampled.
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
		b.ReportAllocs()
		for b.Loop() {
			entries := []descriptors.Entry{{Key: []byte("user"), Value: []byte(names[drawn[i%len(drawn)]])}}
			s.Divided("shop", "shop.user", entries, 1, 1)
			i++
		}
	})
}
