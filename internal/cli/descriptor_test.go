package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestParseDescriptor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		arg  string
		want descriptor
	}{
		{"a=b", descriptor{text: "a=b", entries: []entry{{"a", "b"}}}},
		{"a=b,c=", descriptor{text: "a=b,c=", entries: []entry{{"a", "b"}, {"c", ""}}}},
		{"url=/x?y=1&z=2", descriptor{text: "url=/x?y=1&z=2", entries: []entry{{"url", "/x?y=1&z=2"}}}},
		{`a=b\,c\;d\\,e=\f`, descriptor{text: `a=b\,c\;d\\,e=\f`, entries: []entry{{"a", `b,c;d\`}, {"e", "f"}}}},
		{`a=\`, descriptor{text: `a=\`, entries: []entry{{"a", `\`}}}},
		{"a=b;hits=0", descriptor{text: "a=b", options: true, entries: []entry{{"a", "b"}}, hits: new(uint64(0))}},
		{
			"a=b;hits=18446744073709551615;negative",
			descriptor{text: "a=b", options: true, entries: []entry{{"a", "b"}}, hits: new(uint64(1<<64 - 1)), give: true},
		},
		{
			"a=b;limit=10/Minute",
			descriptor{text: "a=b", options: true, entries: []entry{{"a", "b"}}, limit: &descriptors.Override{RequestsPerUnit: 10, Unit: descriptors.Minute}},
		},
		{
			"a=b;limit=4294967295/5xweek",
			descriptor{text: "a=b", options: true, entries: []entry{{"a", "b"}}, limit: &descriptors.Override{
				RequestsPerUnit: 1<<32 - 1, Unit: descriptors.Week, Multiplier: 5,
			}},
		},
	} {
		got, err := parseDescriptor(tt.arg)
		if d := cmp.Diff(tt.want, got, cmp.AllowUnexported(descriptor{}, entry{})); err != nil || d != "" {
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
		if d, err := parseDescriptor(arg); err == nil {
			t.Errorf("%q is taken: %+v", arg, d)
		}
	}
}
