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
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// row is what one package may import besides the standard library.
type row struct {
	ours  []string // packages of this module
	third []string // other modules, or packages in them, each with everything below it
}

// The protocols of adapters.
const (
	grpc     = "google.golang.org/grpc"
	protobuf = "google.golang.org/protobuf"
	envoy    = "github.com/envoyproxy/go-control-plane"
	gateway  = "github.com/grpc-ecosystem/grpc-gateway/v2"
	yaml     = "gopkg.in/yaml.v3"
)

// allowed has a row for each package, named relative to the module. A package missing here fails the test, so adding
// one is a decision made in the open. The same table is in docs/design.md. Commands may import
// anything, and nothing else may import them.
var allowed = map[string]row{
	"pkg/engine":                       {},
	"pkg/engine/enginetest":            {ours: []string{"pkg/engine"}, third: []string{"pgregory.net/rapid"}},
	"pkg/descriptors":                  {ours: []string{"internal/glob", "internal/overlay", "internal/plain", "internal/rulefile", "pkg/engine"}},
	"internal/rulefile":                {ours: []string{"internal/plain", "pkg/engine"}, third: []string{yaml}},
	"internal/rulefile/rulefiletest":   {ours: []string{"pkg/descriptors"}, third: []string{"github.com/google/go-cmp", "github.com/rogpeppe/go-internal/txtar"}},
	"internal/glob":                    {},
	"internal/overlay":                 {ours: []string{"internal/glob", "internal/plain", "internal/rulefile", "pkg/engine"}, third: []string{yaml}},
	"internal/rulefmt":                 {ours: []string{"internal/rulefile"}, third: []string{yaml}},
	"internal/ruleschema":              {ours: []string{"internal/rulefile", "pkg/descriptors", "pkg/engine"}},
	"internal/rulediff":                {ours: []string{"internal/plain", "internal/rulefile", "pkg/descriptors", "pkg/engine"}},
	"pkg/backend":                      {ours: []string{"pkg/engine"}},
	"pkg/backend/backendtest":          {ours: []string{"pkg/backend", "pkg/engine", "pkg/engine/enginetest"}, third: []string{"github.com/google/go-cmp", "pgregory.net/rapid"}},
	"pkg/backend/memory":               {ours: []string{"pkg/backend", "pkg/engine"}},
	"pkg/backend/nearcache":            {ours: []string{"internal/task", "pkg/backend", "pkg/engine"}, third: []string{"github.com/hashicorp/golang-lru/v2"}},
	"internal/remote":                  {ours: []string{"internal/plain", "internal/smallfile", "pkg/backend", "pkg/engine"}, third: []string{"github.com/sony/gobreaker/v2", "golang.org/x/sys/unix"}},
	"pkg/backend/redis":                {ours: []string{"internal/remote", "internal/replicated", "internal/shares", "internal/smallfile", "internal/task", "pkg/backend", "pkg/backend/redis/internal/probe", "pkg/engine"}, third: []string{"github.com/redis/go-redis/v9"}},
	"pkg/backend/redis/internal/probe": {ours: []string{"internal/remote"}, third: []string{"github.com/redis/go-redis/v9"}},
	"internal/memcached":               {ours: []string{"internal/remote", "internal/task", "pkg/backend", "pkg/engine"}, third: []string{"github.com/bradfitz/gomemcache/memcache"}},
	"internal/memcached/memcachedtest": {ours: []string{"internal/testkit"}, third: []string{"golang.org/x/net/dns/dnsmessage"}},
	"pkg/backend/redis/redistest":      {ours: []string{"internal/certs/certstest", "internal/testkit"}, third: []string{"github.com/redis/go-redis/v9"}},
	"pkg/ratelimit":                    {ours: []string{"pkg/backend", "pkg/backend/memory", "pkg/descriptors", "pkg/engine"}},
	"pkg/client":                       {third: []string{grpc, protobuf, envoy}},
	"internal/limiter":                 {ours: []string{"internal/controls", "internal/stats", "internal/tenants", "internal/top", "internal/watch", "pkg/backend", "pkg/descriptors", "pkg/engine"}},
	"internal/replay":                  {ours: []string{"internal/limiter", "internal/stats", "internal/tenants", "internal/watch", "pkg/backend/memory", "pkg/descriptors", "pkg/engine"}},
	"internal/recorded":                {ours: []string{"internal/limiter", "internal/replay", "internal/rulefile", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{protobuf, envoy, yaml}},
	"internal/top":                     {ours: []string{"pkg/descriptors"}},
	"internal/watch":                   {ours: []string{"pkg/descriptors"}},
	"internal/admission":               {},
	"internal/netlimit":                {ours: []string{"internal/admission", "internal/throttle"}, third: []string{grpc, "golang.org/x/sys/unix"}},
	"internal/grpcserver":              {ours: []string{"internal/netlimit", "internal/stats", "internal/throttle"}, third: []string{grpc, protobuf}},
	"internal/rls":                     {ours: []string{"internal/admission", "internal/grpcserver", "internal/limiter", "internal/netlimit", "internal/stats", "internal/throttle", "pkg/descriptors"}, third: []string{grpc, protobuf, envoy}},
	"internal/rlqs":                    {ours: []string{"internal/limiter", "internal/shares", "internal/throttle", "pkg/backend", "pkg/descriptors", "pkg/engine"}, third: []string{grpc, protobuf, envoy}},
	"internal/rlqs/rlqstest":           {ours: []string{"internal/shares", "internal/shares/sharestest"}, third: []string{grpc, protobuf, envoy}},
	"internal/shares":                  {ours: []string{"pkg/engine"}},
	"internal/shares/sharestest":       {ours: []string{"internal/shares"}},
	"internal/adminsocket":             {ours: []string{"internal/netlimit"}, third: []string{"golang.org/x/sys/unix"}},
	"internal/audit":                   {ours: []string{"internal/throttle"}},
	"internal/admin":                   {ours: []string{"internal/audit", "internal/certs", "internal/controls", "internal/health", "internal/limiter", "internal/plain", "internal/rulediff", "internal/smallfile", "internal/tenants", "internal/throttle", "internal/top", "internal/watch", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{grpc, protobuf, envoy, gateway}},
	"internal/console":                 {ours: []string{"internal/plain", "internal/rulediff", "internal/throttle", "pkg/descriptors", "pkg/engine", "proto/ratelimitd/admin/v1"}, third: []string{grpc, protobuf}},
	"internal/replicated":              {ours: []string{"internal/throttle"}},
	"internal/controls":                {ours: []string{"internal/replicated", "pkg/descriptors"}},
	"internal/tenants":                 {ours: []string{"internal/replicated", "pkg/descriptors"}},
	"internal/web":                     {ours: []string{"internal/health", "internal/plain", "internal/throttle"}},
	"internal/certs":                   {ours: []string{"internal/smallfile"}},
	"internal/certs/certstest":         {},
	"internal/testkit":                 {ours: []string{"internal/testkit/proc"}},
	"internal/testkit/proc":            {third: []string{"golang.org/x/sys/unix"}},
	"internal/envoytest":               {third: []string{grpc, protobuf, envoy, yaml}},
	"internal/configwatch":             {ours: []string{"internal/rulediff", "pkg/descriptors"}},
	"internal/configwatch/file":        {ours: []string{"internal/configwatch", "internal/smallfile", "pkg/descriptors"}, third: []string{"github.com/fsnotify/fsnotify"}},
	"internal/configwatch/xds":         {ours: []string{"internal/configwatch", "internal/rulefile", "internal/smallfile", "pkg/descriptors", "proto/ratelimitd/config/v1"}, third: []string{grpc, protobuf, envoy, yaml}},
	"internal/tracing":                 {ours: []string{"internal/limiter", "internal/throttle", "pkg/backend"}, third: []string{grpc, "go.opentelemetry.io"}},
	"internal/tracing/tracingtest":     {third: []string{"go.opentelemetry.io/proto/otlp", grpc, protobuf}},
	"internal/stats":                   {ours: []string{"internal/smallfile"}, third: []string{"github.com/prometheus"}},
	"internal/stats/statsd":            {ours: []string{"internal/remote", "internal/stats", "internal/throttle"}},
	"internal/settings":                {},
	"internal/health":                  {},
	"internal/task":                    {},
	"internal/secret":                  {ours: []string{"internal/smallfile"}},
	"internal/plain":                   {},
	"internal/smallfile":               {},
	"internal/throttle":                {},
	"internal/archtest":                {},
	"internal/imagetest":               {},
	"proto/ratelimitd/admin/v1":        {third: []string{grpc, protobuf, gateway}},
	"proto/ratelimitd/config/v1":       {third: []string{protobuf}},
	"examples":                         {},
	"examples/client":                  {ours: []string{"pkg/client"}},
	"internal/storehealth":             {ours: []string{"internal/health"}},
	"internal/server": {
		ours: []string{
			"internal/admin", "internal/adminsocket", "internal/admission", "internal/audit", "internal/certs", "internal/configwatch", "internal/configwatch/file", "internal/configwatch/xds",
			"internal/console", "internal/controls", "internal/grpcserver", "internal/health", "internal/limiter", "internal/netlimit", "internal/plain", "internal/replicated", "internal/rlqs", "internal/rls", "internal/rulediff", "internal/secret", "internal/settings", "internal/smallfile", "internal/stats", "internal/stats/statsd", "internal/storehealth", "internal/task", "internal/tenants", "internal/throttle", "internal/top", "internal/tracing", "internal/watch", "internal/web", "pkg/backend", "internal/memcached", "pkg/backend/memory",
			"pkg/backend/nearcache", "pkg/backend/redis", "internal/remote", "pkg/descriptors", "pkg/engine",
		},
		third: []string{grpc, "go.opentelemetry.io/otel"},
	},
}

// root is the directory of the module, seen from here.
const root = "../.."

// isCommand reports whether a package is a command: the process, or its command line.
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
			if ours && dep == "internal/settings" && !isCommand(name) && name != "internal/server" && name != dep {
				t.Errorf("%s imports %s; the environment is read by commands and internal/server alone", name, dep)
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

// TestDesignShowsTheTable compares the table of docs/design.md, whose rows read | `package` | `own`, … | `third`, … |.
func TestDesignShowsTheTable(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
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

// quoted are the words of a cell that stand in backquotes, sorted.
func quoted(cell string) []string {
	words := map[string]bool{}
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			words[part] = true
		}
	}
	return slices.Sorted(maps.Keys(words))
}

// kit reports whether a package, named relative to the module, is for tests alone.
func kit(name string) bool {
	return within(name, "internal/testkit") || strings.HasSuffix(name, "test")
}

// third reports whether an import path, not of this module, is outside the standard library too.
func third(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return strings.Contains(first, ".")
}

// within reports whether path is prefix or below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// imports are the import paths of one package's files.
type imports struct{ imports, testImports map[string]bool }

// packages returns the packages of the module, named relative to it. It reads the files itself, so that the test's
// cached result is valid for as long as they do not change.
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
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < len(allowed)/2 {
		t.Fatalf("found only %d packages below %s", len(all), root)
	}
	return all
}

// skipDir makes WalkDir skip what the go command skips: hidden directories, test data, other modules.
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

// modulePath is the path in the module's go.mod.
func modulePath(t *testing.T) string {
	t.Helper()
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(mod), "\n")
	path, found := strings.CutPrefix(line, "module ")
	if !found {
		t.Fatalf("the first line of go.mod is %q, not the module's path", line)
	}
	return path
}

// union yields what is in one of the sets, or both.
func union(a, b map[string]bool) iter.Seq[string] {
	both := maps.Clone(a)
	maps.Copy(both, b)
	return maps.Keys(both)
}
