package observe

import (
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// timedLog returns a log with the time since now on each line, and its output.
func timedLog() (*slog.Logger, *testkit.Buffer) {
	said, begun := new(testkit.Buffer), time.Now()
	return slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Duration("at", time.Since(begun))
		}
		return a
	}})), said
}

// TestRejectionsAreLogged: each minute has a line for each rule with rejections, most rejections first, and one for the rest.
func TestRejectionsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rules strings.Builder
		rules.WriteString("domain: shop\ndescriptors:\n")
		for i := range maxRejectionLines + 2 {
			fmt.Fprintf(&rules, "  - {key: a%02d, rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
		}
		set := rulefiletest.Load(t, rules.String())
		l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{})
		l.SetRules(set)
		reject := func(key string, times int) {
			r := &limiter.Request{Domain: []byte("shop"), Descriptors: []limiter.Descriptor{
				{Entries: []descriptors.Entry{{Key: []byte(key), Value: []byte("secret")}}},
			}}
			for range times {
				if _, err := l.Decide(t.Context(), r, new(limiter.Scratch)); err != nil {
					t.Error(err)
				}
			}
		}
		log, said := timedLog()
		stop := testkit.Run(t, LogRejections(log, l.Tallies).Run)
		time.Sleep(rejectionsEvery / 2) // nothing happens while the log is written
		reject("a01", 3)
		reject("a00", 5)
		time.Sleep(2 * rejectionsEvery) // the second minute has no rejections
		reject("a00", 1)
		time.Sleep(rejectionsEvery)
		l.SetRules(set) // as in a reload
		for i := range maxRejectionLines + 2 {
			reject(fmt.Sprintf("a%02d", i), 3)
		}
		time.Sleep(rejectionsEvery)
		stop()
		lines := strings.SplitAfter(said.String(), "\n")
		want := `at=1m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a00 place=rules.yaml:3 limit="1 per hour" requests=4
at=1m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a01 place=rules.yaml:4 limit="1 per hour" requests=2
at=3m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a00 place=rules.yaml:3 limit="1 per hour" requests=1
at=4m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a00 place=rules.yaml:3 limit="1 per hour" requests=3
at=4m0s level=INFO msg="a rule rejected requests in the last minute" rule=shop.a01 place=rules.yaml:4 limit="1 per hour" requests=3
`
		if d := cmp.Diff(want, strings.Join(lines[:5], "")); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		if got, want := lines[len(lines)-2], "at=4m0s level=INFO msg=\"more rules rejected requests in the last minute\" rules=2 requests=4\n"; got != want {
			t.Errorf("last line %q, want %q", got, want)
		}
		if n := len(lines) - 1; n != 3+maxRejectionLines+1 {
			t.Errorf("%d lines, want %d", n, 3+maxRejectionLines+1)
		}
	})
}

