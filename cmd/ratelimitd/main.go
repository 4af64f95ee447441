// Command ratelimitd is a rate limit service for Envoy. Besides the server it has commands to check rules, to explain
// how a request is matched, and to query, inspect and reset a running server.
//
// Started under the name ratelimit, as by images of envoyproxy/ratelimit, it serves whatever its arguments are. Under
// the names ratelimit_client and ratelimit_config_check it behaves like those programs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	_ "time/tzdata" // for the timezone key of rules, if the image has no zones

	"github.com/redis/go-redis/v9/logging"
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// Exit codes.
const (
	exitFailed  = 1 // something went wrong
	exitRefused = 2 // no error, but the answer is no: see errRefused
	exitUsage   = 2 // under the names ratelimit_client and ratelimit_config_check: a flag is not known, or takes another value
)

// errRefused is the outcome of a call that was refused, a reload that was, or a server that is not healthy. That has already been
// printed.
var errRefused = errors.New("the answer is no")

func main() {
	logging.Disable() // go-redis would write to stderr on its own; our log says the same
	err := run(context.Background(), os.Args, os.Environ(), os.Stdout, os.Stderr)
	switch {
	case err == nil:
	case errors.Is(err, errRefused):
		os.Exit(exitRefused)
	case errors.Is(err, errPrinted):
		os.Exit(exitFailed)
	default:
		fmt.Fprintf((&program{environ: os.Environ()}).screen(os.Stderr), "ratelimitd: %s\n", errorText(err))
		if _, ok := errors.AsType[usageError](err); ok {
			os.Exit(exitUsage)
		}
		os.Exit(exitFailed)
	}
}

// run is the whole program. args[0] is the name under which it was started.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	p := &program{name: args[0], environ: environ}
	p.stdout, p.stderr = p.screen(stdout), p.screen(stderr)
	root := p.root() //nolint:contextcheck // the commands get the context of ExecuteContext
	root.SetArgs(commandLine(args))
	return root.ExecuteContext(ctx)
}

// program is what all commands share.
type program struct {
	name           string
	environ        []string
	stdout, stderr *plain.Writer
}

// screen returns what shows text to people, or in the log of a workflow of GitHub.
func (p *program) screen(w io.Writer) *plain.Writer {
	return &plain.Writer{Raw: w, Actions: p.env("GITHUB_ACTIONS") == "true"}
}

// env returns the value of a variable that Go itself reads, or commands alone, or "" if it is not set. Those of the server are
// read by [settings.Parse] and [settings.Only].
func (p *program) env(name string) string {
	for _, pair := range p.environ {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
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

Exit codes: 0, done; 1, something is wrong, or there is no answer; 2, the answer is no: a call was
over its limit, a server is not healthy or not ready (status), rules were refused (reload).

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
		p.rulesCommand(), p.statusCommand(), p.reloadCommand(), p.drainCommand(),
		p.auditCommand(), p.tenantCommand(), p.schemaCommand(), p.checkStoreCommand(),
	)
	noFiles(root.Commands()...)
	root.AddCommand(p.checkCommand(), p.fmtCommand(), p.diffCommand(), p.replayCommand(), p.completionCommand(), p.manpagesCommand())
	return root
}
