package replay_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// rules have each algorithm, several limits, and options that change the counter.
const rules = `
domain: d
descriptors:
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: sliding, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: sliding_log, penalty: {for: 20s}}}
  - {key: bucket, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: token_bucket, burst: 5}}
  - {key: queue, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: leaky_bucket, burst: 3}}
  - {key: held, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true, replaces: [{name: strict}]}}
  - {key: strict, rate_limit: {unit: minute, requests_per_unit: 1, name: strict}}
  - key: list
    rate_limits:
      - {unit: second, requests_per_unit: 2}
      - {unit: minute, requests_per_unit: 30, algorithm: token_bucket}
`

func load(tb testing.TB, yaml string) *descriptors.Set {
	tb.Helper()
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(yaml)}}, descriptors.Options{})
	if err != nil || problems.Failed() {
		tb.Fatal(err, problems)
	}
	return set
}

func request(pairs ...string) *limiter.Request {
	r := &limiter.Request{Domain: []byte("d")}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		r.Descriptors = append(r.Descriptors, limiter.Descriptor{Entries: []descriptors.Entry{{Key: []byte(key), Value: []byte(value)}}})
	}
	return r
}

// events is a source of events.
type events []*replay.Event

func (e *events) Next() (*replay.Event, error) {
	if len(*e) == 0 {
		return nil, io.EOF
	}
	first := (*e)[0]
	*e = (*e)[1:]
	return first, nil
}

func run(tb testing.TB, c replay.Config, from events, yaml ...string) *replay.Report {
	tb.Helper()
	var players []*replay.Player
	for i, text := range yaml {
		players = append(players, replay.NewPlayer(fmt.Sprint("set", i), load(tb, text), replay.Settings{}))
	}
	r, err := replay.Run(tb.Context(), &from, players, c)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

// TestSameAsServer makes requests to the limiter of a server, and replays them in another order. All verdicts are the same.
func TestSameAsServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2))
		server := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{})
		server.SetRules(load(t, rules))
		keys := []string{"fixed", "sliding", "log", "bucket", "queue", "held", "shadow", "free", "strict", "list"}
		var (
			from     events
			scratch  limiter.Scratch
			rejected uint64
			held     []*limiter.Request
		)
		decide := func(r *limiter.Request, silent bool) {
			e := &replay.Event{At: engine.Micros(time.Now().UnixMicro()), Request: r, Decision: replay.Passed, Silent: silent}
			v, err := server.Decide(t.Context(), r, &scratch)
			if err != nil {
				t.Fatal(err)
			}
			if v.Over {
				e.Decision = replay.Rejected
				rejected++
			} else if string(r.Descriptors[0].Entries[0].Key) == "held" && !silent {
				held = append(held, r)
			}
			from = append(from, e)
		}
		for range 20_000 {
			time.Sleep(time.Duration(random.IntN(400)+1) * time.Millisecond)
			r := request(keys[random.IntN(len(keys))] + fmt.Sprint("=", random.IntN(3)))
			if random.IntN(3) == 0 {
				r = request("fixed=a", keys[random.IntN(len(keys))]+"=b")
			}
			r.Hits = uint32(random.IntN(3))
			decide(r, false)
			if len(held) > 0 && random.IntN(3) == 0 {
				time.Sleep(time.Millisecond)
				back := *held[0]
				back.Descriptors = append([]limiter.Descriptor(nil), back.Descriptors...)
				back.Descriptors[0].Negative = true
				back.Descriptors = back.Descriptors[:1]
				held = held[1:]
				decide(&back, true)
			}
		}
		for i := range len(from) / 4 { // like a log, which is written at the ends of requests
			at := i * 4
			from[at], from[at+2] = from[at+2], from[at]
		}
		n := uint64(len(from))
		r := run(t, replay.Config{Held: 10}, from, rules)
		if o := r.Sets[0]; o.Rejected != rejected || o.NewlyRejected+o.NewlyPassed+o.Failed+r.Late > 0 || r.Requests+r.Calls != n {
			t.Errorf("%d of %d are rejected by the server: %+v", rejected, n, r)
		}
		if rejected < 1000 || rejected > n/2 || r.Calls < 100 || r.Sets[0].Shadowed < 100 || r.Sets[0].NoLimit < 100 {
			t.Errorf("%d of %d, %d calls, %+v: not enough happens for a test", rejected, n, r.Calls, r.Sets[0])
		}
	})
}

const start = engine.Micros(1_795_773_600_000_000)

// every returns n requests at a constant rate.
func every(n int, after time.Duration, of func(i int) *limiter.Request) (from events) {
	for i := range n {
		from = append(from, &replay.Event{At: start + engine.Micros(i)*engine.Micros(after.Microseconds()), Request: of(i)})
	}
	return from
}

