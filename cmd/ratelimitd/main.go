// Command ratelimitd is a rate limit service for Envoy. Further commands check rules, explain how a request matches
// them, and query, inspect, and reset a running server.
//
// Started as ratelimit, the program's name in images of envoyproxy/ratelimit, it runs the server and ignores its
// arguments. Started as ratelimit_client or ratelimit_config_check, it behaves like those programs.
package main

import (
	"context"
	"os"
	_ "time/tzdata" // for the timezone key of rules, if the image has no zones

	"github.com/redis/go-redis/v9/logging"

	"github.com/ratelimitd/ratelimitd/internal/cli"
)

func main() {
	logging.Disable() // go-redis would log to stderr, and our own log has the same information
	os.Exit(cli.Run(context.Background(), os.Args, cli.Process{Environ: os.Environ(), Stdout: os.Stdout, Stderr: os.Stderr, Serve: serve}))
}
