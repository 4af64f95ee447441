package archtest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// longest is the maximum number of words of a page, without code and, except in README.md, tables. A page that exceeds it needs to be
// split or shortened.
var longest = map[string]int{
	"README.md": 900, "docs/quickstart.md": 500, "docs/kubernetes.md": 600, "docs/concepts.md": 700, "docs/migrate.md": 1100,
	"docs/rules.md": 900, "docs/choosing-an-algorithm.md": 900, "docs/cookbook.md": 4500, "docs/envoy.md": 1100, "docs/envoy-gateway.md": 1100,
	"docs/istio.md": 1100, "docs/ai-gateway.md": 1100, "docs/llm-budgets.md": 1100, "docs/tenants.md": 1100, "docs/go-client.md": 1100,
	"docs/replay.md": 1100, "docs/production.md": 500, "docs/troubleshooting.md": 1500, "docs/runbooks.md": 2000, "docs/operate.md": 2500,
	"docs/llm-gateways.md": 1100, "docs/security.md": 900, "docs/upgrade.md": 500, "docs/redis.md": 3500, "docs/memcached.md": 600, "docs/admin-api.md": 2000,
	"docs/console.md": 600, "docs/answers.md": 700, "docs/calling-a-rate-limited-api.md": 600, "docs/which-limit.md": 600, "docs/sizing.md": 600,
	"docs/migrate-from-ingress-nginx.md": 600, "docs/migrate-from-limitador.md": 600, "docs/grafana.md": 600,
}

// TestLength counts the words of pages that people read from top to bottom.
func TestLength(t *testing.T) {
	t.Parallel()
	word := regexp.MustCompile(`\S*[\pL\pN]\S*`)
	target := regexp.MustCompile(`\]\([^)]*\)`)
	for page, most := range longest {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		words, fenced := 0, false
		for line := range strings.Lines(string(text)) {
			switch {
			case strings.HasPrefix(strings.TrimSpace(line), "```"):
				fenced = !fenced
			case fenced, strings.HasPrefix(line, "    "), strings.HasPrefix(line, "|") && page != "README.md":
			default:
				words += len(word.FindAllString(target.ReplaceAllString(line, "]"), -1))
			}
		}
		if words > most || words < most/10 {
			t.Errorf("%s has %d words, want at most %d", page, words, most)
		}
	}
}
