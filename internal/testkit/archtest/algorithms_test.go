package archtest_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestFewKnowAlgorithms checks the claim of docs/design.md about the files affected by a new algorithm or parameter. Outside of
// pkg/engine and its test support, only one file of the Redis backend, which passes them to its scripts, names algorithms and parameters.
// All other code uses the tables of pkg/engine. The exceptions listed here test for fixed windows, or whether a bucket starts full.
func TestFewKnowAlgorithms(t *testing.T) {
	t.Parallel()
	const (
		redis     = "pkg/backend/redis/family.go"
		reference = "pkg/backend/redis/reference.go"
		rejection = "pkg/backend/nearcache/rejection.go"
		divided   = "pkg/descriptors/rlqs.go"
		calendars = "pkg/descriptors/calendar.go"
		schema    = "internal/rules/ruleschema/calendar.go"
	)
	more := map[string][]string{
		"Initial":      {rejection},
		"Burst":        {"internal/decide/limiter/lease.go", "internal/envoy/rlqs/bucket.go", rejection, "pkg/backend/redis/decode.go"},
		"Align":        {rejection, calendars, schema},
		"LateCharge":   {"internal/decide/limiter/fold.go", rejection, schema, divided},
		"FillInterval": {"internal/rules/ruleschema/schema.go"}, // excluded by rlqs
		"CountRefused": {"internal/decide/limiter/lease.go", schema, "pkg/backend/nearcache/lease_table.go", rejection, "pkg/backend/redis/waiter.go", divided},
		"Calendar":     {"internal/operate/admin/convert.go", "internal/rulefile/keyword.go", reference, calendars, schema, "pkg/descriptors/load.go", "pkg/descriptors/override.go"},
		"Timezone":     {calendars, schema},
	}
	all := uses(t, slices.Concat(
		rowsOf(t, "algorithm.go", `(?m)^\t(\w+): +\{name: "`, `\bengine\.NAME\b`),
		rowsOf(t, "parameter.go", `(?m)^\tParam(\w+): +\{key: "`, `\bengine\.ParamNAME\b|[\w\])]\.NAME\b`)))
	for name, files := range all {
		if name == "FixedWindow" { // the default, and the only algorithm of some stores
			continue
		}
		files = slices.DeleteFunc(files, func(file string) bool { return file == redis })
		if diff := cmp.Diff(more[name], files, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("files that know %s (-this test's +those that do):\n%s", name, diff)
		}
	}
}

// known is a name of pkg/engine, and a pattern of its uses.
type known struct {
	name string
	use  *regexp.Regexp
}

// rowsOf returns the names in a table of pkg/engine.
func rowsOf(t *testing.T, file, row, use string) []known {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "pkg", "engine", file))
	testkit.Check(t, err)
	var all []known
	for _, m := range regexp.MustCompile(row).FindAllStringSubmatch(string(text), -1) {
		all = append(all, known{m[1], regexp.MustCompile(strings.ReplaceAll(use, "NAME", m[1]))})
	}
	if len(all) < 5 {
		t.Fatalf("found only %d rows in pkg/engine/%s", len(all), file)
	}
	return all
}

// uses returns the files, except tests, pkg/engine and the test suite of backends, that use each name.
func uses(t *testing.T, names []known) map[string][]string {
	t.Helper()
	comment := regexp.MustCompile(`//.*`)
	all := map[string][]string{}
	for _, k := range names {
		all[k.name] = nil
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{"engine", "backendtest"}, d.Name()) {
				return fs.SkipDir
			}
			return skipDir(path, d.Name())
		}
		if filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), `/pkg/engine"`) {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		code := comment.ReplaceAllString(string(text), "")
		for _, k := range names {
			if k.use.MatchString(code) {
				all[k.name] = append(all[k.name], filepath.ToSlash(file))
			}
		}
		return nil
	})
	testkit.Check(t, err)
	return all
}
