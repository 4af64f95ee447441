package xds_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/xds"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

func TestRulesComeChangeAndGo(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			f := follow(t, xds.Config{Server: p.address, Delta: delta})
			p.set(t, "1", config("a", "shop", 3))
			f.wants(t, "shop=3")
			<-f.First()
			testkit.Eventually(t, "it is connected and current", func() bool { return f.Connected() && f.isCurrent() }) // shortly after the rules arrive
			p.set(t, "2", config("a", "shop", 5), config("b", "mail", 7))
			f.wants(t, "shop=5 mail=7")
		})
	}
}

func TestX1ZeroResourcesAreObeyed(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			f := follow(t, xds.Config{Server: p.address, Delta: delta})
			p.set(t, "1", config("a", "shop", 3))
			f.wants(t, "shop=3")
			p.set(t, "2")
			f.wants(t, "")
			if n := f.count(xds.EventEmpty); n != 1 {
				t.Errorf("%d empty sets were counted, want 1", n)
			}
			if log := f.log.String(); !strings.Contains(log, "level=WARN") || !strings.Contains(log, "nothing is limited") {
				t.Errorf("the log does not warn:\n%s", log)
			}
			p.set(t, "3", config("a", "shop", 4))
			f.wants(t, "shop=4")
		})
	}
}

func TestX1KeepOnEmpty(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "0")
			f := follow(t, xds.Config{Server: p.address, Delta: delta, KeepOnEmpty: true})
			f.wants(t, "") // there were no rules to keep
			p.set(t, "1", config("a", "shop", 3))
			f.wants(t, "shop=3")
			p.set(t, "2")
			testkit.Eventually(t, "the empty set was counted", func() bool { return f.count(xds.EventEmpty) == 2 })
			p.set(t, "3", config("a", "shop", 3), config("b", "mail", 1))
			f.wants(t, "shop=3 mail=1")
			for _, load := range f.outcomes()[1:] {
				if load == "" {
					t.Errorf("loads %q: the rules were gone", f.outcomes())
				}
			}
			if answers := p.all(); answers[len(answers)-1].problem != "" {
				t.Errorf("an empty set was invalid: %+v", answers)
			}
		})
	}
}

func TestX3OneBadAmongTen(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			f := follow(t, xds.Config{Server: p.address, Delta: delta})
			good := []types.Resource{}
			for name := range strings.SplitSeq("a b c d e f g h i j", " ") {
				good = append(good, config(name, "domain-"+name, 3))
			}
			p.set(t, "1", good...)
			f.wants(t, "domain-a=3 domain-b=3 domain-c=3 domain-d=3 domain-e=3 domain-f=3 domain-g=3 domain-h=3 domain-i=3 domain-j=3")
			before := f.rules.Rules()
			bad := config("e", "domain-e", 3)
			bad.Descriptors[0].RateLimit.Unit = ratelimitv3.RateLimitUnit_UNKNOWN
			changed := append([]types.Resource{config("a", "domain-a", 9)}, good[1:]...)
			changed[4] = bad
			p.set(t, "2", changed...)
			f.wants(t, "invalid")
			const want = "e: domain-e.k: invalid rate limit unit 'UNKNOWN': want second, minute, hour, day, week, month, year or forever"
			if got := p.problem(t); got != want {
				t.Errorf("problem %q, want %q", got, want)
			}
			if f.rules.Rules() != before || f.isCurrent() {
				t.Error("the last good set is gone, or is called current")
			}
			if !delta {
				for _, a := range p.all() {
					if a.problem != "" && a.version != "1" {
						t.Errorf("invalid with version %q, want that of the last good set, 1", a.version)
					}
				}
			}
			changed[4] = config("e", "domain-e", 4) // the changes in the invalid response are not lost
			p.set(t, "3", changed...)
			f.wants(t, "domain-a=9 domain-b=3 domain-c=3 domain-d=3 domain-e=4 domain-f=3 domain-g=3 domain-h=3 domain-i=3 domain-j=3")
		})
	}
}

