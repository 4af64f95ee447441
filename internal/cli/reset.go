package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) resetCommand() *cobra.Command {
	var (
		c     changing
		force bool
	)
	cmd := &cobra.Command{
		Use:   "reset [flags] DOMAIN DESCRIPTOR...",
		Short: "Clear a counter",
		Long: `Reset clears the counter of each descriptor. It fails during a penalty, unless --force ends the
penalty too. It cannot be undone.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd reset example fixed=ann
  ratelimitd reset --force example login=bob`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.eachCounter(cmd.Context(), args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				answer, err := a.Reset(ctx, &adminv1.ResetRequest{
					Domain: at.domain, Entries: at.descriptor.messages(), Force: force, Reason: c.reason, DryRun: c.dry,
				})
				switch {
				case status.Code(err) == codes.FailedPrecondition:
					return fmt.Errorf("%s (--force ends it)", status.Convert(err).Message())
				case err != nil:
					return err
				}
				return c.show(answer, func() {
					p.printf("%s %s %s%s\n", doneText(c.dry, "Reset", "reset"), at.domain, at.descriptor.text, reachText(answer.GetReach()))
					p.print(counterText(answer.GetCounter(), ""))
					p.aloneNote(answer.GetReach())
				})
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&force, "force", false, "end a penalty too")
	return cmd
}
