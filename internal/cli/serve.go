package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"
)

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
