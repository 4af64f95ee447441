package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/local_ratelimit/v3" // which-limit.md
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/envoytest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestPagesCheck: `ratelimitd check` accepts each block of rules in docs, without a warning, except overlays, whose domain has a wildcard,
// and the rules of the cookbook, which TestCookbook loads.
func TestPagesCheck(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	pages, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	testkit.Check(t, err)
	rules := regexp.MustCompile("(?ms)^( *)```yaml[ \\w]*\n((?: *#[^\n]*\n)* *domain: .*?)^ *```$")
	found := map[string]int{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		testkit.Check(t, err)
		for _, block := range rules.FindAllStringSubmatch(string(text), -1) {
			name := filepath.Base(page)
			if first, _, _ := strings.Cut(block[2], "descriptors:"); name == "cookbook.md" || strings.Contains(first, "*") || first == block[2] {
				continue
			}
			found[name]++
			dir := t.TempDir()
			indented := regexp.MustCompile(`(?m)^` + block[1])
			certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(indented.ReplaceAllString(block[2], "")))
			out, err := exec.CommandContext(t.Context(), shipped.Path(t, "ratelimitd"), "check", dir).CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), ", 0 warnings\n") {
				t.Errorf("%s, block %d of rules: %v: %s\n%s", name, found[name], err, out, block[2])
			}
		}
	}
	for _, name := range []string{"migrate-from-ingress-nginx.md", "migrate-from-limitador.md", "rlqs.md", "which-limit.md"} {
		if found[name] == 0 {
			t.Errorf("%s has no rules", name)
		}
	}
}

// TestMigrationPages: each part with rules has what Envoy would load, and a trace whose requests Envoy would make and which the server
// answers so, and the rules have the limits of the other system.
func TestMigrationPages(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	for page, limits := range map[string]func(*testing.T, recipe) []string{
		"migrate-from-ingress-nginx.md": limitsOfIngress, "migrate-from-limitador.md": limitsOfLimitador,
	} {
		traces, limited := 0, 0
		// Limitador's limits and descriptors are in two parts of the page.
		text := strings.Join(strings.Split(readPage(t, page), "\n## Descriptors\n"), "")
		for _, r := range recipes(t, text, "## ") {
			if r.parts["rules.yaml"] == "" {
				continue
			}
			traces++
			t.Run(r.title, func(t *testing.T) {
				formatted, problems := rulefmt.Format(descriptors.Source{Name: "rules.yaml", Data: []byte(r.parts["rules.yaml"])})
				if len(problems) > 0 || !bytes.Equal(formatted, []byte(r.parts["rules.yaml"])) {
					t.Errorf("the rules are not as ratelimitd fmt writes them: %v\n%s", problems, formatted)
				}
				if r.parts["trace"] == "" || len(r.envoy) == 0 {
					t.Fatal("there is no trace, or no configuration of Envoy")
				}
				r.checkSent(t)
				if want := limits(t, r); want != nil {
					limited++
					if got := limitsOf(t, r); !slices.Equal(got, want) {
						t.Errorf("the rules have the limits %q, want %q", got, want)
					}
				}
				playOnMemory(t, r.parts)
				playOnRedis(t, r.parts, db, 2)
			})
		}
		if traces < 2 || limited == 0 {
			t.Errorf("%s: only %d traces, and %d parts with limits of the other system", page, traces, limited)
		}
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs", name))
	testkit.Check(t, err)
	return string(text)
}

// limitsOf returns the limits of the rules in a part, each with the path of its rule. The traces show whether rejected hits count.
func limitsOf(t *testing.T, r recipe) (all []string) {
	t.Helper()
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(r.parts["rules.yaml"])}}, descriptors.Options{Strict: true})
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	for rule := range set.Rules() {
		for i := range rule.RateLimits.Len() {
			all = append(all, rule.Path+": "+strings.TrimSuffix(rule.RateLimits.At(i).String(), ", count refused false"))
		}
	}
	return all
}

// limitsOfIngress returns what the annotations of ingress-nginx mean: a burst of multiplier × rate beside the first request.
func limitsOfIngress(t *testing.T, r recipe) (all []string) {
	t.Helper()
	var ingress struct {
		Metadata struct{ Annotations map[string]string }
	}
	testkit.Check(t, yaml.Unmarshal([]byte(r.parts["ingress.yaml"]), &ingress))
	const prefix = "nginx.ingress.kubernetes.io/limit-"
	for _, unit := range []string{"second", "minute"} {
		if text := ingress.Metadata.Annotations[prefix+"rp"+unit[:1]]; text != "" {
			rate, err := strconv.Atoi(text)
			testkit.Check(t, err)
			all = append(all, fmt.Sprintf("edge.ingress_shop.remote_address: %d per %s, token_bucket, burst %d", rate, unit, 5*rate+1))
		}
	}
	for network := range strings.SplitSeq(ingress.Metadata.Annotations[prefix+"whitelist"], ",") {
		address, length, _ := strings.Cut(network, "/")
		if item := fmt.Sprintf("{address_prefix: %s, prefix_len: %s}", address, length); network != "" && !strings.Contains(r.envoy[0], item) {
			t.Errorf("Envoy's list has no %s", item)
		}
	}
	return all
}

// limitsOfLimitador returns what limits of Limitador mean: conditions are values, and variables are keys.
func limitsOfLimitador(t *testing.T, r recipe) (all []string) {
	t.Helper()
	var limits []struct {
		Namespace             string
		MaxValue              int `yaml:"max_value"`
		Seconds               int
		Conditions, Variables []string
	}
	decoder := yaml.NewDecoder(strings.NewReader(r.parts["limitador.yaml"]))
	decoder.KnownFields(true)
	testkit.Check(t, decoder.Decode(&limits))
	unit := map[int]string{1: "second", 60: "minute", 3600: "hour", 86400: "day"}
	condition, variable := regexp.MustCompile(`^descriptors\[0\]\.(\w+) == '(\w+)'$`), regexp.MustCompile(`^descriptors\[0\]\.(\w+)$`)
	for _, l := range limits {
		path := l.Namespace
		for _, c := range l.Conditions {
			path += condition.ReplaceAllString(c, ".${1}_$2")
		}
		for _, v := range l.Variables {
			path += variable.ReplaceAllString(v, ".$1")
		}
		all = append(all, fmt.Sprintf("%s: %d per %s, align first", path, l.MaxValue, unit[l.Seconds]))
	}
	return all
}

// TestWhichLimit: Envoy would load the filters of docs/which-limit.md. tools/e2e has a real Envoy check them.
func TestWhichLimit(t *testing.T) {
	t.Parallel()
	_, block, _ := strings.Cut(readPage(t, "which-limit.md"), "```yaml filters\n")
	block, _, _ = strings.Cut(block, "```\n")
	var filters []map[string]any
	if err := yaml.Unmarshal([]byte(block), &filters); err != nil || len(filters) != 2 {
		t.Fatalf("%d filters, want 2: %v", len(filters), err)
	}
	for _, f := range filters {
		if err := envoytest.DecodeTree(f, new(hcmv3.HttpFilter)); err != nil {
			t.Error(err)
		}
	}
}
