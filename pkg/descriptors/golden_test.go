package descriptors_test

import (
	"flag"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

var rewrite = flag.Bool("rewrite", false, "write what the code does into testdata, to be looked at before it is committed")

// overlaid returns o with the files below overlay/ as the overlay, and the remaining files.
func overlaid(o descriptors.Options, files []txtar.File) (descriptors.Options, []txtar.File) {
	var rules, over []txtar.File
	for _, f := range files {
		if strings.HasPrefix(f.Name, "overlay/") {
			over = append(over, f)
		} else {
			rules = append(rules, f)
		}
	}
	return overlay.With(o, rulefiletest.Sources(over)), rules
}

// TestLoad loads files and prints every problem and, if there is a set, its rules.
func TestLoad(t *testing.T) { rulefiletest.Golden(t, "testdata/load", *rewrite, answerLoad) }

// inQuotes matches the parts of a message that quote a source.
var inQuotes = regexp.MustCompile("'[^']*'|`[^`]*`|\"[^\"]*\"")

// bared checks that the redacted form of a problem, for readers without access to the source, keeps its position and mistake but quotes
// nothing.
func bared(p, bare *descriptors.Problem) error {
	_, path, _ := strings.Cut(p.Path, ".")
	for _, said := range append(inQuotes.FindAllString(p.Text, -1), p.Domain+".", path) {
		if said = strings.Trim(said, "'`\""); len(said) > 7 && strings.Contains(bare.String(), said) {
			return fmt.Errorf("%q repeats %q", bare, said)
		}
	}
	if bare.Line != p.Line || bare.Column != p.Column || bare.File != p.File || bare.Text == "" {
		return fmt.Errorf("%q is no longer %q", bare, p)
	}
	return nil
}

func answerLoad(a *txtar.Archive) (string, error) {
	o, rules := overlaid(rulefiletest.Options(a.Comment), a.Files)
	set, problems, err := descriptors.Load(rulefiletest.Sources(rules), o)
	if problems.Failed() != (err != nil) || (set == nil) != (err != nil) {
		return "", fmt.Errorf("set %v, error %w and problems do not go together: %q", set, err, []descriptors.Problem(problems))
	}
	var b strings.Builder
	for i, p := range problems {
		fmt.Fprintln(&b, p)
		if err := bared(&p, &problems.Bared()[i]); err != nil {
			return "", err
		}
	}
	if set == nil {
		return b.String(), nil
	}
	for d := range set.Domains() {
		if d.ChargeTogether || !d.AllowOverride {
			fmt.Fprintf(&b, "domain %s: charge together %t, allow override %t\n", d.Name, d.ChargeTogether, d.AllowOverride)
		}
		if len(d.QuotaGroupBy) > 0 {
			fmt.Fprintf(&b, "domain %s: quota groups by %q\n", d.Name, d.QuotaGroupBy)
		}
	}
	for r := range set.Rules() {
		fmt.Fprintf(&b, "%s (%s:%d): %s\n", r.Path, r.File, r.Line, r)
		for i, item := range r.RateLimits.All() {
			if item.Name != "" || len(item.Replaces) > 0 {
				fmt.Fprintf(&b, "\t%d: name %q, replaces %q\n", i, item.Name, item.Replaces)
			}
		}
		if r.Overlay != "" {
			fmt.Fprintf(&b, "\tchanged by %s\n", r.Overlay)
		}
		if r.Metadata != nil {
			fmt.Fprintf(&b, "\tmetadata: %v\n", r.Metadata)
		}
	}
	for _, o := range set.Overlaid() {
		fmt.Fprintf(&b, "%s lays over %s: %s\n", o.Place, o.Path, o.Keys)
	}
	return b.String(), nil
}

// TestMatch prints for each line of the file calls, "domain key=value key=value", the rule, the metric key, with a star if it contains
// values of the request, and the counter's name.
func TestMatch(t *testing.T) {
	rulefiletest.Golden(t, "testdata/match", *rewrite, func(a *txtar.Archive) (string, error) { return answerCalls(a, answerCall) })
}

// answerCalls prints the answer to each line of the last file of an archive, whose other files are rules.
func answerCalls(a *txtar.Archive, answer func(set *descriptors.Set, domain string, e []descriptors.Entry) string) (string, error) {
	set, problems, err := descriptors.Load(rulefiletest.Sources(a.Files), rulefiletest.Options(a.Comment))
	if err != nil {
		return "", problems
	}
	var b strings.Builder
	for line := range strings.Lines(string(a.Files[len(a.Files)-1].Data)) {
		words := strings.Fields(line)
		fmt.Fprintf(&b, "%s\n%s", strings.Join(words, " "), answer(set, words[0], parseEntries(words[1:])))
	}
	return b.String(), nil
}

func answerCall(set *descriptors.Set, domain string, e []descriptors.Entry) string {
	d := set.Domain([]byte(domain))
	if d == nil {
		return "\tno such domain\n"
	}
	m := d.Match(e)
	var b strings.Builder
	if m.Rule == nil {
		b.WriteString("\tno limit\n")
	} else {
		if err := checkLevels(m, d, e); err != nil {
			return fmt.Sprintf("\t%v\n", err)
		}
		key, dynamic := m.AppendMetricKey(nil, d, e)
		fmt.Fprintf(&b, "\t%s: %s\n\tmetric %s%s\n", m.Rule.Path, m.Rule, key, map[bool]string{true: " *"}[dynamic])
	}
	fmt.Fprintf(&b, "\tcounter %s\n", readName(m.AppendName(nil, d, e, false)))
	if owner, ok := m.Holder(e); ok {
		fmt.Fprintf(&b, "\tholder %s\n", owner)
	}
	fmt.Fprintf(&b, "\toverride: metric %s, counter %s\n", d.AppendOverrideMetricKey(nil, e), readName(m.AppendName(nil, d, e, true)))
	return b.String()
}

// parseEntries parses words such as key=value. key= has an empty value.
func parseEntries(words []string) []descriptors.Entry {
	var pairs []string
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		pairs = append(pairs, key, value)
	}
	return entries(pairs...)
}
