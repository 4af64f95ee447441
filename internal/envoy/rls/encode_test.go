package rls

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// slowAnswer returns the answer in Envoy's types. It is the slow, obvious twin of the encoder.
func slowAnswer(c Config, r *limiter.Request, v *limiter.Verdict) *ratelimitv3.RateLimitResponse {
	codes := map[bool]ratelimitv3.RateLimitResponse_Code{
		false: ratelimitv3.RateLimitResponse_OK, true: ratelimitv3.RateLimitResponse_OVER_LIMIT,
	}
	m := &ratelimitv3.RateLimitResponse{OverallCode: codes[v.Over]}
	for _, st := range v.Statuses {
		s := &ratelimitv3.RateLimitResponse_DescriptorStatus{Code: codes[st.Over], LimitRemaining: uint32(min(st.Remaining, math.MaxUint32))}
		if st.Rule != nil && st.Rule.HeadersOff {
			s.LimitRemaining = 0
			m.Statuses = append(m.Statuses, s)
			continue
		}
		if st.Over {
			s.LimitRemaining = 0
		}
		if st.Unlimited() {
			s.LimitRemaining = math.MaxUint32
		}
		if st.RateLimit != nil {
			s.DurationUntilReset = &durationpb.Duration{Seconds: slowReset(st)}
			s.CurrentLimit = &ratelimitv3.RateLimitResponse_RateLimit{
				Name: strings.ToValidUTF8(st.RateLimit.Name, "\uFFFD"), RequestsPerUnit: st.RateLimit.RequestsPerUnit,
				Unit: ratelimitv3.RateLimitResponse_RateLimit_Unit(st.RateLimit.Unit),
			}
			if st.RateLimit.Multiplier != 1 {
				s.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(st.RateLimit.Multiplier)
			}
		}
		m.Statuses = append(m.Statuses, s)
	}
	header := func(name string, value any) {
		m.ResponseHeadersToAdd = append(m.ResponseHeadersToAdd, &corev3.HeaderValue{Key: name, Value: fmt.Sprint(value)})
	}
	if c.Headers.Enabled && v.Header >= 0 {
		header("RateLimit-Limit", v.Statuses[v.Header].RateLimit.RequestsPerUnit)
		header("RateLimit-Remaining", m.GetStatuses()[v.Header].GetLimitRemaining())
		header("RateLimit-Reset", m.GetStatuses()[v.Header].GetDurationUntilReset().GetSeconds())
	}
	if c.Headers.Request.Enabled && v.Header >= 0 {
		for name, value := range map[string]any{
			"A": v.Statuses[v.Header].RateLimit.RequestsPerUnit,
			"B": m.GetStatuses()[v.Header].GetLimitRemaining(),
			"C": m.GetStatuses()[v.Header].GetDurationUntilReset().GetSeconds(),
		} {
			m.RequestHeadersToAdd = append(m.RequestHeadersToAdd, &corev3.HeaderValue{Key: name, Value: fmt.Sprint(value)})
		}
		slices.SortFunc(m.GetRequestHeadersToAdd(), func(a, b *corev3.HeaderValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	}
	if c.DynamicMetadata {
		m.DynamicMetadata = slowMetadata(c, r, v)
	}
	return m
}

func slowReset(st limiter.Status) int64 {
	if st.Decision.RetryAfter == engine.Never {
		if st.RateLimit.Limit.Algorithm == engine.FixedWindow && st.Decision.ResetAfter > 0 {
			return roundUp(st.Decision.ResetAfter, time.Second)
		}
		return roundUp(time.Duration(st.RateLimit.Limit.Window)*time.Microsecond, time.Second)
	}
	if st.Exceeded() {
		return max(roundUp(st.Decision.RetryAfter, time.Second), 1)
	}
	return roundUp(st.Decision.ResetAfter, time.Second)
}

func roundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit != 0 {
		n++
	}
	return n
}

func slowMetadata(c Config, r *limiter.Request, v *limiter.Verdict) *structpb.Struct {
	utf8 := func(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
	list := []any{}
	all := map[string]any{"domain": utf8(string(r.Domain))}
	merged := map[string]any{}
	for i, d := range r.Descriptors {
		entries := []any{}
		for _, e := range d.Entries {
			entries = append(entries, utf8(string(e.Key)+"="+string(e.Value)))
		}
		fields := map[string]any{"entries": entries}
		if d.HasHits {
			fields["hitsAddend"] = d.Hits
		}
		if d.HasOverride {
			fields["limit"] = overrideText(d.Override)
		}
		st := v.Statuses[i]
		if c.DecisionMetadata && st.Rule != nil {
			fields["rule"], fields["file"], fields["line"] = st.Rule.Path, st.Rule.File, st.Rule.Line
		}
		if c.DecisionMetadata && st.Shadowed() {
			fields["shadowed"] = true
		}
		if c.DecisionMetadata && st.RateLimit != nil {
			fields["remaining"] = st.Remaining
			if st.Over {
				fields["remaining"] = 0
			}
			if st.Decision.RetryAfter != engine.Never {
				fields["retry_after_ms"] = roundUp(st.Decision.RetryAfter, time.Millisecond)
			}
			fields["reset_after_ms"] = roundUp(st.Decision.ResetAfter, time.Millisecond)
			fields["wait_ms"] = roundUp(st.Decision.Wait, time.Millisecond)
		}
		list = append(list, fields)
		if st.RateLimit != nil && st.Rule != nil && !st.Over && !st.Override {
			slowMerge(merged, st.Rule.Metadata)
		}
	}
	all["descriptors"] = list
	if r.Hits != 0 {
		all["hitsAddend"] = r.Hits
	}
	if len(merged) > 0 {
		all["metadata"] = merged
	}
	s, err := structpb.NewStruct(all)
	if err != nil {
		panic(err)
	}
	return s
}

func slowMerge(dst, src map[string]any) {
	for k, v := range src {
		inner, nested := v.(map[string]any)
		have, taken := dst[k]
		switch {
		case !taken && nested:
			fresh := map[string]any{}
			slowMerge(fresh, inner)
			dst[k] = fresh
		case !taken:
			dst[k] = v
		case nested:
			if m, both := have.(map[string]any); both {
				slowMerge(m, inner)
			}
		}
	}
}

// drawAnswer draws a request and a verdict for it.
func drawAnswer(t *rapid.T) (*limiter.Request, *limiter.Verdict) {
	text := rapid.SliceOfN(rapid.Byte(), 0, 6)
	duration := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Min(0).Draw(t, "ns"))
	})
	metadata := rapid.SampledFrom([]map[string]any{
		nil,
		{},
		{"a": 1},
		{"a": "x", "b": true},
		{"a": map[string]any{"b": 1.5}},
		{"a": map[string]any{"c": []any{1, nil}}, "d": nil},
		{"a": map[string]any{"b": map[string]any{"c": 1}}},
		{"a": map[string]any{"b": map[string]any{"d": 2}, "e": 3}},
	})
	r := &limiter.Request{Domain: text.Draw(t, "domain"), Hits: rapid.Uint32().Draw(t, "hits")}
	v := &limiter.Verdict{Over: rapid.Bool().Draw(t, "over"), Header: -1}
	for i := range rapid.IntRange(0, 5).Draw(t, "n") {
		d := limiter.Descriptor{HasHits: rapid.Bool().Draw(t, "hasHits"), HasOverride: rapid.Bool().Draw(t, "hasOverride")}
		if d.HasHits {
			d.Hits = rapid.Uint64().Draw(t, "hits")
		}
		for range rapid.IntRange(0, 3).Draw(t, "entries") {
			d.Entries = append(d.Entries, descriptors.Entry{Key: text.Draw(t, "key"), Value: text.Draw(t, "value")})
		}
		r.Descriptors = append(r.Descriptors, d)
		st := limiter.Status{Outcome: rapid.SampledFrom([]limiter.Outcome{limiter.Admitted, limiter.Rejected, limiter.Shadowed}).Draw(t, "outcome")}
		st.Over = st.Outcome == limiter.Rejected
		switch rapid.IntRange(0, 3).Draw(t, "kind") {
		case 0:
		case 1:
			st.Outcome, st.Over, st.Rule = limiter.Unlimited, false, &descriptors.Rule{Path: "d.u", File: "f", Line: 3, Metadata: metadata.Draw(t, "metadata")}
		default:
			st.Rule = &descriptors.Rule{Path: "d.k", File: "f", Line: 1, Metadata: metadata.Draw(t, "metadata"), HeadersOff: rapid.Bool().Draw(t, "headersOff")}
			st.RateLimit = &descriptors.RateLimit{
				RequestsPerUnit: rapid.Uint32().Draw(t, "requests"),
				Unit:            descriptors.Unit(rapid.IntRange(1, 7).Draw(t, "unit")),
				Multiplier:      rapid.SampledFrom([]uint32{1, 1, 2, 300, math.MaxUint32}).Draw(t, "multiplier"),
				Name:            rapid.SampledFrom([]string{"", "n", "\xff!", strings.Repeat("long", 50), strings.Repeat("x", 17_000)}).Draw(t, "name"),
				Limit: engine.Limit{
					Algorithm: rapid.SampledFrom([]engine.Algorithm{engine.FixedWindow, engine.TokenBucket}).Draw(t, "algorithm"),
					Window:    engine.Micros(rapid.Int64Range(1, 1<<48).Draw(t, "window")),
				},
			}
			st.Override = rapid.Bool().Draw(t, "override")
			st.Remaining = uint64(rapid.Uint32().Draw(t, "remaining"))
			st.Decision = engine.Decision{ResetAfter: duration.Draw(t, "reset")}
			if st.Exceeded() {
				st.Decision.RetryAfter = rapid.OneOf(duration, rapid.Just(engine.Never)).Draw(t, "retry")
			}
			if !st.Rule.HeadersOff {
				v.Header = i
			}
		}
		v.Statuses = append(v.Statuses, st)
	}
	return r, v
}

