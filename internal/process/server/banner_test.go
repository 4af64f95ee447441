package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestExample: the example descriptor matches its rule. If no example is possible, there is none.
func TestExample(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rules, domain string
		want          []descriptors.Entry
	}{
		{"domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}", "d", []descriptors.Entry{entry("a", "ann")}},
		{"domain: d.e\ndescriptors:\n- {key: a_b, value: c_d, rate_limit: {unit: day, requests_per_unit: 1}}", "d.e", []descriptors.Entry{entry("a_b", "c_d")}},
		{
			"domain: d\ndescriptors:\n- key: a\n  value: /x*\n  descriptors:\n  - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}",
			"d",
			[]descriptors.Entry{entry("a", "/xx"), entry("b", "ann")},
		},
		{"domain: d\ndescriptors:\n- {key: a, value: \"1.2\", rate_limit: {unit: day, requests_per_unit: 1}}", "d", []descriptors.Entry{entry("a", "1.2")}}, // a dot in a value is not a level
		{ // a more specific rule takes precedence
			"domain: d\ndescriptors:\n- {key: a, value: \"*\", rate_limit: {unit: day, requests_per_unit: 1}}\n- {key: a, value: x, rate_limit: {unit: day, requests_per_unit: 2}}",
			"d",
			[]descriptors.Entry{entry("a", "x")},
		},
		{"domain: d\ndescriptors:\n- {key: \"a'b\", rate_limit: {unit: day, requests_per_unit: 1}}", "", nil},
		{"domain: d\ndescriptors:\n- {key: a, value: \"b,c\", rate_limit: {unit: day, requests_per_unit: 1}}", "", nil},
		{"domain: d\ndescriptors:\n- {key: a, rate_limit: {unlimited: true}}", "", nil},
		{"domain: it's\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}", "it's", []descriptors.Entry{entry("a", "ann")}}, // quoted in the shell
		{"domain: \"a\\nb\"\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}", "", nil},
	} {
		domain, got := example(rulefiletest.Load(t, tt.rules))
		if d := cmp.Diff(tt.want, got); domain != tt.domain || d != "" {
			t.Errorf("%s\nin %q (-want +got):\n%s", tt.rules, domain, d)
		}
	}
}

func entry(key, value string) descriptors.Entry {
	return descriptors.Entry{Key: []byte(key), Value: []byte(value)}
}
