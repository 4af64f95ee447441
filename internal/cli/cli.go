// Package cli is the command line of ratelimitd: a file for each command. What they share: rules.go and descriptor.go (rules and
// arguments), client.go and scope.go (a running server), output.go (tables and JSON), reference.go (the names of programs of
// envoyproxy/ratelimit).
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// Exit codes.
const (
	exitFailed   = 1 // something went wrong
	exitNegative = 2 // no error, but a negative result: see errNegative
	exitUsage    = 2 // under the names ratelimit_client and ratelimit_config_check: a flag is not known, or takes another value
)

// errNegative is the outcome of a call that was rejected, a reload that was, or a server that is not healthy. That has already been
// printed.
var errNegative = errors.New("a negative result")

// Command returns the command line, of which nothing is run: its commands and flags.
func Command() *cobra.Command { return new(program).root() }

// Process is the process that a command, or the server, runs in.
type Process struct {
	Environ        []string
	Stdout, Stderr io.Writer
	Serve          func(ctx context.Context, p Process, s Served) error // serves until a signal or ctx ends it
}

// Served is what the server says of the program.
type Served struct {
	Command string // the name under which it takes commands
	Release string
}

// Env returns the value of a variable that Go itself reads, or commands alone, or "" if it is not set. Those of the server are
// read by [settings.Parse] and [settings.Only].
func (p Process) Env(name string) string {
	for _, pair := range p.Environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

// Run runs a command in a process, and returns its exit code. args[0] is the name under which it was started.
func Run(ctx context.Context, args []string, in Process) int {
	p := &program{name: args[0], Process: in}
	p.stdout, p.stderr = p.screen(in.Stdout), p.screen(in.Stderr)
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

// program is what all commands share.
type program struct {
	Process

	name           string
	stdout, stderr *plain.Writer
}

// serve serves until a signal or ctx ends it.
func (p *program) serve(ctx context.Context) error {
	in := p.Process
	in.Stdout, in.Stderr = p.stdout, p.stderr
	return p.Serve(ctx, in, Served{Command: p.command(), Release: release()})
}

// screen returns what shows text to people, or in the log of a workflow of GitHub.
func (p *program) screen(w io.Writer) *plain.Writer {
	return &plain.Writer{Raw: w, Actions: p.Env("GITHUB_ACTIONS") == "true"}
}

// printf prints lines; see [sprintf].
func (p *program) printf(format string, args ...any) { p.print(sprintf(format, args...)) }

// print prints lines that are complete.
func (p *program) print(text string) { _, _ = io.WriteString(p.stdout, text) }

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "ratelimitd",
		Short: "A rate limit service for Envoy",
		Long: `ratelimitd is a rate limit service for Envoy, and a drop-in for envoyproxy/ratelimit.

Without a command it serves. The server has no flags: its settings are the environment
variables that envoyproxy/ratelimit reads, and a few more, which are listed in docs/settings.md
(https://github.com/ratelimitd/ratelimitd/blob/main/docs/settings.md).

Exit codes: 0, done; 1, something is wrong, or there is no answer; 2, a negative result: a call was
over its limit, a server is not healthy or not ready (status), rules are invalid (reload).

Commands that ask a running server find it at --addr or $RATELIMITD_ADDR, or else where a server with
the same environment would be, and take the admin token from --token-file or $ADMIN_TOKEN_FILE.`,
		Example: `  BACKEND_TYPE=memory RUNTIME_ROOT=config RUNTIME_APPDIRECTORY=example ratelimitd
  ratelimitd check config/example
  ratelimitd explain --config config/example example fixed=ann
  ratelimitd call example fixed=ann`,
		Version:                    version(),
		SilenceUsage:               true,
		SilenceErrors:              true,
		SuggestionsMinimumDistance: 2,
		Args:                       noCommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) },
	}
	root.SetVersionTemplate("ratelimitd {{.Version}}\n")
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return p.usage(flagError(cmd, err)) })
	root.SetHelpCommand(p.helpCommand())
	root.AddCommand(
		p.serveCommand(), p.explainCommand(), p.callCommand(), p.peekCommand(), p.resetCommand(), p.topCommand(), p.watchCommand(), p.keyCommand(), p.versionCommand(),
		p.blockCommand(), p.allowCommand(), p.limitCommand(), p.grantCommand(), p.liftCommand(), p.controlsCommand(),
		p.rulesCommand(), p.statusCommand(), p.rlqsCommand(), p.reloadCommand(), p.drainCommand(),
		p.auditCommand(), p.tenantCommand(), p.schemaCommand(), p.checkStoreCommand(),
	)
	noFiles(root.Commands()...)
	root.AddCommand(p.checkCommand(), p.fmtCommand(), p.diffCommand(), p.replayCommand(), p.completionCommand(), p.manpagesCommand())
	return root
}
