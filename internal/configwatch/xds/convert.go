package xds

import (
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// convert returns the message in the form that package descriptors accepts. It checks nothing. Unless extended is true no
// limit has keys of our own, which take time to look for.
func convert(m *configv1.RateLimitConfig, extended bool) *rulefile.File {
	var own []protoreflect.FieldDescriptor
	if extended {
		own = ownFields()
	}
	f := &rulefile.File{
		Domain:      rulefile.Here(m.GetDomain()),
		Charge:      rulefile.Given(m.GetCharge()),
		Descriptors: convertNodes(m.GetDescriptors(), own),
	}
	if m.AllowLimitOverride != nil {
		f.Override = rulefile.Flag{On: m.GetAllowLimitOverride(), At: rulefile.Somewhere()}
	}
	for _, key := range m.GetQuotaGroupBy() {
		f.GroupBy, f.GroupByAt = append(f.GroupBy, rulefile.Here(key)), rulefile.Somewhere()
	}
	return f
}

func convertNodes(all []*configv1.RateLimitDescriptor, own []protoreflect.FieldDescriptor) []rulefile.Descriptor {
	out := make([]rulefile.Descriptor, len(all))
	for i, m := range all {
		d := &out[i]
		*d = rulefile.Descriptor{
			At:  rulefile.Somewhere(),
			Key: rulefile.Here(m.GetKey()), Value: rulefile.Given(m.GetValue()),
			Children:      convertNodes(m.GetDescriptors(), own),
			Limit:         convertLimit(m.GetRateLimit(), own),
			Limits:        convertLimits(m.GetRateLimits(), own),
			Policy:        convertPolicy(m, nil),
			PlanOf:        rulefile.Given(m.GetPlanOf()),
			Shadow:        rulefile.Raised(m.GetShadowMode()),
			Quota:         rulefile.Raised(m.GetQuotaMode()),
			Detailed:      rulefile.Raised(m.GetDetailedMetric()),
			ValueToMetric: rulefile.Raised(m.GetValueToMetric()),
			Share:         rulefile.Raised(m.GetShareThreshold()),
		}
		if len(d.Limits) > 0 {
			d.LimitsAt = rulefile.Somewhere()
		}
		for name, plan := range m.GetPlans() {
			d.PlansAt = rulefile.Somewhere()
			d.Plans = append(d.Plans, rulefile.Plan{
				Name: rulefile.Here(name), At: rulefile.Somewhere(),
				Limit: convertLimit(plan.GetRateLimit(), own), Limits: convertLimits(plan.GetRateLimits(), own),
			})
		}
		if m.GetMetadata() != nil {
			d.Metadata, d.MetadataAt = convertStruct(m.GetMetadata()), rulefile.Somewhere()
		}
	}
	return out
}

func convertLimits(all []*configv1.RateLimitPolicy, own []protoreflect.FieldDescriptor) (out []rulefile.Limit) {
	for _, m := range all {
		out = append(out, *convertLimit(m, own))
	}
	return out
}

func convertLimit(m *configv1.RateLimitPolicy, own []protoreflect.FieldDescriptor) *rulefile.Limit {
	if m == nil {
		return nil
	}
	l := &rulefile.Limit{
		At:        rulefile.Somewhere(),
		Unit:      rulefile.Given(unitText(m)),
		Requests:  rulefile.Number{N: uint64(m.GetRequestsPerUnit()), At: rulefile.Somewhere()},
		Unlimited: rulefile.Raised(m.GetUnlimited()),
		Name:      rulefile.Given(m.GetName()),
		Owns:      convertOwn(m.ProtoReflect(), own),
		Policy:    convertPolicy(m, m),
	}
	for _, r := range m.GetReplaces() {
		l.Replaces = append(l.Replaces, rulefile.Here(r.GetName()))
	}
	return l
}

// ownFields returns the fields of a limit that have our own keys, by whose names they are called.
func ownFields() (own []protoreflect.FieldDescriptor) {
	fields := (&configv1.RateLimitPolicy{}).ProtoReflect().Descriptor().Fields()
	for k := range rulefile.OwnKeys() {
		if f := fields.ByName(protoreflect.Name(k)); f != nil {
			own = append(own, f)
		}
	}
	return own
}

func convertOwn(m protoreflect.Message, fields []protoreflect.FieldDescriptor) (owns []rulefile.Own) {
	for _, f := range fields {
		if !m.Has(f) {
			continue
		}
		if own := rulefile.OwnOf(string(f.Name()), m.Get(f).Interface()); own.At.Present() {
			owns = append(owns, own)
		}
	}
	return owns
}

// unitText returns the unit as files spell it; an unknown one is spelled such that it stays invalid.
func unitText(m *configv1.RateLimitPolicy) string {
	u := m.GetUnit()
	switch {
	case u == configv1.RateLimitUnit_RATE_LIMIT_UNIT_UNSPECIFIED && m.GetUnlimited():
		return ""
	case u < 0 || int(u) > int(descriptors.Week):
		return strconv.Itoa(int(u))
	}
	return descriptors.Unit(u).String()
}

// policy is a message with the fields that a descriptor has too.
type policy interface {
	GetOnFailure() string
	GetHolder() string
	GetLease() string
	GetHeaders() string
	GetPenalty() *configv1.Penalty
}

// convertPolicy returns what a limit, with what it alone may have, or a descriptor says beside its limits; nil if that is nothing.
func convertPolicy(m policy, single *configv1.RateLimitPolicy) *rulefile.Policy {
	p := &rulefile.Policy{
		OnFailure: rulefile.Given(m.GetOnFailure()), Holder: rulefile.Given(m.GetHolder()),
		Lease: rulefile.Given(m.GetLease()), Headers: rulefile.Given(m.GetHeaders()),
	}
	if q := m.GetPenalty(); q != nil {
		p.PenaltyAt = rulefile.Somewhere()
		p.Penalty = rulefile.Penalty{
			Duration: rulefile.Given(q.GetFor()), On: rulefile.Given(q.GetOn()), Max: rulefile.Given(q.GetMax()),
			Escalate: rulefile.Counted(q.Escalate),
		}
	}
	if q := single.GetReserve(); q != nil {
		p.ReserveAt = rulefile.Somewhere()
		p.Reserve = rulefile.Reserve{
			TTL: rulefile.Given(q.GetTtl()), OnExpiry: rulefile.Given(q.GetOnExpiry()), Entry: rulefile.Given(q.GetEntry()),
			Estimate: rulefile.Counted(q.Estimate),
		}
	}
	if q := single.GetRlqs(); q != nil {
		p.RLQSAt = rulefile.Somewhere()
		p.RLQS = rulefile.RLQS{Mode: rulefile.Given(q.GetMode()), WeightFrom: rulefile.Given(q.GetWeightFrom())}
	}
	if len(p.Written()) == 0 {
		return nil
	}
	return p
}

// convertStruct returns what Struct.AsMap does, except that numbers that do not exist in JSON stay numbers rather than
// become text.
func convertStruct(m *structpb.Struct) map[string]any {
	out := make(map[string]any, len(m.GetFields()))
	for k, v := range m.GetFields() {
		out[k] = convertValue(v)
	}
	return out
}

func convertValue(m *structpb.Value) any { //nolint:ireturn // metadata is anything
	switch v := m.GetKind().(type) {
	case *structpb.Value_NumberValue:
		return v.NumberValue
	case *structpb.Value_StringValue:
		return v.StringValue
	case *structpb.Value_BoolValue:
		return v.BoolValue
	case *structpb.Value_StructValue:
		return convertStruct(v.StructValue)
	case *structpb.Value_ListValue:
		out := make([]any, len(v.ListValue.GetValues()))
		for i, e := range v.ListValue.GetValues() {
			out[i] = convertValue(e)
		}
		return out
	}
	return nil
}
