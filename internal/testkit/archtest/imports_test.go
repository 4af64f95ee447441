// Package archtest checks the direction of imports inside this module.
package archtest_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// row lists the allowed imports of a package besides the standard library.
type row struct {
	ours  []string // packages of this module
	third []string // other modules, or packages in them, including everything below
}

// The protocols of adapters.
const (
	grpc     = "google.golang.org/grpc"
	protobuf = "google.golang.org/protobuf"
	envoy    = "github.com/envoyproxy/go-control-plane"
	gateway  = "github.com/grpc-ecosystem/grpc-gateway/v2"
	yaml     = "gopkg.in/yaml.v3"
)

// allowed has a row for each package, named relative to the module. A package missing here fails the test, so adding one is an explicit
// decision. docs/design.md has the same table. Commands may import anything, and no other package may import them.
var allowed = map[string]row{
	"pkg/engine":                      {},
	"pkg/engine/enginetest":           {ours: []string{"pkg/engine"}, third: []string{"pgregory.net/rapid"}},
	"pkg/descriptors":                 {ours: []string{"internal/leaf/glob", "internal/leaf/plain", "internal/rulefile", "pkg/engine"}},
	"internal/rulefile":               {ours: []string{"internal/leaf/plain", "pkg/engine"}, third: []string{yaml}},
	"internal/testkit/rulefiletest":   {ours: []string{"pkg/descriptors"}, third: []string{"github.com/google/go-cmp", "github.com/rogpeppe/go-internal/txtar"}},
	"internal/leaf/glob":              {},
	"internal/rules/overlay":          {ours: []string{"internal/leaf/glob", "internal/leaf/plain", "internal/rulefile", "pkg/descriptors"}, third: []string{yaml}},
	"internal/rules/rulefmt":          {ours: []string{"internal/rulefile"}, third: []string{yaml}},
	"internal/rules/rulemessage":      {ours: []string{"internal/rulefile", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{protobuf}},
	"internal/rules/ruleschema":       {ours: []string{"internal/rulefile", "pkg/descriptors", "pkg/engine"}},
	"internal/rules/rulediff":         {ours: []string{"internal/leaf/plain", "internal/rulefile", "pkg/descriptors", "pkg/engine"}},
	"pkg/backend":                     {ours: []string{"pkg/engine"}},
	"pkg/backend/backendtest":         {ours: []string{"pkg/backend", "pkg/engine", "pkg/engine/enginetest"}, third: []string{"github.com/google/go-cmp", "pgregory.net/rapid"}},
	"pkg/backend/memory":              {ours: []string{"pkg/backend", "pkg/engine"}},
	"pkg/backend/nearcache":           {ours: []string{"internal/leaf/task", "pkg/backend", "pkg/engine"}, third: []string{"github.com/hashicorp/golang-lru/v2"}},
	"pkg/backend/remote":              {ours: []string{"internal/leaf/plain", "internal/leaf/smallfile", "pkg/backend", "pkg/engine"}, third: []string{"github.com/sony/gobreaker/v2", "golang.org/x/sys/unix"}},
	"pkg/backend/redis":               {ours: []string{"internal/leaf/smallfile", "internal/leaf/task", "pkg/backend", "pkg/backend/remote", "pkg/engine"}, third: []string{"github.com/redis/go-redis/v9"}},
	"pkg/backend/memcached":           {ours: []string{"internal/leaf/task", "pkg/backend", "pkg/backend/remote", "pkg/engine"}, third: []string{"github.com/bradfitz/gomemcache/memcache"}},
	"internal/testkit/memcachedtest":  {ours: []string{"internal/testkit"}},
	"internal/testkit/redistest":      {ours: []string{"internal/testkit", "internal/testkit/certstest"}, third: []string{"github.com/redis/go-redis/v9"}},
	"pkg/ratelimit":                   {ours: []string{"pkg/backend", "pkg/backend/memory", "pkg/descriptors", "pkg/engine"}},
	"pkg/client":                      {third: []string{grpc, protobuf, envoy}},
	"internal/decide/limiter":         {ours: []string{"internal/decide/override", "internal/decide/plans", "internal/leaf/count", "pkg/backend", "pkg/descriptors", "pkg/engine"}},
	"internal/replay":                 {ours: []string{"internal/decide/limiter", "internal/decide/plans", "internal/process/stats", "pkg/backend/memory", "pkg/descriptors", "pkg/engine"}},
	"internal/replay/recorded":        {ours: []string{"internal/decide/limiter", "internal/replay", "internal/rulefile", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{protobuf, yaml}},
	"internal/decide/admission":       {},
	"internal/process/netlimit":       {ours: []string{"internal/decide/admission", "internal/leaf/throttle"}, third: []string{grpc, "golang.org/x/sys/unix"}},
	"internal/process/grpcserver":     {ours: []string{"internal/leaf/count", "internal/leaf/throttle", "internal/process/netlimit", "internal/process/stats"}, third: []string{grpc, protobuf}},
	"internal/envoy/rls":              {ours: []string{"internal/decide/admission", "internal/decide/limiter", "internal/leaf/count", "internal/leaf/throttle", "internal/process/grpcserver", "internal/process/netlimit", "internal/process/stats", "pkg/descriptors"}, third: []string{grpc, protobuf, envoy}},
	"internal/envoy/rlqs":             {ours: []string{"internal/decide/limiter", "internal/envoy/shares", "internal/leaf/throttle", "pkg/backend", "pkg/descriptors", "pkg/engine"}, third: []string{grpc, protobuf, envoy}},
	"internal/testkit/rlqstest":       {ours: []string{"internal/envoy/shares", "internal/testkit/sharestest"}, third: []string{grpc, protobuf, envoy}},
	"internal/envoy/shares":           {ours: []string{"pkg/engine"}},
	"internal/testkit/sharestest":     {ours: []string{"internal/envoy/shares"}},
	"internal/process/adminsocket":    {ours: []string{"internal/process/netlimit"}, third: []string{"golang.org/x/sys/unix"}},
	"internal/operate/audit":          {ours: []string{"internal/leaf/task", "internal/leaf/throttle"}},
	"internal/operate/access":         {ours: []string{"internal/leaf/smallfile", "internal/leaf/throttle", "internal/process/certs"}, third: []string{grpc, gateway}},
	"internal/operate/admin":          {ours: []string{"internal/decide/limiter", "internal/decide/override", "internal/decide/plans", "internal/leaf/plain", "internal/leaf/throttle", "internal/operate/access", "internal/operate/audit", "internal/operate/controls", "internal/operate/observe", "internal/operate/tenants", "internal/rules/rulemessage", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{grpc, protobuf, gateway}},
	"internal/operate/console":        {ours: []string{"internal/leaf/plain", "internal/leaf/throttle", "internal/rules/rulemessage", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{grpc, protobuf, gateway}},
	"internal/operate/replicated":     {ours: []string{"internal/leaf/throttle"}},
	"internal/operate/controls":       {ours: []string{"internal/decide/override", "internal/operate/replicated", "pkg/descriptors"}},
	"internal/operate/tenants":        {ours: []string{"internal/decide/plans", "internal/operate/replicated", "pkg/descriptors"}},
	"internal/process/web":            {ours: []string{"internal/leaf/plain", "internal/leaf/throttle", "internal/process/health"}},
	"internal/process/certs":          {ours: []string{"internal/leaf/smallfile"}},
	"internal/testkit/certstest":      {},
	"internal/testkit":                {ours: []string{"internal/testkit/proc"}},
	"internal/testkit/goldentest":     {third: []string{"github.com/google/go-cmp"}},
	"internal/testkit/proc":           {third: []string{"golang.org/x/sys/unix"}},
	"internal/testkit/envoytest":      {third: []string{protobuf, envoy, yaml}},
	"internal/rules/configwatch":      {ours: []string{"pkg/descriptors"}},
	"internal/rules/configwatch/file": {ours: []string{"internal/leaf/smallfile", "internal/rules/configwatch", "pkg/descriptors"}, third: []string{"github.com/fsnotify/fsnotify"}},
	"internal/rules/configwatch/xds":  {ours: []string{"internal/leaf/smallfile", "internal/rulefile", "internal/rules/configwatch", "pkg/descriptors", "proto/ratelimitd/config/v1"}, third: []string{grpc, protobuf, envoy, yaml}},
	"internal/process/tracing":        {ours: []string{"internal/decide/limiter", "internal/leaf/throttle", "pkg/backend"}, third: []string{grpc, "go.opentelemetry.io"}},
	"internal/testkit/tracingtest":    {third: []string{"go.opentelemetry.io/proto/otlp", grpc, protobuf}},
	"internal/process/stats":          {ours: []string{"internal/decide/limiter", "internal/leaf/count", "internal/leaf/smallfile"}, third: []string{"github.com/prometheus"}},
	"internal/process/stats/statsd":   {ours: []string{"internal/leaf/count", "internal/leaf/throttle", "internal/process/stats", "pkg/backend/remote"}},
	"internal/process/settings":       {},
	"internal/process/health":         {},
	"internal/leaf/task":              {},
	"internal/process/secret":         {ours: []string{"internal/decide/limiter", "internal/leaf/smallfile", "internal/leaf/throttle", "internal/operate/audit", "internal/operate/replicated", "internal/process/health", "pkg/descriptors"}},
	"internal/leaf/plain":             {},
	"internal/leaf/smallfile":         {},
	"internal/leaf/throttle":          {},
	"internal/testkit/archtest":       {},
	"internal/testkit/imagetest":      {},
	"proto/ratelimitd/admin/v1":       {third: []string{grpc, protobuf, gateway}},
	"proto/ratelimitd/config/v1":      {third: []string{protobuf}},
	"examples":                        {},
	"examples/client":                 {ours: []string{"pkg/client"}},
	"internal/process/storehealth":    {ours: []string{"internal/leaf/count", "internal/leaf/throttle", "internal/process/health", "internal/process/stats", "pkg/backend", "pkg/backend/remote"}},
	"internal/process/server":         {ours: []string{"internal/decide/admission", "internal/decide/limiter", "internal/decide/override", "internal/decide/plans", "internal/envoy/rlqs", "internal/envoy/rls", "internal/leaf/count", "internal/leaf/plain", "internal/leaf/task", "internal/leaf/throttle", "internal/operate/access", "internal/operate/admin", "internal/operate/audit", "internal/operate/console", "internal/operate/controls", "internal/operate/observe", "internal/operate/replicated", "internal/operate/tenants", "internal/process/adminsocket", "internal/process/certs", "internal/process/grpcserver", "internal/process/health", "internal/process/netlimit", "internal/process/secret", "internal/process/settings", "internal/process/stats", "internal/process/stats/statsd", "internal/process/storehealth", "internal/process/tracing", "internal/process/web", "internal/rules/configwatch", "internal/rules/configwatch/file", "internal/rules/configwatch/xds", "internal/rules/overlay", "internal/rules/rulediff", "pkg/backend", "pkg/backend/memcached", "pkg/backend/memory", "pkg/backend/nearcache", "pkg/backend/redis", "pkg/backend/remote", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{grpc, protobuf}},
	"internal/decide/override":        {ours: []string{"pkg/descriptors"}},
	"internal/decide/plans":           {},
	"internal/leaf/count":             {},
	"internal/operate/observe":        {ours: []string{"internal/decide/limiter", "internal/leaf/task", "pkg/descriptors"}},
}

// root is the directory of the module, relative to this package.
const root = "../../.."

// isCommand reports whether a package is a command: the process or its command line.
func isCommand(name string) bool { return strings.HasPrefix(name, "cmd/") || name == "internal/cli" }

func TestImports(t *testing.T) {
	t.Parallel()
	module := modulePath(t)
	for name, p := range packages(t) {
		for imp := range union(p.imports, p.testImports) {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if ours && isCommand(dep) && !isCommand(name) {
				t.Errorf("%s imports %s; nothing may import a command", name, dep)
			}
			if ours && dep == "internal/process/settings" && !isCommand(name) && name != "internal/process/server" && name != dep {
				t.Errorf("%s imports %s; the environment is read by commands and internal/process/server alone", name, dep)
			}
		}
		for imp := range p.imports {
			if dep, _ := strings.CutPrefix(imp, module+"/"); !kit(name) && (kit(dep) || dep == "testing") {
				t.Errorf("%s imports %s, which is for tests and test kits", name, dep)
			}
		}
		if isCommand(name) {
			continue
		}
		may, known := allowed[name]
		if !known {
			t.Errorf("%s is not in the table of allowed imports, here and in docs/design.md", name)
			continue
		}
		for imp := range p.imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if ours && !slices.Contains(may.ours, dep) {
				t.Errorf("%s must not import %s of ours", name, dep)
			}
			if !ours && third(imp) && !slices.ContainsFunc(may.third, func(m string) bool { return within(imp, m) }) {
				t.Errorf("%s must not import %s", name, imp)
			}
		}
	}
}

// TestTableIsOfThisModule finds rows without a package.
func TestTableIsOfThisModule(t *testing.T) {
	t.Parallel()
	exist := packages(t)
	for name, may := range allowed {
		for _, n := range append([]string{name}, may.ours...) {
			if _, found := exist[n]; !found {
				t.Errorf("row %s: there is no package %s", name, n)
			}
		}
	}
}

// TestPackageCommentsNameTheirPart checks that each package comment names the package's part according to docs/design.md.
func TestPackageCommentsNameTheirPart(t *testing.T) {
	t.Parallel()
	for name := range packages(t) {
		if isCommand(name) || kit(name) || !within(name, "pkg") && !within(name, "internal") {
			continue
		}
		if found := partsOf(t, name); len(found) != 1 {
			t.Errorf("%s: the package comment names its part %d times, want once", name, len(found))
		}
	}
}

var partComment = regexp.MustCompile(`(?m)^// This package is (part of the core|part of the process|optional: the core works without it)\.$`)

// partsOf returns the parts named by the comments of a package.
func partsOf(t *testing.T, name string) (parts []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, name, "*.go"))
	testkit.Check(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testkit.Check(t, err)
		for _, m := range partComment.FindAllSubmatch(text, -1) {
			parts = append(parts, string(m[1]))
		}
	}
	return parts
}

// TestPublicPackagesNeedOnlyTheCore follows the imports of each public package. Imported internal packages must be part of the core.
func TestPublicPackagesNeedOnlyTheCore(t *testing.T) {
	t.Parallel()
	module, all := modulePath(t), packages(t)
	var follow func(path []string)
	follow = func(path []string) {
		for imp := range all[path[len(path)-1]].imports {
			dep, ours := strings.CutPrefix(imp, module+"/")
			if !ours || !within(dep, "internal") {
				continue
			}
			if parts := partsOf(t, dep); !slices.Equal(parts, []string{"part of the core"}) {
				t.Errorf("%s imports %s, which is not part of the core", strings.Join(path, " imports "), dep)
				continue
			}
			follow(append(slices.Clone(path), dep))
		}
	}
	for name := range all {
		if within(name, "pkg") && !kit(name) {
			follow([]string{name})
		}
	}
}

// TestInternalFolders limits the number of folders in internal/ to what a reader can remember.
func TestInternalFolders(t *testing.T) {
	t.Parallel()
	folders, err := os.ReadDir(filepath.Join(root, "internal"))
	testkit.Check(t, err)
	if len(folders) > 10 {
		t.Errorf("internal/ has %d folders, more than 10", len(folders))
	}
}

// TestDesignShowsTheTable compares the table in docs/design.md, with rows of the form | `package` | `own`, … | `third`, … |.
func TestDesignShowsTheTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	testkit.Check(t, err)
	const head = "| package | may import of this module | third party |\n"
	_, table, found := strings.Cut(string(doc), head)
	if !found {
		t.Fatalf("docs/design.md has no table that begins with %q", head)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	got := map[string][2][]string{}
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			t.Fatalf("docs/design.md: a row of the table needs three cells: %q", line)
		}
		if name := quoted(cells[1]); len(name) == 1 {
			got[name[0]] = [2][]string{quoted(cells[2]), quoted(cells[3])}
		}
	}
	want := map[string][2][]string{}
	for name, may := range allowed {
		want[name] = [2][]string{slices.Sorted(slices.Values(may.ours)), slices.Sorted(slices.Values(may.third))}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the table in docs/design.md (-this test's +document):\n%s", diff)
	}
}

// quoted returns the words in backquotes of a cell, sorted.
func quoted(cell string) []string {
	words := map[string]bool{}
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			words[part] = true
		}
	}
	return slices.Sorted(maps.Keys(words))
}

