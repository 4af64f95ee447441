package descriptors_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const overridden = `
domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: minute, requests_per_unit: 10, count_refused: false, align: first, name: x, replaces: [{name: y}]}}
  - {key: window, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window, precision: 60}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_log}}
  - {key: bucket, rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 25, debt: 35, initial: 15}}
  - {key: steps, rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, fill_interval: 100ms}}
  - {key: closed, rate_limit: {unit: second, requests_per_unit: 0, algorithm: token_bucket}}
  - {key: spaced, rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 1}}
  - {key: leaky, rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, burst: 5}}
  - {key: held, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: concurrency}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: one, rate_limits: [{unit: minute, requests_per_unit: 10, algorithm: sliding_log}]}
  - {key: two, rate_limits: [{unit: minute, requests_per_unit: 10}, {unit: day, requests_per_unit: 100}]}
`

func TestOverride(t *testing.T) {
	d := mustLoad(t, []byte(overridden)).Domain([]byte("shop"))
	const second, minute, hour = engine.Micros(1e6), engine.Micros(60e6), engine.Micros(3600e6)
	five := descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Hour}
	none := descriptors.Override{Unit: descriptors.Second}
	twenty := descriptors.Override{RequestsPerUnit: 20, Unit: descriptors.Second}
	hundred := descriptors.Override{RequestsPerUnit: 100, Unit: descriptors.Second, Multiplier: 2}
	for _, c := range []struct {
		key  string
		o    descriptors.Override
		want engine.Limit
	}{
		{"fixed", five, engine.Limit{Hits: 5, Window: hour, Align: engine.AlignFirst}},
		{"window", five, engine.Limit{Algorithm: engine.SlidingWindow, Precision: 60, Hits: 5, Window: hour}},
		{"log", five, engine.Limit{Algorithm: engine.SlidingLog, Hits: 5, Window: hour}},
		{"log", descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Minute}, engine.Limit{Algorithm: engine.SlidingLog, Hits: 5, Window: minute}},
		{"bucket", five, engine.Limit{Algorithm: engine.TokenBucket, Hits: 5, Window: hour, Burst: 12, Debt: 17, Initial: 7}},
		{"bucket", hundred, engine.Limit{Algorithm: engine.TokenBucket, Hits: 100, Window: 2 * second, Burst: 250, Debt: 350, Initial: 150}},
		{"bucket", none, engine.Limit{Algorithm: engine.TokenBucket, Window: second, Burst: 1}},
		{"steps", twenty, engine.Limit{Algorithm: engine.TokenBucket, Hits: 20, Window: second, Burst: 20, Initial: 20, FillInterval: second / 10}},
		{"closed", twenty, engine.Limit{Algorithm: engine.TokenBucket, Hits: 20, Window: second, Burst: 20, Initial: 20}},
		{"spaced", five, engine.Limit{Algorithm: engine.TokenBucket, Hits: 5, Window: hour, Burst: 1, Initial: 1}}, // not empty at first
		{
			"leaky",
			descriptors.Override{RequestsPerUnit: 1, Unit: descriptors.Second},
			engine.Limit{Algorithm: engine.LeakyBucket, Hits: 1, Window: second, Burst: 1},
		},
		{"held", five, engine.Limit{Algorithm: engine.Concurrency, Hits: 5, Window: hour}},
		{"free", five, engine.Limit{Hits: 5, Window: hour, CountRefused: true}},
		{"one", five, engine.Limit{Hits: 5, Window: hour, CountRefused: true}},
		{"two", five, engine.Limit{Hits: 5, Window: hour, CountRefused: true}},
		{"none", five, engine.Limit{Hits: 5, Window: hour, CountRefused: true}},
		{
			"none",
			descriptors.Override{RequestsPerUnit: 1<<32 - 1, Unit: descriptors.Minute, Multiplier: 1},
			engine.Limit{Hits: 1<<32 - 1, Window: minute, CountRefused: true},
		},
		{"none", descriptors.Override{Unit: descriptors.Minute}, engine.Limit{Window: minute, CountRefused: true}},
	} {
		t.Run(c.key, func(t *testing.T) {
			got, err := d.Match(entries(c.key, "v")).Override(c.o)
			if err != nil {
				t.Fatal(err)
			}
			want := descriptors.RateLimit{Limit: c.want, RequestsPerUnit: c.o.RequestsPerUnit, Unit: c.o.Unit, Multiplier: max(c.o.Multiplier, 1)}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestG20_G21_OverridesThatAreIgnored tests invalid overrides and numbers that an algorithm does not accept: they are ignored, with a
// reason.
func TestG20_G21_OverridesThatAreIgnored(t *testing.T) {
	d := mustLoad(t, []byte(overridden)).Domain([]byte("shop"))
	for _, c := range []struct {
		key  string
		o    descriptors.Override
		want error // nil for an error of the engine
	}{
		{"none", descriptors.Override{RequestsPerUnit: 5}, descriptors.ErrOverrideUnit},
		{"bucket", descriptors.Override{RequestsPerUnit: 5, Unit: 9}, descriptors.ErrOverrideUnit},
		{"bucket", descriptors.Override{RequestsPerUnit: 5, Unit: 99}, descriptors.ErrOverrideUnit},
		{"bucket", descriptors.Override{RequestsPerUnit: 5, Unit: 255}, descriptors.ErrOverrideUnit},
		{"bucket", descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Forever}, descriptors.ErrOverrideForever},
		{"none", descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Year, Multiplier: 9}, descriptors.ErrOverrideWindow},
		{"none", descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Year, Multiplier: 1<<32 - 1}, descriptors.ErrOverrideWindow},
		{"log", descriptors.Override{RequestsPerUnit: 10_001, Unit: descriptors.Day}, nil},
		{"held", descriptors.Override{RequestsPerUnit: 10_001, Unit: descriptors.Day}, nil},
		{"steps", descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Second}, nil},
		{"bucket", descriptors.Override{RequestsPerUnit: 1<<32 - 1, Unit: descriptors.Second}, nil},
	} {
		item, err := d.Match(entries(c.key, "v")).Override(c.o)
		var field *engine.FieldError
		if err == nil || c.want != nil && !errors.Is(err, c.want) || c.want == nil && !errors.As(err, &field) {
			t.Errorf("%s with %+v: %v, error %v, want %v", c.key, c.o, item, err, c.want)
		}
	}
}