func TestAInvalidSetThatComesAgainAndAgain(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.set(t, "1", config("a", "", 3)) // go-control-plane immediately sends an invalid set again
	f := follow(t, xds.Config{Server: p.address})
	testkit.Eventually(t, "it was invalid four times", func() bool { return f.count(xds.EventInvalid) >= 4 })
	if all := f.outcomes(); len(all) != 1 || all[0] != "invalid" {
		t.Errorf("loads %q: want one problem, as the set is the same", all)
	}
	p.set(t, "2", config("a", "shop", 3))
	f.wants(t, "shop=3")
}

// TestACorrectedSetIsSoonInForce: go-control-plane sends nothing new before its last response is answered. Repeated
// invalid sets are answered with a delay, but the corrected set is in use within a second.
func TestACorrectedSetIsSoonInForce(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	f := follow(t, xds.Config{Server: p.address})
	var took time.Duration
	for try := 1; try <= 3; try++ { // the machine may be busy
		before := f.count(xds.EventInvalid)
		p.set(t, fmt.Sprint("bad", try), config("a", "", uint32(try)))
		testkit.Eventually(t, "it was invalid so often that the next answer is as late as any", func() bool { return f.count(xds.EventInvalid) >= before+7 })
		begin := time.Now()
		p.set(t, fmt.Sprint("good", try), config("a", "shop", uint32(try)))
		f.wants(t, fmt.Sprint("shop=", try))
		if took = time.Since(begin); took < time.Second {
			return
		}
	}
	t.Errorf("a corrected set took %v", took)
}

func TestX4DuplicateDomains(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "1", config("b", "shop", 3), config("a", "shop", 4))
			f := follow(t, xds.Config{Server: p.address, Delta: delta})
			f.wants(t, "invalid")
			const want = "b: shop: duplicate domain 'shop' in config file: a has it already, and MERGE_DOMAIN_CONFIG is not true"
			if got := p.problem(t); got != want {
				t.Errorf("problem %q, want %q", got, want)
			}
			second := config("b", "shop", 3)
			second.Descriptors[0].Key = "l"
			p.set(t, "2", second, config("a", "shop", 4))
			merged := followWith(t, xds.Config{Server: p.address, Delta: delta}, descriptors.Options{MergeDomains: true})
			merged.wants(t, "shop=4=3") // always ordered by name
		})
	}
}

func TestX4ContentsDecide(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "1", config("a", "shop", 3))
			f := follow(t, xds.Config{Server: p.address, Delta: delta})
			f.wants(t, "shop=3")
			p.set(t, "2", config("a", "shop", 3)) // a new version with the same contents
			if !delta {                           // delta does not send it
				testkit.Eventually(t, "it was seen that nothing changed", func() bool { return f.count(xds.EventUnchanged) == 1 })
			}
			p.set(t, "3", config("a", "shop", 4))
			f.wants(t, "shop=4")
			p.set(t, "1", config("a", "shop", 5)) // an old version with new contents
			f.wants(t, "shop=5")
			p.set(t, "3", config("a", "shop", 3)) // and a new version with old contents
			f.wants(t, "shop=3")
			if all := strings.Join(f.outcomes(), ", "); all != "shop=3, shop=4, shop=5, shop=3" {
				t.Errorf("loads %s: want four", all)
			}
		})
	}
}

func TestX4SameVersionFromAnotherControlPlane(t *testing.T) {
	t.Parallel()
	for name, delta := range protocols() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlane(t)
			p.set(t, "1", config("a", "shop", 3), config("b", "mail", 1))
			w := testkit.NewProxy(t, p.address)
			f := follow(t, xds.Config{Server: w.Addr(), Delta: delta})
			f.wants(t, "shop=3 mail=1")
			q := newPlane(t) // counts from 1 again
			q.set(t, "1", config("a", "shop", 4))
			w.Target(q.address)
			p.end()
			f.wants(t, "shop=4")
			for _, a := range q.all()[:1] {
				if a.nonce != "" || a.version != "" {
					t.Errorf("the first request %+v has what belongs to the stream before", a)
				}
			}
		})
	}
}

