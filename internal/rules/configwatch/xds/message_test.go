package xds_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// go-control-plane's message with a value in every field.
func theirs() *ratelimitv3.RateLimitConfig {
	return &ratelimitv3.RateLimitConfig{Name: "a", Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{
		Key: "k", Value: "v", ShadowMode: true, DetailedMetric: true,
		RateLimit: &ratelimitv3.RateLimitPolicy{
			Unit: ratelimitv3.RateLimitUnit_DAY, RequestsPerUnit: 3, Name: "n", Replaces: []*ratelimitv3.RateLimitReplace{{Name: "m"}},
		},
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{Key: "l", RateLimit: &ratelimitv3.RateLimitPolicy{Unlimited: true}}},
	}}}
}

func TestOurMessageIsTheirsOnTheWire(t *testing.T) {
	t.Parallel()
	var ours configv1.RateLimitConfig
	remarshal(t, theirs(), &ours)
	want := &configv1.RateLimitConfig{Name: "a", Domain: "shop", Descriptors: []*configv1.RateLimitDescriptor{{
		Key: "k", Value: "v", ShadowMode: true, DetailedMetric: true,
		RateLimit: &configv1.RateLimitPolicy{
			Unit: configv1.RateLimitUnit_RATE_LIMIT_UNIT_DAY, RequestsPerUnit: 3, Name: "n", Replaces: []*configv1.RateLimitReplace{{Name: "m"}},
		},
		Descriptors: []*configv1.RateLimitDescriptor{{Key: "l", RateLimit: &configv1.RateLimitPolicy{Unlimited: true}}},
	}}}
	if d := cmp.Diff(want, &ours, protocmp.Transform()); d != "" {
		t.Errorf("theirs as ours (-want +got):\n%s", d)
	}
	var back ratelimitv3.RateLimitConfig
	remarshal(t, &ours, &back)
	if d := cmp.Diff(theirs(), &back, protocmp.Transform()); d != "" {
		t.Errorf("and back (-want +got):\n%s", d)
	}
}

func remarshal(t *testing.T, from, to proto.Message) {
	t.Helper()
	b, err := proto.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := proto.Unmarshal(b, to); err != nil {
		t.Fatal(err)
	}
}

// TestFieldsAreTheirs: this message has every field of go-control-plane's, with the same name, number, type, and cardinality. The list
// has the fields that only this message has, or that the linked version of the other lacks.
func TestFieldsAreTheirs(t *testing.T) {
	t.Parallel()
	newer := []string{"RateLimitDescriptor.quota_mode=7", "RateLimitDescriptor.metadata=8"}
	ours := (&configv1.RateLimitConfig{}).ProtoReflect().Descriptor().ParentFile().Messages()
	hers := (&ratelimitv3.RateLimitConfig{}).ProtoReflect().Descriptor().ParentFile().Messages()
	for i := range hers.Len() {
		if ours.ByName(hers.Get(i).Name()) == nil {
			t.Errorf("no message %s", hers.Get(i).Name())
		}
	}
	for i := range ours.Len() {
		m := ours.Get(i)
		other := hers.ByName(m.Name())
		if other == nil {
			continue
		}
		for j := range other.Fields().Len() {
			want := other.Fields().Get(j)
			got := m.Fields().ByNumber(want.Number())
			if got == nil || got.Name() != want.Name() || got.Kind() != want.Kind() || got.Cardinality() != want.Cardinality() {
				t.Errorf("%s: %v, want %v", m.Name(), got, want)
			}
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			name := fmt.Sprintf("%s.%s=%d", m.Name(), f.Name(), f.Number())
			if other.Fields().ByNumber(f.Number()) == nil && f.Number() < 1000 && !slices.Contains(newer, name) {
				t.Errorf("%s is a number that may become theirs", name)
			}
		}
	}
}

