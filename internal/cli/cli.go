// Package cli is the command line of ratelimitd: a file for each command or group of commands. What they share: rules.go and
// descriptor.go (rules and arguments), client.go and scope.go (a running server), output.go (tables and JSON), reference.go (the names of
// programs of envoyproxy/ratelimit).
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
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
	client         client
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
		PersistentPreRunE:          onlyOfServers,
	}
	p.client.add(p, root.PersistentFlags())
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	root.SetVersionTemplate("ratelimitd {{.Version}}\n")
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return p.usage(flagError(cmd, err)) })
	root.SetHelpCommand(p.helpCommand())
	files := []*cobra.Command{p.checkCommand(), p.fmtCommand(), p.diffCommand(), p.replayCommand(), p.completionCommand(), p.manpagesCommand()}
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Inspect:", []*cobra.Command{
			p.statusCommand(), p.topCommand(), p.watchCommand(), p.explainCommand(), p.callCommand(),
			p.peekCommand(), p.rlqsCommand(), p.auditCommand(),
		}},
		{"Override:", []*cobra.Command{
			p.blockCommand(), p.allowCommand(), p.limitCommand(), p.controlsCommand(), p.liftCommand(),
			p.grantCommand(), p.resetCommand(),
		}},
		{"Rules:", append([]*cobra.Command{p.rulesCommand(), p.reloadCommand(), p.schemaCommand()}, files[:4]...)},
		{"Tenants:", []*cobra.Command{p.tenantCommand()}},
		{"Tools:", append([]*cobra.Command{p.serveCommand(), p.drainCommand(), p.keyCommand(), p.versionCommand()},
			files[4:]...)},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			if root.AddCommand(cmd); !slices.Contains(files, cmd) {
				noFiles(cmd)
			}
		}
	}
	root.SetHelpCommandGroupID("Tools:")
	return root
}