func encodeProperty(t *rapid.T) {
	r, v := drawAnswer(t)
	var upstream Headers
	upstream.Request.Enabled, upstream.Request.Limit, upstream.Request.Remaining, upstream.Request.Reset = true, "A", "B", "C"
	for _, c := range []Config{
		{},
		{Headers: Headers{Enabled: true}},
		{Headers: upstream},
		{DynamicMetadata: true},
		{Headers: Headers{Enabled: true}, DynamicMetadata: true, DecisionMetadata: true},
	} {
		a := encoded(New(nil, c), r, v)
		var got ratelimitv3.RateLimitResponse
		if err := proto.Unmarshal(a, &got); err != nil {
			t.Fatalf("the answer is no message: %v", err)
		}
		if undated(t, got.GetDynamicMetadata()) != c.DecisionMetadata {
			t.Fatalf("decided_at with %+v", c)
		}
		if diff := cmp.Diff(slowAnswer(c, r, v), &got, protocmp.Transform()); diff != "" {
			t.Fatalf("%+v (-want +got):\n%s", c, diff)
		}
	}
}

func TestEncodeAgreesWithProtobuf(t *testing.T) { rapid.Check(t, encodeProperty) }

func FuzzEncode(f *testing.F) {
	for i := range 8 {
		f.Add([]byte(strings.Repeat(string(rune('0'+i)), 200*i)))
	}
	f.Fuzz(rapid.MakeFuzz(encodeProperty))
}