func TestX5ValuesAsInYAML(t *testing.T) {
	t.Parallel()
	policy := func(p *configv1.RateLimitPolicy) []*configv1.RateLimitDescriptor {
		return []*configv1.RateLimitDescriptor{{Key: "k", RateLimit: p}}
	}
	deep := func(levels int) []*configv1.RateLimitDescriptor {
		var all []*configv1.RateLimitDescriptor
		for range levels {
			all = []*configv1.RateLimitDescriptor{{Key: "k", Descriptors: all}}
		}
		return all
	}
	day := configv1.RateLimitUnit_RATE_LIMIT_UNIT_DAY
	for _, tt := range []struct {
		name        string
		descriptors []*configv1.RateLimitDescriptor
		want        string // the problem; empty if accepted
	}{
		{"no unit", policy(&configv1.RateLimitPolicy{RequestsPerUnit: 1}), "a: shop.k: invalid rate limit unit 'UNKNOWN': want second,"},
		{"undefined unit", policy(&configv1.RateLimitPolicy{Unit: 9}), "a: shop.k: invalid rate limit unit '9': want second,"},
		{"negative unit", policy(&configv1.RateLimitPolicy{Unit: -1}), "a: shop.k: invalid rate limit unit '-1': want second,"},
		{"week", policy(&configv1.RateLimitPolicy{Unit: configv1.RateLimitUnit_RATE_LIMIT_UNIT_WEEK}), ""},
		{"limit 0", policy(&configv1.RateLimitPolicy{Unit: day}), ""},
		{"largest limit", policy(&configv1.RateLimitPolicy{Unit: day, RequestsPerUnit: math.MaxUint32}), ""},
		{"unlimited", policy(&configv1.RateLimitPolicy{Unlimited: true}), ""},
		{"unlimited with a unit", policy(&configv1.RateLimitPolicy{Unlimited: true, Unit: day}), "a: shop.k: should not specify rate limit unit when unlimited"},
		{"empty key", []*configv1.RateLimitDescriptor{{Value: "v"}}, "a: shop.?: descriptor has empty key: use the key of an entry"},
		{"same key twice", append(policy(nil), policy(nil)...), "a: shop.k: duplicate descriptor composite key 'shop.k': a has it already"},
		{"empty replaces", policy(&configv1.RateLimitPolicy{Unit: day, Replaces: []*configv1.RateLimitReplace{{}}}), "a: shop.k: should not have an empty replaces entry"},
		{"shared without wildcard", []*configv1.RateLimitDescriptor{{Key: "k", Value: "v", ShareThreshold: true}}, "a: shop.k_v: share_threshold can only be used with wildcard values"},
		{"unknown algorithm", policy(&configv1.RateLimitPolicy{Unit: day, Algorithm: "leaky"}), "a: shop.k: unknown algorithm 'leaky': want fixed_window,"},
		{"burst of a window", policy(&configv1.RateLimitPolicy{Unit: day, RequestsPerUnit: 1, Burst: proto.Uint32(3)}), "a: shop.k: burst does not apply to fixed_window"},
		{"multiplier 0", policy(&configv1.RateLimitPolicy{Unit: day, UnitMultiplier: proto.Uint32(0)}), "a: shop.k: unit_multiplier 0: want 1 to"},
		{"depth 64", deep(64), ""},
		{"depth 65", deep(65), "descriptors are nested more than 64 deep"},
		{"depth 5000", deep(5000), "messages are nested more than 500 deep"},
		{"long key", []*configv1.RateLimitDescriptor{{Key: strings.Repeat("k", 600<<10)}}, "a: it cannot be decoded: the text of RateLimitDescriptor.key has 614400 bytes: want at most 524288"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := tell(t, &configv1.RateLimitConfig{Name: "a", Domain: "shop", Descriptors: tt.descriptors})
			if got := f.problem; (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("problem %.300q, want %q", got, tt.want)
			}
		})
	}
}

func TestX5HundredThousandDescriptors(t *testing.T) {
	t.Parallel()
	m := config("a", "shop", 1)
	for i := range 100_000 {
		m.Descriptors = append(m.Descriptors, &ratelimitv3.RateLimitDescriptor{
			Key: "user", Value: strings.Repeat("u", 1+i%7) + string(rune('a'+i%26)) + time.Duration(i).String(),
			RateLimit: &ratelimitv3.RateLimitPolicy{Unit: ratelimitv3.RateLimitUnit_HOUR, RequestsPerUnit: 5},
		})
	}
	f := tell(t, m)
	if f.problem != "" {
		t.Fatalf("problem %.300q", f.problem)
	}
	f.serves(t, "100001 rules")
}

