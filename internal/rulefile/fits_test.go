package rulefile

import (
	"bytes"
	"testing"

	"gopkg.in/yaml.v3"
)

// FuzzCountValues: the counted characters of a text are at least half of its nodes, so limiting them limits memory.
func FuzzCountValues(f *testing.F) {
	for _, text := range []string{
		"domain: a\ndescriptors:\n  - key: b\n    rate_limit: {unit: day, requests_per_unit: 1}\n", "- - - 1\n", "[[[1]], {}, {a}, {a, b, c: d}]\n",
		"? a\n: b\n", "a: 'b\n  # c', d: |\n  e\n", "[\"a\n# \", 1, 1, 1]\n", "{{a}: {b}}\n", "&a [*a, !!str b]\n", "{\"a\":1,\"b\":[1]}\n", "a: >\n b\n\n c\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var doc yaml.Node
		if yaml.Unmarshal(text, &doc) != nil || hasBreak(text) {
			return
		}
		values := 0
		for line := range bytes.Lines(text) {
			n, _ := countValues(line)
			values += n
		}
		if n := nodes(&doc) - 1; n > 2*values+2 {
			t.Errorf("%q has %d nodes, and %d signs of values", text, n, values)
		}
	})
}

func hasBreak(text []byte) bool {
	unix, _ := WithLF(text)
	at, _ := FindBreak(unix)
	return at >= 0
}

// nodes counts n and its descendants.
func nodes(n *yaml.Node) int {
	sum := 1
	for _, c := range n.Content {
		sum += nodes(c)
	}
	return sum
}