// TestMistakesAreLogged: each minute has a line for each rule with a mistake. There is none once a reservation is settled.
func TestMistakesAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		set := rulefiletest.Load(t, `domain: llm
descriptors:
  - {key: id, rate_limit: {unit: hour, requests_per_unit: 1000000, reserve: {estimate: 400}}}
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: token_bucket}}
  - {key: stream, rate_limit: {unit: hour, requests_per_unit: 1000}}
`)
		ids := new(limiter.Sealer)
		ids.SetOwnKey([]byte("a key that only this process has"))
		l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Reservations: ids})
		l.SetRules(set)
		ask := func(hits uint64, kv ...string) *limiter.Verdict {
			d := limiter.Descriptor{Hits: hits, HasHits: true}
			for i := 0; i < len(kv); i += 2 {
				d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(kv[i]), Value: []byte(kv[i+1])})
			}
			v, err := l.Decide(t.Context(), &limiter.Request{Domain: []byte("llm"), Descriptors: []limiter.Descriptor{d}}, new(limiter.Scratch))
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		log, said := timedLog()
		stop := testkit.Run(t, LogMistakes(log, l.Mistakes).Run)
		time.Sleep(time.Second / 2) // nothing happens during a check
		id := ask(0, "id", "ann").Reservation
		for range 1000 {
			ask(0, "bucket", "ann")
		}
		for i := range 150 {
			ask(300, "id", "ann")
			ask(600, "bucket", "ann")
			for j := range 10 {
				ask(0, "stream", fmt.Sprint(i, "-", j))
			}
			time.Sleep(time.Second)
		}
		ask(100, "id", "ann", "reservation", id)
		for i := range 500 { // the mistake lasts ten minutes in total
			ask(0, "stream", fmt.Sprint(i))
			time.Sleep(time.Second)
		}
		l.SetRules(set) // as in a reload
		time.Sleep(10 * time.Minute)
		stop()
		want := `at=5s level=WARN msg="a rule has a probable mistake" mistake="requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed" rule=llm.id place=rules.yaml:3 calls=5
at=5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=rules.yaml:4 calls=4
at=1m5s level=WARN msg="a rule has a probable mistake" mistake="requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed" rule=llm.id place=rules.yaml:3 calls=60
at=1m5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=rules.yaml:4 calls=60
at=2m5s level=WARN msg="a rule has a probable mistake" mistake="requests reserve estimates and none is settled, because their costs come without a reservation ID, so both stay consumed" rule=llm.id place=rules.yaml:3 calls=60
at=2m5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=rules.yaml:4 calls=60
at=3m5s level=WARN msg="a rule has a probable mistake" mistake="charges that exceed the remaining hits are dropped, so requests cost nothing" rule=llm.bucket place=rules.yaml:4 calls=25
at=10m5s level=WARN msg="a rule has a probable mistake" mistake="no limit applies, because nearly every request has a counter of its own" rule=llm.stream place=rules.yaml:5 calls=5
at=11m5s level=WARN msg="a rule has a probable mistake" mistake="no limit applies, because nearly every request has a counter of its own" rule=llm.stream place=rules.yaml:5 calls=45
`
		short := regexp.MustCompile(`: [^"]*"`).ReplaceAllString(said.String(), `"`) // without advice
		if d := cmp.Diff(want, short); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
	})
}

// TestSheddingIsLogged: there is a line when on_failure begins to decide, a line when calls begin to be shed before they are
// read, and a line with totals by reason after ten seconds without shedding.
func TestSheddingIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Pointer[Shed]
		now.Store(&Shed{Shed: limiter.Shed{Process: 5}}) // already logged
		log, said := timedLog()
		stop := testkit.Run(t, LogShedding(log, func() Shed { return *now.Load() }).Run)
		time.Sleep(time.Hour + time.Second/2)
		for i := range uint64(30) { // an overload with gaps of less than ten seconds
			now.Store(&Shed{Shed: limiter.Shed{Process: 7 + i, Store: i}, Calls: i / 5})
			time.Sleep(9 * time.Second)
		}
		time.Sleep(time.Minute)
		now.Store(&Shed{Shed: limiter.Shed{Process: 36, Store: 30}, Calls: 5}) // a single request
		time.Sleep(time.Minute)
		now.Store(&Shed{Shed: limiter.Shed{Process: 36, Store: 30}, Calls: 7}) // none decided by on_failure
		time.Sleep(time.Minute)
		stop()
		want := `
at=1h0m1s level=WARN msg="overload: on_failure decides requests that could not be answered in time" requests=2 process=2 store=0 calls=0
at=1h0m46s level=WARN msg="overload: calls are shed with an error before they are read, regardless of on_failure, because too many are in progress; Envoy lets their requests pass, unless failure_mode_deny is true" requests=13 process=7 store=5 calls=1
at=1h4m32s level=INFO msg="the overload has ended" requests=65 process=31 store=29 calls=5 seconds=262
at=1h5m31s level=WARN msg="overload: on_failure decides requests that could not be answered in time" requests=1 process=0 store=1 calls=0
at=1h5m41s level=INFO msg="the overload has ended" requests=1 process=0 store=1 calls=0 seconds=1
at=1h6m31s level=WARN msg="overload: calls are shed with an error before they are read, regardless of on_failure, because too many are in progress; Envoy lets their requests pass, unless failure_mode_deny is true" requests=2 process=0 store=0 calls=2
at=1h6m41s level=INFO msg="the overload has ended" requests=2 process=0 store=0 calls=2 seconds=1
`
		if d := cmp.Diff(strings.TrimSpace(want), strings.TrimSpace(said.String())); d != "" {
			t.Errorf("log (-want +got):\n%s", d)
		}
	})
}