// kit reports whether a package, named relative to the module, is only for tests.
func kit(name string) bool {
	return within(name, "internal/testkit") || strings.HasSuffix(name, "test")
}

// third reports whether an import path is outside of this module and the standard library.
func third(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".")
}

// within reports whether path is prefix or below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// imports holds the import paths of a package's files.
type imports struct{ imports, testImports map[string]bool }

// packages returns the packages of the module, named relative to it. It reads the files itself, so that a cached test result is valid
// until they change.
func packages(t *testing.T) map[string]imports {
	t.Helper()
	all := map[string]imports{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(path, d.Name())
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		name := filepath.ToSlash(dir)
		if _, found := all[name]; !found {
			all[name] = imports{map[string]bool{}, map[string]bool{}}
		}
		into := all[name].imports
		if strings.HasSuffix(path, "_test.go") {
			into = all[name].testImports
		}
		for _, spec := range file.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			into[imp] = true
		}
		return nil
	})
	testkit.Check(t, err)
	if len(all) < len(allowed)/2 {
		t.Fatalf("found only %d packages below %s", len(all), root)
	}
	return all
}

// skipDir makes WalkDir skip the directories that the go command skips: hidden directories, test data, and other modules.
func skipDir(path, name string) error {
	if path == root {
		return nil
	}
	_, err := os.Stat(filepath.Join(path, "go.mod"))
	if err == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
		return fs.SkipDir
	}
	return nil
}

// modulePath returns the module path in go.mod.
func modulePath(t *testing.T) string {
	t.Helper()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	testkit.Check(t, err)
	line, _, _ := strings.Cut(string(mod), "\n")
	path, found := strings.CutPrefix(line, "module ")
	if !found {
		t.Fatalf("the first line of go.mod is %q, not the module's path", line)
	}
	return path
}

// union yields the elements of both sets.
func union(a, b map[string]bool) iter.Seq[string] {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return maps.Keys(both)
}
