package descriptors_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// plainRules returns n ordinary rules.
func plainRules(n int) string {
	var b strings.Builder
	b.WriteString("domain: shop\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {key: k%d, rate_limit: {unit: day, requests_per_unit: 3}}\n", i)
	}
	return b.String()
}

// TestY14_BreaksInQuotes checks that a character in quotes that ends a line for YAML does not make loading much slower than a letter in
// its place.
func TestY14_BreaksInQuotes(t *testing.T) {
	const head = "domain: shop\ndescriptors:\n- key: q\n  rate_limit: {unit: day, requests_per_unit: 3}\n  metadata: "
	quoted := strings.Repeat("'b',", 30_000)
	for name, file := range map[string]string{
		"in a long line":   head + "{a: ['%'," + quoted + "]}\n",
		"below many lists": head + strings.Repeat("[", 9000) + "'%'," + quoted + "\n" + strings.Repeat("]", 9000) + "\n",
	} {
		took := func(char string) (took time.Duration) {
			start := cpu(t)
			_, _, _ = load([]byte(strings.ReplaceAll(file, "%", char)))
			return cpu(t) - start
		}
		most := 10 * took("x")
		for _, char := range []string{"\r", "\u0085", "\u2028", "\u2029"} {
			if took := took(char); took > most {
				t.Errorf("%s: %q: %v, want at most %v", name, char, took, most)
			}
		}
	}
}

// TestY14_LongPaths checks that a long key above many descriptors, whose paths all contain it, is invalid, and that a path of ordinary
// length is valid.
func TestY14_LongPaths(t *testing.T) {
	long := strings.Repeat("k", 400_000)
	below := strings.ReplaceAll(plainRules(5000), "domain: shop\n", "")
	indented := "  " + strings.ReplaceAll(strings.TrimSpace(below), "\n", "\n  ") + "\n"
	for name, file := range map[string]string{
		"key":    "domain: shop\ndescriptors:\n- key: " + long + "\n" + indented,
		"value":  "domain: shop\ndescriptors:\n- key: a\n  value: " + long + "\n" + indented,
		"domain": "domain: " + long + "\n" + below,
		"alias": "domain: shop\ndescriptors:\n- key: a\n  descriptors: &l [{key: b}, " + strings.Repeat("{key: b},\n", 500) + "]\n" +
			strings.Repeat("- {key: "+long[:500]+", descriptors: *l}\n", 500),
	} {
		t.Run(name, func(t *testing.T) { rejects(t, []byte(file), "the paths of its descriptors") })
	}
	short := strings.Repeat("k", 8<<10)
	if _, problems, err := load([]byte("domain: shop\ndescriptors:\n- key: " + short + "\n" + indented)); err != nil {
		t.Error(problems)
	}
}

// TestY14_ManyNames checks that long lists with few valid elements are not searched completely.
func TestY14_ManyNames(t *testing.T) {
	numbered := func(head, format string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range 40_000 {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const head = "domain: shop\ndescriptors:\n"
	for _, c := range []struct{ text, file string }{
		{"plans has more than 64 plans", numbered(head+"- key: u\n  plan_of: u\n  plans:\n", "    p%d: {unit: day}\n")},
		{"quota_group_by has 40000 keys", numbered("domain: shop\nquota_group_by:\n", "- k%d\n")},
		{"document contains excessive aliasing", head + "- &big {" + strings.Repeat("key: a,\n", 20_000) + "}\n" + strings.Repeat("- *big\n", 20_000)},
		{"too many keys and values up to here", head + strings.Repeat("# a\n\n", 300_000)},
		{"too many keys and values up to here", head + strings.Repeat("- key: b # c\n", 300_000)},
	} {
		rejects(t, []byte(c.file), c.text)
	}
}

// TestY29_ManyProblems checks that of a million warnings or errors with long paths, ten thousand are listed, each of them short.
func TestY29_ManyProblems(t *testing.T) {
	const listed = 10_000
	long := strings.Repeat("n", 100_000)
	for name, file := range map[string]string{
		"keys repeated":        plainRules(10_000) + "- key: " + long + "\n" + strings.Repeat("  key: "+long[:10]+"\n", 100_000),
		"limits without names": "domain: " + long + "\ndescriptors:\n- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 3\n    replaces:\n" + strings.Repeat("    - {name: b}\n", 15_000),
		"descriptors repeated": "domain: shop\ndescriptors:\n- key: " + long + "\n  descriptors:\n" + strings.Repeat("  - {key: b, shadow_mode: true}\n", 600),
		"units unknown":        "domain: shop\ndescriptors:\n" + strings.Repeat("- {key: a, rate_limit: {unit: b}}\n", 12_000),
		"overlay unused":       "",
	} {
		t.Run(name, func(t *testing.T) {
			sources, options := []descriptors.Source{{Name: "a.yaml", Data: []byte(file)}}, descriptors.Options{}
			if file == "" {
				sources[0].Data = []byte(plainRules(1))
				options = overlay.With(options, []descriptors.Source{{Name: "o.yaml", Data: []byte(strings.ReplaceAll(plainRules(12_000), "key: ", "key: x"))}})
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, problems, _ := descriptors.Load(sources, options)
			runtime.ReadMemStats(&after)
			count, size, told := map[bool]int{}, 0, false
			for _, p := range problems {
				told = told || p.Text == "more than 10000 warnings; the rest are not listed"
				count[p.Warning]++
				size = max(size, len(p.Path), len(p.Text))
			}
			if max(count[true], count[false]) > listed+1 || size > 1100 {
				t.Errorf("%d errors, %d warnings, one of %d bytes; want at most %d of each, and 1000", count[false], count[true], size, listed+1)
			}
			t.Logf("%d errors, %d warnings, %d MB", count[false], count[true], (after.TotalAlloc-before.TotalAlloc)>>20)
			if allocated := (after.TotalAlloc - before.TotalAlloc) >> 20; allocated > 600 {
				t.Errorf("it took %d MB, want at most 600", allocated)
			}
			if told != (count[true] > listed) {
				t.Error("nothing tells that warnings are left out")
			}
		})
	}
}

const hidden = "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {unit: day, requests_per_unit: 1}\n"

// What ends a line for a parser, and not for people, is invalid wherever it may begin a line of YAML; in quotes it is text.
func TestStrayBreaks(t *testing.T) {
	t.Parallel()
	for name, char := range map[string]string{"CR (U+000D) without a LF": "\r", "NEL (U+0085)": "\u0085", "line separator (U+2028)": "\u2028", "paragraph separator (U+2029)": "\u2029"} {
		for _, tt := range []struct{ file, place string }{
			{hidden + "# keep%  - key: admin%    rate_limit: {unlimited: true}\n", "5:7"},
			{hidden + "  - key: a\n    metadata: {t: b}   # x%y\n", "6:27"},
			{hidden + "  - key: a\n    metadata:\n      t: |\n        b%c\n", "8:10"},
			{hidden + "  - key: a%b\n", "5:11"},
			{hidden + "  - key: a\n    value: b\n     \"x\n#%  - key: c\n     \"\n", "8:2"}, // quotes within a text without quotes
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
