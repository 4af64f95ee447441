package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
)

func (p *program) versionCommand() *cobra.Command {
	var o output
	return o.add(&cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  ratelimitd version",
		Args:    needsNone,
		RunE: func(*cobra.Command, []string) error {
			if o.json() {
				return p.printObject(struct {
					Version string `json:"version"`
					Go      string `json:"go"`
				}{release(), runtime.Version()})
			}
			p.printf("ratelimitd %s\n", version())
			return nil
		},
	})
}

// version returns the release and the version of Go.
func version() string { return release() + " " + runtime.Version() }

// release returns the module's version that the Go tool wrote into the binary, which is derived from a tag or the
// commit.
func release() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}

func (p *program) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON Schema of rule files for editors",
		Long: `Schema prints a JSON Schema (2020-12) of rule files. Editors with YAML language support complete and
check rules if the first line of the file names it:

  # yaml-language-server: $schema=rules.schema.json

The schema finds most errors; ratelimitd check finds all. Keep it outside the directory of the rules,
because the server reads every file there.`,
		Example: `  ratelimitd schema > rules.schema.json`,
		Args:    needsNone,
		RunE: func(*cobra.Command, []string) error {
			p.print(string(ruleschema.Schema()))
			return nil
		},
	}
}

func (p *program) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long: `Completion prints a script that completes commands, flags and files, and the domains and keys of the
running server.`,
		Example: `  source <(ratelimitd completion bash)      # this shell; bash needs its package bash-completion
  ratelimitd completion bash > /etc/bash_completion.d/ratelimitd
  ratelimitd completion zsh > "${fpath[1]}/_ratelimitd"
  ratelimitd completion fish > ~/.config/fish/completions/ratelimitd.fish`,
		ValidArgs:             []string{"bash", "zsh", "fish"},
		Args:                  needs("the shell"),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root, shell := cmd.Root(), strings.Join(args, " "); shell {
			case "bash":
				return root.GenBashCompletionV2(p.stdout.Raw, true)
			case "zsh":
				return root.GenZshCompletion(p.stdout.Raw)
			case "fish":
				return root.GenFishCompletion(p.stdout.Raw, true)
			default:
				return fmt.Errorf("completion %s: must be bash, zsh or fish", shell)
			}
		},
	}
}

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