// TestNewerFieldsOfTheirs: the linked message of go-control-plane lacks fields 7 and 8 and units from 5 on, so these
// bytes are hand-written.
func TestNewerFieldsOfTheirs(t *testing.T) {
	t.Parallel()
	policy := "\x08\x07\x10\x05"                       // unit: WEEK, requests_per_unit: 5
	plan := "\x0a\x0e\x0a\x04plan\x12\x06\x1a\x04gold" // fields {key: plan, value {string_value: gold}}
	descriptor := "\x0a\x01k" + "\x1a\x04" + policy + "\x38\x01" + "\x42\x10" + plan
	f := tellRaw(t, raw("\x0a\x01a\x12\x04shop\x1a"+string(rune(len(descriptor)))+descriptor))
	if f.problem != "" {
		t.Fatal(f.problem)
	}
	for r := range f.rules.Rules().Rules() {
		if !r.Quota || r.RateLimits.At(0).Unit != descriptors.Week || r.Metadata["plan"] != "gold" {
			t.Errorf("rule %+v", r)
		}
	}
}

// message converts a file of rules to a message of a control plane.
func message(t *testing.T, path string) *configv1.RateLimitConfig {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	m := &configv1.RateLimitConfig{}
	b, err = json.Marshal(fields(t, tree, m.ProtoReflect().Descriptor()))
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(b, m); err != nil {
		t.Fatal(err)
	}
	m.Name = filepath.Base(path)
	return m
}

// fields converts the keys of a file to protojson's names. Each key must have a field.
func fields(t *testing.T, tree map[string]any, of protoreflect.MessageDescriptor) map[string]any {
	t.Helper()
	out := map[string]any{}
	for k, v := range tree {
		if _, begins := v.(map[string]any); begins && k == "calendar" {
			k += "_begin"
		}
		f := of.Fields().ByName(protoreflect.Name(k))
		switch {
		case f == nil:
			t.Errorf("%s has no field for the key %s", of.Name(), k)
		case f.IsList() && f.Message() == nil:
			out[k] = v
		case f.IsMap():
			plans := map[string]any{}
			for name, plan := range v.(map[string]any) {
				key := "rate_limit"
				if _, listed := plan.([]any); listed {
					key = "rate_limits"
				}
				plans[name] = fields(t, map[string]any{key: plan}, f.MapValue().Message())
			}
			out[k] = plans
		case f.IsList():
			var all []any
			for _, e := range v.([]any) {
				all = append(all, fields(t, e.(map[string]any), f.Message()))
			}
			out[k] = all
		case k == "estimate" && reflect.TypeOf(v).Kind() == reflect.Map:
			out["learned_estimate"] = v
		case k == "metadata":
			out[k] = v
		case f.Message() != nil:
			out[k] = fields(t, v.(map[string]any), f.Message())
		case f.Kind() == protoreflect.EnumKind:
			out[k] = "RATE_LIMIT_UNIT_" + strings.ToUpper(v.(string))
		case f.Kind() == protoreflect.StringKind:
			out[k] = fmt.Sprint(v)
		default:
			out[k] = v
		}
	}
	return out
}

// TestSameRulesAsFromFiles: a file of rules and the same rules from a control plane have the same result.
// config/reference.yaml has every key.
func TestSameRulesAsFromFiles(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../../../config/example/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("files %q: %v", files, err)
	}
	files = append(files, "../../../../config/reference.yaml")
	var sources []descriptors.Source
	var messages []proto.Message
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, descriptors.Source{Name: filepath.Base(path), Data: b})
		messages = append(messages, message(t, path))
	}
	slices.SortFunc(sources, func(a, b descriptors.Source) int { return strings.Compare(a.Name, b.Name) })
	want, _, err := descriptors.Load(sources, descriptors.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f := tell(t, messages...)
	if f.problem != "" {
		t.Fatal(f.problem)
	}
	got := f.rules.Rules()
	if d := rulediff.Between(want, got); len(d) > 0 {
		t.Errorf("they differ: %q", d)
	}
	options := cmp.Options{
		cmpopts.IgnoreUnexported(descriptors.Rule{}, descriptors.Domain{}), cmpopts.IgnoreFields(descriptors.Rule{}, "Line"), cmpopts.EquateEmpty(),
		cmp.AllowUnexported(descriptors.RateLimits{}),
	}
	if d := cmp.Diff(slices.Collect(want.Rules()), slices.Collect(got.Rules()), options); d != "" {
		t.Errorf("rules (-files +xds):\n%s", d)
	}
	if d := cmp.Diff(slices.Collect(want.Domains()), slices.Collect(got.Domains()), options); d != "" {
		t.Errorf("domains (-files +xds):\n%s", d)
	}
}
