package secret

import (
	"bytes"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

const (
	one = "correct horse battery staple, 1st"
	two = "correct horse battery staple, 2nd"
)

func TestRead(t *testing.T) {
	t.Parallel()
	one, two := strings.ReplaceAll(one, " ", "-"), strings.ReplaceAll(two, " ", "-")
	for text, want := range map[string]string{
		one: "", "\n# ours\n" + one + "\n\n": "", "current: " + one + "\nprevious:\t" + two: "", "previous: " + two + "\ncurrent: " + one: "",
		"current: " + one + "\nprevious: clear": "", "previous: clear\ncurrent: " + one: "",
		"":                                       "the file is empty",
		"clear":                                  "line 1: the secret has 5 bytes: it must have at least 32",
		"current: clear":                         "line 1: the secret has 5 bytes",
		"previous: clear":                        "no current one",
		"short":                                  "line 1: the secret has 5 bytes: it must have at least 32",
		one + "\n" + two:                         "line 2: the file must contain one secret, or the two lines current:",
		"previous: " + two:                       "no current one",
		"previous: " + two + "\n" + one:          "line 2: the file must contain one secret",
		"current: " + one + "\nprevious: " + one: "remove the previous one",
		"current: of staples " + one:             "line 1: current: must be followed by a secret without whitespace",
		"current: " + one + "\nprevious:":        "line 2: the secret has 0 bytes",
		strings.Repeat("x", maxFile+1):           "more than 16384 bytes",
	} {
		file := filepath.Join(t.TempDir(), "secret")
		testkit.WriteFile(t, file, text)
		keys, err := Read(file)
		if want == "" {
			if err != nil || len(keys.counters) != 32 || len(keys.Mark) != 8 {
				t.Errorf("%q: %+v, %v", text, keys, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) || len(text) > 5 && strings.Contains(err.Error(), text) {
			t.Errorf("%.50q: %v, want %q", text, err, want)
		}
	}
}

func keys(t *testing.T, current, previous string) *Keys {
	t.Helper()
	k, err := New(current, previous)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestSeal: sealed texts can only be opened with the secret, as the current or the previous one.
func TestSeal(t *testing.T) {
	t.Parallel()
	first, second, both := keys(t, one, ""), keys(t, two, ""), keys(t, two, one)
	text := []byte(`{"user": "ann@example.org"}`)
	sealed := first.Seal(text, "about")
	if !Sealed(sealed) || Sealed(text) || bytes.Contains(sealed, []byte("ann")) || !bytes.Equal(sealed, first.Seal(text, "about")) {
		t.Errorf("sealed: %s", sealed)
	}
	for _, k := range []*Keys{first, both} {
		if got, err := k.Open(sealed, "about"); err != nil || !bytes.Equal(got, text) {
			t.Errorf("open: %q, %v", got, err)
		}
	}
	fromClear := keys(t, one, "clear")
	if !fromClear.Clear || both.Clear || len(fromClear.Reservations) != 1 || !slices.Equal(fromClear.Names("x"), append(first.Names("x"), "x")) {
		t.Errorf("after clear: %+v, names %q", fromClear, fromClear.Names("x"))
	}
	if got, err := fromClear.Open(sealed, "about"); err != nil || !bytes.Equal(got, text) {
		t.Errorf("open after clear: %q, %v", got, err)
	}
	if _, err := second.Open(sealed, "about"); !errors.Is(err, ErrOther) {
		t.Errorf("open with another secret: %v", err)
	}
	if _, err := first.Open(sealed, "other"); !errors.Is(err, ErrSpoiled) {
		t.Errorf("open with another about: %v", err)
	}
	for i := range len(sealed) {
		spoiled := bytes.Clone(sealed)
		if spoiled[i] ^= 1; Sealed(spoiled) {
			if got, err := first.Open(spoiled, "about"); err == nil && !bytes.Equal(got, text) {
				t.Errorf("byte %d changed: %q", i, got)
			}
		}
		if got, err := first.Open(sealed[:i], "about"); err == nil {
			t.Errorf("cut at %d: %q", i, got)
		}
	}
	if first.Mark == second.Mark || second.Mark != both.Mark || bytes.Equal(first.counters, second.counters) || !bytes.Equal(second.counters, both.counters) {
		t.Error("the keys do not depend on the current secret only")
	}
	of := func(k *Keys, what string) string { return strings.Join(k.Names(what), " ") }
	if n := of(first, "x"); len(n) != 16 || n == of(first, "y") || n == of(second, "x") || of(both, "x") != of(second, "x")+" "+n {
		t.Errorf("names %q, %q", n, of(both, "x"))
	}
}
