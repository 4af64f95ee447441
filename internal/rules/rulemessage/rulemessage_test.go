package rulemessage_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestLimits: limits are unchanged by conversion to messages and back.
func TestLimits(t *testing.T) {
	t.Parallel()
	const head = "domain: d\ndescriptors:\n  - key: k\n    value: v\n    "
	for _, limits := range []string{
		"rate_limit: {unit: minute, requests_per_unit: 5}",
		"rate_limit: {unit: second, requests_per_unit: 0, unit_multiplier: 90, name: none}",
		"rate_limit: {unit: day, requests_per_unit: 5000000000, calendar: true, timezone: Europe/Berlin}",
		"rate_limit: {unit: month, requests_per_unit: 5, calendar: {day: 15, hour: 6}}",
		"rate_limit: {unit: minute, requests_per_unit: 5, align: first, count_refused: false}",
		"rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_window, precision: 60, late_charge: true}",
		"rate_limit: {unit: second, requests_per_unit: 5, algorithm: token_bucket, burst: 20, debt: 7, initial: 0, fill_interval: 600ms}",
		"rate_limit: {unit: second, requests_per_unit: 5, algorithm: leaky_bucket, burst: 9}",
		"rate_limit: {unit: minute, requests_per_unit: 5, algorithm: concurrency}",
		"rate_limit: {unit: minute, requests_per_unit: 5, count_refused: false}",
		"rate_limit: {unit: forever, requests_per_unit: 5, count_refused: false}",
		"rate_limits:\n    - {name: burst, unit: second, requests_per_unit: 2}\n    - {unit: day, requests_per_unit: 5, algorithm: sliding_log, replaces: [{name: x}]}",
	} {
		set, problems, err := descriptors.Load([]descriptors.Source{{Name: "a.yaml", Data: []byte(head + limits)}}, descriptors.Options{})
		if err != nil {
			t.Errorf("%s: %v", limits, problems)
			continue
		}
		for r := range set.Rules() {
			want := rulemessage.Of(r).GetLimits()
			back, err := rulemessage.Limits(want)
			if err != nil {
				t.Errorf("%s: %v", limits, err)
				continue
			}
			var got []*adminv1.Limit
			for _, l := range back.All() {
				got = append(got, rulemessage.Limit(l))
			}
			if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
				t.Errorf("%s (-want +got):\n%s", limits, d)
			}
		}
	}
}
