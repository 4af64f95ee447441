package testkit

import (
	"regexp"
	"strings"
	"testing"
)

// Block returns the block of a Markdown text, indented by four spaces, that contains word.
func Block(tb testing.TB, text, word string) string {
	tb.Helper()
	for _, paragraph := range regexp.MustCompile(`(?m)(?:^    .*\n)+`).FindAllString(text, -1) {
		if strings.Contains(paragraph, word) {
			return regexp.MustCompile(`(?m)^    `).ReplaceAllString(paragraph, "")
		}
	}
	tb.Fatalf("there is no indented block with %q", word)
	return ""
}

// Variables returns the variables set before a command, as in A=1 B=2 command.
func Variables(command string) map[string]string {
	all := map[string]string{}
	for _, found := range regexp.MustCompile(`(?:^|\s)([A-Z_]+)=(\S+)`).FindAllStringSubmatch(command, -1) {
		all[found[1]] = found[2]
	}
	return all
}
