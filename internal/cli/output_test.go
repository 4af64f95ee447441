package cli

import (
	"io"
	"testing"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// TestOutputEverywhere: each command that prints an answer can print it as JSON; rules and their schema are none. A command that has others below it prints its help alone.
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
