package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/remote"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) checkStoreCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "check-store [flags]",
		Short: "Check whether Redis or memcached is fit for counters, before a server relies on it",
		Long: `Check-store reads the same environment variables as the server, connects to the store as the server
would, and prints a line for each thing that counters need: whether it is ok, what was found, and what
to do if it is not. Of Redis that is the login, the version, permissions, what scripts may do, hash tags,
what is evicted, that keys end, and that hits are counted. Its keys are no counter's of the rules, and end
within seconds or are removed.

--output json prints an array with an object for each line, with node, check, result (ok, warning or
error) and text.

Exit codes: 0, fit, though there may be warnings; 1, there is an error.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=127.0.0.1:6379 ratelimitd check-store
  REDIS_TYPE=cluster REDIS_URL=node1:6379,node2:6379 REDIS_AUTH=limiter:SECRET ratelimitd check-store --output json`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.checkStore(cmd.Context(), o.json()) },
	}
	o.add(cmd)
	return cmd
}

func (p *program) checkStore(ctx context.Context, asJSON bool) error {
	s, _, err := settings.Parse(p.Environ)
	if err != nil {
		return err
	}
	found, err := server.Examine(ctx, &s)
	if err != nil {
		return err
	}
	errs, node := 0, 0
	for i := range found {
		node = max(node, len(found[i].Node))
		if found[i].Result == remote.Failure {
			errs++
		}
	}
	if asJSON {
		err = p.printObject(found)
	} else {
		for i := range found {
			f := &found[i]
			p.printf("%-7s  %-*s  %-17s  %s\n", f.Result, node, f.Node, f.Check, f.Text)
		}
	}
	if errs > 0 && err == nil {
		err = fmt.Errorf("the store is not fit: %s", descriptors.CountText(errs, "error"))
	}
	return err
}