// TestReport compares two sets by rule, descriptor, and time.
func TestReport(t *testing.T) {
	t.Parallel()
	const lower = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 30}}]"
	from := every(120, time.Second, func(i int) *limiter.Request { return request("a=" + []string{"ann", "bob", "ann"}[i%3]) })
	from[7].Request = nil
	from = append(from, from[8])
	from = append(from[:8], from[9:]...)
	r := run(t, replay.Config{Held: 5}, from, strings.Replace(lower, "30", "1000", 1), lower)
	at := func(seconds int) *time.Time {
		return new(time.UnixMicro(int64(start)).UTC().Add(time.Duration(seconds) * time.Second))
	}
	want := &replay.Report{
		Requests: 120, From: *at(0), To: *at(119), Unasked: 1, Late: 1,
		Sets: []replay.Outcome{{Rules: "set0", Close: 4}, {Rules: "set1", Rejected: 20, Affected: 1, Close: 4}}, Changed: &replay.Changed{Second: 20},
		Rules: []replay.Rule{{
			Path: "d.a", Places: []string{"rules.yaml:2", "rules.yaml:2"}, Requested: []uint64{119, 119}, Rejected: []uint64{0, 20},
			Shadowed: []uint64{0, 0}, First: []*time.Time{nil, at(47)}, Last: []*time.Time{nil, at(119)},
		}},
		Values:   []replay.Value{{Rule: "d.a", Text: "d a=ann", Requested: 80, Rejected: []uint64{0, 20}}},
		Timeline: replay.Timeline{Start: *at(0), Seconds: 1},
	}
	if len(r.Timeline.Requests) != 120 || r.Timeline.Requests[8] != 0 || r.Timeline.Requests[114] != 2 || r.Timeline.Rejected[1][114] != 2 || len(r.Timeline.Rules) != 1 {
		t.Errorf("%+v", r.Timeline)
	}
	r.Timeline.Requests, r.Timeline.Rejected, r.Timeline.Rules = nil, nil, nil
	if d := cmp.Diff(want, r); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestBoundaries: a request is near a boundary if the limit might decide differently a second earlier or later.
func TestBoundaries(t *testing.T) {
	t.Parallel()
	for algorithm, want := range map[string]uint64{ // of 75 requests, half a second after each full second
		"fixed_window":                 3,  // the first and the last of a minute, and the first of the next
		"sliding_window, precision: 6": 2,  // the 20th, and the last one before the first 10 leave the window
		"sliding_log":                  17, // the 20th, the last rejected one, and those admitted as others leave
		"token_bucket":                 32, // once it is empty, one refills each 3 s: it is admitted, and the one before it is rejected
		"concurrency":                  0,
	} {
		rules := "domain: d\ndescriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: " + algorithm + "}}]"
		from := every(75, time.Second, func(int) *limiter.Request { return request("a=ann") })
		for _, e := range from {
			e.At += 500_000
		}
		if got := run(t, replay.Config{}, from, rules).Sets[0].Close; got != want {
			t.Errorf("%s: %d, want %d", algorithm, got, want)
		}
	}
}

// TestDifferences: with two sets, differences come before rejections by both, and a domain without rules in one of them is
// reported.
func TestDifferences(t *testing.T) {
	t.Parallel()
	const both = "domain: d\ndescriptors:\n  - {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}\n  - {key: b, rate_limit: {unit: hour, requests_per_unit: 9}}\n"
	from := every(90, time.Second, func(i int) *limiter.Request { return request([]string{"a=mallory", "a=mallory", "b=ann"}[i%3]) })
	r := run(t, replay.Config{}, from, both, strings.Replace(both, "9", "8", 1))
	if r.Values[0].Text != "d b=ann" || r.Values[1].Text != "d a=mallory" || r.Rules[0].Path != "d.b" || r.Sets[1].Affected != 2 {
		t.Errorf("%+v, %+v, %+v", r.Values, r.Rules, r.Sets)
	}
	r = run(t, replay.Config{}, from, both, strings.Replace(both, ": d", ": dd", 1))
	if o := r.Sets[1]; r.Sets[0].Unruled != 0 || o.Unruled != 90 || !strings.Contains(o.UnknownDomain, "known: dd") {
		t.Errorf("%+v", r.Sets)
	}
}

// TestConcurrency: slots are released at the end of the request, if recorded, and immediately after a rejection.
func TestConcurrency(t *testing.T) {
	t.Parallel()
	const held = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 2, algorithm: concurrency}}, {key: no, rate_limit: {unit: hour, requests_per_unit: 0}}]"
	for name, tt := range map[string]struct {
		frees             bool
		lasts             engine.Micros
		pairs             []string
		rejected, endless uint64
	}{
		"short":              {true, 1_500_000, []string{"a=b"}, 0, 0},
		"long":               {true, 3_500_000, []string{"a=b"}, 4, 0}, // two of four consecutive requests pass
		"unknown":            {true, 0, []string{"a=b"}, 8, 2},
		"said by the log":    {false, 1_500_000, []string{"a=b"}, 8, 0},
		"rejected by others": {true, 3_500_000, []string{"a=b", "no=x"}, 10, 0},
	} {
		from := every(10, time.Second, func(int) *limiter.Request { return request(tt.pairs...) })
		for _, e := range from {
			e.Frees = tt.frees
			if tt.lasts > 0 {
				e.End = e.At + tt.lasts
			}
		}
		r := run(t, replay.Config{}, from, held)
		if o := r.Sets[0]; o.Rejected != tt.rejected || o.Endless != tt.endless {
			t.Errorf("%s: %+v, want %d rejected and %d endless", name, o, tt.rejected, tt.endless)
		}
		if a := r.Rules; name == "rejected by others" && a[1].Rejected[0] != 0 {
			t.Errorf("%s: %+v: what was rejected holds slots", name, a)
		}
	}
}

