package descriptors_test

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// slowRule is a descriptor of the slow overlay, a literal description of the result.
type slowRule struct {
	key, value string
	limits     []string // keys of each limit
	listed     bool     // rate_limits
	own        string   // on_failure, in or next to the limits
	shadow     bool
	unlimited  bool
	children   []slowRule
}

// slowLay contains the changes of an overlay to a path.
type slowLay struct {
	path   [][2]string // beginning with the domain
	limit  string      // keys merged into each limit
	own    string      // on_failure
	shadow bool
	beside bool // an additional limit
}

func (l *slowLay) empty() bool { return l.limit == "" && l.own == "" && !l.shadow && !l.beside }

// yaml writes the keys of the last step of the path.
func (l *slowLay) yaml(indent string) string {
	var b strings.Builder
	inside := l.limit
	switch {
	case l.own == "allow":
		b.WriteString(indent + "on_failure: allow\n")
	case l.own != "":
		inside = strings.TrimPrefix(inside+", on_failure: "+l.own, ", ")
	}
	if inside != "" {
		b.WriteString(indent + "rate_limit: {" + inside + "}\n")
	}
	if l.shadow {
		b.WriteString(indent + "shadow_mode: true\n")
	}
	if l.beside {
		b.WriteString(indent + "rate_limits: [{unit: week, requests_per_unit: 7}]\n")
	}
	return b.String()
}

// matches reports whether a pattern matches a path.
func matches(pattern, path [][2]string) bool {
	if len(pattern) == 0 || len(path) == 0 {
		return len(pattern) == len(path)
	}
	if pattern[0][0] == "**" {
		return true
	}
	same := pattern[0] == path[0]
	return (same || slowGlob(pattern[0][0], path[0][0]) && slowGlob(pattern[0][1], path[0][1])) && matches(pattern[1:], path[1:])
}

// before compares how specific two matching patterns are for a path.
func before(a, b, path [][2]string) int {
	rank := func(pattern, at [2]string) []int {
		vague := func(s string) int {
			if strings.Contains(s, "*") {
				return math.MaxInt32 - len(s) + strings.Count(s, "*")
			}
			return 0
		}
		switch {
		case pattern[0] == "**":
			return []int{2}
		case pattern == at:
			return []int{0}
		}
		return []int{1, vague(pattern[0]), vague(pattern[1])}
	}
	for i := range min(len(a), len(b)) {
		if c := slices.Compare(rank(a[i], path[i]), rank(b[i], path[i])); c != 0 {
			return c
		}
	}
	return 0
}

// lay returns the rule with the changes of the most specific overlay for its path.
func (r slowRule) lay(all []slowLay, path [][2]string) slowRule {
	path = append(slices.Clone(path), [2]string{r.key, r.value})
	children := make([]slowRule, len(r.children))
	for i, c := range r.children {
		children[i] = c.lay(all, path)
	}
	r.children = children
	if len(r.limits) == 0 || r.unlimited {
		return r
	}
	var best *slowLay
	for i := range all {
		l := &all[i]
		if !l.empty() && len(l.path) > 1 && matches(l.path, path) && (best == nil || before(l.path, best.path, path) < 0) {
			best = l
		}
	}
	if best == nil {
		return r
	}
	r.limits = slices.Clone(r.limits)
	for i := range r.limits {
		if best.limit != "" {
			r.limits[i] += ", " + best.limit
		}
	}
	if best.beside {
		r.limits, r.listed = append(r.limits, "unit: week, requests_per_unit: 7"), true
	}
	r.own = cmp.Or(best.own, r.own)
	r.shadow = r.shadow || best.shadow
	return r
}

