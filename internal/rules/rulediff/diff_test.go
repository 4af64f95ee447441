package rulediff_test

import (
	"bytes"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

var rewrite = flag.Bool("rewrite", false, "write what the code does into testdata, to be looked at before it is committed")

// TestDiff compares the files under old/ with the others.
func TestDiff(t *testing.T) { rulefiletest.Golden(t, "testdata/diff", *rewrite, answerDiff) }

func answerDiff(a *txtar.Archive) (string, error) {
	var before, after []txtar.File
	for _, f := range a.Files {
		if name, found := strings.CutPrefix(f.Name, "old/"); found {
			before = append(before, txtar.File{Name: name, Data: f.Data})
		} else {
			after = append(after, f)
		}
	}
	set, _, err := descriptors.Load(rulefiletest.Sources(after), rulefiletest.Options(a.Comment))
	if err != nil {
		return "", err
	}
	var was *descriptors.Set
	if len(before) > 0 {
		if was, _, err = descriptors.Load(rulefiletest.Sources(before), rulefiletest.Options(a.Comment)); err != nil {
			return "", err
		}
	}
	if same := rulediff.Between(set, set); len(same) > 0 {
		return "", fmt.Errorf("a set differs from itself: %q", same)
	}
	all := rulediff.Between(was, set)
	rulediff.SortChanges(all)
	if first, n := rulediff.Summarize(was, set, 2).In(nil); n.Total() != len(all) || !slices.Equal(first, all[:min(2, len(all))]) {
		return "", fmt.Errorf("the summary has %d changes, %v; of %v", n.Total(), first, all)
	}
	full := bytes.Contains(a.Comment, []byte("in full"))
	var b strings.Builder
	for _, c := range rulediff.Between(was, set) {
		if !full {
			fmt.Fprintln(&b, c.String())
			continue
		}
		fmt.Fprintf(&b, "%s: %s (%s, %s; %s)\n", c.Path, c.InFull(), c.Kind, c.Effect, c.Place)
	}
	return b.String(), nil
}
