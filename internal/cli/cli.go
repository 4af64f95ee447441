// Package cli is the command line of ratelimitd.
//
// Operators and scripts rely on the names of commands and flags, the JSON fields, and the exit codes: 0, success; 1, error or no
// answer; 2, negative result. Text output may change.
//
// A command is a [cobra.Command] that a method of program returns. Its RunE calls the server through program.api and passes the answer
// and the error to program.show, which prints the answer as text or, with --output json, as JSON. The runner does the rest:
// program.queries and program.changes add the flags of commands that query or change a server; client connects at the first call, applies
// --timeout and the token, and turns the error of a call into a message with advice; [Run] turns errors into exit codes. Commands that
// read rule files use ruleFlags. Text from a server or a file is printed as by [plain.Text].
//
// The runner is in run.go, client.go (the connection), rules.go and descriptor.go (rules and arguments), and output.go (tables and JSON).
// Each of the other files has a group of commands.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Exit codes.
const (
	exitFailed   = 1 // an error or no answer
	exitNegative = 2 // a negative result without an error: see errNegative
	exitUsage    = 2 // for ratelimit_client and ratelimit_config_check: an unknown flag or an invalid value
)

// errNegative reports a negative result: a rejected call, an invalid reload, or an unhealthy server. The command has already
// printed it.
var errNegative = errors.New("a negative result")

// Command returns the command tree, for its commands and flags; it cannot be executed.
func Command() *cobra.Command { return new(program).root() }

// Process is the environment that a command or the server runs in.
type Process struct {
	Environ        []string
	Stdout, Stderr io.Writer
	Serve          func(ctx context.Context, p Process, s Served) error // runs the server until a signal arrives or ctx ends
}

// Served describes the program to the server.
type Served struct {
	Command string // the name of the program that accepts commands
	Release string
}

// Env returns a variable that Go or only commands read, or "" if it is not set. [settings.Parse] and [settings.Only] read the
// server's variables.
func (p Process) Env(name string) string {
	for _, pair := range p.Environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// Run runs a command and returns its exit code. args[0] is the name under which the program was started.
func Run(ctx context.Context, args []string, in Process) int {
	p := &program{name: args[0], Process: in}
	p.stdout, p.stderr = p.screen(in.Stdout), p.screen(in.Stderr)
	defer p.client.close()
	root := p.root() //nolint:contextcheck // the commands get the context of ExecuteContext
	root.SetArgs(commandLine(args))
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errNegative):
		return exitNegative
	case errors.Is(err, errPrinted):
		return exitFailed
	}
	fmt.Fprintf(p.stderr, "ratelimitd: %s\n", errorText(err))
	if _, ok := errors.AsType[usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// program is the state that all commands share.
type program struct {
	Process

	name           string
	stdout, stderr *plain.Writer
	client         client
	api            adminv1.AdminServiceClient // calls through client

	// Flags that many commands have.
	form   string // --output
	reason string
	dry    bool
}

// serve runs the server until a signal arrives or ctx ends.
func (p *program) serve(ctx context.Context) error {
	in := p.Process
	in.Stdout, in.Stderr = p.stdout, p.stderr
	return p.Serve(ctx, in, Served{Command: p.command(), Release: release()})
}

// screen returns a writer that makes text safe for terminals and for logs of GitHub Actions.
func (p *program) screen(w io.Writer) *plain.Writer {
	return &plain.Writer{Raw: w, Actions: p.Env("GITHUB_ACTIONS") == "true"}
}

// printf prints formatted lines; see [sprintf].
func (p *program) printf(format string, args ...any) { p.print(sprintf(format, args...)) }

// print prints complete lines.
func (p *program) print(text string) { _, _ = io.WriteString(p.stdout, text) }

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ratelimitd",
		Short: "A rate limit service for Envoy",
		Long: `ratelimitd is a rate limit service for Envoy and a drop-in replacement for envoyproxy/ratelimit.

Run without a command, it starts the server. Environment variables configure the server:
https://github.com/ratelimitd/ratelimitd/blob/main/docs/settings.md

Commands that query a running server connect to --addr or $RATELIMITD_ADDR. By default, they find a
server on this machine by its environment. To change a server elsewhere, or to query one that has a
token, pass --token-file or set $ADMIN_TOKEN_FILE.

Exit codes: 0, success; 1, error or no answer; 2, negative result: a call was over its limit, a
server is unhealthy or not ready (status), or rules are invalid (reload).`,
		Example: `  ratelimitd status                                # is the server healthy? what happens without Redis?
  ratelimitd top --rejected                        # who is rejected most
  ratelimitd top --near                            # who is closest to a limit
  ratelimitd explain example fixed=bob             # which rule rejects bob
  ratelimitd allow example fixed=bob --for 1h      # let bob through for an hour
  ratelimitd check config/example                  # validate rules before deploying them
  BACKEND_TYPE=memory RUNTIME_ROOT=config RUNTIME_APPDIRECTORY=example ratelimitd`,
		Version:                    version(),
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		Args:                       noCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) },
		PersistentPreRunE:          rejectServerFlags,
	}
	p.client.add(p, root.PersistentFlags())
	p.api = adminv1.NewAdminServiceClient(&p.client)
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	root.SetVersionTemplate("ratelimitd {{.Version}}\n")
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return p.usage(flagError(cmd, err)) })
	root.SetHelpCommand(p.helpCommand())
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Inspect:", []*cobra.Command{
			p.statusCommand(), p.topCommand(), p.watchCommand(), p.explainCommand(), p.callCommand(),
			p.peekCommand(), p.rlqsCommand(), p.auditCommand(),
		}},
		{"Override:", append(p.controlCommands(), p.controlsCommand(), p.liftCommand(), p.grantCommand(), p.resetCommand())},
		{"Rules:", []*cobra.Command{
			p.rulesCommand(), p.reloadCommand(), p.schemaCommand(), p.checkCommand(), p.fmtCommand(), p.diffCommand(), p.replayCommand(),
		}},
		{"Tenants:", []*cobra.Command{p.tenantCommand()}},
		{"Tools:", []*cobra.Command{
			p.serveCommand(), p.drainCommand(), p.keyCommand(), p.versionCommand(), p.completionCommand(), p.manpagesCommand(),
		}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommandGroupID("Tools:")
	return root
}

func (p *program) versionCommand() *cobra.Command {
	return p.outputs(&cobra.Command{
		Use:               "version",
		Short:             "Print the version",
		Example:           "  ratelimitd version",
		Args:              takes(0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			type versions struct {
				Version string `json:"version"`
				Go      string `json:"go"`
			}
			return p.show(versions{release(), runtime.Version()}, nil, func() { p.printf("ratelimitd %s\n", version()) })
		},
	}, "text", "json")
}

// version returns the release and the Go version.
func version() string { return release() + " " + runtime.Version() }

// release returns the module version that the go command embedded, from a tag or a commit.
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
		Example:           `  ratelimitd schema > rules.schema.json`,
		Args:              takes(0),
		ValidArgsFunction: cobra.NoFileCompletions,
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
		Args:              takes(0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) },
	}
}

// command returns the name of the program that accepts commands. The program named ratelimit accepts none, but is
// installed next to ratelimitd.
func (p *program) command() string {
	if dir, base := filepath.Split(p.name); base == referenceServer {
		return dir + "ratelimitd"
	}
	return p.name
}
