package xds

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
)

// many returns a resource with n rules.
func many(tb testing.TB, rules int) []byte {
	tb.Helper()
	m := &configv1.RateLimitConfig{Name: "a", Domain: "shop"}
	for i := range rules {
		m.Descriptors = append(m.Descriptors, &configv1.RateLimitDescriptor{
			Key: "user", Value: fmt.Sprint(i), RateLimit: &configv1.RateLimitPolicy{Unit: configv1.RateLimitUnit_RATE_LIMIT_UNIT_DAY, RequestsPerUnit: 5},
		})
	}
	b, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// FuzzDecode: for any contents of a resource, the result is rules or problems that name it, and never a panic.
func FuzzDecode(f *testing.F) {
	f.Add(many(f, 2))
	f.Add([]byte("\x0a\x01a\x12\x04shop\x1a\x0d\x0a\x01k\x1a\x04\x08\x07\x10\x05\x38\x01\x42\x00"))
	f.Add([]byte("\x0a\x02\xff\xfe"))
	f.Fuzz(func(t *testing.T, b []byte) {
		all := (&held{list: []resource{{typeURL: TypeURL, value: b}}}).sorted()
		sources, problems := decode(all)
		if len(sources)+len(problems) != 1 {
			t.Fatalf("%d sources and %d problems of one resource", len(sources), len(problems))
		}
		set, more, err := descriptors.Load(sources, descriptors.Options{})
		if (set == nil) != (err != nil) {
			t.Errorf("set %v, error %v", set, err)
		}
		for _, p := range append(problems, more...) {
			if text := shorten(p.String()); !strings.HasPrefix(text, shorten(plain.Text(all[0].label(0)))) || len(text) > maxProblem+10 {
				t.Errorf("the problem %q does not begin with its resource, or is too long", text)
			}
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	all := []resource{{name: "a", typeURL: TypeURL, value: many(b, 100_000)}}
	b.ReportAllocs()
	for b.Loop() {
		if _, problems := decode(all); problems != nil {
			b.Fatal(problems)
		}
	}
}
