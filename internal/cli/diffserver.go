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
		sources = append(sources, descriptors.Source{Name: d.key, File: &rulefile.File{Domain: rulefile.Here(d.key), Descriptors: d.nodes()}})
	}
	set, _, err := descriptors.Load(sources, descriptors.Options{})
	return set, err
}

func (n *ruleNode) nodes() (nodes []rulefile.Descriptor) {
	for _, c := range n.below {
		node := rulefile.Descriptor{At: rulefile.Somewhere(), Key: rulefile.Here(c.key), Value: rulefile.Given(c.value), Children: c.nodes()}
		for _, r := range c.rules {
			ruleInto(r, &node)
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// ruleInto gives a node the limits and keys of a rule.
func ruleInto(r *adminv1.Rule, node *rulefile.Descriptor) {
	node.Shadow, node.Quota = rulefile.Raised(r.GetShadowMode()), rulefile.Raised(r.GetQuotaMode())
	if r.GetMetadata() != nil {
		node.Metadata, node.MetadataAt = r.GetMetadata().AsMap(), rulefile.Somewhere()
	}
	one, list := limitsOf(r)
	if r.GetPlan() != "" {
		node.PlanOf, node.PlansAt = rulefile.Given(r.GetPlanOf()), rulefile.Somewhere()
		node.Plans = append(node.Plans, rulefile.Plan{Name: rulefile.Here(r.GetPlan()), At: rulefile.Somewhere(), Limit: one, Limits: list})
	} else {
		node.Limit, node.Limits = one, list
	}
	if list != nil {
		node.Policy = policyOf(r)
		if r.GetPlan() == "" {
			node.LimitsAt = rulefile.Somewhere()
		}
	}
}

// policyOf returns what a rule says beside its limits; nil if that is nothing.
func policyOf(r *adminv1.Rule) *rulefile.Policy {
	p := &rulefile.Policy{OnFailure: rulefile.Given(word(r.GetOnFailure())), Holder: rulefile.Given(r.GetHolder())}
	switch lease := r.GetLease(); {
	case lease < 0:
		p.Lease = rulefile.Here("off")
	case lease > 0:
		p.Lease = rulefile.Here(strconv.Itoa(int(lease)))
	}
	if r.GetHeadersOff() {
		p.Headers = rulefile.Here("off")
	}
	if q := r.GetPenalty(); q != nil {
		p.PenaltyAt = rulefile.Somewhere()
		p.Penalty = rulefile.Penalty{
			Duration: spanOf(q.GetFor()), On: rulefile.Given(word(q.GetOn())), Max: spanOf(q.GetMax()),
			Escalate: rulefile.Counted(new(q.GetEscalate())),
		}
	}
	if q := r.GetReserve(); q != nil {
		p.ReserveAt = rulefile.Somewhere()
		p.Reserve = rulefile.Reserve{
			TTL: spanOf(q.GetTtl()), OnExpiry: rulefile.Here("keep"), Entry: rulefile.Given(q.GetEntry()),
			Estimate: rulefile.Counted(new(uint32(min(q.GetEstimate(), math.MaxUint32)))),
		}
		if q.GetReturns() {
			p.Reserve.OnExpiry = rulefile.Here("return")
		}
	}
	if len(p.Written()) == 0 {
		return nil
	}
	return p
}

func spanOf(d *durationpb.Duration) rulefile.Text { return rulefile.Here(d.AsDuration().String()) }

// limitsOf returns the limit of a rule, which has the policy inside, or its limits.
func limitsOf(r *adminv1.Rule) (one *rulefile.Limit, list []rulefile.Limit) {
	switch limits := r.GetLimits(); {
	case r.GetIsUnlimited():
		return &rulefile.Limit{
			At: rulefile.Somewhere(), Requests: rulefile.Number{At: rulefile.Somewhere()}, Unlimited: rulefile.Raised(true),
		}, nil
	case len(limits) == 1:
		one = limitOf(limits[0], false)
		one.Policy = policyOf(r)
		return one, nil
	default:
		for _, l := range limits {
			list = append(list, *limitOf(l, true))
		}
		return nil, list
	}
}

// limitOf returns a limit with the keys that mean something for its algorithm.
func limitOf(l *adminv1.Limit, listed bool) *rulefile.Limit {
	name := word(l.GetAlgorithm())
	out := &rulefile.Limit{
		At: rulefile.Somewhere(), Unit: rulefile.Given(word(l.GetUnit())), Name: rulefile.Given(l.GetName()),
		Requests: rulefile.Number{N: uint64(l.GetRequestsPerUnit()), At: rulefile.Somewhere()},
	}
	for _, name := range l.GetReplaces() {
		out.Replaces = append(out.Replaces, rulefile.Here(name))
	}
	add := func(key string, v any) {
		if own := rulefile.OwnOf(key, v); own.At.Present() {
			out.Owns = append(out.Owns, own)
		}
	}
	add(rulefile.KeyAlgorithm, name)
	add(rulefile.KeyUnitMultiplier, l.GetUnitMultiplier())
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
			add(p.String(), uint32(min(value.Uint(), math.MaxUint32)))
		case engine.KindFlag:
			add(p.String(), value.Bool())
		case engine.KindTime:
			if d, ok := value.Message().Interface().(*durationpb.Duration); ok && d.AsDuration() > 0 {
				add(p.String(), d.AsDuration().String())
			}
		case engine.KindZone:
			add(p.String(), value.String())
		case engine.KindWord:
			add(p.String(), word(enum{field.Enum(), value.Enum()}))
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
