package descriptors_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// loadFiles loads files unchanged, and fails the test for any problem that `check` would report.
func loadFiles(t *testing.T, pattern string) *descriptors.Set {
	t.Helper()
	names, err := filepath.Glob(filepath.FromSlash(pattern))
	if err != nil || len(names) == 0 {
		t.Fatalf("files of %s: %q, %v", pattern, names, err)
	}
	var sources []descriptors.Source
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources = append(sources, descriptors.Source{Name: name, Data: data})
	}
	set, problems, err := descriptors.Load(sources, descriptors.Options{Strict: true})
	if err != nil || len(problems) > 0 {
		t.Fatalf("loading %q: %v", names, problems)
	}
	return set
}

func TestExampleHasEveryAlgorithm(t *testing.T) {
	set := loadFiles(t, "../../config/example/*.yaml")
	seen := map[engine.Algorithm]bool{}
	var penalty, list, unlimited, shadow bool
	for r := range set.Rules() {
		for _, item := range r.RateLimits.All() {
			if single := !r.Unlimited && r.RateLimits.Len() == 1; single && (item.RequestsPerUnit != 3 || item.Unit != descriptors.Minute) {
				t.Errorf("%s has %v, want 3 per minute", r.Path, item)
			}
			seen[item.Limit.Algorithm] = true
		}
		if !strings.HasPrefix(r.Path, "example.") {
			t.Errorf("%s stands outside the domain example", r.Path)
		}
		penalty = penalty || r.Penalty != nil
		list = list || r.RateLimits.Len() > 1
		unlimited = unlimited || r.Unlimited
		shadow = shadow || r.Shadow
	}
	for a := range engine.Algorithms() {
		if !seen[a] {
			t.Errorf("no rule of %v", a)
		}
	}
	if !penalty || !list || !unlimited || !shadow {
		t.Errorf("penalty %t, list %t, unlimited %t, shadow %t: want one rule of each", penalty, list, unlimited, shadow)
	}
}

// TestExampleRejectsTheFourth checks that the fourth identical call is rejected, for all algorithms.
func TestExampleRejectsTheFourth(t *testing.T) {
	set := loadFiles(t, "../../config/example/*.yaml")
	d := set.Domain([]byte("example"))
	for _, key := range []string{"fixed", "sliding", "log", "bucket", "leaky", "held", "login"} {
		t.Run(key, func(t *testing.T) {
			m := d.Match([]descriptors.Entry{{Key: []byte(key), Value: []byte("alice")}})
			if m.Rule == nil {
				t.Fatal("no rule")
			}
			state := []*engine.State{{}}
			now := engine.Micros(1_700_000_039_999_999) // a microsecond before a clock minute begins
			for i := 1; i <= 4; i++ {
				got := m.Rule.RateLimits.Limits().Take(state, now, engine.Take{Cost: 1, Count: 1}).Admitted
				if want := uint64(map[bool]int{true: 1}[i <= 3]); got != want {
					t.Errorf("call %d: %d admitted, want %d", i, got, want)
				}
				now += 1_000_000
			}
		})
	}
}

// TestReferenceShowsEveryKey checks that reference.yaml contains each key of the grammar, with a comment that mentions only existing
// names, and that it loads without errors and warnings.
func TestReferenceShowsEveryKey(t *testing.T) {
	loadFiles(t, "../../config/reference.yaml")
	data, err := os.ReadFile("../../config/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	for _, k := range rulefile.Keywords() {
		key := k.Name
		first := -1 // line of the first occurrence
		for i, line := range lines {
			if strings.HasPrefix(strings.TrimLeft(line, " -"), key+":") {
				first = i
				break
			}
		}
		switch {
		case first < 0:
			t.Errorf("%s does not stand in the file", key)
		case first == 0 || !strings.HasPrefix(strings.TrimSpace(lines[first-1]), "#"):
			t.Errorf("line %d: %s has no comment above it where it stands first", first+1, key)
		default:
			checkComment(t, key, comment(lines[:first]))
		}
	}
}

