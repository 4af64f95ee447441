// Command ratelimitd is a rate limit service for Envoy. Besides the server it has commands to check rules, to explain
// how a request is matched, and to query, inspect and reset a running server.
//
// Started under the name ratelimit, as by images of envoyproxy/ratelimit, it serves whatever its arguments are. Under
// the names ratelimit_client and ratelimit_config_check it behaves like those programs.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // for the timezone key of rules, if the image has no zones

	"github.com/redis/go-redis/v9/logging"

	"github.com/ratelimitd/ratelimitd/internal/cli"
)

func main() {
	logging.Disable() // go-redis would write to stderr on its own; our log says the same
	os.Exit(cli.Run(context.Background(), os.Args, cli.Process{Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Serve: serve}))
}
