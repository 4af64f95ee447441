// Package rulemessage converts rules to messages of the admin API ([Of]), and messages to descriptors of a rule file ([Into]) and
// to limits ([Limits]). A message contains everything that decides requests except rlqs, and nothing of the domain.
//
// This package is optional: the core works without it.
package rulemessage

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Of returns the message of a rule for ListRules; nil for nil.
func Of(r *descriptors.Rule) *adminv1.Rule {
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
		OnFailure:   OnFailure(r.OnFailure),
		Lease:       r.Lease,
		PlanOf:      valid(r.PlanOf),
		Plan:        r.Plan,
		HeadersOff:  r.HeadersOff,
		Overlay:     valid(r.Overlay),
	}
	if !r.Unlimited {
		for _, l := range r.RateLimits.All() {
			m.Limits = append(m.Limits, Limit(l))
		}
	}
	if r.Metadata != nil {
		m.Metadata, _ = structpb.NewStruct(r.Metadata) // rules have only valid values
	}
	return m
}

// Limit converts a limit.
func Limit(i *descriptors.RateLimit) *adminv1.Limit {
	m := &adminv1.Limit{
		Algorithm:      adminv1.Algorithm(Enum(adminv1.Algorithm_value, "ALGORITHM", i.Limit.Algorithm)),
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

// setParameters sets the fields of a limit's message by parameter. Parameters of other algorithms stay unset.
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

// Enum returns the number of v in an enum whose value names are a prefix and the words of v in capitals; 0 if there is none, as
// for a default.
func Enum(numbers map[string]int32, prefix string, v fmt.Stringer) int32 {
	return numbers[prefix+"_"+strings.ToUpper(strings.ReplaceAll(v.String(), " ", "_"))]
}

// OnFailure converts a fallback.
func OnFailure(f descriptors.OnFailure) adminv1.OnFailure {
	return adminv1.OnFailure(Enum(adminv1.OnFailure_value, "ON_FAILURE", f))
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
	on := adminv1.Trigger(Enum(adminv1.Trigger_value, "TRIGGER", p.On))
	return &adminv1.Penalty{For: span(p.For), On: on, Escalate: p.Escalate, Max: span(p.Max)}
}

func span(m engine.Micros) *durationpb.Duration {
	return &durationpb.Duration{Seconds: int64(m / 1e6), Nanos: int32(m % 1e6 * 1e3)}
}

// valid returns s as a valid protobuf string: invalid UTF-8 becomes U+FFFD.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