// TestCookbookShowsEveryKey checks that each key of the grammar is used in docs/cookbook.md or listed here as unsuitable.
func TestCookbookShowsEveryKey(t *testing.T) {
	without := map[string]string{
		"allow_limit_override": "a switch against callers that bring limits of their own",
		"metadata":             "what is answered, not what is limited",
		"detailed_metric":      "what is measured",
		"value_to_metric":      "what is measured",
		"precision":            "the default will do for nearly everyone; docs/algorithms.md says what another one costs",
		"align":                "clocks will do for nearly everyone",
		"debt":                 "who wants it is better served by reserve, or by a charge afterwards",
		"fill_interval":        "for whoever has to refill like another limiter",
		"initial":              "likewise",
		"count_refused":        "late_charge implies it, and says what a charge is for",
		"on_expiry":            "its default is right, unless answers are often lost",
		"start":                "a number is the estimate of most rules; docs/rules.md says how one is learned",
		"percentile":           "likewise",
		"min":                  "likewise",
		"rlqs":                 "it is for Envoys that decide by themselves; docs/rlqs.md says when",
		"mode":                 "likewise",
		"weight_from":          "likewise",
		"month":                "as day, for years",
		"weekday":              "as day, for weeks",
		"entry":                "its default is right, unless a descriptor has an entry of that name already",
	}
	page, err := os.ReadFile("../../docs/cookbook.md")
	if err != nil {
		t.Fatal(err)
	}
	var rules strings.Builder
	for _, block := range regexp.MustCompile("(?ms)^```yaml (\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if block[1] != "envoy" {
			rules.WriteString(block[2])
		}
	}
	for _, k := range rulefile.Keywords() {
		key := k.Name
		shown := regexp.MustCompile(`(?m)(^|[ {])` + key + `:`).MatchString(rules.String())
		if why, ok := without[key]; shown == ok {
			t.Errorf("%s: want it in a recipe, or a reason why not, and not both: %t, %q", key, shown, why)
		}
		delete(without, key)
	}
	for key := range without {
		t.Errorf("%s is no key", key)
	}
}

// TestCompatibilityNamesEveryKey checks that docs/compatibility.md marks each key as an extension or not.
func TestCompatibilityNamesEveryKey(t *testing.T) {
	doc, err := os.ReadFile("../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| `algorithm`.*$").FindAllString(string(doc), -1)
	if len(rows) != 1 {
		t.Fatalf("%d rows begin with `algorithm`, want one", len(rows))
	}
	for _, k := range rulefile.Keywords() {
		if key := k.Name; !k.OfReference && !strings.Contains(rows[0], "`"+key+"`") {
			t.Errorf("the row of keys that are ours does not name %s", key)
		}
	}
}

// comment returns the comment at the end of lines.
func comment(lines []string) string {
	text := ""
	for _, line := range slices.Backward(lines) {
		line, found := strings.CutPrefix(strings.TrimSpace(line), "#")
		if !found {
			break
		}
		text = line + text
	}
	return text
}

// checkComment checks that the comment on algorithm names all algorithms, and that the comment on a parameter names the algorithms it
// applies to: directly, by exclusion, or through another parameter with the same ones.
func checkComment(t *testing.T, key, text string) {
	t.Helper()
	names := func(named func(engine.Algorithm) bool) bool {
		for a := range engine.Algorithms() {
			if named(a) && !strings.Contains(text, a.String()) {
				return false
			}
		}
		return true
	}
	if key == "algorithm" && !names(func(engine.Algorithm) bool { return true }) {
		t.Errorf("the comment on algorithm does not name all: %s", text)
	}
	for p := range engine.Parameters() {
		if p.String() != key || names(p.TakenBy) || names(func(a engine.Algorithm) bool { return !p.TakenBy(a) }) {
			continue
		}
		like := func(q engine.Parameter) bool {
			return q != p && slices.Equal(q.Takers(), p.Takers()) && strings.Contains(text, q.String())
		}
		if !slices.ContainsFunc(slices.Collect(engine.Parameters()), like) {
			t.Errorf("the comment on %s does not say that it is for %v: %s", key, p.Takers(), text)
		}
	}
}
