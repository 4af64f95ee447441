package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) grantCommand() *cobra.Command {
	var (
		c    changing
		hits uint64
	)
	cmd := &cobra.Command{
		Use:   "grant [flags] DOMAIN DESCRIPTOR... --hits N",
		Short: "Refund hits to the counters of descriptors in a running server",
		Long: `Grant refunds hits, now and once: at most what is spent, so that no caller gets more than a full
limit. It is rejected where it would mean nothing: for a leaky_bucket, whose turns are promised, for
concurrency, whose slots are released by their holders, and while a penalty runs.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd grant example fixed=ann --hits 50 --reason 'our fault'`,
		Args:    needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if hits == 0 {
				return errors.New("--hits is missing: say how many hits to refund, 1 or more")
			}
			return c.eachCounter(cmd.Context(), args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				answer, err := a.Grant(ctx, &adminv1.GrantRequest{
					Domain: at.domain, Entries: at.descriptor.messages(), Hits: hits, Reason: c.reason, DryRun: c.dry,
				})
				if err != nil {
					return err
				}
				return c.show(answer, func() {
					before, after := answer.GetBefore().GetLeft(), answer.GetCounter().GetLeft()
					if c.dry {
						p.printf("%s%s %s: at most %d hits back, %d left now\n", dryText(true), at.domain, at.descriptor.text, hits, before)
					} else {
						p.printf("%s %s: %d left, %d before\n", at.domain, at.descriptor.text, after, before)
					}
					p.print(counterText(answer.GetCounter(), "") + sprintf("  %s\n", countingText(answer.GetReach())))
				})
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().Uint64Var(&hits, "hits", 0, "how many hits to refund (required)")
	return cmd
}