// item returns a limit of three per minute with the algorithm a.
func item(a engine.Algorithm) *descriptors.RateLimit {
	return &descriptors.RateLimit{
		RequestsPerUnit: 3, Unit: descriptors.Minute, Multiplier: 1, Limit: engine.Limit{Algorithm: a, Hits: 3, Window: 60_000_000},
	}
}

// admitted is a request that is admitted once it has waited.
func admitted(a engine.Algorithm, wait time.Duration) limiter.Status {
	return limiter.Status{RateLimit: item(a), Remaining: 2, Decision: engine.Decision{Admitted: 1, Wait: wait, ResetAfter: time.Minute}}
}

// rejected is a limit, or a quota, that rejects for a time.
func rejected(after time.Duration, quota bool) limiter.Status {
	return limiter.Status{
		Outcome: limiter.Rejected, Over: true, Quota: quota, RateLimit: item(engine.TokenBucket),
		Decision: engine.Decision{ResetAfter: time.Hour, RetryAfter: after},
	}
}

func TestHeaders(t *testing.T) {
	on := Headers{Enabled: true, RetryAfter: "Retry-After"}
	for _, tt := range []struct {
		name string
		h    Headers
		v    limiter.Verdict
		want []string
	}{
		{"off", Headers{}, limiter.Verdict{Statuses: []limiter.Status{admitted(engine.LeakyBucket, 1)}}, nil},
		{"nothing matched", on, limiter.Verdict{Header: -1, Statuses: []limiter.Status{{}}}, nil},
		{
			"admitted", on,
			limiter.Verdict{Statuses: []limiter.Status{admitted(engine.FixedWindow, 0)}},
			[]string{"RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 60"},
		},
		{
			"by other names",
			Headers{Enabled: true, Limit: "L", Remaining: "R", Reset: "S"},
			limiter.Verdict{Statuses: []limiter.Status{admitted(engine.FixedWindow, 0)}},
			[]string{"L: 3", "R: 2", "S: 60"},
		},
		{
			"the longest wait, in milliseconds rounded up", on,
			limiter.Verdict{Statuses: []limiter.Status{
				admitted(engine.LeakyBucket, 100*time.Millisecond), admitted(engine.LeakyBucket, 250*time.Millisecond+1), admitted(engine.FixedWindow, 0),
			}},
			[]string{"RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 60", "RateLimit-Wait: 251"},
		},
		{
			"a leaky bucket that needs no wait", on,
			limiter.Verdict{Statuses: []limiter.Status{admitted(engine.LeakyBucket, 0)}},
			[]string{"RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 60", "RateLimit-Wait: 0"},
		},
		{
			"no wait for what is rejected elsewhere", on,
			limiter.Verdict{Over: true, Header: 1, Statuses: []limiter.Status{admitted(engine.LeakyBucket, time.Second), rejected(5*time.Second, false)}},
			[]string{"RateLimit-Limit: 3", "RateLimit-Remaining: 0", "RateLimit-Reset: 5", "Retry-After: 5"},
		},
		{
			"retry after, without the others",
			Headers{RetryAfter: "Retry-After"},
			limiter.Verdict{Over: true, Statuses: []limiter.Status{rejected(time.Second+1, false)}},
			[]string{"Retry-After: 2"},
		},
		{
			"no retry of what can never pass, whatever rejects it beside that", on,
			limiter.Verdict{Over: true, Header: 1, Statuses: []limiter.Status{rejected(7*time.Second, false), rejected(engine.Never, false), rejected(9*time.Second, true)}},
			[]string{"RateLimit-Limit: 3", "RateLimit-Remaining: 0", "RateLimit-Reset: 60"},
		},
		{
			"no retry where it passes all the same",
			Headers{RetryAfter: "Retry-After"},
			limiter.Verdict{Statuses: []limiter.Status{rejected(7*time.Second, true)}},
			nil,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, got := headersOf(answered(t, New(nil, Config{Headers: tt.h}), &limiter.Request{}, &tt.v))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRetryAfter: a rejected request passes when every limit has given way, and one quota, or in each group that is open all of its quotas.
func TestRetryAfter(t *testing.T) {
	limit := func(after time.Duration) limiter.Status { return rejected(after, false) }
	quota := func(after time.Duration) limiter.Status { return rejected(after, true) }
	of := func(group int, after time.Duration) limiter.Status {
		st := quota(after)
		st.Group = group
		return st
	}
	hidden := limit(engine.Never)
	hidden.Rule = &descriptors.Rule{HeadersOff: true}
	const (
		second = time.Second
		never  = engine.Never
	)
	type statuses []limiter.Status
	for _, tt := range []struct {
		name   string
		want   string
		groups []limiter.QuotaGroup // nil without group_by
		of     statuses
	}{
		{"the last limit", "7", nil, statuses{limit(7 * second), limit(3 * second), quota(90 * second)}},
		{"the first quota", "3", nil, statuses{quota(7 * second), quota(3 * second)}},
		{"the first quota that ever does", "3", nil, statuses{quota(never), quota(3 * second)}},
		{"no quota ever does", "", nil, statuses{quota(never), quota(never)}},
		{"a limit that is hidden never does", "", nil, statuses{limit(7 * second), hidden}},
		{"one group is open", "3", make([]limiter.QuotaGroup, 2), statuses{limit(3 * second), of(0, time.Hour)}},
		{
			"the first group, and what belongs to all", "9", make([]limiter.QuotaGroup, 2),
			statuses{of(0, time.Hour), of(1, 9*second), of(1, 7*second), of(limiter.AnyGroup, 8*second)},
		},
		{
			"all that belong to all groups, where there are none", "8",
			[]limiter.QuotaGroup{},
			statuses{of(limiter.AnyGroup, 3*second), of(limiter.AnyGroup, 8*second)},
		},
		{"the first group that ever does", "9", make([]limiter.QuotaGroup, 2), statuses{of(0, never), of(1, 9*second)}},
		{"no group ever does", "", make([]limiter.QuotaGroup, 1), statuses{of(0, never), of(0, 9*second)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := limiter.Verdict{Over: true, Groups: tt.groups, Statuses: tt.of}
			if tt.groups != nil {
				v.GroupBy = []string{"model"}
			}
			var want []string
			if tt.want != "" {
				want = []string{"Retry-After: " + tt.want}
			}
			s := New(nil, Config{Headers: Headers{RetryAfter: "Retry-After"}})
			if _, got := headersOf(answered(t, s, &limiter.Request{}, &v)); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

// TestMetadataIsNotShared merges the metadata of two rules repeatedly. The reference modifies the rules when it does
// this.
func TestMetadataIsNotShared(t *testing.T) {
	one := map[string]any{"c": map[string]any{"name": "one"}}
	two := map[string]any{"c": map[string]any{"name": "two", "zone": "z"}}
	v := &limiter.Verdict{Statuses: []limiter.Status{
		{RateLimit: item(engine.FixedWindow), Rule: &descriptors.Rule{Metadata: one}},
		{RateLimit: item(engine.FixedWindow), Rule: &descriptors.Rule{Metadata: two}},
	}}
	want := `{"descriptors":[{"entries":["a=1"]},{"entries":[],"limit":"requests_per_unit:3 unit:HOUR unit_multiplier:{value:2}","hitsAddend":0}],` +
		`"domain":"shop","hitsAddend":2,"metadata":{"c":{"name":"one","zone":"z"}}}`
	r := &limiter.Request{Domain: []byte("shop"), Hits: 2, Descriptors: []limiter.Descriptor{
		{Entries: []descriptors.Entry{{Key: []byte("a"), Value: []byte("1")}}},
		{HasHits: true, HasOverride: true, Override: descriptors.Override{RequestsPerUnit: 3, Unit: descriptors.Hour, Multiplier: 2}},
	}}
	var wanted structpb.Struct
	if err := protojson.Unmarshal([]byte(want), &wanted); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var m ratelimitv3.RateLimitResponse
		if err := proto.Unmarshal(encoded(New(nil, Config{DynamicMetadata: true}), r, v), &m); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&wanted, m.GetDynamicMetadata(), protocmp.Transform()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if diff := cmp.Diff(map[string]any{"c": map[string]any{"name": "one"}}, one); diff != "" {
		t.Errorf("a rule's metadata changed (-want +got):\n%s", diff)
	}
}

func TestEncodeAllocatesNothing(t *testing.T) {
	s := New(nil, Config{})
	v := &limiter.Verdict{Header: -1, Statuses: []limiter.Status{{RateLimit: item(engine.FixedWindow), Remaining: 2}}}
	a, r := new(answer), &limiter.Request{}
	if n := testing.AllocsPerRun(100, func() { s.encode(a, r, v) }); n != 0 {
		t.Errorf("encoding allocates %v times, want 0", n)
	}
}

func BenchmarkEncode(b *testing.B) {
	v := &limiter.Verdict{Statuses: []limiter.Status{
		{RateLimit: item(engine.FixedWindow), Remaining: 2, Decision: engine.Decision{Admitted: 1, ResetAfter: 40 * time.Second}},
	}}
	r := &limiter.Request{Domain: []byte("bench")}
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		s := New(nil, Config{})
		for b.Loop() {
			s.encode(new(answer), r, v)
		}
	})
	b.Run("ours with headers", func(b *testing.B) {
		b.ReportAllocs()
		s := New(nil, Config{Headers: Headers{Enabled: true}})
		for b.Loop() {
			s.encode(new(answer), r, v)
		}
	})
	b.Run("protobuf", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := proto.Marshal(slowAnswer(Config{}, r, v)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
