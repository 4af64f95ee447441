package admin

import (
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// descriptorOf converts d for the limiter.
func descriptorOf(d *adminv1.Descriptor) limiter.Descriptor {
	out := limiter.Descriptor{
		Entries:     entriesOf(d.GetEntries()),
		Hits:        d.GetHitsAddend(),
		HasHits:     d != nil && d.HitsAddend != nil,
		Negative:    d.GetIsNegativeHits(),
		HasOverride: d.GetLimit() != nil,
	}
	if o := d.GetLimit(); o != nil {
		out.Override = overrideOf(o)
	}
	return out
}

func overrideOf(o *adminv1.Override) descriptors.Override {
	to := descriptors.Override{Unit: unitOf(o.GetUnit()), Multiplier: o.GetUnitMultiplier()}
	to.SetNumber(o.Number())
	return to
}

func entriesOf(es []*adminv1.Entry) []descriptors.Entry {
	out := make([]descriptors.Entry, 0, len(es))
	for _, e := range es {
		value := e.GetRawValue()
		if len(value) == 0 {
			value = []byte(e.GetValue())
		}
		out = append(out, descriptors.Entry{Key: []byte(e.GetKey()), Value: value})
	}
	return out
}

// unitOf converts u. Unknown numbers become [descriptors.UnitUnknown].
func unitOf(u adminv1.Unit) descriptors.Unit {
	if u < 0 || u > adminv1.Unit_UNIT_FOREVER {
		return descriptors.UnitUnknown
	}
	return descriptors.Unit(u) // both use the numbers of Envoy's API
}

// explanationMessage converts x as visible to who.
func explanationMessage(x *limiter.Explained, who *access.Who) *adminv1.Explanation {
	m := &adminv1.Explanation{
		Rule:           rulemessage.Of(x.Rule),
		Outcome:        outcomeOf(x.Outcome),
		Hits:           x.Effective.Hits,
		IsNegativeHits: x.Effective.Negative,
		Holder:         valid(x.Holder),
		IsOverride:     x.Override,
	}
	if x.Err != nil {
		m.StoreError = valid(x.Err.Error())
	}
	if x.RateLimit != nil && x.Effective.Outcome == limiter.Undecided {
		m.OnFailure = rulemessage.OnFailure(x.Effective.OnFailure)
	}
	for _, c := range x.Effective.Controls {
		m.Controls = append(m.Controls, controlMessage(c, who))
	}
	for _, s := range x.Steps {
		m.Steps = append(m.Steps, &adminv1.Step{Entry: valid(s.Entry), Text: valid(s.Text)})
	}
	if x.Counter != "" {
		m.Counter = counterMessage(x.Counter, &x.Effective.Limits, &x.Decision)
		m.Counter.Rejects = x.Exceeded()
		if x.Effective.Negative { // a refund never waits
			m.Counter.RetryAfter, m.Counter.Wait = nil, nil
		}
	}
	if x.Effective.Ineffective.Override != nil {
		m.OverrideIgnored = valid(x.Effective.Ineffective.Override.Error())
	}
	return m
}

// counterMessage converts a counter with its limits and decision.
func counterMessage(name string, limits *descriptors.RateLimits, d *engine.Decision) *adminv1.Counter {
	m := &adminv1.Counter{
		Key:        name,
		Strictest:  int32(d.Strictest),
		Left:       d.Left,
		RetryAfter: Duration(d.RetryAfter),
		ResetAfter: Duration(d.ResetAfter),
		Wait:       Duration(d.Wait),
		Penalty:    Duration(d.Penalty),
		Reserved:   d.Reserved,
	}
	for _, l := range limits.All() {
		m.Limits = append(m.Limits, rulemessage.Limit(l))
	}
	return m
}

func outcomeOf(o limiter.Outcome) adminv1.Outcome {
	return adminv1.Outcome(rulemessage.Enum(adminv1.Outcome_value, "OUTCOME", o))
}

// valid returns s as a valid protobuf string: invalid UTF-8 becomes U+FFFD.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
