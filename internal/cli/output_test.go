package cli

import (
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// TestOutputEverywhere: each command that prints an answer can print it as JSON, except commands for rules and their schema. A command
// with subcommands only prints its help.
func TestOutputEverywhere(t *testing.T) {
	t.Parallel()
	silent := map[string]bool{
		"serve": true, "help": true, "completion": true, "manpages": true, "fmt": true, "schema": true,
		"bash": true, "fish": true, "powershell": true, "zsh": true,
	}
	var visit func(*cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Runnable() && !c.Hidden && !c.HasSubCommands() && !silent[c.Name()] && c.HasParent() && c.Flags().Lookup("output") == nil {
			t.Errorf("%s has no --output", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	nowhere := &plain.Writer{Raw: io.Discard}
	visit((&program{stdout: nowhere, stderr: nowhere}).root())
}

// TestFit: a fitted table has at most [tableWidth] columns. Only the longest cells are cut.
func TestFit(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 200)
	lines := tableLines(fit([][]string{{"ID", "DESCRIPTOR", "REASON"}, {"0123456789abcdef", "shop user=ann", long}}))
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > tableWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if want := "0123456789abcdef  shop user=ann  üüü"; !strings.HasPrefix(lines[1], want) || !strings.HasSuffix(lines[1], "ü…") {
		t.Errorf("got %s, want %s…", lines[1], want)
	}
}

func TestBriefly(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 90 * time.Second: "2m", time.Hour: "60m",
		2*time.Hour - time.Second: "2h", 2*time.Hour + time.Minute: "2h", 47 * time.Hour: "47h", 72 * time.Hour: "3d",
	} {
		if got := briefly(d); got != want {
			t.Errorf("briefly(%v) = %s, want %s", d, got, want)
		}
	}
}
