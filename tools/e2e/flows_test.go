package e2e

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// flows makes requests through Envoys, at the same constant rate through each.
type flows struct {
	w     *world
	begin time.Time
	rate  int // through each Envoy
	stops []func() *tally
	came  []*tally // by Envoy, after end
}

// flows starts requests.
func (w *world) flows(rate int, proxies ...*proxy) *flows {
	w.Helper()
	f := &flows{w: w, begin: time.Now(), rate: rate}
	for _, p := range proxies {
		f.stops = append(f.stops, w.flow(p, rate, "ann"))
	}
	return f
}

// now returns the time since the first request.
func (f *flows) now() time.Duration { return time.Since(f.begin) }

// until waits until a time since the first request.
func (f *flows) until(d time.Duration) {
	f.w.Helper()
	for f.now() < d { // may be longer than Eventually's timeout
		if f.w.Context().Err() != nil {
			f.w.Fatal("the test is over")
		}
		time.Sleep(min(d-f.now(), 50*time.Millisecond))
	}
}

// end stops the requests and logs the results.
func (f *flows) end() {
	f.w.Helper()
	took := f.now()
	for _, stop := range f.stops {
		f.came = append(f.came, stop())
	}
	all := f.span(0, took)
	for i, y := range f.came {
		var passed, sent []string
		for _, second := range all.seconds {
			passed, sent = append(passed, fmt.Sprint(second[i].passed)), append(sent, fmt.Sprint(second[i].sent))
		}
		f.w.Logf("Envoy %d, passed: %s; sent: %s", i+1, strings.Join(passed, " "), strings.Join(sent, " "))
		if y.failed+y.odd > 0 {
			f.w.got(false, "%d callers get something else than 200 or 429, such as %d", y.failed+y.odd, y.firstOdd)
		}
	}
}

// passed counts the requests made between two times that passed.
func (f *flows) passed(from, to time.Duration) (n int) {
	for _, y := range f.came {
		for _, m := range y.moments {
			if at := m.asked.Sub(f.begin); at >= from && at < to && m.status == http.StatusOK {
				n++
			}
		}
	}
	return n
}

// firstPassed returns the time by which requests after a given time pass through all Envoys.
func (f *flows) firstPassed(from time.Duration) (last time.Duration) {
	for _, y := range f.came {
		first := time.Duration(math.MaxInt64)
		for _, m := range y.moments {
			if at := m.asked.Sub(f.begin); at >= from && m.status == http.StatusOK {
				first = min(first, at)
			}
		}
		last = max(last, first)
	}
	return last
}

// part is the results of an Envoy's requests within a second.
type part struct{ sent, passed, rejected int }

// span is a period in whole seconds.
type span struct {
	rate    int
	seconds [][]part // by Envoy
}

// span returns the results of the requests made between two times.
func (f *flows) span(from, to time.Duration) span {
	s := span{rate: f.rate, seconds: make([][]part, max(0, (to-from)/time.Second))}
	for i := range s.seconds {
		s.seconds[i] = make([]part, len(f.came))
	}
	for i, y := range f.came {
		for _, m := range y.moments {
			at := m.asked.Sub(f.begin) - from
			if at < 0 || at >= time.Duration(len(s.seconds))*time.Second {
				continue
			}
			p := &s.seconds[at/time.Second][i]
			p.sent++
			switch m.status {
			case http.StatusOK:
				p.passed++
			case http.StatusTooManyRequests:
				p.rejected++
			}
		}
	}
	return s
}

// counted returns the seconds in which the clients reached their rates. In others, the machine was busy.
func (s span) counted() (counted [][]part) {
	for _, second := range s.seconds {
		if !slices.ContainsFunc(second, func(p part) bool { return p.sent*100 < s.rate*95 }) {
			counted = append(counted, second)
		}
	}
	return counted
}

// check is an expectation on a span with its result.
type check struct {
	good           bool
	text           string
	counted, outOf int // seconds
}

// busy reports whether the machine was too busy for a verdict.
func (c check) busy() bool { return c.counted*5 < c.outOf*4 }

func (s span) check(good bool, format string, args ...any) check {
	return check{good, fmt.Sprintf(format, args...), len(s.counted()), len(s.seconds)}
}

// allPass expects no rejections.
func (s span) allPass() check {
	sent, rejected := 0, 0
	for _, second := range s.counted() {
		for _, p := range second {
			sent, rejected = sent+p.sent, rejected+p.rejected
		}
	}
	return s.check(rejected == 0, "%d of %d get 429", rejected, sent)
}

// fewPass expects that all but a twentieth of the requests, which were assigned before, are rejected.
func (s span) fewPass() check {
	sent, passed := 0, 0
	for _, second := range s.counted() {
		for _, p := range second {
			sent, passed = sent+p.sent, passed+p.passed
		}
	}
	return s.check(20*passed <= sent, "%d of %d pass", passed, sent)
}

