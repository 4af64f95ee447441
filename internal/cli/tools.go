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
check rules if the first line of the file names the schema:

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
		Example: `  source <(ratelimitd completion bash)      # this shell; bash needs the bash-completion package
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

func (p *program) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Start the server (the default command)",
		Long: `Serve answers Envoy on GRPC_PORT (8081), /json and health checks on PORT (8080), and operator pages on
DEBUG_PORT (6070). Environment variables configure it:
https://github.com/ratelimitd/ratelimitd/blob/main/docs/settings.md

Counters are in Redis at REDIS_URL, or in memory with BACKEND_TYPE=memory. If neither is set, Redis is
expected at the default unix socket of envoyproxy/ratelimit. The server starts even if Redis is
unreachable; until it connects, the fallback decides (on_failure or DEFAULT_ON_FAILURE).

The server also starts without valid rules; it reports the errors and is unhealthy until valid rules
are loaded. It reloads rules when files change and on SIGHUP. On SIGTERM and SIGINT it turns
unhealthy, serves for DRAIN_DELAY, finishes open requests and exits with 0; a second signal stops it
immediately.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=127.0.0.1:6379 RUNTIME_ROOT=config RUNTIME_APPDIRECTORY=example ratelimitd serve
  BACKEND_TYPE=memory RUNTIME_ROOT=config RUNTIME_APPDIRECTORY=example ratelimitd serve
  BACKEND_TYPE=memory PORT=9080 LOG_LEVEL=info LOG_FORMAT=json ratelimitd serve`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) },
	}
}

// command returns the name under which this program takes commands: started as ratelimit it takes none, but is
// installed next to it as ratelimitd too.
func (p *program) command() string {
	if dir, base := filepath.Split(p.name); base == referenceServer {
		return dir + "ratelimitd"
	}
	return p.name
}