func writeRules(b *strings.Builder, all []slowRule, indent string) {
	for _, r := range all {
		fmt.Fprintf(b, "%s- key: '%s'\n%s  value: '%s'\n%s  shadow_mode: %t\n", indent, r.key, indent, r.value, indent, r.shadow)
		own := ""
		if r.own != "" {
			own = "on_failure: " + r.own
		}
		switch {
		case r.unlimited:
			b.WriteString(indent + "  rate_limit: {unlimited: true}\n")
		case r.listed:
			fmt.Fprintf(b, "%s  rate_limits: [{%s}]\n%s  %s\n", indent, strings.Join(r.limits, "}, {"), indent, own)
		case len(r.limits) > 0:
			fmt.Fprintf(b, "%s  rate_limit: {%s, %s}\n", indent, r.limits[0], own)
		}
		if len(r.children) > 0 {
			b.WriteString(indent + "  descriptors:\n")
			writeRules(b, r.children, indent+"    ")
		}
	}
}

func (d *drawTree) rules(depth int) (out []slowRule) {
	seen := map[[2]string]bool{}
	for range int(d.byte()) % 6 {
		r := slowRule{key: d.word("ab*", 2), value: d.word("ab*", 2)}
		if r.key == "" || seen[[2]string{r.key, r.value}] {
			continue
		}
		seen[[2]string{r.key, r.value}] = true
		switch d.byte() % 5 {
		case 0:
		case 1:
			r.limits, r.unlimited = []string{""}, true
		case 2:
			r.limits, r.listed = []string{"unit: second, requests_per_unit: 3", "unit: hour, requests_per_unit: 50"}, true
		default:
			r.limits, r.own = []string{"unit: minute, requests_per_unit: 5"}, []string{"", "deny"}[d.byte()%2]
		}
		if depth > 0 && d.byte()%2 == 0 {
			r.children = d.rules(depth - 1)
		}
		out = append(out, r)
	}
	return out
}

// lays draws the descriptors of an overlay below a path and writes them.
func (d *drawTree) lays(b *strings.Builder, above [][2]string, indent string) (out []slowLay) {
	seen := map[[2]string]bool{}
	begun := false
	for range int(d.byte()) % 6 {
		l := slowLay{limit: []string{"", "algorithm: sliding_window", "algorithm: token_bucket, burst: 9", "name: n"}[d.byte()%4]}
		at := [2]string{d.word("ab*", 2), d.word("ab*", 2)}
		if at[0] == "**" {
			at[1] = ""
		}
		if at[0] == "" || seen[at] {
			continue
		}
		seen[at] = true
		what := d.byte()
		l.own, l.shadow, l.beside = []string{"", "local", "allow"}[what%3], what&4 > 0, what&24 == 24
		l.path = append(slices.Clone(above), at)
		if !begun {
			b.WriteString(strings.TrimSuffix(indent, "  ") + "descriptors:\n")
			begun = true
		}
		fmt.Fprintf(b, "%s- key: '%s'\n", indent, at[0])
		if at[1] != "" {
			fmt.Fprintf(b, "%s  value: '%s'\n", indent, at[1])
		}
		b.WriteString(l.yaml(indent + "  "))
		out = append(out, l)
		if len(above) < 3 && at[0] != "**" && d.byte()%2 == 0 {
			out = append(out, d.lays(b, l.path, indent+"    ")...)
		}
	}
	return out
}

// values returns rules in the form that a control plane sends.
func values(all []slowRule) []any {
	limit := func(text string) object {
		unit, number, found := strings.Cut(strings.TrimPrefix(text, "unit: "), ", requests_per_unit: ")
		l := object{}
		if found { // otherwise it is unlimited
			n, _ := strconv.Atoi(number)
			l["unit"], l["requests_per_unit"] = unit, n
		}
		return l
	}
	out := []any{}
	for _, r := range all {
		d := object{"key": r.key, "shadow_mode": r.shadow, "descriptors": values(r.children)}
		if r.value != "" {
			d["value"] = r.value
		}
		switch {
		case r.listed:
			var list []any
			for _, l := range r.limits {
				list = append(list, limit(l))
			}
			d["rate_limits"] = list
		case len(r.limits) > 0:
			l := limit(r.limits[0])
			l["unlimited"] = r.unlimited
			if r.own != "" {
				l["on_failure"] = r.own
			}
			d["rate_limit"] = l
		}
		out = append(out, d)
	}
	return out
}

