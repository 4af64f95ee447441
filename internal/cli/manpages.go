package cli

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (p *program) manpagesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "manpages DIRECTORY",
		Short: "Write manual pages",
		Long: `Manpages writes a manual page for each command to DIRECTORY, and creates the directory if needed.
SOURCE_DATE_EPOCH sets the date of the pages, in seconds since 1970.`,
		Example:               `  ratelimitd manpages /usr/local/share/man/man1`,
		Args:                  needs("the directory"),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := filepath.Clean(args[0])
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "ratelimitd " + release(), Manual: "ratelimitd"}, dir)
		},
	}
}
