package rulefmt_test

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

var rewrite = flag.Bool("rewrite", false, "write what the code does into testdata, to be looked at before it is committed")

// TestFormat compares formatted files with golden ones.
func TestFormat(t *testing.T) {
	rulefiletest.Golden(t, "testdata/format", *rewrite, func(a *txtar.Archive) (string, error) {
		var b strings.Builder
		for _, s := range rulefiletest.Sources(a.Files) {
			out, problems := rulefmt.Format(s)
			fmt.Fprintf(&b, "== %s\n%s", s.Name, out)
			for _, p := range problems {
				fmt.Fprintln(&b, p)
			}
			if err := sameRules(s, out, problems); err != nil {
				return "", err
			}
		}
		return b.String(), nil
	})
}

// sameRules returns an error if formatting changed the meaning of a file, or formatting again changes it.
func sameRules(s descriptors.Source, out []byte, problems descriptors.Problems) error {
	if len(problems) > 0 {
		if out != nil {
			return fmt.Errorf("%s has problems and a result: %w", s.Name, problems)
		}
		return nil
	}
	now := descriptors.Source{Name: s.Name, Data: out}
	for _, strict := range []bool{false, true} {
		o := descriptors.Options{Strict: strict}
		set, _, err := descriptors.Load([]descriptors.Source{s}, o)
		set2, _, err2 := descriptors.Load([]descriptors.Source{now}, o)
		if (err == nil) != (err2 == nil) {
			return fmt.Errorf("%s: loaded before: %w; and then: %w\n%s", s.Name, err, err2, out)
		}
		if err != nil {
			continue
		}
		if diff := append(rulediff.Between(set, set2), rulediff.Between(set2, set)...); len(diff) > 0 {
			return fmt.Errorf("%s means something else: %q\n%s", s.Name, diff, out)
		}
	}
	again, more := rulefmt.Format(now)
	if len(more) > 0 || !bytes.Equal(again, out) {
		return fmt.Errorf("%s: formatted again, it becomes something else: %w\n%s", s.Name, more, again)
	}
	return nil
}

// TestFormatEachFile formats every file of rules in the repository and in all tests.
func TestFormatEachFile(t *testing.T) {
	t.Parallel()
	n, left := 0, 0
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != "..":
			return fs.SkipDir
		case filepath.Ext(path) != ".yaml" && !strings.Contains(path, "testdata"), d.IsDir():
			return nil
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		all := []descriptors.Source{{Name: path, Data: raw}}
		if filepath.Ext(path) != ".yaml" {
			all = rulefiletest.Sources(txtar.Parse(raw).Files)
		}
		for _, s := range all {
			out, problems := rulefmt.Format(s)
			if err := sameRules(s, out, problems); err != nil {
				t.Errorf("%s: %v", path, err)
			}
			n++
			for _, p := range problems {
				if strings.Contains(p.Text, "left as it is") {
					left++
					t.Log(path, p)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 200 || left > n/20 {
		t.Errorf("found %d files, of which %d were left as they are", n, left)
	}
}

// FuzzFormat checks the guarantees of [rulefmt.Format] for any text.
func FuzzFormat(f *testing.F) {
	for _, folder := range []string{"testdata/format", "../../../pkg/descriptors/testdata/load", "../../../pkg/descriptors/testdata/match"} {
		for _, name := range rulefiletest.Names(f, folder) {
			a, err := txtar.ParseFile(name)
			if err != nil {
				f.Fatal(err)
			}
			for _, s := range rulefiletest.Sources(a.Files) {
				f.Add(s.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := descriptors.Source{Name: "a.yaml", Data: data}
		out, problems := rulefmt.Format(s)
		if err := sameRules(s, out, problems); err != nil {
			t.Error(err)
		}
	})
}
