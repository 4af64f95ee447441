package xds

import (
	"strconv"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// convert returns the message in the form that package descriptors accepts. It checks nothing. Unless ours is true no
// limit has keys of our own, which take time to look for.
func convert(m *configv1.RateLimitConfig, ours bool) *rulefile.Tree {
	var own []protoreflect.FieldDescriptor
	if ours {
		own = ownFields()
	}
	return &rulefile.Tree{
		Domain:             m.GetDomain(),
		Charge:             m.GetCharge(),
		AllowLimitOverride: m.AllowLimitOverride,
		QuotaGroupBy:       m.GetQuotaGroupBy(),
		Descriptors:        convertNodes(m.GetDescriptors(), own),
	}
}

func convertNodes(all []*configv1.RateLimitDescriptor, own []protoreflect.FieldDescriptor) []rulefile.TreeNode {
	out := make([]rulefile.TreeNode, len(all))
	for i, m := range all {
		n := &out[i]
		*n = rulefile.TreeNode{
			Key: m.GetKey(), Value: m.GetValue(),
			Descriptors:    convertNodes(m.GetDescriptors(), own),
			Policy:         convertPolicy(m),
			ShadowMode:     m.GetShadowMode(),
			QuotaMode:      m.GetQuotaMode(),
			DetailedMetric: m.GetDetailedMetric(),
			ValueToMetric:  m.GetValueToMetric(),
			ShareThreshold: m.GetShareThreshold(),
		}
		if m.GetRateLimit() != nil {
			l := convertLimit(m.GetRateLimit(), own)
			n.RateLimit = &l
		}
		for _, item := range m.GetRateLimits() {
			n.RateLimits = append(n.RateLimits, convertLimit(item, own))
		}
		n.PlanOf, n.Plans = m.GetPlanOf(), convertPlans(m.GetPlans(), own)
		if m.GetMetadata() != nil {
			n.Metadata = convertStruct(m.GetMetadata())
		}
	}
	return out
}

func convertPlans(all map[string]*configv1.Plan, own []protoreflect.FieldDescriptor) (out []rulefile.TreePlan) {
	for name, m := range all {
		p := rulefile.TreePlan{Name: name}
		if m.GetRateLimit() != nil {
			p.RateLimit = new(convertLimit(m.GetRateLimit(), own))
		}
		for _, item := range m.GetRateLimits() {
			p.RateLimits = append(p.RateLimits, convertLimit(item, own))
		}
		out = append(out, p)
	}
	return out
}

func convertLimit(m *configv1.RateLimitPolicy, own []protoreflect.FieldDescriptor) rulefile.TreeLimit {
	l := rulefile.TreeLimit{
		Unit:            unitText(m),
		RequestsPerUnit: m.GetRequestsPerUnit(),
		Unlimited:       m.GetUnlimited(),
		Name:            m.GetName(),
		Policy:          convertPolicy(m),
		Own:             convertOwn(m.ProtoReflect(), own),
	}
	if r := m.GetReserve(); r != nil {
		l.Policy.Reserve = &rulefile.TreeReserve{TTL: r.GetTtl(), OnExpiry: r.GetOnExpiry(), Entry: r.GetEntry(), Estimate: r.Estimate}
	}
	for _, r := range m.GetReplaces() {
		l.Replaces = append(l.Replaces, r.GetName())
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

func convertOwn(m protoreflect.Message, fields []protoreflect.FieldDescriptor) (own map[string]any) {
	for _, f := range fields {
		if !m.Has(f) {
			continue
		}
		if own == nil {
			own = map[string]any{}
		}
		own[string(f.Name())] = m.Get(f).Interface()
	}
	return own
}

// unitText returns the unit as files spell it; an invalid one is spelled such that it is refused.
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

func convertPolicy(m policy) rulefile.TreePolicy {
	p := rulefile.TreePolicy{OnFailure: m.GetOnFailure(), Holder: m.GetHolder(), Lease: m.GetLease(), Headers: m.GetHeaders()}
	if q := m.GetPenalty(); q != nil {
		p.Penalty = &rulefile.TreePenalty{For: q.GetFor(), On: q.GetOn(), Max: q.GetMax(), Escalate: q.Escalate}
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
