package descriptors_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestExplain prints the steps for each call of the file calls.
func TestExplain(t *testing.T) {
	rulefiletest.Golden(t, "testdata/explain", *rewrite, func(a *txtar.Archive) (string, error) {
		return answerCalls(a, func(set *descriptors.Set, domain string, e []descriptors.Entry) string {
			var b strings.Builder
			for _, step := range set.Domain([]byte(domain)).Explain(e) {
				fmt.Fprintf(&b, "\t%s: %s\n", step.Entry, step.Text)
			}
			return b.String()
		})
	})
}

func TestConfigLines(t *testing.T) {
	set := mustLoad(t, []byte(`
domain: shop
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 2}}
  - key: a
    value: b
    shadow_mode: true
    rate_limit: {unit: day, requests_per_unit: 3}
    descriptors: [{key: c, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 7}}]
  - {key: u, rate_limit: {unlimited: true}}
  - {key: f, rate_limit: {unit: minute, requests_per_unit: 7, unit_multiplier: 5, align: first, on_failure: deny}}
  - {key: t, rate_limit: {unit: minute, requests_per_unit: 7, algorithm: token_bucket, burst: 16, penalty: {for: 5m}}}
  - {key: l, rate_limits: [{unit: second, requests_per_unit: 1}, {unit: day, requests_per_unit: 9}]}
`))
	var got []byte
	for r := range set.Rules() {
		got = r.AppendConfig(got)
	}
	want := `shop.a: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false
shop.a_b: unit=DAY requests_per_unit=3, shadow_mode: true, quota_mode: false
shop.a_b.c: unit=MINUTE requests_per_unit=7, shadow_mode: false, quota_mode: true
shop.u: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
shop.f: unit=MINUTE requests_per_unit=7, shadow_mode: false, quota_mode: false, unit_multiplier: 5, align: first, on_failure: deny
shop.t: unit=MINUTE requests_per_unit=7, shadow_mode: false, quota_mode: false, algorithm: token_bucket, burst: 16, penalty: 5m once exceeded
shop.l: unit=SECOND requests_per_unit=1, shadow_mode: false, quota_mode: false
shop.l: unit=DAY requests_per_unit=9, shadow_mode: false, quota_mode: false
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestUnits(t *testing.T) {
	for u, want := range map[descriptors.Unit]struct {
		name    string
		seconds int64
	}{
		descriptors.UnitUnknown: {"UNKNOWN", 0}, descriptors.Second: {"SECOND", 1}, descriptors.Minute: {"MINUTE", 60},
		descriptors.Hour: {"HOUR", 3600}, descriptors.Day: {"DAY", 86400}, descriptors.Week: {"WEEK", 604800},
		descriptors.Month: {"MONTH", 2592000}, descriptors.Year: {"YEAR", 31536000}, 9: {"UNKNOWN", 0},
		descriptors.Forever: {"FOREVER", 1 << 48 / 1000000},
	} {
		if u.String() != want.name || int64(u.Length()/1e6) != want.seconds {
			t.Errorf("%d is %v of %d µs, want %v", u, u, u.Length(), want)
		}
		if got := descriptors.ParseUnit(strings.ToLower(want.name)); got != u && u != 9 {
			t.Errorf("%q reads as %v", want.name, got)
		}
	}
}

func TestSpanText(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		d           time.Duration
		exact, wait string
	}{
		{0, "0s", "0s"},
		{time.Microsecond, "1µs", "1ms"},
		{1500 * time.Microsecond, "1.5ms", "2ms"},
		{500 * time.Millisecond, "500ms", "500ms"},
		{time.Second, "1s", "1s"},
		{1_450 * time.Millisecond, "1.45s", "1.5s"},
		{59_999 * time.Millisecond, "59.999s", "1m"},
		{time.Minute, "1m", "1m"},
		{90 * time.Second, "1m30s", "1m30s"},
		{90*time.Second + time.Microsecond, "1m30.000001s", "1m31s"},
		{time.Hour, "1h", "1h"},
		{time.Hour - time.Nanosecond, "59m59.999999999s", "1h"},
		{time.Hour + time.Second, "1h0m1s", "1h1m"},
		{2 * time.Hour, "2h", "2h"},
		{90 * time.Minute, "1h30m", "1h30m"},
		{30 * day, "720h", "720h"},
	} {
		if got := descriptors.SpanText(c.d); got != c.exact {
			t.Errorf("%v is %s, want %s", c.d, got, c.exact)
		}
		if got := descriptors.WaitText(c.d); got != c.wait {
			t.Errorf("waiting %v is %s, want %s", c.d, got, c.wait)
		}
	}
}

func TestProblems(t *testing.T) {
	p := descriptors.Problems{
		{File: "a.yaml", Line: 3, Column: 5, Path: "shop.a", Text: "wrong"},
		{File: "a.yaml", Line: 4, Text: "doubtful", Warning: true},
		{File: "b.yaml", Text: "too large"},
	}
	if got, want := p.Error(), "a.yaml:3:5: shop.a: wrong\nb.yaml: too large"; got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	if got, want := p[1].String(), "a.yaml:4: warning: doubtful"; got != want {
		t.Errorf("warning %q, want %q", got, want)
	}
	if !p.Failed() || p[1:2].Failed() {
		t.Error("only an error is a failure")
	}
	lots := make(descriptors.Problems, 250)
	if got := lots.Error(); strings.Count(got, "\n") != 100 || !strings.HasSuffix(got, "and 150 more") {
		t.Errorf("250 problems in %d lines", strings.Count(got, "\n"))
	}
}

// TestLoadNothing: without sources there are no rules and no error, as in the reference.
func TestLoadNothing(t *testing.T) {
	set, problems, err := descriptors.Load(nil, descriptors.Options{})
	if err != nil || len(problems) > 0 || set == nil {
		t.Fatalf("set %v, %v, %v", set, problems, err)
	}
	if set.Domain([]byte("shop")) != nil || len(set.Files()) != 0 {
		t.Error("there are rules without files")
	}
}
