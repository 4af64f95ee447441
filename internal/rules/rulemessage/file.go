package rulemessage

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Limits returns the limits of a rule's messages.
func Limits(all []*adminv1.Limit) (descriptors.RateLimits, error) {
	d := object{rulefile.KeyKey: "key", rulefile.KeyValue: "value"}
	Into(&adminv1.Rule{Limits: all}, d)
	source := descriptors.Source{Name: "rule", Root: rulefile.Value(object{rulefile.KeyDomain: "rule", rulefile.KeyDescriptors: []any{d}})}
	set, _, err := descriptors.Load([]descriptors.Source{source}, descriptors.Options{})
	if err != nil {
		return descriptors.RateLimits{}, err
	}
	for r := range set.Rules() {
		return r.RateLimits, nil
	}
	return descriptors.RateLimits{}, errors.New("there are none")
}

// object is a mapping of a rule file.
type object = map[string]any

// pick copies keys that exist in from.
func pick(to, from object, keys ...string) {
	for _, key := range keys {
		if from[key] != nil {
			to[key] = from[key]
		}
	}
}

// Into writes the limits and keys of a rule into d, a descriptor of a rule file.
func Into(r *adminv1.Rule, d object) {
	pick(d, fieldsOf(r), rulefile.KeyShadowMode, rulefile.KeyQuotaMode, rulefile.KeyMetadata)
	one, list := limitsOf(r)
	switch {
	case r.GetPlan() == "" && one != nil:
		d[rulefile.KeyRateLimit] = one
	case r.GetPlan() == "" && list != nil:
		d[rulefile.KeyRateLimits] = list
	case r.GetPlan() != "":
		d[rulefile.KeyPlanOf] = r.GetPlanOf()
		plans, _ := d[rulefile.KeyPlans].(object)
		if plans == nil {
			plans = object{}
			d[rulefile.KeyPlans] = plans
		}
		if plans[r.GetPlan()] = list; one != nil {
			plans[r.GetPlan()] = one
		}
	}
	if list != nil {
		policyInto(r, d)
	}
}

// policyInto writes the keys of r other than its limits into o.
func policyInto(r *adminv1.Rule, o object) {
	fields := fieldsOf(r)
	if lease := r.GetLease(); lease < 0 {
		fields[rulefile.KeyLease] = "off"
	} else if lease > 0 {
		fields[rulefile.KeyLease] = strconv.Itoa(int(lease))
	}
	if r.GetHeadersOff() {
		fields[rulefile.KeyHeaders] = rulefile.HeadersOff
	}
	if reserve, ok := fields[rulefile.KeyReserve].(object); ok {
		delete(reserve, "returns")
		delete(reserve, "learned")
		if l := r.GetReserve().GetLearned(); l != nil {
			learned := fieldsOf(l)
			learned[rulefile.KeyStart] = r.GetReserve().GetEstimate()
			reserve[rulefile.KeyEstimate] = learned
		}
		reserve[rulefile.KeyOnExpiry] = rulefile.ExpiryKeep
		if r.GetReserve().GetReturns() {
			reserve[rulefile.KeyOnExpiry] = rulefile.ExpiryReturn
		}
	}
	pick(o, fields, rulefile.KeyOnFailure, rulefile.KeyHolder, rulefile.KeyLease, rulefile.KeyHeaders, rulefile.KeyPenalty,
		rulefile.KeyReserve)
}

// limitsOf returns the single limit of a rule, including its policy, or the list of its limits.
func limitsOf(r *adminv1.Rule) (one object, list []any) {
	switch limits := r.GetLimits(); {
	case r.GetIsUnlimited():
		return object{rulefile.KeyUnlimited: true}, nil
	case len(limits) == 1:
		one = limitOf(limits[0], false)
		policyInto(r, one)
		return one, nil
	default:
		for _, l := range limits {
			list = append(list, limitOf(l, true))
		}
		return nil, list
	}
}

// limitOf returns a limit with the keys of its algorithm.
func limitOf(l *adminv1.Limit, listed bool) object {
	out := object{rulefile.KeyRequestsPerUnit: l.Number(), rulefile.KeyUnitMultiplier: max(l.GetUnitMultiplier(), 1)}
	fields, keys := fieldsOf(l), []string{rulefile.KeyUnit, rulefile.KeyName, rulefile.KeyAlgorithm}
	if algorithm, err := engine.ParseAlgorithm(Word(l.GetAlgorithm())); err == nil { // otherwise loading reports the error
		for p := range engine.Parameters() {
			if !p.TakenBy(algorithm) || listed && p.Single() {
				continue
			}
			if keys = append(keys, p.String()); p.Kind() == engine.KindFlag && fields[p.String()] == nil {
				fields[p.String()] = false // the message does not distinguish false from unset
			}
		}
	}
	for _, key := range keys {
		if begin := fields[key+"_begin"]; begin != nil { // a mapping instead of true
			fields[key] = begin
		}
	}
	pick(out, fields, keys...)
	var replaces []any
	for _, name := range l.GetReplaces() {
		replaces = append(replaces, object{rulefile.KeyName: name})
	}
	if replaces != nil {
		out[rulefile.KeyReplaces] = replaces
	}
	return out
}

// fieldsOf returns the set fields of a message, except lists, in the syntax of rules. Fields and keys have the same names.
func fieldsOf(m proto.Message) object {
	out := object{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		switch value := v.Interface().(type) {
		case protoreflect.List:
		case protoreflect.EnumNumber:
			out[name] = wordOf(f.Enum(), value)
		case protoreflect.Message:
			switch m := value.Interface().(type) {
			case *durationpb.Duration:
				out[name] = m.AsDuration().String()
			case *structpb.Struct:
				out[name] = m.AsMap()
			default:
				out[name] = fieldsOf(m)
			}
		case uint64:
			out[name] = min(value, math.MaxUint32)
		default:
			out[name] = value
		}
		return true
	})
	return out
}

// Word returns an enum value in the syntax of rules: allow for ON_FAILURE_ALLOW. The zero value is "".
func Word(e protoreflect.Enum) string { return wordOf(e.Descriptor(), e.Number()) }

func wordOf(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	none, v := e.Values().ByNumber(0), e.Values().ByNumber(n)
	if v == nil || v == none {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), strings.TrimSuffix(string(none.Name()), "UNSPECIFIED")))
}
