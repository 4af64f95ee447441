package descriptors_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestUnreachable checks, for any two descriptors of a level, that the second one is reported as hidden exactly if no request reaches it,
// apart from one that contains its * literally.
func TestUnreachable(t *testing.T) {
	type spec struct{ key, value string }
	var first, second []spec
	values := append(words("ab*", 3), "a*b*", "*a*b*", "a*b*a", "*ab*")
	for _, v := range values {
		second = append(second, spec{"k", v})
		if strings.Contains(v, "*") {
			first = append(first, spec{"k", v})
		}
	}
	for _, k := range []string{"k*", "*", "*k", "k*k", "l*"} {
		for _, v := range []string{"", "a", "*", "a*", "*b", "a*b"} {
			first, second = append(first, spec{k, v}), append(second, spec{k, v})
		}
	}
	var requests []spec
	for _, k := range []string{"k", "kk", "l", "lk", "kl", "kxk"} {
		for _, v := range words("abc", 4) {
			requests = append(requests, spec{k, v})
		}
	}
	for _, one := range first {
		for _, two := range second {
			if one == two {
				continue
			}
			rules := fmt.Sprintf("domain: d\ndescriptors:\n- {key: %q, value: %q, share_threshold: false, rate_limit: {unit: day, requests_per_unit: 1}}\n"+
				"- {key: %q, value: %q, share_threshold: false, rate_limit: {unit: day, requests_per_unit: 2}}\n", one.key, one.value, two.key, two.value)
			set, problems, err := descriptors.Load([]descriptors.Source{{Name: "d", Data: []byte(rules)}}, descriptors.Options{})
			if err != nil {
				t.Fatal(err)
			}
			hidden := true
			for _, r := range requests {
				m := set.Domain([]byte("d")).Match(entries(r.key, r.value))
				hidden = hidden && (m.Rule == nil || m.Rule.Index != 1)
			}
			warned := len(problems) == 1 && strings.Contains(problems[0].Text, "has no effect") && problems[0].Line == 4
			if warned != hidden || !warned && len(problems) != 0 {
				t.Errorf("%v after %v: no request leads to it: %t; problems: %v", two, one, hidden, problems)
			}
		}
	}
}

// words returns all words over letters up to a length.
func words(letters string, longest int) []string {
	all := []string{""}
	for since := 0; longest > 0; longest-- {
		n := len(all)
		for _, w := range all[since:n] {
			for _, l := range letters {
				all = append(all, w+string(l))
			}
		}
		since = n
	}
	return all
}
