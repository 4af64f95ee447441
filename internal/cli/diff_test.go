package cli

import (
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestDiffShowsEveryKey changes the values of config/reference.yaml one by one. A comparison with the unchanged file must show
// each of them, whether the file is on disk or in a server.
func TestDiffShowsEveryKey(t *testing.T) {
	t.Parallel()
	skipped := []string{
		rulefile.KeyDomain, rulefile.KeyKey, // these make it another rule
		rulefile.KeyPlanOf, rulefile.KeyUnlimited, rulefile.KeyMode, // these have no other value without other keys
	}
	notOfServer := []string{ // see the help of diff
		rulefile.KeyCharge, rulefile.KeyAllowLimitOverride, rulefile.KeyQuotaGroupBy, rulefile.KeyShareThreshold,
		rulefile.KeyDetailedMetric, rulefile.KeyValueToMetric, rulefile.KeyWeightFrom,
	}
	file, err := os.ReadFile("../../config/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	load := func(data []byte) *descriptors.Set {
		set, _, err := descriptors.Load([]descriptors.Source{{Name: "reference.yaml", Data: data}}, descriptors.Options{})
		if err != nil {
			return nil
		}
		return set
	}
	was := load(file)
	server := rulesOf(was)
	unchanged := map[string]bool{}
	for _, k := range rulefile.Keywords() {
		if !slices.Contains(skipped, k.Name) && k.Inner == 0 && len(otherValues(k.Name, "")) > 0 {
			unchanged[k.Name] = true
		}
	}
	var root yaml.Node
	if err := yaml.Unmarshal(file, &root); err != nil {
		t.Fatal(err)
	}
	eachValue(&root, func(key string, v *yaml.Node) {
		if slices.Contains(skipped, key) {
			return
		}
		before := v.Value
		defer func() { v.Value = before }()
		for _, v.Value = range otherValues(key, before) {
			data, err := yaml.Marshal(&root)
			if err != nil {
				t.Fatal(err)
			}
			now := load(data)
			if now == nil {
				continue
			}
			delete(unchanged, key)
			want := withoutPlaces(rulediff.Between(was, now))
			if len(want) == 0 {
				t.Errorf("%s: %s→%s: no difference", key, before, v.Value)
			}
			got, err := changesSince(server, now)
			if err != nil {
				t.Errorf("%s: %s→%s: with a server: %v", key, before, v.Value, err)
			}
			if slices.Contains(notOfServer, key) {
				want = nil
			}
			if d := cmp.Diff(want, withoutPlaces(got)); d != "" {
				t.Errorf("%s: %s→%s: with a server (-want +got):\n%s", key, before, v.Value, d)
			}
		}
	})
	for key := range unchanged {
		t.Errorf("%s: no other value is valid", key)
	}
}

// rulesOf returns what a server answers that has the rules of set.
func rulesOf(set *descriptors.Set) *rulesSeen {
	var seen rulesSeen
	for r := range set.Rules() {
		state := &adminv1.RuleState{Domain: r.DomainName()}
		for _, l := range r.Levels() {
			level := &adminv1.EntryFilter{Key: string(l.Key)}
			if len(l.Value) > 0 {
				level.Value = new(string(l.Value))
			}
			state.Levels = append(state.Levels, level)
		}
		seen.rules, seen.states = append(seen.rules, rulemessage.Of(r)), append(seen.states, state)
	}
	return &seen
}

// eachValue calls visit for the values of keys in n that are scalars, or lists of them.
func eachValue(n *yaml.Node, visit func(key string, v *yaml.Node)) {
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 1 {
			key := n.Content[i-1].Value
			if child.Kind == yaml.ScalarNode {
				visit(key, child)
			}
			for _, item := range child.Content {
				if child.Kind == yaml.SequenceNode && item.Kind == yaml.ScalarNode {
					visit(key, item)
				}
			}
		}
		eachValue(child, visit)
	}
}

// otherValues returns values of a key that may be valid in place of v.
func otherValues(key, v string) (values []string) {
	if n, err := strconv.Atoi(v); err == nil {
		values = append(values, strconv.Itoa(n+1), strconv.Itoa(n-1), strconv.Itoa(2*n))
	}
	values = append(values, map[string][]string{ // which are not arbitrary
		rulefile.KeyUnit: rulefile.UnitWords(), "timezone": {"UTC"}, rulefile.KeyHolder: {"tenant"}, rulefile.KeyBy: {"account"},
	}[key]...)
	for _, k := range rulefile.NewGrammar()[key] {
		values = append(values, k.Words...)
		values = append(values, map[rulefile.Kind][]string{
			rulefile.KindText: {v + "2"}, rulefile.KindName: {v + "2"}, rulefile.KindList: {v + "2"}, rulefile.KindTime: {"1" + v},
			rulefile.KindFlag: {"true", "false"}, rulefile.KindSwitch: {"true", "false"},
		}[k.Kind]...)
	}
	return slices.DeleteFunc(values, func(other string) bool { return other == v })
}

func withoutPlaces(all []rulediff.Change) []rulediff.Change {
	for i := range all {
		all[i].Place = ""
	}
	return all
}
