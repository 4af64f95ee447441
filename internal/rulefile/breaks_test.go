package rulefile_test

import (
	"bytes"
	"fmt"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
)

// FuzzStrayBreak: a parser reads a valid text in the same way as with other characters in place of breaks.
func FuzzStrayBreak(f *testing.F) {
	for _, text := range []string{"a: \"b%c\"\n", "a: 'b''%'\n", "? \"a%b\"\n: c\n", "[\"a%b\": c]\n", "\"a%b\": c\n", "{a: \"%---\n\"}\n", "- !!str &x \"%\"\n- '%'\n", "a: b\n \"%c\"\n", "a: !t\n  \"%\"\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, char := range []string{"\r", "\u0085", "\u2028", "\u2029"} {
			data := bytes.ReplaceAll(text, []byte("%"), []byte(char))
			if rulefile.StrayBreak(data) != nil {
				continue
			}
			var as, masked yaml.Node
			if yaml.Unmarshal(data, &as) == nil && yaml.Unmarshal(maskBreaks(data), &masked) == nil && shape(&as) != shape(&masked) {
				t.Errorf("%q is %s, and without breaks %s", data, shape(&as), shape(&masked))
			}
		}
	})
}

// shape describes the maps, lists, and texts of a document.
func shape(n *yaml.Node) string {
	text := fmt.Sprint(n.Kind)
	for _, c := range n.Content {
		text += shape(c)
	}
	return "(" + text + ")"
}

func maskBreaks(text []byte) []byte {
	_, masked := rulefile.WithLF(text)
	return masked
}
