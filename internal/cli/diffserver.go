package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changesSince returns what differs between the rules of a server and set. Both go through what a server says about its rules, so
// that nothing differs because a server does not tell it.
func changesSince(seen *rulesSeen, set *descriptors.Set) ([]rulediff.Change, error) {
	var here treeOfRules
	places := map[[2]string]string{} // by domain and path: domains with dots in their names may have rules with one path
	for r := range set.Rules() {
		m, err := admin.RuleMessage(r)
		if err != nil {
			return nil, err
		}
		here.add(r.DomainName(), r.Levels(), m)
		places[[2]string{r.DomainName(), r.Path}] = r.Place()
	}
	var there treeOfRules
	for i, state := range seen.states {
		var levels []descriptors.Entry
		for _, l := range state.GetLevels() {
			levels = append(levels, descriptors.Entry{Key: []byte(l.GetKey()), Value: []byte(l.GetValue())})
		}
		there.add(state.GetDomain(), levels, seen.rules[i])
	}
	was, err := there.load()
	if err != nil {
		return nil, fmt.Errorf("reading the rules of the server: %w", err)
	}
	now, err := here.load()
	if err != nil {
		return nil, fmt.Errorf("comparing with the rules of a server: %w", err)
	}
	changes := rulediff.Between(was, now)
	for i := range changes {
		changes[i].Place = places[[2]string{changes[i].Domain, changes[i].Path}]
	}
	return changes, nil
}

// treeOfRules is a tree that is put together of single rules: nodes of domains, whose keys are their names, and their rules below. The zero
// value has none.
type treeOfRules struct{ root ruleNode }

// ruleNode is a node of it.
type ruleNode struct {
	key, value string
	rules      []*adminv1.Rule // one, or one for each plan
	below      []*ruleNode
	byLevel    map[[2]string]*ruleNode
}

// child returns the node of a key and a value, which it adds if there is none.
func (n *ruleNode) child(key, value string) *ruleNode {
	c := n.byLevel[[2]string{key, value}]
	if c == nil {
		c = &ruleNode{key: key, value: value}
		if n.byLevel == nil {
			n.byLevel = map[[2]string]*ruleNode{}
		}
		n.byLevel[[2]string{key, value}] = c
		n.below = append(n.below, c)
	}
	return c
}

func (t *treeOfRules) add(domain string, levels []descriptors.Entry, rule *adminv1.Rule) {
	n := t.root.child(domain, "")
	for _, l := range levels {
		n = n.child(string(l.Key), string(l.Value))
	}
	n.rules = append(n.rules, rule)
}

func (t *treeOfRules) load() (*descriptors.Set, error) {
	var sources []descriptors.Source
	for _, d := range t.root.below {
		root := object{rulefile.KeyDomain: d.key, rulefile.KeyDescriptors: d.descriptors()}
		sources = append(sources, descriptors.Source{Name: d.key, Root: rulefile.Value(root)})
	}
	set, _, err := descriptors.Load(sources, descriptors.Options{})
	return set, err
}

// object is a map of a file of rules.
type object = map[string]any

// put sets a key, unless v is the zero value of its type.
func put[T comparable](o object, key string, v T) {
	if v != *new(T) {
		o[key] = v
	}
}

func (n *ruleNode) descriptors() (all []any) {
	for _, c := range n.below {
		d := object{rulefile.KeyKey: c.key}
		put(d, rulefile.KeyValue, c.value)
		if below := c.descriptors(); len(below) > 0 {
			d[rulefile.KeyDescriptors] = below
		}
		for _, r := range c.rules {
			ruleInto(r, d)
		}
		all = append(all, d)
	}
	return all
}

