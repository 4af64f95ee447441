package limiter_test

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// modelRule is the model's rule for one key, per hour.
type modelRule struct {
	limit         uint64
	unlimited     bool
	shadow, quota bool
	name          string
	replaces      []string
}

// model decides as the description of the reference states. Its numbers increase where the limiter's decrease.
type model struct {
	rules                     map[string]*modelRule
	shadow, quota             bool
	ratio                     float32
	used                      map[string]uint64 // by key and value
	counted                   map[string]uint64 // by statsd name
	over                      bool
	header                    int
	codes, remaining, limited []uint64
}

// ask is a descriptor of a request: key=value and its options.
type ask struct {
	key, value string
	hits       uint64
	negative   bool
	override   bool
	limit      uint64
}

func (m *model) decide(asks []ask) {
	n := len(asks)
	m.codes, m.remaining, m.limited = make([]uint64, n), make([]uint64, n), make([]uint64, n)
	replaced := make(map[string]bool)
	for _, a := range asks {
		if r := m.rules[a.key]; r != nil && !a.override {
			for _, name := range r.replaces {
				replaced[name] = true
			}
		}
	}
	anyEnforced, quotas, quotasOver := false, 0, 0
	for i, a := range asks {
		r, metric := m.rules[a.key], "shop."+a.key
		if a.override {
			r, metric = &modelRule{limit: a.limit}, "shop."+a.key+"_"+a.value
		}
		switch {
		case r == nil:
			continue
		case r.unlimited:
			m.remaining[i] = math.MaxUint32
			continue
		case replaced[r.name] && r.name != "":
			continue
		}
		m.limited[i] = 1
		over := m.charge(i, &a, r, metric)
		if r.quota || m.quota {
			quotas++
			if over {
				quotasOver++
			}
		} else if over {
			anyEnforced = true
		}
	}
	m.over = anyEnforced || quotas > 0 && quotas == quotasOver
	if m.over && m.shadow {
		m.over = false
		m.count("ratelimit.service.global_shadow_mode", 1)
	}
	m.chooseHeader(asks)
}

// charge consumes the hits of a and reports whether it is over its limit, after shadow mode.
func (m *model) charge(i int, a *ask, r *modelRule, metric string) (over bool) {
	counter := a.key + "=" + a.value
	add := func(name string, n uint64) { m.count("ratelimit.service.rate_limit."+metric+"."+name, n) }
	if a.negative {
		m.used[counter] -= min(a.hits, m.used[counter])
		if m.used[counter] < r.limit {
			m.remaining[i] = r.limit - m.used[counter]
		}
		add("total_negative_hits", a.hits)
		return false
	}
	before := m.used[counter]
	after := before + a.hits
	m.used[counter] = after
	near := uint64(math.Floor(float64(float32(r.limit) * m.ratio)))
	add("total_hits", a.hits)
	if after <= r.limit {
		m.remaining[i] = r.limit - after
		add("within_limit", a.hits)
		if after > near && before >= near {
			add("near_limit", a.hits)
		} else if after > near {
			add("near_limit", after-near)
		}
		return false
	}
	beyond := a.hits
	if before < r.limit {
		beyond = after - r.limit
		add("near_limit", r.limit-max(near, before))
	}
	add("over_limit", beyond)
	if r.shadow {
		add("shadow_mode", beyond)
		return false
	}
	m.codes[i] = 1
	return true
}

func (m *model) chooseHeader(asks []ask) {
	m.header = -1
	least := uint64(math.MaxUint64)
	for i := range asks {
		if m.limited[i] == 1 && m.remaining[i] < least {
			m.header, least = i, m.remaining[i]
		}
	}
	for i, a := range asks {
		r := m.rules[a.key]
		quota := m.quota || !a.override && r != nil && r.quota
		if m.codes[i] == 1 && !quota {
			m.header = i
		}
	}
}

func (m *model) count(name string, n uint64) {
	if n > 0 {
		m.counted[name] += n
	}
}

func (m *model) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "over %v, headers of %d:", m.over, m.header)
	for i := range m.codes {
		fmt.Fprintf(&b, " [over %v limited %v remaining %d]", m.codes[i] == 1, m.limited[i] == 1, m.remaining[i])
	}
	return b.String()
}

// verdictText formats a verdict like the model.
func verdictText(v *limiter.Verdict) string {
	var b strings.Builder
	fmt.Fprintf(&b, "over %v, headers of %d:", v.Over, v.Header)
	for i := range v.Statuses {
		s := &v.Statuses[i]
		fmt.Fprintf(&b, " [over %v limited %v remaining %d]", s.Over, s.RateLimit != nil, s.Remaining)
	}
	return b.String()
}