// FuzzOverlay applies an overlay to rules, both derived from the input, and compares the result with rules that contain the changes
// literally. It also applies arbitrary text, which may be invalid but must change only limits.
func FuzzOverlay(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x02\x00\x01\x01\x00"), []byte("\x03\x01\x01\x00\x01\x00\x05"),
		[]byte("domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: sliding_window}}]"))
	for _, a := range archives(f, "load") {
		for _, file := range a.Files {
			if strings.HasPrefix(file.Name, "overlay/") {
				f.Add([]byte{5, 1, 0, 2, 0, 3, 0, 1, 1, 1, 1, 2, 2, 4, 1, 0}, []byte{5, 2, 1, 0, 2, 1, 1, 31, 1, 2, 2, 1, 2, 2, 2, 7, 0}, file.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, rules, lays, raw []byte) {
		draw := drawTree{data: rules[:min(len(rules), 400)]}
		plain := draw.rules(2)
		draw = drawTree{data: lays[:min(len(lays), 400)]}
		text := strings.Builder{}
		domain := []string{"d", "d*", "*"}[draw.byte()%3]
		fmt.Fprintf(&text, "domain: '%s'\n", domain)
		all := draw.lays(&text, [][2]string{{domain, ""}}, "  ")

		var written, byHand strings.Builder
		written.WriteString("domain: d\ndescriptors:\n")
		writeRules(&written, plain, "")
		laid := make([]slowRule, len(plain))
		for i, r := range plain {
			laid[i] = r.lay(all, [][2]string{{"d", ""}})
		}
		byHand.WriteString("domain: d\ndescriptors:\n")
		writeRules(&byHand, laid, "")

		want, _, wantErr := load([]byte(byHand.String()))
		o := overlay.With(descriptors.Options{}, []descriptors.Source{{Name: "overlay.yaml", Data: []byte(text.String())}})
		for _, s := range []descriptors.Source{{Name: "a.yaml", Data: []byte(written.String())}, {Name: "a", Root: rulefile.Value(object{"domain": "d", "descriptors": values(plain)})}} {
			got, problems, err := descriptors.Load([]descriptors.Source{s}, o)
			if (err != nil) != (wantErr != nil) {
				t.Fatalf("%v; by hand %v; rules\n%s\noverlay\n%s\nby hand\n%s", problems, wantErr, written.String(), text.String(), byHand.String())
			}
			if err != nil {
				continue
			}
			if diff := rulediff.Between(want, got); len(diff) > 0 {
				t.Errorf("differs from what is written by hand: %q; rules\n%s\noverlay\n%s\nby hand\n%s",
					diff, written.String(), text.String(), byHand.String())
			}
		}
		o = overlay.With(descriptors.Options{}, []descriptors.Source{{Name: "overlay.yaml", Data: raw}})
		set, problems, err := descriptors.Load([]descriptors.Source{{Name: "a.yaml", Data: []byte(written.String())}}, o)
		if err != nil {
			return
		}
		before := mustLoad(t, []byte(written.String()))
		paths := func(s *descriptors.Set) (all []string) {
			for r := range s.Rules() {
				all = append(all, r.Path)
			}
			return all
		}
		if a, b := paths(before), paths(set); !slices.Equal(a, b) {
			t.Fatalf("an overlay changed which rules there are: %q, before %q; %v", b, a, problems)
		}
		after := slices.Collect(set.Rules())
		for r := range before.Rules() {
			if r.Unlimited && !after[r.Index].Unlimited {
				t.Errorf("%s got a limit where there was none", r.Path)
			}
		}
	})
}
