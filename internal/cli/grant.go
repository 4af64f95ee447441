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
		Short: "Refund hits to a counter",
		Long: `Grant refunds hits once, at most as many as were used. It fails for a leaky_bucket, for concurrency
and during a penalty, where a refund has no meaning.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd grant example fixed=ann --hits 50 --reason 'our fault'`,
		Args:    needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if hits == 0 {
				return errors.New("--hits is missing: give the number of hits to refund, such as --hits 50")
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
						p.printf("Dry run: would refund up to %d hits to %s %s%s: %d left now\n", hits, at.domain, at.descriptor.text,
							reachText(answer.GetReach()), before)
					} else {
						p.printf("Refunded %d hits to %s %s%s: %d left, %d before\n", after-before, at.domain, at.descriptor.text,
							reachText(answer.GetReach()), after, before)
					}
					p.print(counterText(answer.GetCounter(), ""))
					p.aloneNote(answer.GetReach())
				})
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().Uint64Var(&hits, "hits", 0, "number of hits to refund (required)")
	return cmd
}
