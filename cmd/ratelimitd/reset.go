package main

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
		c     client
		force bool
	)
	cmd := &cobra.Command{
		Use:   "reset [flags] DOMAIN DESCRIPTOR...",
		Short: "Clear the counters of descriptors in a running server",
		Long: `Reset clears the counter of each descriptor. While a penalty runs it is refused,
unless --force ends the penalty too. The server needs ADMIN=true, and ADMIN_TOKEN_FILE
unless it runs on this machine and listens on 127.0.0.1 or a unix socket alone.

` + descriptorHelp,
		Example: `  ratelimitd reset example fixed=ann
  ratelimitd reset --force example login=bob`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.eachCounter(cmd.Context(), &c, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				return p.reset(ctx, a, at, force)
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also while a penalty runs, which ends")
	return cmd
}

func (p *program) reset(ctx context.Context, a adminv1.AdminServiceClient, at counterAt, force bool) error {
	answer, err := a.Reset(ctx, &adminv1.ResetRequest{Domain: at.domain, Entries: at.descriptor.messages(), Force: force})
	if status.Code(err) == codes.FailedPrecondition {
		return fmt.Errorf("%s (--force ends it)", status.Convert(err).Message())
	}
	if err != nil {
		return err
	}
	p.printf("%s %s: reset\n%s", at.domain, at.descriptor.text, counterText(answer.GetCounter(), ""))
	return nil
}
