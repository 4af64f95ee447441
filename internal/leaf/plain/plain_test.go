package plain_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

var texts = map[string]string{
	"shop user=ann ü 🦊":     "shop user=ann ü 🦊",
	"a\nb\r\tc":             `a\nb\r\tc`,
	"\x1b]0;x\a\x7f\x00":    `\u001b]0;x\u0007\u007f\u0000`,
	"\u009b31m\u0085":       `\u009b31m\u0085`,
	"\u202egnp\u2066\u2028": `\u202egnp\u2066\u2028`,
	"\xff\xc2a\xed\xa0\x80": `\xff\xc2a\xed\xa0\x80`,
	"\ufffd":                "\ufffd",
}

func TestText(t *testing.T) {
	t.Parallel()
	for text, want := range texts {
		if got := plain.Text(text); got != want || plain.Text(got) != got {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestWriter checks that lines and the meaning of JSON are preserved, and that no line is a command of a workflow.
func TestWriter(t *testing.T) {
	t.Parallel()
	for _, actions := range []bool{false, true} {
		var b bytes.Buffer
		w := &plain.Writer{Raw: &b, Actions: actions}
		write := func(text string) {
			t.Helper()
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Fatal(n, err)
			}
		}
		for _, part := range []string{"a::b\x1b\t", "ü\n \t", "::add-mask::x\n", ":", ":stop-commands::y\n", "x ##", "[add-mask]z\r\n"} {
			write(part)
		}
		want := "a::b\\u001b\tü\n \t::add-mask::x\n::stop-commands::y\nx ##[add-mask]z\\r\n"
		if actions {
			want = strings.NewReplacer("\n \t:", "\n \t\\u003a", "\n:", "\n\\u003a", "#[", "#\\u005b").Replace(want)
		}
		if got := b.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		b.Reset()
		value := map[string]string{"a": "\u009b\u202e\u2028\x7f\x1b::##[x]\n"}
		line, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		write(string(line))
		var got map[string]string
		if err := json.Unmarshal(b.Bytes(), &got); err != nil || got["a"] != value["a"] {
			t.Errorf("%s is %q, want %q: %v", b.String(), got, value, err)
		}
	}
}

func FuzzText(f *testing.F) {
	for text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got := plain.Text(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }) {
			t.Errorf("Text(%q) = %q", text, got)
		}
		if plain.Text(got) != got {
			t.Errorf("Text(%q) = %q, and of that %q", text, got, plain.Text(got))
		}
	})
}

// TestWord checks that a shell parses the result of Word as the original text.
func TestWord(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "user=ann,path=/a/b", "it's", "a$(touch x)`y`", `a\b"c`, "*?[a]~", "a b;c&d|e<f>(g)#h!i", "--x", "ü"} {
		for _, shell := range []string{"sh", "bash", "zsh"} {
			if _, err := exec.LookPath(shell); err != nil {
				t.Logf("%s is not here, and is left out", shell)
				continue
			}
			got, err := exec.CommandContext(t.Context(), shell, "-c", "printf %s "+plain.Word("-"+text)).CombinedOutput()
			if err != nil || string(got) != "-"+text {
				t.Errorf("%s takes %s as %q, want %q: %v", shell, plain.Word("-"+text), got, "-"+text, err)
			}
		}
	}
}
