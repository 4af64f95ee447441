package descriptors_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const calendars = `
domain: shop
descriptors:
  - {key: berlin, rate_limit: {unit: month, requests_per_unit: 10, calendar: true, timezone: Europe/Berlin}}
  - {key: berlin too, rate_limit: {unit: month, requests_per_unit: 20, calendar: true, timezone: Europe/Berlin}}
  - {key: billed, rate_limit: {unit: month, requests_per_unit: 10, calendar: {day: 15, hour: 9}, timezone: Europe/Berlin}}
  - {key: utc, rate_limit: {unit: day, requests_per_unit: 10, calendar: true}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 10}}
  - {key: thirty days, rate_limit: {unit: month, requests_per_unit: 10, calendar: false}}
  - {key: first, rate_limit: {unit: day, requests_per_unit: 10, align: first}}
  - {key: bucket, rate_limit: {unit: month, requests_per_unit: 10, algorithm: token_bucket}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: list, rate_limits: [{unit: day, requests_per_unit: 10, calendar: true, timezone: Europe/Berlin}]}
`

// TestCalendarOfOverrides: a calendar applies to overrides with a unit that it has. With USE_CALENDAR_MONTH_RATE_LIMIT, months follow the
// calendar in UTC.
func TestCalendarOfOverrides(t *testing.T) {
	type override = descriptors.Override
	for _, c := range []struct {
		key            string
		o              override
		without, under string // the counter's Slot, without and with USE_CALENDAR_MONTH_RATE_LIMIT
	}{
		{"berlin", override{Unit: descriptors.Month}, "fmonth/2e35q1n24w", ""},
		{"berlin", override{Unit: descriptors.Month, Multiplier: 3}, "fmonth3/2e35q1n24w", ""},
		{"berlin", override{Unit: descriptors.Day}, "fday/2e35q1n24w", ""},
		{"berlin", override{Unit: descriptors.Year, Multiplier: 1}, "fyear/2e35q1n24w", ""},
		{"berlin", override{Unit: descriptors.Hour}, "f3600000000", ""},
		{"berlin", override{Unit: descriptors.Day, Multiplier: 2}, "f172800000000", ""},
		{"berlin", override{Unit: descriptors.Month, Multiplier: 5}, "f12960000000000", ""},
		{"billed", override{Unit: descriptors.Month}, "fmonth/4kcbslq8id", ""},
		{"billed", override{Unit: descriptors.Month, Multiplier: 3}, "fmonth3/2e35q1n24w", ""},
		{"billed", override{Unit: descriptors.Day}, "fday/2e35q1n24w", ""},
		{"utc", override{Unit: descriptors.Week}, "fweek", ""},
		{"utc", override{Unit: descriptors.Month}, "fmonth", ""},
		{"month", override{Unit: descriptors.Month}, "f2592000000000", "fmonth"},
		{"month", override{Unit: descriptors.Month, Multiplier: 3}, "f7776000000000", "fmonth3"},
		{"month", override{Unit: descriptors.Day}, "f86400000000", ""},
		{"thirty days", override{Unit: descriptors.Month}, "f2592000000000", ""},
		{"first", override{Unit: descriptors.Month}, "f2592000000000", ""},
		{"bucket", override{Unit: descriptors.Month}, "b", ""},
		{"free", override{Unit: descriptors.Month}, "f2592000000000", "fmonth"},
		{"list", override{Unit: descriptors.Month}, "f2592000000000", "fmonth"},
		{"list", override{Unit: descriptors.Day}, "f86400000000", ""},
		{"nothing", override{Unit: descriptors.Month}, "f2592000000000", "fmonth"},
		{"nothing", override{Unit: descriptors.Year}, "f31536000000000", ""},
	} {
		for _, months := range []bool{false, true} {
			want := c.without
			if months && c.under != "" {
				want = c.under
			}
			set, _, err := descriptors.Load([]descriptors.Source{{Name: "a.yaml", Data: []byte(calendars)}}, descriptors.Options{CalendarMonths: months})
			if err != nil {
				t.Fatal(err)
			}
			c.o.RequestsPerUnit = 5
			item, err := set.Domain([]byte("shop")).Match(entries(c.key, "v")).Override(c.o)
			if err != nil || item.Limit.Slot().String() != want || item.Limit.Hits != 5 {
				t.Errorf("%s with %+v, calendar months %t: %s, %d hits, %v; want %s", c.key, c.o, months, item.Limit.Slot(), item.Limit.Hits, err, want)
			}
		}
	}
}

// TestCalendarsAreShared checks that all rules for a zone share one calendar.
func TestCalendarsAreShared(t *testing.T) {
	var first *engine.Calendar
	for r := range mustLoad(t, []byte(calendars)).Rules() {
		if r.Path != "shop.berlin" && r.Path != "shop.berlin too" {
			continue
		}
		c := r.RateLimits.At(0).Limit.Calendar
		if first == nil {
			first = c
		}
		if c == nil || c != first {
			t.Errorf("%s has a calendar of its own, %v and not %v", r.Path, c, first)
		}
	}
}

// TestOverrideDoesNotAllocate: some callers send an override with each request.
func TestOverrideDoesNotAllocate(t *testing.T) {
	d := mustLoad(t, []byte(calendars)).Domain([]byte("shop"))
	for _, key := range []string{"berlin", "billed", "bucket", "nothing"} {
		m := d.Match(entries(key, "v"))
		o := descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Month}
		if n := testing.AllocsPerRun(100, func() {
			if _, err := m.Override(o); err != nil {
				t.Error(err)
			}
		}); n > 0 {
			t.Errorf("%s: an override allocates %v times", key, n)
		}
	}
}