// together expects that at least want requests pass in each second through all Envoys in total.
func (s span) together(want int) check {
	sum, below, least := 0, 0, math.MaxInt
	counted := s.counted()
	for _, second := range counted {
		n := 0
		for _, p := range second {
			n += p.passed
		}
		sum, least = sum+n, min(least, n)
		if n < want {
			below++
		}
	}
	return s.check(below == 0, "%.1f/s pass, %d in the worst second, less than %d in %d of %d", float64(sum)/float64(max(len(counted), 1)), least, want, below, len(counted))
}

// each expects that at least want requests a second pass through each Envoy, except in single seconds.
func (s span) each(want int) check {
	longest := 0
	for i := range s.seconds[0] {
		row := 0
		for _, second := range s.seconds {
			if p := second[i]; p.passed < want && p.sent*100 >= s.rate*95 {
				row++
				longest = max(longest, row)
			} else {
				row = 0
			}
		}
	}
	return s.check(longest <= 1, "an Envoy is below %d/s for %d s in a row", want, longest)
}

// atMost expects that at most this many requests pass between two times, even on a busy machine.
func (f *flows) atMost(from, to time.Duration, most float64) check {
	n := f.passed(from, to)
	return check{good: float64(n) <= most, text: fmt.Sprintf("%d pass in %.1f s, at most %.0f by the bound", n, (to - from).Seconds(), most)}
}

// timed runs a case that is judged by seconds. If the machine is too busy in more than a fifth of them, it runs once more.
func (w *world) timed(what string, play func() []check) {
	w.Helper()
	checks := play()
	if slices.ContainsFunc(checks, check.busy) {
		w.Logf("%s: the machine was busy; once more", what)
		checks = play()
	}
	text, good := what+": ", true
	for i, c := range checks {
		if i > 0 {
			text += ", "
		}
		if c.busy() {
			w.result.weak = true
			text += fmt.Sprintf("not judged, as clients were too slow in %d of %d s: ", c.outOf-c.counted, c.outOf)
		} else {
			good = good && c.good
		}
		text += c.text
	}
	w.got(good, "%s", text)
}

// streams waits until n Envoys report to a server.
func (s *service) streams(w *world, n int) {
	w.Helper()
	testkit.Eventually(w, fmt.Sprintf("%d Envoys report to a server", n), func() bool { return s.metrics(w)["ratelimitd_rlqs_streams"] == float64(n) })
}

// TestSpan: checks detect results, and ignore seconds in which the machine was busy.
func TestSpan(t *testing.T) {
	f := &flows{begin: time.Now(), rate: 10, came: []*tally{{}, {}}}
	ask := func(envoy, second, passed, rejected int) {
		for i := range passed + rejected {
			status := http.StatusOK
			if i >= passed {
				status = http.StatusTooManyRequests
			}
			at := f.begin.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Millisecond)
			f.came[envoy].moments = append(f.came[envoy].moments, moment{at, status})
		}
	}
	for second, n := range []int{10, 10, 4, 0, 3, 3} {
		ask(0, second, n, 10-n)
	}
	for second, sent := range []int{10, 10, 10, 5, 10, 10} {
		ask(1, second, sent, 0)
	}
	for name, c := range map[string]struct {
		got, want check
	}{
		"all pass":        {f.span(0, 2*time.Second).allPass(), check{true, "0 of 40 get 429", 2, 2}},
		"not all":         {f.span(0, 6*time.Second).allPass(), check{false, "20 of 100 get 429", 5, 6}},
		"busy":            {f.span(2*time.Second, 5*time.Second).allPass(), check{false, "13 of 40 get 429", 2, 3}},
		"not none":        {f.span(4*time.Second, 6*time.Second).fewPass(), check{false, "26 of 40 pass", 2, 2}},
		"together":        {f.span(0, 6*time.Second).together(13), check{true, "16.0/s pass, 13 in the worst second, less than 13 in 0 of 5", 5, 6}},
		"too few":         {f.span(0, 6*time.Second).together(14), check{false, "16.0/s pass, 13 in the worst second, less than 14 in 2 of 5", 5, 6}},
		"each":            {f.span(0, 5*time.Second).each(4), check{false, "an Envoy is below 4/s for 2 s in a row", 4, 5}},
		"each but one":    {f.span(0, 4*time.Second).each(4), check{true, "an Envoy is below 4/s for 1 s in a row", 3, 4}},
		"at most":         {f.atMost(0, 2*time.Second, 40), check{true, "40 pass in 2.0 s, at most 40 by the bound", 0, 0}},
		"more than that ": {f.atMost(0, 2*time.Second, 39), check{false, "40 pass in 2.0 s, at most 39 by the bound", 0, 0}},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, c.got, c.want)
		}
		if got, want := c.got.busy(), name == "busy"; name != "each but one" && got != want {
			t.Errorf("%s: the machine was busy: %t, want %t", name, got, want)
		}
	}
}