// ruleInto gives a descriptor the limits and keys of a rule.
func ruleInto(r *adminv1.Rule, d object) {
	put(d, rulefile.KeyShadowMode, r.GetShadowMode())
	put(d, rulefile.KeyQuotaMode, r.GetQuotaMode())
	if r.GetMetadata() != nil {
		d[rulefile.KeyMetadata] = r.GetMetadata().AsMap()
	}
	one, list := limitsOf(r)
	switch {
	case r.GetPlan() == "" && one != nil:
		d[rulefile.KeyRateLimit] = one
	case r.GetPlan() == "" && list != nil:
		d[rulefile.KeyRateLimits] = list
	case r.GetPlan() != "":
		put(d, rulefile.KeyPlanOf, r.GetPlanOf())
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

// policyInto gives a map what a rule says beside its limits.
func policyInto(r *adminv1.Rule, o object) {
	put(o, rulefile.KeyOnFailure, word(r.GetOnFailure()))
	put(o, rulefile.KeyHolder, r.GetHolder())
	switch lease := r.GetLease(); {
	case lease < 0:
		o[rulefile.KeyLease] = "off"
	case lease > 0:
		o[rulefile.KeyLease] = strconv.Itoa(int(lease))
	}
	if r.GetHeadersOff() {
		o[rulefile.KeyHeaders] = rulefile.HeadersOff
	}
	if q := r.GetPenalty(); q != nil {
		p := object{rulefile.KeyFor: spanOf(q.GetFor()), rulefile.KeyMax: spanOf(q.GetMax()), rulefile.KeyEscalate: q.GetEscalate()}
		put(p, rulefile.KeyOn, word(q.GetOn()))
		o[rulefile.KeyPenalty] = p
	}
	if q := r.GetReserve(); q != nil {
		s := object{
			rulefile.KeyTTL: spanOf(q.GetTtl()), rulefile.KeyOnExpiry: rulefile.ExpiryKeep,
			rulefile.KeyEstimate: min(q.GetEstimate(), math.MaxUint32),
		}
		if q.GetReturns() {
			s[rulefile.KeyOnExpiry] = rulefile.ExpiryReturn
		}
		put(s, rulefile.KeyEntry, q.GetEntry())
		o[rulefile.KeyReserve] = s
	}
}

func spanOf(d *durationpb.Duration) string { return d.AsDuration().String() }

// limitsOf returns the limit of a rule, which has the policy inside, or its limits.
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

// limitOf returns a limit with the keys that mean something for its algorithm.
func limitOf(l *adminv1.Limit, listed bool) object {
	name := word(l.GetAlgorithm())
	out := object{rulefile.KeyRequestsPerUnit: l.GetRequestsPerUnit(), rulefile.KeyUnitMultiplier: l.GetUnitMultiplier()}
	put(out, rulefile.KeyUnit, word(l.GetUnit()))
	put(out, rulefile.KeyName, l.GetName())
	put(out, rulefile.KeyAlgorithm, name)
	var replaces []any
	for _, name := range l.GetReplaces() {
		replaces = append(replaces, object{rulefile.KeyName: name})
	}
	if replaces != nil {
		out[rulefile.KeyReplaces] = replaces
	}
	algorithm, err := engine.ParseAlgorithm(name)
	if err != nil {
		return out // loading it says what is wrong
	}
	m := l.ProtoReflect()
	for p := range engine.Parameters() {
		field := m.Descriptor().Fields().ByName(protoreflect.Name(p.String()))
		if field == nil || !m.Has(field) || !p.TakenBy(algorithm) || listed && p.Single() {
			continue
		}
		switch value := m.Get(field); p.Kind() {
		case engine.KindNumber:
			out[p.String()] = min(value.Uint(), math.MaxUint32)
		case engine.KindFlag:
			out[p.String()] = value.Bool()
		case engine.KindTime:
			if d, ok := value.Message().Interface().(*durationpb.Duration); ok && d.AsDuration() > 0 {
				out[p.String()] = d.AsDuration().String()
			}
		case engine.KindZone:
			put(out, p.String(), value.String())
		case engine.KindWord:
			put(out, p.String(), word(enum{field.Enum(), value.Enum()}))
		}
	}
	return out
}

// enum is a value of an enumeration, of which only the field is known.
type enum struct {
	protoreflect.EnumDescriptor

	n protoreflect.EnumNumber
}

func (e enum) Descriptor() protoreflect.EnumDescriptor { return e.EnumDescriptor } //nolint:ireturn // protoreflect has no other type for it
func (e enum) Number() protoreflect.EnumNumber         { return e.n }

// word returns a value of an enumeration as rules spell it: allow for ON_FAILURE_ALLOW. Without a value it is empty.
func word(e interface {
	Descriptor() protoreflect.EnumDescriptor
	Number() protoreflect.EnumNumber
},
) string {
	values := e.Descriptor().Values()
	none, v := values.ByNumber(0), values.ByNumber(e.Number())
	if v == nil || v == none {
		return ""
	}
	prefix := strings.TrimSuffix(string(none.Name()), "UNSPECIFIED")
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), prefix))
}
