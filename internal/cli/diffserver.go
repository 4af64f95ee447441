package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/admin"
	"github.com/ratelimitd/ratelimitd/internal/rulediff"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changesSince returns what differs between the rules of a server and set. Both go through what a server tells of its rules, so
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

// treeOfRules is a tree that is put together of single rules: nodes of domains, whose keys are their names, and theirs below. The zero
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
		sources = append(sources, descriptors.Source{Name: d.key, Tree: &rulefile.Tree{Domain: d.key, Descriptors: d.nodes()}})
	}
	set, _, err := descriptors.Load(sources, descriptors.Options{})
	return set, err
}

func (n *ruleNode) nodes() (nodes []rulefile.TreeNode) {
	for _, c := range n.below {
		node := rulefile.TreeNode{Key: c.key, Value: c.value, Descriptors: c.nodes()}
		for _, r := range c.rules {
			ruleInto(r, &node)
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// ruleInto gives a node the limits and keys of a rule.
func ruleInto(r *adminv1.Rule, node *rulefile.TreeNode) {
	node.ShadowMode, node.QuotaMode, node.Metadata = r.GetShadowMode(), r.GetQuotaMode(), r.GetMetadata().AsMap()
	if r.GetMetadata() == nil {
		node.Metadata = nil
	}
	policy := rulefile.TreePolicy{OnFailure: word(r.GetOnFailure()), Holder: r.GetHolder()}
	switch lease := r.GetLease(); {
	case lease < 0:
		policy.Lease = "off"
	case lease > 0:
		policy.Lease = strconv.Itoa(int(lease))
	}
	if r.GetHeadersOff() {
		policy.Headers = "off"
	}
	if q := r.GetPenalty(); q != nil {
		escalate := q.GetEscalate()
		policy.Penalty = &rulefile.TreePenalty{
			For: q.GetFor().AsDuration().String(), On: word(q.GetOn()), Max: q.GetMax().AsDuration().String(), Escalate: &escalate,
		}
	}
	if q := r.GetReserve(); q != nil {
		estimate := uint32(min(q.GetEstimate(), math.MaxUint32))
		policy.Reserve = &rulefile.TreeReserve{TTL: q.GetTtl().AsDuration().String(), OnExpiry: "keep", Entry: q.GetEntry(), Estimate: &estimate}
		if q.GetReturns() {
			policy.Reserve.OnExpiry = "return"
		}
	}
	one, list := limitsOf(r, policy)
	switch {
	case r.GetPlan() != "":
		node.PlanOf = r.GetPlanOf()
		node.Plans = append(node.Plans, rulefile.TreePlan{Name: r.GetPlan(), RateLimit: one, RateLimits: list})
	default:
		node.RateLimit, node.RateLimits = one, list
	}
	if list != nil {
		node.Policy = policy
	}
}

// limitsOf returns the limit of a rule, which has the policy inside, or its limits.
func limitsOf(r *adminv1.Rule, policy rulefile.TreePolicy) (one *rulefile.TreeLimit, list []rulefile.TreeLimit) {
	switch limits := r.GetLimits(); {
	case r.GetIsUnlimited():
		return &rulefile.TreeLimit{Unlimited: true}, nil
	case len(limits) == 1:
		one = limitOf(limits[0], false)
		one.Policy = policy
		return one, nil
	default:
		for _, l := range limits {
			list = append(list, *limitOf(l, true))
		}
		return nil, list
	}
}

// limitOf returns a limit with the keys that mean something for its algorithm.
func limitOf(l *adminv1.Limit, listed bool) *rulefile.TreeLimit {
	name := word(l.GetAlgorithm())
	out := &rulefile.TreeLimit{
		Unit: word(l.GetUnit()), RequestsPerUnit: l.GetRequestsPerUnit(), Name: l.GetName(), Replaces: l.GetReplaces(),
		Own: map[string]any{"algorithm": name, "unit_multiplier": l.GetUnitMultiplier()},
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
			out.Own[p.String()] = uint32(min(value.Uint(), math.MaxUint32))
		case engine.KindFlag:
			out.Own[p.String()] = value.Bool()
		case engine.KindTime:
			if d, ok := value.Message().Interface().(*durationpb.Duration); ok && d.AsDuration() > 0 {
				out.Own[p.String()] = d.AsDuration().String()
			}
		case engine.KindZone:
			out.Own[p.String()] = value.String()
		case engine.KindWord:
			out.Own[p.String()] = word(enum{field.Enum(), value.Enum()})
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
