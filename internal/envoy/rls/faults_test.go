package rls

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// The tests named G1 to G38 correspond to the rows about ShouldRateLimit in docs/faults.md.

const threePerHour = `
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}
`

func hits(n uint64) *wrapperspb.UInt64Value { return wrapperspb.UInt64(n) }

func TestG01_EmptyDomain(t *testing.T) {
	wantInvalid(t, request("", "user=a"), "rate limit domain must not be empty")
}

func TestG02_NoDescriptors(t *testing.T) {
	wantInvalid(t, request("shop"), "rate limit descriptor list must not be empty")
}

func wantInvalid(t *testing.T, r *ratelimitv3.RateLimitRequest, want string) {
	t.Helper()
	_, err := start(t, threePerHour, Config{}).ShouldRateLimit(t.Context(), r)
	wantCode(t, err, codes.InvalidArgument)
	if text := status.Convert(err).Message(); text != want {
		t.Errorf("text: %s", text)
	}
}

func TestG03_NoMessage(t *testing.T) {
	w := start(t, threePerHour, Config{})
	for name, message := range map[string][]byte{
		"zero bytes":             {},
		"garbage":                bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef}, 1000),
		"a truncated varint":     {0x18, 0xff},
		"a wrong wire type":      {0x08, 1},
		"100,000 unknown fields": bytes.Repeat([]byte{0x78, 1}, 100_000),
		"groups 20,000 deep":     group(20_000),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.send(message)
			wantCode(t, err, codes.InvalidArgument)

			const aside = 4096 // per call
			allocated, took := least(func() { _, _ = decodeBytes(message) })
			if allocated > uint64(len(message))+aside {
				t.Errorf("%d bytes allocated for %d", allocated, len(message))
			}
			if took > slowdown*50*time.Millisecond {
				t.Errorf("took %v, want 5 ms", took)
			}
		})
	}
	w.want("OK 2", request("shop", "user=a"))
}

// least returns the bytes that f allocates and its duration. Both are the minimum of several runs, because other activity of the machine
// counts too.
func least(f func()) (allocated uint64, took time.Duration) {
	allocated, took = math.MaxUint64, math.MaxInt64
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begin := time.Now()
		f()
		took = min(took, time.Since(begin))
		runtime.ReadMemStats(&after)
		allocated = min(allocated, after.TotalAlloc-before.TotalAlloc)
	}
	return allocated, took
}

func TestG04_UnknownDomains(t *testing.T) {
	w := start(t, threePerHour, Config{})
	w.want("OK 0", request("nowhere", "user=a"))
	for i := range 100_000 {
		answer := inProcess(t, w.service, request(fmt.Sprintf("d%d", i), "user=a"))
		if statuses(answer) != "OK 0" || answer.GetOverallCode() != ratelimitv3.RateLimitResponse_OK {
			t.Fatalf("domain %d: %v", i, answer)
		}
	}
	n, other := 0, false
	for _, line := range w.series() {
		if strings.Contains(line, "domain_not_found") {
			n++
			other = other || strings.Contains(line, "__other__")
		}
	}
	if n != 101 || !other {
		t.Errorf("%d series of unknown domains, with __other__: %v; want 100 and __other__", n, other)
	}
}

