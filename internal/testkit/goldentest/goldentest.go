// Package goldentest compares what tests make with files, which it writes when it is told to.
package goldentest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Scripts runs a test for each testdata/*.txt: play returns the script with what comes of it, which [Golden] compares.
func Scripts(t *testing.T, update bool, play func(t *testing.T, script string) string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("finding scripts: %v in %v", err, files)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			Golden(t, file, play(t, string(script)), update)
		})
	}
}

// Section is Golden for the part of a document between two marks. It returns the part before it.
func Section(tb testing.TB, file string, marks [2]string, text string, update bool) (head string) {
	tb.Helper()
	document, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	head, rest, found := strings.Cut(string(document), marks[0])
	_, tail, closed := strings.Cut(rest, marks[1])
	if !found || !closed {
		tb.Fatalf("%s has nothing between %q", file, marks)
	}
	Golden(tb, file, head+marks[0]+text+marks[1]+tail, update)
	return head
}

// Golden compares a file with the text that a test makes. With update it writes that text into the file, to be looked at before it is
// committed.
func Golden(tb testing.TB, file, text string, update bool) {
	tb.Helper()
	if update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil { //nolint:gosec // like any file of the repository
			tb.Fatal(err)
		}
		return
	}
	was, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(was), "\n"), strings.Split(text, "\n")); diff != "" {
		tb.Errorf("%s (-want +got); -rewrite, or make docs, writes got into it:\n%s", file, diff)
	}
}
