package admin

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
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

// unitOf returns u, or [descriptors.UnitUnknown] for a number that is not a unit.
func unitOf(u adminv1.Unit) descriptors.Unit {
	if u < 0 || u > adminv1.Unit_UNIT_FOREVER {
		return descriptors.UnitUnknown
	}
	return descriptors.Unit(u) // both are numbered as in Envoy's API
}

// explanationMessage converts x for the wire.
func explanationMessage(x *limiter.Explained, who *Who) *adminv1.Explanation {
	m := &adminv1.Explanation{
		Rule:           RuleMessage(x.Rule),
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
		m.OnFailure = onFailureOf(x.Effective.OnFailure)
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
		if x.Effective.Negative { // refunding never has to wait
			m.Counter.RetryAfter, m.Counter.Wait = nil, nil
		}
	}
	if x.Effective.Ineffective.Override != nil {
		m.OverrideIgnored = valid(x.Effective.Ineffective.Override.Error())
	}
	return m
}

// counterMessage converts a counter, with the limits in force and its decision, for the wire.
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
		m.Limits = append(m.Limits, limitMessage(l))
	}
	return m
}

// RuleMessage converts r, as ListRules has it; nil becomes nil.
func RuleMessage(r *descriptors.Rule) *adminv1.Rule {
	if r == nil {
		return nil
	}
	m := &adminv1.Rule{
		Path:        valid(r.Path),
		File:        valid(r.File),
		Line:        int32(r.Line),
		IsUnlimited: r.Unlimited,
		ShadowMode:  r.Shadow,
		QuotaMode:   r.Quota,
		Holder:      valid(r.Holder),
		Penalty:     penaltyMessage(r.Penalty),
		Reserve:     reserveMessage(r.Reserve),
		OnFailure:   onFailureOf(r.OnFailure),
		Lease:       r.Lease,
		PlanOf:      valid(r.PlanOf),
		Plan:        r.Plan,
		HeadersOff:  r.HeadersOff,
		Overlay:     valid(r.Overlay),
	}
	if !r.Unlimited {
		for _, l := range r.RateLimits.All() {
			m.Limits = append(m.Limits, limitMessage(l))
		}
	}
	if r.Metadata != nil {
		m.Metadata, _ = structpb.NewStruct(r.Metadata) // rules have nothing else
	}
	return m
}

func limitMessage(i *descriptors.RateLimit) *adminv1.Limit {
	m := &adminv1.Limit{
		Algorithm:      adminv1.Algorithm(enumValue(adminv1.Algorithm_value, "ALGORITHM", i.Limit.Algorithm)),
		Unit:           adminv1.Unit(i.Unit),
		UnitMultiplier: max(i.Multiplier, 1),
		Name:           valid(i.Name),
		Window:         span(i.Limit.Window),
		Text:           i.InFull(),
	}
	for _, name := range i.Replaces {
		m.Replaces = append(m.Replaces, valid(name))
	}
	m.SetNumber(i.Number())
	setParameters(m.ProtoReflect(), &i.Limit)
	if c := i.Limit.Calendar; c != nil {
		if from, other := c.Begin(); other {
			later := func(n uint32) uint32 { // 0 for the first
				if n == 1 {
					return 0
				}
				return n
			}
			m.CalendarBegin = &adminv1.CalendarBegin{Month: later(from.Month), Day: later(from.Day), Weekday: later(from.Weekday), Hour: from.Hour}
		}
	}
	return m
}

// setParameters sets the fields of a limit's message that have the keys of parameters. What means nothing under the
// limit's algorithm stays unset.
func setParameters(m protoreflect.Message, l *engine.Limit) {
	fields := m.Descriptor().Fields()
	for p := range engine.Parameters() {
		f, v := fields.ByName(protoreflect.Name(p.String())), p.Get(l)
		if f == nil || !p.TakenBy(l.Algorithm) {
			continue
		}
		switch {
		case p.Kind() == engine.KindFlag:
			m.Set(f, protoreflect.ValueOfBool(v != 0))
		case p.Kind() == engine.KindWord:
			name := strings.ToUpper(string(f.Enum().Name()) + "_" + p.Text(l))
			m.Set(f, protoreflect.ValueOfEnum(f.Enum().Values().ByName(protoreflect.Name(name)).Number()))
		case p.Kind() == engine.KindTime && v != 0:
			m.Set(f, protoreflect.ValueOfMessage(span(engine.Micros(v)).ProtoReflect()))
		case p.Kind() == engine.KindZone && l.Calendar != nil && !l.Calendar.Endless():
			m.Set(f, protoreflect.ValueOfString(p.Text(l)))
		case p.Kind() == engine.KindNumber && f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(uint32(v)))
		case p.Kind() == engine.KindNumber:
			m.Set(f, protoreflect.ValueOfUint64(v))
		}
	}
}

// enumValue returns the number of v in an enum whose values are its words in capitals, behind a prefix; 0 if it is none
// of them, such as a default.
func enumValue(numbers map[string]int32, prefix string, v fmt.Stringer) int32 {
	return numbers[prefix+"_"+strings.ToUpper(strings.ReplaceAll(v.String(), " ", "_"))]
}

func outcomeOf(o limiter.Outcome) adminv1.Outcome {
	return adminv1.Outcome(enumValue(adminv1.Outcome_value, "OUTCOME", o))
}

func onFailureOf(f descriptors.OnFailure) adminv1.OnFailure {
	return adminv1.OnFailure(enumValue(adminv1.OnFailure_value, "ON_FAILURE", f))
}

func reserveMessage(r *descriptors.Reserve) *adminv1.Reserve {
	if r == nil {
		return nil
	}
	m := &adminv1.Reserve{Ttl: span(r.TTL), Estimate: r.Estimate, Returns: r.Return, Entry: valid(r.Entry), By: valid(r.By)}
	if l := r.Learn; l.Percentile > 0 {
		m.Learned = &adminv1.LearnedEstimate{Percentile: l.Percentile, Min: l.Min, Max: l.Max}
	}
	return m
}

func penaltyMessage(p *engine.Penalty) *adminv1.Penalty {
	if p == nil {
		return nil
	}
	on := adminv1.Trigger(enumValue(adminv1.Trigger_value, "TRIGGER", p.On))
	return &adminv1.Penalty{For: span(p.For), On: on, Escalate: p.Escalate, Max: span(p.Max)}
}

func span(m engine.Micros) *durationpb.Duration {
	return &durationpb.Duration{Seconds: int64(m / 1e6), Nanos: int32(m % 1e6 * 1e3)}
}

// valid returns s as a valid protobuf string: invalid UTF-8 becomes U+FFFD.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
