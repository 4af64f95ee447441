package console

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestPlay: the simulation matches the engine's decisions.
func TestPlay(t *testing.T) {
	for _, tt := range []struct {
		yaml string
		n    int
		over time.Duration
		want string // a letter for each request
	}{
		{"rate_limit: {unit: minute, requests_per_unit: 3}", 8, 2 * time.Minute, "+++-+++-"},
		{"rate_limit: {unit: minute, requests_per_unit: 2, algorithm: sliding_log}", 6, 2 * time.Minute, "++-++-"},
		{"rate_limit: {unit: second, requests_per_unit: 1, algorithm: token_bucket, burst: 3}", 6, 2 * time.Second, "+++-+-"},
		{"rate_limit: {unlimited: true}", 3, 0, "+++"},
		{"rate_limits:\n  - {unit: second, requests_per_unit: 1}\n  - {unit: minute, requests_per_unit: 2}", 4, 4 * time.Second, "++--"},
		{"rate_limit:\n  unit: second\n  requests_per_unit: 1\n  penalty: {for: 2s, on: exceeded}", 4, 2 * time.Second, "+---"},
	} {
		p, err := play(tt.yaml, tt.n, tt.over)
		if err != nil {
			t.Errorf("%s: %v", tt.yaml, err)
			continue
		}
		var got strings.Builder
		for _, b := range p.Bars {
			got.WriteString(map[bool]string{true: "+", false: "-"}[b.Passed])
		}
		if got.String() != tt.want || p.Passed != strings.Count(tt.want, "+") || p.Rejected != strings.Count(tt.want, "-") {
			t.Errorf("%s: %s, want %s; %d pass, %d are rejected", tt.yaml, got.String(), tt.want, p.Passed, p.Rejected)
		}
	}
	for yaml, want := range map[string]string{"": "no limit", "rate_limit: {unit: minute}\nx: 1": "line 2", "domain: d": "no limit", "descriptors: []": "no limit"} {
		if p, err := play(yaml, 1, 0); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %s", yaml, p, err, want)
		}
	}
}

// TestRefills: a counter refills by its algorithm, from the state in the API.
func TestRefills(t *testing.T) {
	at := func(p *plot, i int) string { return strings.Split(strings.Split(p.Line, " ")[i], ",")[1] }
	const full, empty = "3.0", "47.0"
	minute := durationpb.New(time.Minute)
	now := time.Unix(20_000*86_400+30, 0) // in the middle of a minute
	limit := &adminv1.Limit{
		RequestsPerUnit: 10, Unit: adminv1.Unit_UNIT_MINUTE, Window: minute,
		Algorithm: adminv1.Algorithm_ALGORITHM_FIXED_WINDOW, CountRefused: true,
	}
	for _, tt := range []struct {
		algorithm adminv1.Algorithm
		reset     time.Duration
		want      [3]string // after 0, 45 and 54 of 100 points
	}{
		{adminv1.Algorithm_ALGORITHM_FIXED_WINDOW, 30 * time.Second, [3]string{empty, empty, full}},
		{adminv1.Algorithm_ALGORITHM_SLIDING_LOG, 30 * time.Second, [3]string{empty, empty, full}},
		{adminv1.Algorithm_ALGORITHM_TOKEN_BUCKET, time.Minute, [3]string{empty, "29.4", "25.0"}},
	} {
		limit.Algorithm, limit.CountRefused, limit.Burst = tt.algorithm, tt.algorithm == adminv1.Algorithm_ALGORITHM_FIXED_WINDOW, 0
		if tt.algorithm == adminv1.Algorithm_ALGORITHM_TOKEN_BUCKET {
			limit.Burst = 10
		}
		p := refills(limit, &adminv1.Counter{ResetAfter: durationpb.New(tt.reset)}, now)
		if diff := cmp.Diff(tt.want, [3]string{at(p, 0), at(p, 45), at(p, 54)}); diff != "" {
			t.Errorf("%v (-want +got):\n%s%s", tt.algorithm, diff, p.Line)
		}
	}
}

// TestWords: numbers and times are short.
func TestWords(t *testing.T) {
	got := []string{count(0), count(3.25), count(120.4), count(9999), count(12345), count(3.2e6), count(5e9)}
	if diff := cmp.Diff([]string{"0", "3.2", "120", "9999", "12.3k", "3.2M", "5.0G"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	got = nil
	for _, d := range []time.Duration{400 * time.Microsecond, 2500 * time.Microsecond, 90 * time.Millisecond, 1500 * time.Millisecond, 36 * time.Second, 90 * time.Second, time.Hour, 50 * time.Hour} {
		got = append(got, short(d))
	}
	if diff := cmp.Diff([]string{"400 µs", "2.5 ms", "90 ms", "1.5 s", "36 s", "1 min 30 s", "1 h", "2 days 2 h"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestBounds: a rule's page states the bound of its limit, and its reservations.
func TestBounds(t *testing.T) {
	limit := &adminv1.Limit{Algorithm: adminv1.Algorithm_ALGORITHM_TOKEN_BUCKET, RequestsPerUnit: 9, Unit: adminv1.Unit_UNIT_HOUR, Burst: 5}
	reserve := &adminv1.Reserve{Estimate: 20, Ttl: durationpb.New(5 * time.Minute)}
	got := bounds(&adminv1.Rule{Limits: []*adminv1.Limit{limit}, Reserve: reserve})
	if diff := cmp.Diff([]string{
		"Never more than 5 at once, plus 9 for each hour that passes.",
		"A request reserves 20 hits unless it sets a number, and settles its real cost later. A reservation not settled within 5 min counts as consumed.",
	}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDraw: the totals of a chart are percentages of the requests.
func TestDraw(t *testing.T) {
	samples := make([]Sample, 60)
	for i := range samples {
		samples[i] = Sample{Requests: 10, Allowed: 7, Rejected: 2, Other: 1, Slow: 0.001}
	}
	samples[30].Slow = 0.02
	c := draw(samples)
	got := []string{c.Since, c.Max, c.Slowest, c.Latency.Now, c.Latency.All}
	for _, f := range c.Counts {
		got = append(got, f.Title+" "+f.Now+" "+f.All)
	}
	want := []string{
		"5 min", "7/s", "20 ms", "1.0 ms", "at most 20 ms", "Requests 10/s 600 in 5 min",
		"Allowed 7/s 420 · 70 %", "Rejected 2/s 120 · 20 %", "Control or fallback 1/s 60 · 10 %",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if c.Counts[1].Line == "" || strings.Count(c.Counts[1].Line, ",") != 20 || c.Counts[0].Line != "" {
		t.Errorf("the curves are %q and %q", c.Counts[0].Line, c.Counts[1].Line)
	}
	if empty := draw(nil); empty.Counts[2].All != "0" || empty.Latency.Now != "–" {
		t.Errorf("without samples: %+v", empty)
	}
}
