package descriptors_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// slowGlob reports whether text matches a pattern, by dynamic programming over every expansion of a star.
func slowGlob(pattern, text string) bool {
	fits := make([]bool, len(text)+1) // by i: the pattern so far matches text[:i]
	fits[0] = true
	for _, p := range []byte(pattern) {
		next := make([]bool, len(text)+1)
		any := false
		for i := range fits {
			any = any || fits[i]
			switch {
			case p == '*':
				next[i] = any
			case i > 0:
				next[i] = fits[i-1] && text[i-1] == p
			}
		}
		fits = next
	}
	return fits[len(text)]
}

// slowNode is a descriptor of the slow matcher.
type slowNode struct {
	key, value, limit string
	children          []slowNode
}

// slowMatch is Match as the documentation of the reference describes it: three passes over a list for each entry. Unlike the reference,
// it keeps keys and values separate.
func slowMatch(nodes []slowNode, e []descriptors.Entry) string {
	var at *slowNode
	for i := range e {
		if at != nil {
			nodes = at.children
		}
		if at = slowFind(nodes, string(e[i].Key), string(e[i].Value)); at == nil {
			return ""
		}
	}
	if at == nil {
		return ""
	}
	return at.limit
}

func slowFind(nodes []slowNode, key, value string) *slowNode {
	if key == "" || !utf8.ValidString(key) {
		return nil
	}
	for i := range nodes {
		if n := &nodes[i]; n.value != "" && n.key == key && n.value == value {
			return n
		}
	}
	for i := range nodes {
		n := &nodes[i]
		if strings.Contains(n.key+n.value, "*") && slowGlob(n.key, key) && (n.value == "" || slowGlob(n.value, value)) {
			return n
		}
	}
	for i := range nodes {
		if n := &nodes[i]; n.value == "" && n.key == key {
			return n
		}
	}
	return nil
}

// drawTree derives rules from the fuzzer's bytes: a tree of keys and values of few letters and stars.
type drawTree struct {
	data []byte
	yaml strings.Builder
}

func (d *drawTree) byte() byte {
	if len(d.data) == 0 {
		return 0
	}
	b := d.data[0]
	d.data = d.data[1:]
	return b
}

func (d *drawTree) word(letters string, most int) string {
	var b strings.Builder
	for range int(d.byte()) % (most + 1) {
		b.WriteByte(letters[int(d.byte())%len(letters)])
	}
	return b.String()
}

func (d *drawTree) level(indent string, depth int) (nodes []slowNode) {
	seen := map[[2]string]bool{}
	for range int(d.byte()) % 12 {
		n := slowNode{key: d.word("ab*", 2), value: d.word("abc*", 4)}
		if n.key == "" || seen[[2]string{n.key, n.value}] {
			continue
		}
		seen[[2]string{n.key, n.value}] = true
		d.yaml.WriteString(indent + "- key: '" + n.key + "'\n" + indent + "  value: '" + n.value + "'\n")
		if d.byte()%4 > 0 {
			n.limit = "yes"
			d.yaml.WriteString(indent + "  rate_limit: {unit: minute, name: '" + indent + "'}\n")
		}
		if depth > 0 && d.byte()%3 == 0 {
			d.yaml.WriteString(indent + "  descriptors:\n")
			n.children = d.level(indent+"    ", depth-1)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// label gives each limit a unique name, in the order of the file.
func label(nodes []slowNode, next *int) {
	for i := range nodes {
		if nodes[i].limit != "" {
			*next++
			nodes[i].limit = strings.Repeat("i", *next)
		}
		label(nodes[i].children, next)
	}
}

// FuzzMatch compares the matcher with slowMatch, on rules and requests derived from the input.
func FuzzMatch(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x02\x00\x01\x01\x00"), []byte("a"), []byte("ab"), []byte("b"), []byte("c"))
	f.Add(bytes.Repeat([]byte{7, 1, 2, 3, 3, 1, 0, 2}, 40), []byte("ab"), []byte(""), []byte("\xff"), []byte("abc"))
	f.Fuzz(func(t *testing.T, rules, k1, v1, k2, v2 []byte) {
		draw := drawTree{data: rules[:min(len(rules), 400)]}
		draw.yaml.WriteString("domain: d\ndescriptors:\n")
		nodes := draw.level("", 2)
		label(nodes, new(int))
		set := mustLoad(t, []byte(draw.yaml.String()))
		d := set.Domain([]byte("d"))
		all := []descriptors.Entry{{Key: k1, Value: v1}, {Key: k2, Value: v2}, {Key: []byte("a"), Value: v1}, {Key: k1, Value: []byte("ab")}}
		for _, e := range [][]descriptors.Entry{all[:0], all[:1], all[1:2], all[:2], all[1:3], all[2:3], all[2:], all[3:], all} {
			want := slowMatch(nodes, e)
			got := ""
			if r := d.Match(e).Rule; r != nil {
				got = strings.Repeat("i", r.Index+1)
			}
			if got != want {
				t.Errorf("%q: rule %d, want %d, of\n%s", e, len(got), len(want), draw.yaml.String())
			}
			d.Explain(e)
		}
	})
}

// FuzzLoad loads arbitrary data. Accepted data must load again with the same result, and all functions of the set must work.
func FuzzLoad(f *testing.F) {
	for _, folder := range []string{"load", "match"} {
		for _, a := range archives(f, folder) {
			for _, file := range a.Files {
				if strings.HasSuffix(file.Name, ".yaml") {
					f.Add(file.Data)
				}
			}
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		set, problems, err := load(data)
		if (err != nil) != problems.Failed() || (err != nil) != (set == nil) {
			t.Fatalf("set %v, error %v, problems %v do not go together", set, err, problems)
		}
		for _, p := range problems {
			if p.Text == "" || p.File != "a.yaml" || p.Line < 0 || p.Column < 0 || len(p.Text) > 2000 {
				t.Errorf("problem %+v", p)
			}
		}
		if err != nil {
			return
		}
		again, _, err := load(data)
		if err != nil {
			t.Fatalf("loaded once, and not twice: %v", err)
		}
		if diff := rulediff.Between(again, set); len(diff) > 0 {
			t.Errorf("two loads differ: %q", diff)
		}
		rulediff.Between(nil, set)
		for r := range set.Rules() {
			if r.String() == "" || len(r.AppendConfig(nil)) == 0 {
				t.Errorf("rule %+v has no words", r)
			}
			if err := r.RateLimits.Limits().Validate(); err != nil {
				t.Errorf("%s has a limit that the engine rejects: %v", r.Path, err)
			}
		}
	})
}

func archives(tb testing.TB, folder string) (out []*txtar.Archive) {
	tb.Helper()
	for _, name := range rulefiletest.Names(tb, filepath.Join("testdata", folder)) {
		a, err := txtar.ParseFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}
