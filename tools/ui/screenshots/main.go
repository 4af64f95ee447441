// Screenshots writes the pictures of docs/console: screenshots ROOT DIRECTORY, with the sources of ratelimitd in ROOT.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/ratelimitd/ratelimitd/tools/ui"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: screenshots ROOT DIRECTORY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := ui.Screenshots(ctx, os.Args[1], os.Args[2])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
