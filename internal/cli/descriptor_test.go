package cli

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestParseDescriptor(t *testing.T) {
	t.Parallel()
	entries := func(pairs ...string) (all []descriptors.Entry) {
		for pair := range slices.Chunk(pairs, 2) {
			all = append(all, descriptors.Entry{Key: []byte(pair[0]), Value: []byte(pair[1])})
		}
		return all
	}
	type of = limiter.Descriptor
	for _, tt := range []struct {
		arg  string
		want descriptor
	}{
		{"a=b", descriptor{of{Entries: entries("a", "b")}, "a=b", false}},
		{"a=b,c=", descriptor{of{Entries: entries("a", "b", "c", "")}, "a=b,c=", false}},
		{"url=/x?y=1&z=2", descriptor{of{Entries: entries("url", "/x?y=1&z=2")}, "url=/x?y=1&z=2", false}},
		{`a=b\,c\;d\\,e=\f`, descriptor{of{Entries: entries("a", `b,c;d\`, "e", "f")}, `a=b\,c\;d\\,e=\f`, false}},
		{`a=\`, descriptor{of{Entries: entries("a", `\`)}, `a=\`, false}},
		{"a=b;hits=0", descriptor{of{Entries: entries("a", "b"), HasHits: true}, "a=b", true}},
		{"a=b;hits=18446744073709551615;negative", descriptor{
			of{Entries: entries("a", "b"), Hits: 1<<64 - 1, HasHits: true, Negative: true}, "a=b", true,
		}},
		{"a=b;limit=10/Minute", descriptor{
			of{Entries: entries("a", "b"), HasOverride: true, Override: descriptors.Override{RequestsPerUnit: 10, Unit: descriptors.Minute}},
			"a=b", true,
		}},
		{"a=b;limit=4294967295/5xweek", descriptor{
			of{Entries: entries("a", "b"), HasOverride: true, Override: descriptors.Override{
				RequestsPerUnit: 1<<32 - 1, Unit: descriptors.Week, Multiplier: 5,
			}}, "a=b", true,
		}},
	} {
		got, err := parseDescriptors([]string{tt.arg})
		if d := cmp.Diff([]descriptor{tt.want}, got, cmp.AllowUnexported(descriptor{})); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", tt.arg, err, d)
		}
	}
}

func TestParseDescriptorRejects(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{
		"", "a", "=b", "a=b,", "a=b;", "a=b;hits", "a=b;hits=-1", "a=b;hits=18446744073709551616", "a=b;negative=1", "a=b;more",
		"a=b;limit=", "a=b;limit=1", "a=b;limit=/minute", "a=b;limit=1000000000000001/day", "a=b;limit=1/0xday", "a=b;limit=1/xday", "a=b;limit=1/unknown",
		"a=b;hits=0;hits=2", "a=b;limit=1/day;hits=1;limit=1/day", "a=b;negative;negative",
	} {
		if d, err := parseDescriptors([]string{arg}); err == nil {
			t.Errorf("%q is taken: %+v", arg, d)
		}
	}
}
