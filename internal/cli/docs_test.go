package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/cli"
)

// TestDocumented: the commands and flags in the documentation exist.
func TestDocumented(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	root := cli.Command()
	root.InitDefaultHelpCmd()
	call, flag := regexp.MustCompile("(?:^|[\\s/])ratelimitd ([a-z][a-z-]*(?: [^`|#>;&]*|$))"), regexp.MustCompile(`\s--([a-z-]+)`)
	found := 0
	for _, file := range append(files, "../../README.md") {
		for _, text := range code(t, file) {
			for _, m := range call.FindAllStringSubmatch(text, -1) {
				found++
				cmd, _, err := root.Find(strings.Fields(m[1]))
				if err != nil || cmd == root {
					t.Errorf("%s: there is no command %q", file, m[1])
					continue
				}
				cmd.InitDefaultHelpFlag()
				for _, f := range flag.FindAllStringSubmatch(m[1], -1) {
					if cmd.Flag(f[1]) == nil {
						t.Errorf("%s: %s has no flag --%s", file, cmd.CommandPath(), f[1])
					}
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d commands were found", found)
	}
}

// code returns the code in a document: code spans, and commands in its blocks.
func code(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	span, typed := regexp.MustCompile("`[^`]+`"), regexp.MustCompile(`^(?: {4,}|\$ )(?:\$ )?[a-zA-Z]`)
	fenced := false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case typed.MatchString(line), fenced && strings.HasPrefix(line, "ratelimitd "):
			all = append(all, strings.TrimSpace(line))
		case !fenced:
			for _, s := range span.FindAllString(line, -1) {
				all = append(all, strings.Trim(s, "`"))
			}
		}
	}
	return all
}
