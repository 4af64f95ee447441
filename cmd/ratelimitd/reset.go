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
		c      client
		force  bool
		dry    bool
		output string
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
			asJSON, err := jsonWanted(output)
			if err != nil {
				return err
			}
			return p.eachCounter(cmd.Context(), &c, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				if dry {
					return p.wouldReset(ctx, a, at, asJSON)
				}
				return p.reset(ctx, a, at, force, asJSON)
			})
		},
	}
	c.add(p, cmd)
	addOutput(cmd, &output)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be done, and change nothing")
	cmd.Flags().BoolVar(&force, "force", false, "also while a penalty runs, which ends")
	return cmd
}

func (p *program) reset(ctx context.Context, a adminv1.AdminServiceClient, at counterAt, force, asJSON bool) error {
	answer, err := a.Reset(ctx, &adminv1.ResetRequest{Domain: at.domain, Entries: at.descriptor.messages(), Force: force})
	if status.Code(err) == codes.FailedPrecondition {
		return fmt.Errorf("%s (--force ends it)", status.Convert(err).Message())
	}
	switch {
	case err != nil:
		return err
	case asJSON:
		return p.printJSON(answer)
	}
	p.printf("%s %s: reset\n%s", at.domain, at.descriptor.text, counterText(answer.GetCounter(), ""))
	return nil
}

// wouldReset shows the counter that would be reset.
func (p *program) wouldReset(ctx context.Context, a adminv1.AdminServiceClient, at counterAt, asJSON bool) error {
	answer, err := a.Peek(ctx, &adminv1.PeekRequest{Domain: at.domain, Entries: at.descriptor.messages()})
	switch {
	case err != nil:
		return err
	case asJSON:
		return p.printJSON(answer)
	}
	p.printf("%s%s %s: reset\n%s", dryText(true), at.domain, at.descriptor.text, counterText(answer.GetCounter(), ""))
	return nil
}
