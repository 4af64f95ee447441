package descriptors_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// typed loads rules given as values.
func typed(values object) (*descriptors.Set, descriptors.Problems, error) {
	return descriptors.Load([]descriptors.Source{{Name: "res", Root: rulefile.Value(values)}}, descriptors.Options{})
}

// object is a file of rules as a map.
type object = map[string]any

func TestFileOfValuesIsCheckedToo(t *testing.T) {
	t.Parallel()
	day := object{"unit": "DAY", "requests_per_unit": 1}
	var many []any
	for range 17 {
		many = append(many, day)
	}
	f := object{"domain": "", "charge": "never", "descriptors": []any{
		object{"key": "a", "rate_limit": day},
		object{"key": "a", "rate_limit": day},
		object{"key": "", "value": "v"},
		object{"key": "b", "rate_limit": object{"unit": "", "requests_per_unit": 0}},
		object{"key": "c", "rate_limit": day, "rate_limits": []any{day}},
		object{"key": "d", "rate_limits": many},
		object{"key": "e", "lease": "off"},
		object{"key": "f", "share_threshold": true, "shadow_mode": true},
		object{"key": "g", "rate_limit": object{
			"unit": "day", "requests_per_unit": 0, "name": "g", "replaces": []any{object{"name": ""}, object{"name": "g"}},
			"debt": uint32(3), "count_refused": true, "on_failure": "maybe", "penalty": object{"max": "1h"},
		}},
	}}
	set, problems, err := typed(f)
	if _, again, _ := typed(f); !slices.Equal(problems, again) {
		t.Errorf("loading changed the values: %v", again)
	}
	if err == nil || set != nil {
		t.Fatal("loaded")
	}
	want := `res: config file cannot have empty domain: set domain to a name
res: unknown charge 'never': want each or together
res: ?.a: duplicate descriptor composite key '?.a': res has it already: use one descriptor, with all limits in rate_limits and all children in descriptors
res: ?.?: descriptor has empty key: use the key of an entry
res: ?.b: invalid rate limit unit '': want second, minute, hour, day, week, month, year or forever
res: ?.c: rate_limit and rate_limits are on one descriptor: use only one of them
res: ?.e: lease does not apply to a descriptor without a limit: it belongs in rate_limit, or beside rate_limits
res: warning: ?.f: shadow_mode has no effect on a descriptor without a limit
res: ?.f: share_threshold can only be used with wildcard values (containing '*'), but found key 'f'
res: ?.g: debt does not apply to fixed_window: it belongs to token_bucket
res: ?.g: should not have an empty replaces entry: use the name of another limit
res: ?.g: replaces should not contain name of same descriptor: 'g' is its own
res: ?.g: unknown on_failure 'maybe': want error, allow, deny or local
res: ?.g: a penalty without for: set for to its duration, such as 5m`
	var got []string
	for _, p := range problems {
		if strings.Contains(p.Text, "rate_limits has 17 items: want 1 to 16") {
			continue // reported while the values are parsed, before the other problems
		}
		got = append(got, p.String())
	}
	if len(got) != len(problems)-1 {
		t.Errorf("17 items are not told of")
	}
	if d := cmp.Diff(strings.Split(want, "\n"), got); d != "" {
		t.Errorf("problems (-want +got):\n%s", d)
	}
}

func TestFileOfValuesHasNoLines(t *testing.T) {
	t.Parallel()
	set, _, err := typed(object{"domain": "shop", "descriptors": []any{
		object{"key": "user", "rate_limit": object{"unit": "minute", "requests_per_unit": 3}},
		object{"key": "free", "value": "*", "rate_limit": object{"unlimited": true}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for r := range set.Rules() {
		if r.Line != 0 || r.File != "res" || r.Place() != "res" {
			t.Errorf("rule %s stands at %s (%s:%d)", r.Path, r.Place(), r.File, r.Line)
		}
	}
	for key, want := range map[string]string{
		"user": "the key with any value: user\nlimited by shop.user (res): 3 per minute",
		"free": "no exact match; the first wildcard in the file that matches is free_*\nshop.free_* (res) is unlimited: never rejected",
	} {
		var text []string
		for _, s := range set.Domain([]byte("shop")).Explain([]descriptors.Entry{{Key: []byte(key), Value: []byte("a")}}) {
			text = append(text, s.Text)
		}
		if d := cmp.Diff(want, strings.Join(text, "\n")); d != "" {
			t.Errorf("%s (-want +got):\n%s", key, d)
		}
	}
}

func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	for last, fits := range map[int]bool{575: true, 576: false} {
		var b strings.Builder
		b.WriteString("domain: shop\ndescriptors:\n  - key: k\n    rate_limit: {unit: day}\n    metadata:\n      l:\n")
		for range 1048 {
			b.WriteString("      - " + strings.Repeat("x", 1000) + "\n")
		}
		b.WriteString("      - " + strings.Repeat("x", last) + "\n")
		_, _, err := load([]byte(b.String()))
		if (err == nil) != fits || err != nil && err.Error() != "a.yaml:6:7: shop.k: error parsing metadata: it has 1048577 bytes: want at most 1048576" {
			t.Errorf("%d bytes in the last of many texts: %v", last, err)
		}
	}
}

// TestStrictTakesShadowModeOfParts: Envoy Gateway sets shadow_mode on every part of a policy in shadow mode. One such policy must not
// invalidate all rules.
func TestStrictTakesShadowModeOfParts(t *testing.T) {
	t.Parallel()
	part := object{"key": "a", "shadow_mode": true, "descriptors": []any{
		object{"key": "b", "shadow_mode": true, "rate_limit": object{"unit": "DAY", "requests_per_unit": 1}},
	}}
	load := func(s descriptors.Source) error {
		_, problems, err := descriptors.Load([]descriptors.Source{s}, descriptors.Options{Strict: true})
		if len(problems) != 1 || problems[0].Warning != (s.Root != nil) {
			t.Errorf("%s: problems %v", s.Name, problems)
		}
		return err
	}
	if err := load(descriptors.Source{Name: "sent", Root: rulefile.Value(object{"domain": "d", "descriptors": []any{part}})}); err != nil {
		t.Error(err)
	}
	const text = "domain: d\ndescriptors: [{key: a, shadow_mode: true, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]}]\n"
	if load(descriptors.Source{Name: "file", Data: []byte(text)}) == nil {
		t.Error("a file with shadow_mode on a part without a limit is accepted, although warnings are errors")
	}
	part["detailed_metric"] = true
	if _, _, err := descriptors.Load([]descriptors.Source{{Name: "sent", Root: rulefile.Value(object{"domain": "d", "descriptors": []any{part}})}},
		descriptors.Options{Strict: true}); err == nil {
		t.Error("other warnings of rules that were sent are no errors")
	}
}
