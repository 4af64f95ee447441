package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"
)

func (p *program) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Serve; this is what ratelimitd does without a command",
		Long: `Serve answers Envoy on GRPC_PORT (8081), /json and health pages on PORT (8080), and pages for
operators on DEBUG_PORT (6070). All settings are environment variables, which are listed in
https://github.com/ratelimitd/ratelimitd/blob/main/docs/settings.md.

Counters live in Redis, at REDIS_URL, or with BACKEND_TYPE=memory in this process. Where neither
is set, Redis is looked for at the unix socket that is envoyproxy/ratelimit's default. It starts
even if Redis cannot be reached, and does what on_failure says until it can.

It also starts without valid rules, says what is wrong with them, and is not healthy until it has
some. Rules are loaded again when their files change, and on SIGHUP. On SIGTERM and SIGINT it
turns unhealthy, keeps serving for DRAIN_DELAY, finishes what runs, and exits with 0; a second signal
ends it at once.`,
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
