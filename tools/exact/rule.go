package main

import (
	"fmt"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// limit is a limit with the fields of a rule.
type limit struct {
	proof.Limit

	unit       string // second, minute, …
	multiplier int64  // number of units; at least 1
	lease      string // off, auto, or a number
}

// units returns the lengths of units without a calendar.
func units() map[string]time.Duration {
	const day = 24 * time.Hour
	return map[string]time.Duration{
		"second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": day,
		"week": 7 * day, "month": 30 * day, "year": 365 * day,
	}
}

func micros(d time.Duration) proof.Micros { return proof.Micros(d.Microseconds()) }

// settle computes derived fields.
func (l *limit) settle() {
	l.multiplier = max(l.multiplier, 1)
	l.Window = micros(units()[l.unit]) * proof.Micros(l.multiplier)
	if l.lease == "" {
		l.lease = "auto"
	}
	l.Lease = l.leases()
}

// leases returns the maximum lease of a replica in hits, as documented in docs/algorithms.md.
func (l *limit) leases() int64 {
	most := l.Hits
	switch {
	case l.Algorithm != proof.FixedWindow && l.Algorithm != proof.TokenBucket, l.Listed, l.Debt > 0:
		return 0
	case l.Algorithm == proof.TokenBucket:
		most = min(most, l.Burst)
	}
	var n int64
	switch _, err := fmt.Sscan(l.lease, &n); {
	case err == nil:
		most = min(most, n)
	case l.lease == "off":
		return 0
	default:
		most /= 100
	}
	if most < 2 {
		return 0
	}
	return most
}

// fields returns the YAML of l without its name.
func (l *limit) fields() []string {
	all := []string{"unit: " + l.unit, fmt.Sprintf("requests_per_unit: %d", l.Hits)}
	add := func(given bool, format string, args ...any) {
		if given {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	bucket := l.Algorithm == proof.TokenBucket
	add(l.multiplier > 1, "unit_multiplier: %d", l.multiplier)
	add(true, "algorithm: %s", l.Algorithm)
	add(l.First, "align: first")
	add(l.Calendar.Unit != "", "calendar: true, timezone: %s", l.Calendar.Zone)
	add(l.Precision > 0, "precision: %d", l.Precision)
	add(l.Burst > 0, "burst: %d", l.Burst)
	add(l.Debt > 0, "debt: %d", l.Debt)
	add(bucket && l.Initial < l.Burst, "initial: %d", l.Initial)
	add(l.Fill > 0, "fill_interval: %v", time.Duration(l.Fill)*time.Microsecond)
	add(!l.Listed && l.CountRefused != (l.Algorithm == proof.FixedWindow), "count_refused: %v", l.CountRefused)
	add(!l.Listed && l.lease != "auto", "lease: %s", l.lease)
	return all
}

// rule is a rule of a game, with one or several limits.
type rule struct {
	name   string
	limits []limit
	holder bool
}

// yaml returns a rule file for a domain with this rule only.
func (r *rule) yaml(domain string) string {
	const key = "domain: %s\ndescriptors:\n  - key: k\n    %s\n"
	items := make([]string, 0, len(r.limits))
	for i := range r.limits {
		name := fmt.Sprintf("name: %s-%d", r.name, i)
		items = append(items, "{"+strings.Join(append([]string{name}, r.limits[i].fields()...), ", ")+"}")
	}
	switch {
	case r.limits[0].Listed:
		return fmt.Sprintf(key, domain, "rate_limits: ["+strings.Join(items, ", ")+"]")
	case r.holder:
		limit := strings.TrimSuffix(items[0], "}") + ", holder: who}"
		return fmt.Sprintf(key, domain, "descriptors:\n      - key: who\n        rate_limit: "+limit)
	}
	return fmt.Sprintf(key, domain, "rate_limit: "+items[0])
}

// text describes the rule.
func (r *rule) text() string {
	var all []string
	for i := range r.limits {
		all = append(all, strings.Join(r.limits[i].fields(), ", "))
	}
	return strings.Join(all, "; ")
}

// setting returns the setting of the rule.
func (r *rule) setting() *proof.Setting {
	s := &proof.Setting{Name: r.name}
	for i := range r.limits {
		s.Limits = append(s.Limits, r.limits[i].Limit)
	}
	return s
}

// override is a limit in a request.
type override struct {
	hits int64
	unit string
}

func (o override) String() string { return fmt.Sprintf("override %d per %s", o.hits, o.unit) }

// message returns the override as in a request.
func (o override) message() *commonv3.RateLimitDescriptor_RateLimitOverride {
	return &commonv3.RateLimitDescriptor_RateLimitOverride{
		RequestsPerUnit: uint32(o.hits),
		Unit:            typev3.RateLimitUnit(typev3.RateLimitUnit_value[strings.ToUpper(o.unit)]),
		UnitMultiplier:  wrapperspb.UInt32(1),
	}
}

// on returns the setting of the override on rule r. The number and the window are the override's, the algorithm is the rule's,
// and the capacity of a bucket changes in proportion. For a list the result is one fixed window.
func (o override) on(r *rule) *proof.Setting {
	l := limit{Limit: proof.Limit{Algorithm: proof.FixedWindow, CountRefused: true}, lease: r.limits[0].lease}
	if from := r.limits[0]; !from.Listed {
		full := from.Initial == from.Burst
		l = from
		l.Calendar = proof.Calendar{} // games have no overrides that keep it
		l.Burst = from.Burst * o.hits / from.Hits
		if from.Burst > 0 {
			l.Burst = max(l.Burst, 1)
		}
		l.Debt = from.Debt * o.hits / from.Hits
		if l.Initial = min(from.Initial*o.hits/from.Hits, l.Burst); full {
			l.Initial = l.Burst
		}
	}
	l.Hits, l.unit, l.multiplier = o.hits, o.unit, 1
	l.settle()
	return &proof.Setting{Name: o.String(), Limits: []proof.Limit{l.Limit}}
}