func TestG05_NoEntries(t *testing.T) {
	w := start(t, threePerHour, Config{})
	answer := w.ask(&ratelimitv3.RateLimitRequest{Domain: "shop", Descriptors: []*commonv3.RateLimitDescriptor{{}}})
	want := &ratelimitv3.RateLimitResponse{
		OverallCode: ratelimitv3.RateLimitResponse_OK,
		Statuses:    []*ratelimitv3.RateLimitResponse_DescriptorStatus{{Code: ratelimitv3.RateLimitResponse_OK}},
	}
	if diff := cmp.Diff(want, answer, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestG06_EmptyKeyOrValue(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - {key: any, value: "*", rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: any, rate_limit: {unit: hour, requests_per_unit: 9}}
  - {key: alone, rate_limit: {unit: hour, requests_per_unit: 5}}
`, Config{})
	w.want("OK 0", request("shop", "any=")) // the wildcard
	w.want("OVER_LIMIT 0", request("shop", "any="))
	w.want("OK 4", request("shop", "alone=")) // the key alone
	answer := w.ask(request("shop", "=alone"))
	if st := answer.GetStatuses()[0]; st.GetCode() != ratelimitv3.RateLimitResponse_OK || st.GetCurrentLimit() != nil {
		t.Errorf("an empty key: %v, want OK without a limit", st)
	}
}

func TestG07_TheSameTwice(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
    descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 7}}]
`, Config{})
	w.want("OK 6", request("shop", "user=a,user=a"))
	w.want("OK 2 OK 1", request("shop", "user=b", "user=b"))
	w.want("OK 0 OVER_LIMIT 0", request("shop", "user=b", "user=b"))
}

// strange returns values that other software uses as separators.
func strange() []string {
	all := []string{"a_b", "a|b", "a:b", "a.b", "a/b", `a\b`, "a,b", "a;b", "a=b", "a*b", "a%b", `a"b`, "a'b", "a b", "a\x00b", "a\rb", "a\nb", "a\x1bb", "a\u2028b", "a\u202eb"}
	for _, v := range all {
		all = append(all, strings.ReplaceAll(v, "b", "")+"b", v+v)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestG08_StrangeValues(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - key: user
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: seen
    value_to_metric: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: user_a
    rate_limit: {unit: hour, requests_per_unit: 1}
    descriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 1}}]
`, Config{DynamicMetadata: true})
	for _, v := range strange() {
		r := &ratelimitv3.RateLimitRequest{Domain: "shop", Descriptors: []*commonv3.RateLimitDescriptor{
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "user", Value: v}}},
			{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: "seen", Value: v}}},
		}}
		w.want("OK 0 OK 0", r)
		w.want("OVER_LIMIT 0 OVER_LIMIT 0", r)
	}
	w.want("OK 0", request("shop", "user=a_c"))
	w.want("OK 0", request("shop", "user_a=c")) // the reference has the same key
	for _, line := range w.series() {
		if strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\r\n\x00\x1b") || !strings.HasSuffix(line, "\n") {
			t.Errorf("a value breaks a line: %q", line)
		}
	}
}

func TestG09_HashTagsInValues(t *testing.T) {
	w := start(t, threePerHour, Config{})
	for _, v := range []string{"{x}1", "{x}2", "{x}", "x", "{}x", "}{", "{x"} {
		w.want("OK 2", request("shop", "user="+v))
	}
	if _, keys := w.store.asked(); keys != 7 { // hashes of 16 bytes, whose size does not depend on values
		t.Errorf("%d keys, want 7", keys)
	}
}

func TestG10_InvalidUTF8(t *testing.T) {
	w := start(t, threePerHour, Config{DynamicMetadata: true})
	message := func(domain, key, value string) []byte {
		entry := append(field(1, []byte(key)...), field(2, []byte(value)...)...)
		return append(field(1, []byte(domain)...), field(2, field(1, entry...)...)...)
	}
	for _, tt := range []struct{ domain, key, value, want string }{
		{"shop", "user", "\xff", "OK 2"},
		{"shop", "user", "\xfe", "OK 2"}, // another value, although it looks the same in the answer
		{"shop", "user", "\xff", "OK 1"},
		{"shop", "us\xffer", "x", "OK 0"},
		{"sh\xffop", "user", "x", "OK 0"},
	} {
		answer, err := w.send(message(tt.domain, tt.key, tt.value)) // parsing it requires valid UTF-8
		if err != nil || statuses(answer) != tt.want {
			t.Errorf("%q %q %q: %v, %v, want %s", tt.domain, tt.key, tt.value, answer, err, tt.want)
		}
		list := answer.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
		entry := list[0].GetStructValue().GetFields()["entries"].GetListValue().GetValues()[0].GetStringValue()
		if want := strings.ToValidUTF8(tt.key+"="+tt.value, "\uFFFD"); entry != want {
			t.Errorf("the answer repeats %q, want %q", entry, want)
		}
	}
}

func TestG11_LongValues(t *testing.T) {
	w := start(t, threePerHour, Config{})
	for _, n := range []int{0, 1, 8 << 10, 60 << 10, 1 << 20} {
		v := strings.Repeat("x", n)
		begin := time.Now()
		w.want("OK 2", request("shop", "user="+v))
		t.Logf("%d bytes: %v", n, time.Since(begin))
		w.want("OK 1", request("shop", "user="+v))
		w.want("OK 2", request("shop", "user="+v+"y"))
	}
	if _, keys := w.store.asked(); keys != 10 { // of 16 bytes each
		t.Errorf("%d keys, want 10", keys)
	}
}

func TestG12_Depth(t *testing.T) {
	deepest := "  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}"
	w := start(t, "domain: shop\ndescriptors:\n"+deepest, Config{})
	deep := func(n int) *ratelimitv3.RateLimitRequest {
		return request("shop", strings.Repeat("k=v,", n-1)+"k=v")
	}
	w.want("OK 2", deep(1))
	w.want("OK 0", deep(2)) // deeper than the rules
	w.want("OK 0", deep(256))
	for _, n := range []int{257, 1000} {
		_, err := w.ShouldRateLimit(t.Context(), deep(n))
		wantCode(t, err, codes.InvalidArgument)
	}
	if w.bad() != 2 {
		t.Errorf("%d bad requests, want 2", w.bad())
	}
}

func TestG13_ManyDescriptors(t *testing.T) {
	var log testkit.Buffer
	w := start(t, threePerHour, Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	many := func(n int) *ratelimitv3.RateLimitRequest {
		return request("shop", slices.Repeat([]string{"user=a"}, n)...)
	}
	if n := len(w.ask(many(1024)).GetStatuses()); n != 1024 {
		t.Errorf("%d statuses, want 1024", n)
	}
	before, _ := w.store.asked()
	for _, n := range []int{1025, 10_000} {
		_, err := w.ShouldRateLimit(t.Context(), many(n))
		wantCode(t, err, codes.InvalidArgument)
	}
	said := `domain=shop reason="a request may have at most 1024 descriptors" omitted=0`
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), said) {
		t.Errorf("%d lines, want one with %s:\n%s", n, said, &log)
	}
	if after, _ := w.store.asked(); before != 1024 || after != before {
		t.Errorf("the store was asked %d times, and %d times more", before, after-before)
	}
}

func TestG14_MessageSize(t *testing.T) {
	var log testkit.Buffer
	w := start(t, threePerHour, Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
	exact := marshal(t, request("shop", "user=a"))
	exact = append(exact, field(15, make([]byte, grpcserver.MaxMessage-len(exact)-5)...)...) // 1 for the tag, 4 for the length
	if len(exact) != grpcserver.MaxMessage {
		t.Fatalf("made %d bytes", len(exact))
	}
	if answer, err := w.send(exact); err != nil || statuses(answer) != "OK 2" {
		t.Errorf("4 MiB: %v, %v", answer, err)
	}
	if w.bad() != 0 {
		t.Errorf("%d bad requests before there was one", w.bad())
	}
	_, err := w.send(make([]byte, grpcserver.MaxMessage+1))
	wantCode(t, err, codes.ResourceExhausted)
	// grpc answers before the handler returns.
	testkit.Eventually(t, "one bad request is counted", func() bool { return w.bad() == 1 })
	header := request("shop", slices.Repeat([]string{"user=" + strings.Repeat("a", 60_000)}, 128)...)
	_, err = w.ShouldRateLimit(t.Context(), header)
	wantCode(t, err, codes.ResourceExhausted)
	testkit.Eventually(t, "another one is counted", func() bool { return w.bad() == 2 })
	said := regexp.MustCompile(`method=ShouldRateLimit client=127\.0\.0\.1:\d+ reason=".* larger than max \(4194305 vs\. 4194304\)" omitted=0`)
	if n := strings.Count(log.String(), "\n"); n != 1 || !said.MatchString(log.String()) {
		t.Errorf("%d lines, want one with %s:\n%s", n, said, &log)
	}
}

func TestG15_NoHits(t *testing.T) {
	w := start(t, threePerHour, Config{})
	w.want("OK 2", request("shop", "user=a"))
	r := request("shop", "user=a")
	r.HitsAddend = 0
	w.want("OK 1", r)
}

func TestG16_ManyHits(t *testing.T) {
	w := start(t, threePerHour+"  - {key: big, rate_limit: {unit: hour, requests_per_unit: 4294967295}}\n", Config{})
	small, big := request("shop", "user=a"), request("shop", "big=a")
	small.HitsAddend, big.HitsAddend = math.MaxUint32, math.MaxUint32
	w.want("OK 0", big)
	for range 100 {
		w.want("OVER_LIMIT 0", small)
		w.want("OVER_LIMIT 0", big)
	}
	w.want("OVER_LIMIT 0", request("shop", "user=a"))
}

func TestG17_Look(t *testing.T) {
	w := start(t, threePerHour, Config{})
	look := request("shop", "user=a")
	look.Descriptors[0].HitsAddend = hits(0)
	for range 5 {
		w.want("OK 3", look)
	}
	if s := w.store.Stats(); s.Keys != 0 {
		t.Errorf("looking made %d keys", s.Keys)
	}
	w.want("OK 2", request("shop", "user=a"))
	w.want("OK 2", look)
}

func TestG18_HugeHits(t *testing.T) {
	for i, n := range []uint64{1 << 53, 1<<53 + 1, 1<<63 - 1, 1 << 63, math.MaxUint64} {
		w := start(t, threePerHour+"  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 3, algorithm: token_bucket}}\n", Config{})
		huge := request("shop", fmt.Sprintf("user=u%d", i), fmt.Sprintf("bucket=u%d", i))
		for _, d := range huge.GetDescriptors() {
			d.HitsAddend = hits(n)
		}
		w.want("OVER_LIMIT 0 OVER_LIMIT 0", huge)
		one := request("shop", fmt.Sprintf("user=u%d", i), fmt.Sprintf("bucket=u%d", i))
		w.want("OVER_LIMIT 0 OK 2", one) // a fixed window counts rejected hits; a bucket does not
	}
}

func TestG19_FullCounter(t *testing.T) {
	w := start(t, threePerHour, Config{})
	for _, n := range []uint64{1<<63 - 1, 1<<63 - 1, 1, math.MaxUint64, 1} {
		r := request("shop", "user=a")
		r.Descriptors[0].HitsAddend = hits(n)
		w.want("OVER_LIMIT 0", r)
	}
}

// override returns a request that contains a limit.
func override(entry string, n uint32, unit int32) *ratelimitv3.RateLimitRequest {
	r := request("shop", entry)
	r.Descriptors[0].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: typev3.RateLimitUnit(unit)}
	return r
}

// wantIgnored expects an override to affect only a counter of metrics, and the rule to decide.
func wantIgnored(t *testing.T, unit int32) {
	t.Helper()
	w := start(t, threePerHour, Config{})
	w.want("OK 2", override("user=a", 100, unit))
	w.want("OK 1", override("user=a", 0, unit))
	w.want("OK 0", override("other=a", 0, unit)) // no rule
	var counted bool
	for _, line := range w.series() {
		counted = counted || strings.Contains(line, "override_ignored") && strings.Contains(line, "invalid") && strings.Contains(line, "3")
	}
	if !counted {
		t.Errorf("three ignored overrides are not counted:\n%s", strings.Join(w.series(), ""))
	}
}

func TestG20_OverrideWithoutUnit(t *testing.T) { wantIgnored(t, 0) }

func TestG21_OverrideOfUnknownUnit(t *testing.T) {
	for _, unit := range []int32{8, 99, -1} {
		t.Run(fmt.Sprint(unit), func(t *testing.T) { wantIgnored(t, unit) })
	}
}

func TestG22_OverrideOfZero(t *testing.T) {
	w := start(t, threePerHour, Config{})
	answer := w.ask(override("user=a", 0, 3))
	st := answer.GetStatuses()[0]
	if statuses(answer) != "OVER_LIMIT 0" || st.GetCurrentLimit().GetRequestsPerUnit() != 0 || st.GetDurationUntilReset().GetSeconds() < 1 {
		t.Errorf("answer: %v", answer)
	}
}

func TestG23_LargestOverride(t *testing.T) {
	w := start(t, threePerHour, Config{})
	w.want("OK 4294967294", override("user=a", math.MaxUint32, 3))
}

func TestG24_OverrideChanges(t *testing.T) {
	const second, hour = 1, 3
	w := start(t, threePerHour, Config{})
	w.want("OK 4", override("user=a", 5, hour))
	w.want("OK 4", override("user=a", 5, second)) // in another window
	w.want("OK 8", override("user=a", 10, hour))  // a changed number keeps the count
	w.want("OK 8", override("user=a", 10, second))
}

func TestG25_OverridesNotAllowed(t *testing.T) {
	w := start(t, strings.Replace(threePerHour, "descriptors", "allow_limit_override: false\ndescriptors", 1), Config{})
	w.want("OK 2", override("user=a", 100, 3))
	w.want("OK 1", override("user=a", 0, 3))
}

func TestG26_ManyOverrides(t *testing.T) {
	w := start(t, threePerHour, Config{})
	w.ask(override("user=a", 10, 3))
	w.ask(override("user=a", 1, 3)) // rejected
	w.ask(override("user=a", 3, 3)) // almost consumes the limit
	before := len(w.series())
	for i := range uint32(50_000) {
		inProcess(t, w.service, override("user=a", i, int32(i%7)+1))
	}
	if after := len(w.series()); after != before {
		t.Errorf("50,000 overrides of one descriptor made %d series", after-before)
	}
}

func TestG27_Extremes(t *testing.T) {
	w := start(t, `
domain: shop
descriptors:
  - {key: free, rate_limit: {unlimited: true}}
  - {key: none, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: all, rate_limit: {unit: hour, requests_per_unit: 4294967295}}
`, Config{})
	r := request("shop", "free=a", "none=a", "one=a", "all=a")
	w.want("OK 4294967295 OVER_LIMIT 0 OK 0 OK 4294967294", r)
	w.want("OK 4294967295 OVER_LIMIT 0 OVER_LIMIT 0 OK 4294967293", r)
	if limit := w.ask(r).GetStatuses()[0].GetCurrentLimit(); limit != nil {
		t.Errorf("an unlimited rule reports %v", limit)
	}
}
