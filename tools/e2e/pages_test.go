package e2e

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3" // docs/which-limit.md
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"gopkg.in/yaml.v3"
)

// withEnvoy runs a case that has no row in docs/envoy-results.md.
func withEnvoy(t *testing.T, do func(*world)) {
	t.Helper()
	testkit.NotShort(t)
	if *envoy == "" {
		t.Skip("there is no Envoy: see what tools/need envoy says")
	}
	play(t, example{name: t.Name(), play: do}, *server, new(result))
}

// blockOf returns the first block of a page after a fence, such as "```go".
func blockOf(w *world, page, fence string) string {
	w.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	testkit.Check(w, err)
	_, block, found := strings.Cut(string(text), "\n"+fence+"\n")
	block, _, closed := strings.Cut(block, "\n```\n")
	if !found || !closed {
		w.Fatalf("%s has no block %s", page, fence)
	}
	return block + "\n"
}

// caller is a program of docs/calling-a-rate-limited-api.md.
type caller struct {
	language, file string
	command        []string
}

var callersOfPage = []caller{
	{"go", "main.go", []string{"go", "run", "main.go"}},
	{"python", "main.py", []string{"python3", "main.py"}},
	{"javascript", "main.mjs", []string{"node", "main.mjs"}},
}

// call runs the program with a URL, and returns the statuses that it printed.
func (c caller) call(w *world, url string) string {
	w.Helper()
	dir := w.TempDir()
	testkit.Check(w, os.WriteFile(filepath.Join(dir, c.file), []byte(blockOf(w, "calling-a-rate-limited-api.md", "```"+c.language)), 0o600))
	ctx, cancel := context.WithTimeout(w.Context(), 2*testkit.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.command[0], append(c.command[1:], url)...)
	cmd.Dir = dir
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		w.Fatalf("%s: %v: %s", c.language, err, errs.String())
	}
	return strings.Join(strings.Fields(string(out)), " ")
}

// TestCallers runs the programs of docs/calling-a-rate-limited-api.md through Envoy: they wait as Retry-After says, they back off without
// it, and they give up if the wait is long.
func TestCallers(t *testing.T) {
	rules := func(limit string) string {
		return "domain: edge\ndescriptors: [{key: remote_address, rate_limit: " + limit + "}]\n"
	}
	silent := func(c *config) { c.filter.EnableRetryAfterHeader = false }
	for _, c := range callersOfPage {
		t.Run(c.language, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(c.command[0]); err != nil {
				t.Skip(err)
			}
			withEnvoy(t, func(w *world) {
				for _, x := range []struct {
					name, limit, want string
					change            func(*config)
					reach, rejected   int // how many reach the application, and how many are rejected at least
					most              int // rejected
				}{
					{"Retry-After", "{unit: second, unit_multiplier: 2, requests_per_unit: 1, algorithm: token_bucket}", "200 200 200", nil, 3, 1, 4},
					{"no Retry-After", "{unit: second, requests_per_unit: 5, burst: 1, algorithm: token_bucket}", "200 200 200", silent, 3, 0, 12},
					{"a long wait", "{unit: year, requests_per_unit: 1, align: first}", "200 429 429", nil, 1, 2, 2},
				} {
					up := w.upstream(hello)
					p := w.proxy(setup{example: "envoy", timeout: patient, change: x.change}, up, w.serve(rules(x.limit), "BACKEND_TYPE=memory"))
					got := c.call(w, p.base()+"/")
					over := p.counts().over
					w.got(got == x.want && up.all() == x.reach && over >= x.rejected && over <= x.most,
						"%s: %s, %d reach the application, %d are rejected", x.name, got, up.all(), over)
				}
			})
		})
	}
}

// TestGateways sends requests through Envoy as kgateway, Contour and Emissary configure it: ten for each user, none without a user.
func TestGateways(t *testing.T) {
	for _, name := range []string{"contour", "emissary", "kgateway"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			withEnvoy(t, func(w *world) {
				files, err := filepath.Glob("../../examples/" + name + "/rules/*.yaml")
				if err != nil || len(files) != 1 {
					w.Fatal(err, files)
				}
				rules, err := os.ReadFile(files[0])
				testkit.Check(w, err)
				up := w.upstream(hello)
				s := w.serve(string(rules), "BACKEND_TYPE=memory")
				p := w.front(setup{example: name, timeout: patient}, up, s.Addr())
				begin := time.Now()
				y := w.send(p, strings.Fields(strings.Repeat("alice ", 20))...)
				most := 10 + int(time.Since(begin)/(6*time.Second)) + 1
				w.got(y.passed >= 10 && y.passed <= most && y.rejected == 20-y.passed && up.of("alice") == y.passed, "%d of 20 of alice pass", y.passed)
				strangers := w.send(p, make([]string, 20)...)
				w.got(strangers.passed == 20, "%d of 20 without a user pass", strangers.passed)
			})
		})
	}
}

// TestFiltersOfWhichLimit: Envoy loads the filters of docs/which-limit.md, and the local one rejects before ratelimitd is asked.
func TestFiltersOfWhichLimit(t *testing.T) {
	t.Parallel()
	withEnvoy(t, func(w *world) {
		var trees []map[string]any
		if err := yaml.Unmarshal([]byte(blockOf(w, "which-limit.md", "```yaml filters")), &trees); err != nil || len(trees) != 2 {
			w.Fatal(err, trees)
		}
		shield := new(hcmv3.HttpFilter)
		bucket := trees[0]["typed_config"].(map[string]any)["token_bucket"].(map[string]any)
		bucket["max_tokens"], bucket["tokens_per_fill"], bucket["fill_interval"] = 5, 1, "3600s"
		testkit.Check(w, envoytest.DecodeTree(trees[0], shield))
		up := w.upstream(hello)
		s := w.serve("domain: edge\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1000}}]\n", "BACKEND_TYPE=memory")
		p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) {
			c.manager.HttpFilters = append([]*hcmv3.HttpFilter{shield}, c.manager.GetHttpFilters()...)
		}}, up, s)
		y := w.send(p, strings.Fields(strings.Repeat("alice ", 20))...)
		a := w.ask(p, "/", "alice")
		w.got(y.passed == 5 && a.status == http.StatusTooManyRequests && p.counts().over == 0, "%d of 20 pass, %d are rejected by ratelimitd", y.passed, p.counts().over)
	})
}