func TestX5SixtyMegabytes(t *testing.T) {
	t.Parallel()
	// The largest accepted metadata, sixty times: many bytes, but few rules.
	plan, err := structpb.NewStruct(map[string]any{"": strings.Repeat("x", 500<<10), "y": strings.Repeat("y", 500<<10)})
	if err != nil {
		t.Fatal(err)
	}
	all := make([]proto.Message, 10)
	for i := range all {
		m := &configv1.RateLimitConfig{Name: string(rune('a' + i)), Domain: "domain-" + string(rune('a'+i))}
		for j := range 6 {
			m.Descriptors = append(m.Descriptors, &configv1.RateLimitDescriptor{
				Key: string(rune('a' + j)), Metadata: plan, RateLimit: &configv1.RateLimitPolicy{Unit: configv1.RateLimitUnit_RATE_LIMIT_UNIT_DAY},
			})
		}
		all[i] = m
	}
	f := tell(t, all...)
	if f.problem != "" {
		t.Errorf("problem %.300q", f.problem)
	}
}

func TestX5OneResourceTooLarge(t *testing.T) {
	t.Parallel()
	m := &configv1.RateLimitConfig{Name: "a", Domain: "shop"}
	for range 22 {
		m.Descriptors = append(m.Descriptors, &configv1.RateLimitDescriptor{Key: strings.Repeat("k", 500<<10)})
	}
	if f := tell(t, m); !strings.Contains(f.problem, "a: it has 11264") || !strings.Contains(f.problem, "want at most 10485760") {
		t.Errorf("problem %.300q", f.problem)
	}
}

func TestX5ManyMessagesInFewBytes(t *testing.T) {
	t.Parallel()
	// Two bytes encode an empty descriptor, which takes a hundred times the memory when decoded.
	f := tellRaw(t, raw(strings.Repeat("\x1a\x00", 2_000_000)))
	const want = "resource 1: it cannot be decoded: it has more than 1000000 descriptors, limits and metadata values"
	if f.problem != want {
		t.Errorf("problem %.300q, want %q", f.problem, want)
	}
}

func TestX6Metadata(t *testing.T) {
	t.Parallel()
	nested := func(levels int) *structpb.Struct {
		v := structpb.NewStringValue("x")
		for range levels - 1 {
			v = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"k": v}})
		}
		return &structpb.Struct{Fields: map[string]*structpb.Value{"k": v}}
	}
	large := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for _, c := range "abcdefghijklmnopqrst" {
		large.Fields[string(c)] = structpb.NewStringValue(strings.Repeat("x", 500_000))
	}
	for _, tt := range []struct {
		name     string
		metadata *structpb.Struct
		want     string
	}{
		{"depth 24", nested(24), ""},
		{"depth 25", nested(25), "a: shop.k: error parsing metadata: it is nested more than 24 deep"},
		{"depth 10000", nested(10_000), "a: it cannot be decoded: messages are nested more than 500 deep"},
		{"list", &structpb.Struct{Fields: map[string]*structpb.Value{"l": structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{
			structpb.NewNullValue(), structpb.NewBoolValue(true), structpb.NewNumberValue(1.5), {},
		}})}}, ""},
		{"NaN", &structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(math.NaN())}}, "a: shop.k: error parsing metadata: .nan: JSON, the format of /json, has no such number"},
		{"infinity", &structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(math.Inf(-1))}}, "a: shop.k: error parsing metadata: -.inf: JSON"},
		{"10 MB", large, "a: shop.k: error parsing metadata: it has 10000020 bytes: want at most 1048576"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := tell(t, &configv1.RateLimitConfig{Name: "a", Domain: "shop", Descriptors: []*configv1.RateLimitDescriptor{{
				Key: "k", Metadata: tt.metadata, RateLimit: &configv1.RateLimitPolicy{Unit: configv1.RateLimitUnit_RATE_LIMIT_UNIT_DAY},
			}}})
			if (f.problem == "") != (tt.want == "") || !strings.Contains(f.problem, tt.want) {
				t.Errorf("problem %.300q, want %q", f.problem, tt.want)
			}
		})
	}
}