// yaml formats the model's rules as a file.
func (m *model) yaml() string {
	var b strings.Builder
	b.WriteString("domain: shop\ndescriptors:\n")
	for key, r := range m.rules {
		fmt.Fprintf(&b, "- key: %s\n  shadow_mode: %v\n  quota_mode: %v\n  rate_limit:\n", key, r.shadow, r.quota)
		if r.unlimited {
			b.WriteString("    unlimited: true\n")
		} else {
			fmt.Fprintf(&b, "    unit: hour\n    requests_per_unit: %d\n", r.limit)
		}
		if r.name != "" {
			fmt.Fprintf(&b, "    name: %s\n", r.name)
		}
		for i, name := range r.replaces {
			if i == 0 {
				b.WriteString("    replaces:\n")
			}
			fmt.Fprintf(&b, "    - name: %s\n", name)
		}
	}
	return b.String()
}

func drawRules(t *rapid.T) map[string]*modelRule {
	rules := make(map[string]*modelRule)
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		r := &modelRule{
			limit:     rapid.Uint64Range(0, 8).Draw(t, key+" limit"),
			unlimited: rapid.IntRange(0, 5).Draw(t, key+" unlimited") == 0,
			shadow:    rapid.IntRange(0, 3).Draw(t, key+" shadow") == 0,
			quota:     rapid.IntRange(0, 2).Draw(t, key+" quota") == 0,
			name:      rapid.SampledFrom([]string{"", "n1", "n2", "n3"}).Draw(t, key+" name"),
		}
		for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"n1", "n2", "n3"}), 0, 2, rapid.ID).Draw(t, key+" replaces") {
			if name != r.name && rapid.Bool().Draw(t, "replaces") {
				r.replaces = append(r.replaces, name)
			}
		}
		rules[key] = r
	}
	return rules
}

func drawAsks(t *rapid.T) []ask {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ask {
		return ask{
			key:      rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "x"}).Draw(t, "key"),
			value:    rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value"),
			hits:     rapid.SampledFrom([]uint64{0, 1, 1, 1, 2, 3, 9}).Draw(t, "hits"),
			negative: rapid.IntRange(0, 7).Draw(t, "negative") == 0,
			override: rapid.IntRange(0, 4).Draw(t, "override") == 0,
			limit:    rapid.Uint64Range(0, 8).Draw(t, "limit"),
		}
	}), 1, 5).Draw(t, "asks")
}

// TestG37AgainstModel sends random requests to random rules, with shadow, quota, replaces and unlimited mixed. It compares every answer
// and every count with a model that follows the description of the reference step by step.
func TestG37AgainstModel(t *testing.T) {
	cases := 0
	for range 3 { // rapid runs 100 cases each by default
		rapid.Check(t, func(t *rapid.T) {
			cases++
			compareWithModel(t)
		})
	}
	if !testing.Short() && cases < 200 { // with -short, rapid runs fewer
		t.Errorf("only %d cases were played", cases)
	}
}

func compareWithModel(t *rapid.T) {
	m := &model{
		rules:   drawRules(t),
		shadow:  rapid.IntRange(0, 3).Draw(t, "SHADOW_MODE") == 0,
		quota:   rapid.IntRange(0, 3).Draw(t, "QUOTA_MODE") == 0,
		ratio:   rapid.SampledFrom([]float32{0.1, 0.5, 0.8, 1}).Draw(t, "NEAR_LIMIT_RATIO"),
		used:    make(map[string]uint64),
		counted: make(map[string]uint64),
	}
	now := engine.Micros(1e12)
	registry := stats.New()
	l := limiter.New(memory.New(memory.Config{Now: func() engine.Micros { return now }}), registry,
		limiter.Config{Shadow: m.shadow, Quota: m.quota, NearLimitRatio: m.ratio})
	l.SetRules(rulefiletest.Load(t, m.yaml()))
	var scratch limiter.Scratch
	for range rapid.IntRange(1, 12).Draw(t, "requests") {
		asks := drawAsks(t)
		m.decide(asks)
		v, err := l.Decide(t.Context(), requestOf(asks), &scratch)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m.String(), verdictText(v)); diff != "" {
			t.Fatalf("%+v\n(-want +got)\n%s", asks, diff)
		}
	}
	if diff := cmp.Diff(m.counted, countedBy(t, registry)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

func requestOf(asks []ask) *limiter.Request {
	r := &limiter.Request{Domain: []byte("shop")}
	for _, a := range asks {
		d := limiter.Descriptor{
			Entries:  entries(a.key + "=" + a.value),
			Hits:     a.hits,
			HasHits:  true,
			Negative: a.negative,
		}
		if a.override {
			d.HasOverride = true
			d.Override = descriptors.Override{RequestsPerUnit: uint32(a.limit), Unit: descriptors.Hour}
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return r
}

// countedBy returns the registry's counts under the reference's names.
func countedBy(t *rapid.T, r *stats.Registry) map[string]uint64 {
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	counted := make(map[string]uint64)
	for line := range strings.Lines(b.String()) {
		var n uint64
		name, value, _ := strings.Cut(line, ": ")
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatal(err)
		}
		counted[name] = n
	}
	maps.DeleteFunc(counted, func(name string, n uint64) bool { return n == 0 || strings.HasPrefix(name, "ratelimitd.") })
	return counted
}
