package rls

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

// mixed is a rule of TestG37, with the reference's count for it.
type mixed struct {
	limit, count             uint32
	shadow, quota, unlimited bool
	name                     string
	replaces                 []string
}

func drawMixed(rng *rand.Rand) (rules []*mixed, text string) {
	var b strings.Builder
	b.WriteString("domain: shop\ndescriptors:\n")
	for i := range 5 {
		m := &mixed{limit: rng.Uint32N(5), shadow: rng.IntN(4) == 0, quota: rng.IntN(3) == 0, unlimited: rng.IntN(6) == 0}
		if rng.IntN(2) == 0 {
			m.name = fmt.Sprintf("n%d", rng.IntN(3))
		}
		if other := fmt.Sprintf("n%d", rng.IntN(3)); rng.IntN(4) == 0 && other != m.name {
			m.replaces = append(m.replaces, other)
		}
		fmt.Fprintf(&b, "  - key: r%d\n    shadow_mode: %v\n    quota_mode: %v\n    rate_limit:\n", i, m.shadow, m.quota)
		if m.unlimited {
			b.WriteString("      unlimited: true\n")
		} else {
			fmt.Fprintf(&b, "      unit: hour\n      requests_per_unit: %d\n", m.limit)
		}
		if m.name != "" {
			fmt.Fprintf(&b, "      name: %s\n", m.name)
		}
		for _, r := range m.replaces {
			fmt.Fprintf(&b, "      replaces: [{name: %s}]\n", r)
		}
		rules = append(rules, m)
	}
	return rules, b.String()
}

// asReference decides a request like the reference. An index beyond the rules is a descriptor without a rule.
func asReference(rules []*mixed, asked []int, hits uint32) string {
	gone := map[string]bool{}
	for _, i := range asked {
		if i < len(rules) {
			for _, name := range rules[i].replaces {
				gone[name] = true
			}
		}
	}
	var all []string
	over, quotas, quotasOver := false, 0, 0
	for _, i := range asked {
		if i >= len(rules) || !rules[i].unlimited && gone[rules[i].name] {
			all = append(all, "OK 0")
			continue
		}
		m := rules[i]
		if m.unlimited {
			all = append(all, "OK 4294967295")
			continue
		}
		m.count += hits
		exceeded := m.count > m.limit
		rejected := exceeded && !m.shadow
		switch {
		case rejected:
			all = append(all, "OVER_LIMIT 0")
		case exceeded:
			all = append(all, "OK 0")
		default:
			all = append(all, fmt.Sprintf("OK %d", m.limit-m.count))
		}
		if m.quota {
			quotas++
		}
		if m.quota && rejected {
			quotasOver++
		}
		over = over || rejected && !m.quota
	}
	code := "OK"
	if over || quotas > 0 && quotas == quotasOver {
		code = "OVER_LIMIT"
	}
	return code + ": " + strings.Join(all, " ")
}

func TestG37_ModesMixed(t *testing.T) {
	for n := range uint64(200) {
		rng := rand.New(rand.NewPCG(37, n))
		rules, text := drawMixed(rng)
		l := limiter.New(memory.New(memory.Config{Now: atNoon}), stats.New(), limiter.Config{})
		l.SetRules(load(t, text))
		s := New(l, Config{})
		for range 8 {
			var asked []int
			r := request("shop")
			r.HitsAddend = 1 + rng.Uint32N(3)
			for range 1 + rng.IntN(4) {
				i := rng.IntN(len(rules) + 1)
				asked = append(asked, i)
				r.Descriptors = append(r.Descriptors, descriptor(fmt.Sprintf("r%d=v", i)))
			}
			want := asReference(rules, asked, r.GetHitsAddend())
			answer := inProcess(t, s, r)
			if got := fmt.Sprintf("%v: %s", answer.GetOverallCode(), statuses(answer)); got != want {
				t.Fatalf("case %d, descriptors %v, %d hits:\n got %s\nwant %s\n%s", n, asked, r.GetHitsAddend(), got, want, text)
			}
		}
	}
}
