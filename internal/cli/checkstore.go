package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) checkStoreCommand() *cobra.Command {
	var o output
	return o.add(&cobra.Command{
		Use:   "check-store [flags]",
		Short: "Check that Redis or memcached is suitable for counters",
		Long: `Check-store reads the environment variables of the server, connects to the store, and prints a line
for each requirement of counters: the result, and how to fix it. For Redis it checks login, version,
permissions, scripts, hash tags, eviction, expiry and counting. It uses keys of its own, and removes
them.

--output json prints an array with an object for each line, with node, check, result (ok, warning or
error) and text.

Exit codes: 0, suitable, perhaps with warnings; 1, error.`,
		Example: `  REDIS_SOCKET_TYPE=tcp REDIS_URL=127.0.0.1:6379 ratelimitd check-store
  REDIS_TYPE=cluster REDIS_URL=node1:6379,node2:6379 REDIS_AUTH=limiter:SECRET ratelimitd check-store --output json`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.checkStore(cmd.Context(), o.json()) },
	})
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