// TestCharges: calls at ends of requests are made on time, and only for requests that pass.
func TestCharges(t *testing.T) {
	t.Parallel()
	const budget = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 10, count_refused: true}}]"
	from := every(10, time.Second, func(int) *limiter.Request {
		r := request("a=x")
		r.Descriptors[0].HasHits = true // a check without hits
		return r
	})
	for _, e := range from {
		e.End = e.At + 2_500_000
		e.AtEnd = request("a=x")
		e.AtEnd.Hits = 4
	}
	r := run(t, replay.Config{}, from, budget)
	if o := r.Sets[0]; o.Rejected != 5 || o.Charges != 5 { // the third request's charge comes after the fifth request
		t.Errorf("%+v, want 5 rejected and 5 charges", o)
	}
}

// TestBounds: memory is limited, and the busiest descriptors are tracked.
func TestBounds(t *testing.T) {
	t.Parallel()
	const each = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5}}]"
	from := every(30_000, time.Minute, func(i int) *limiter.Request {
		if i%2 == 0 {
			return request("a=busy")
		}
		return request(fmt.Sprint("a=", i))
	})
	r := run(t, replay.Config{Values: 100}, from, each)
	if n := len(r.Timeline.Requests); n > 480 || n < 200 {
		t.Errorf("%d buckets of %d s", n, r.Timeline.Seconds)
	}
	sum := uint64(0)
	for _, n := range r.Timeline.Requests {
		sum += n
	}
	if sum != 30_000 || !r.Forgotten || len(r.Values) == 0 || r.Values[0].Text != "d a=busy" || r.Values[0].Requested-r.Values[0].Missed != 15_000 {
		t.Errorf("%d requests, %v, %+v", sum, r.Forgotten, r.Values)
	}
}

// TestFailure: decisions that a server would answer with an error are counted, and an error of the source ends the run.
func TestFailure(t *testing.T) {
	t.Parallel()
	from := every(3, time.Second, func(int) *limiter.Request { return &limiter.Request{Descriptors: request("a=b").Descriptors} })
	if o := run(t, replay.Config{}, from, rules).Sets[0]; o.Failed != 3 || o.Error != limiter.ErrEmptyDomain.Error() {
		t.Errorf("%+v", o)
	}
	if _, err := replay.Run(t.Context(), broken{}, []*replay.Player{replay.NewPlayer("", load(t, rules), replay.Settings{})}, replay.Config{}); !errors.Is(err, errBroken) {
		t.Errorf("%v", err)
	}
}

var errBroken = errors.New("broken")

type broken struct{}

func (broken) Next() (*replay.Event, error) { return nil, errBroken }

// TestPlot: a plot is XML with a description, for any names of rules and descriptors.
func TestPlot(t *testing.T) {
	t.Parallel()
	const odd = "domain: d\ndescriptors: [{key: '<a&\"', rate_limit: {unit: minute, requests_per_unit: 2}}]"
	for n, from := range map[int]events{
		0: nil, 1: every(1, 0, func(int) *limiter.Request { return request("x=y") }),
		1000: every(1000, 500*time.Hour, func(int) *limiter.Request { return request(`<a&"=</script>`) }),
		500:  every(500, time.Second, func(int) *limiter.Request { return request(`<a&"=</script>`) }),
	} {
		r := run(t, replay.Config{}, from, odd, rules)
		var svg, page bytes.Buffer
		if err := errors.Join(replay.WriteSVG(&svg, r), replay.WriteHTML(&page, r)); err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(&svg)
		titles := 0
		for {
			token, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%d requests: %v", n, err)
			}
			if e, ok := token.(xml.StartElement); ok && (e.Name.Local == "title" || e.Name.Local == "desc") {
				titles++
			}
		}
		if titles != 2 {
			t.Errorf("%d requests: %d titles and descriptions", n, titles)
		}
		if text := page.String(); strings.Contains(text, "</script>") || !strings.Contains(text, fmt.Sprintf("%d requests", n)) {
			t.Errorf("%d requests: %s", n, text)
		}
	}
}

// BenchmarkReplay replays requests of two descriptors each on two sets of rules.
func BenchmarkReplay(b *testing.B) {
	from := every(b.N, time.Millisecond, func(i int) *limiter.Request {
		return request(fmt.Sprint("fixed=", i%1000), fmt.Sprint("bucket=", i%10_000))
	})
	b.ReportAllocs()
	b.ResetTimer()
	run(b, replay.Config{}, from, rules, rules)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}
