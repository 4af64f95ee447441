package descriptors_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

const hidden = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 1}\n"

// TestStrayBreaks checks that characters that end a line for a YAML parser, but not visibly, are invalid wherever a line could begin
// after them. In quotes, they are text.
func TestStrayBreaks(t *testing.T) {
	t.Parallel()
	for name, char := range map[string]string{"CR (U+000D) without a LF": "\r", "NEL (U+0085)": "\u0085", "line separator (U+2028)": "\u2028", "paragraph separator (U+2029)": "\u2029"} {
		for _, tt := range []struct{ file, place string }{
			{hidden + "# keep%  - key: admin%    rate_limit: {unlimited: true}\n", "5:7"},
			{hidden + "  - key: a\n    metadata: {t: b}   # x%y\n", "6:27"},
			{hidden + "  - key: a\n    metadata:\n      t: |\n        b%c\n", "8:10"},
			{hidden + "  - key: a%b\n", "5:11"},
			{hidden + "  - key: a\n    value: b\n     \"x\n#%  - key: c\n     \"\n", "8:2"}, // quotes within an unquoted text
			{hidden + "  - key: a # it's\n    # x%y\n    value: b # it's\n", "6:8"},
			{hidden + "  - {key: a, value: 'it''s%'} # ü \"%\"y\n", "5:36"},
			{hidden + "---\n# \"%\"\n", "6:4"},
			{"\ufeff# %y\n" + hidden, "1:3"},
			{"domain: a # %%%%\ndescriptors: []\n", "1:13"},
			{hidden + "%", "5:1"},
		} {
			source := descriptors.Source{Name: "a.yaml", Data: []byte(strings.ReplaceAll(tt.file, "%", char))}
			want := "a.yaml:" + tt.place + ": error loading config file: a " + name
			if _, _, err := load(source.Data); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("loading %q: %v, want %q", source.Data, err, want)
			}
			if _, problems := rulefmt.Format(source); !strings.Contains(fmt.Sprint(problems), want) {
				t.Errorf("formatting %q: %v, want %q", source.Data, problems, want)
			}
		}
		manifest := strings.ReplaceAll("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    domain: a\n    # keep%    descriptors: []\n", "%", char)
		if _, problems := rulefile.FromConfigMaps(descriptors.Source{Name: "m.yaml", Data: []byte(manifest)}); !strings.Contains(fmt.Sprint(problems), "m.yaml:6:11: error loading config file: a "+name) {
			t.Errorf("reading %q: %v, want it invalid", manifest, problems)
		}
		quoted := strings.ReplaceAll(hidden+"  - {key: \"a\\\"%b\", value: 'it''s%'}\n  - key: \"x # %\"\n", "%", char)
		set, problems, err := load([]byte(quoted))
		if err != nil {
			t.Errorf("loading %q: %v", quoted, problems)
		} else if d := set.Domain([]byte("shop")); d == nil {
			t.Errorf("loading %q: no domain", quoted)
		}
		if _, problems := rulefmt.Format(descriptors.Source{Name: "a.yaml", Data: []byte(quoted)}); !strings.Contains(fmt.Sprint(problems), "not changed: a "+name) {
			t.Errorf("formatting %q: %v, want it left", quoted, problems)
		}
		for _, head := range []string{"a: [\n", "metadata: {z: [\n"} {
			rejects(t, []byte("domain: a\n"+head+strings.Repeat("#"+char+strings.Repeat("a,", 1000)+"\n", 5000)), name)
		}
	}
}
