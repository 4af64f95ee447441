package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) peekCommand() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use:   "peek [flags] DOMAIN DESCRIPTOR...",
		Short: "Look at the counters of descriptors in a running server",
		Long: `Peek asks a running server how the counter of each descriptor stands, and changes nothing.
The server needs ADMIN=true, and ADMIN_TOKEN_FILE where it runs on another machine.

` + descriptorHelp,
		Example: `  ratelimitd peek example fixed=ann
  ratelimitd peek --addr 10.0.0.7:8081 --token-file token example fixed=ann`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.eachCounter(cmd.Context(), &c, args, p.peek)
		},
	}
	c.add(p, cmd)
	return cmd
}

func (p *program) resetCommand() *cobra.Command {
	var (
		c     client
		force bool
	)
	cmd := &cobra.Command{
		Use:   "reset [flags] DOMAIN DESCRIPTOR...",
		Short: "Forget what the counters of descriptors in a running server have counted",
		Long: `Reset makes the counter of each descriptor whole again. While a penalty runs it is refused,
unless --force ends the penalty too. The server needs ADMIN=true, and ADMIN_TOKEN_FILE where
it runs on another machine.

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

// counterAt names a counter.
type counterAt struct {
	domain     string
	descriptor *descriptor
}

// eachCounter calls f for the descriptor in each argument after the domain.
func (p *program) eachCounter(ctx context.Context, c *client, args []string,
	f func(context.Context, adminv1.AdminServiceClient, counterAt) error,
) error {
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	ctx = c.admin(ctx)
	for i := range wanted {
		if wanted[i].options {
			return fmt.Errorf("descriptor %q: options behind a semicolon mean nothing to a counter", args[1+i])
		}
		if err := func() error {
			ctx, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			return f(ctx, adminv1.NewAdminServiceClient(conn), counterAt{args[0], &wanted[i]})
		}(); err != nil {
			return c.explain(ctx, err)
		}
	}
	return nil
}

func (p *program) peek(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
	answer, err := a.Peek(ctx, &adminv1.PeekRequest{Domain: at.domain, Entries: at.descriptor.messages()})
	if err != nil {
		return err
	}
	p.printf("%s %s\n", at.domain, at.descriptor.text)
	if r := answer.GetRule(); r != nil {
		p.printf("  rule %s at %s\n", r.GetPath(), rulePlace(r))
	}
	p.printf("%s", counterText(answer.GetCounter(), at.descriptor.holder(answer.GetRule())))
	return nil
}

// holder returns the entry that names the holder of the slots that the rule limits, or "".
func (d *descriptor) holder(r *adminv1.Rule) (holder string) {
	for _, e := range d.entries {
		if e.key == r.GetHolder() { // the last one if there are several
			holder = e.key + "=" + e.value
		}
	}
	return holder
}

// rulePlace returns where a rule is defined: a file and line, or a resource.
func rulePlace(r *adminv1.Rule) string {
	if r.GetLine() == 0 {
		return r.GetFile()
	}
	return fmt.Sprintf("%s:%d", r.GetFile(), r.GetLine())
}

// counterText returns the state of a counter in words, as it is for a holder of slots, if there is one.
func counterText(c *adminv1.Counter, holder string) string {
	var b strings.Builder
	for i, l := range c.GetLimits() {
		left := ""
		if i == int(c.GetStrictest()) {
			left = fmt.Sprintf(": %d left", c.GetLeft())
			if holder != "" && l.GetAlgorithm() == adminv1.Algorithm_ALGORITHM_CONCURRENCY {
				left += fmt.Sprintf(" for %s, including its own", holder)
			}
		}
		fmt.Fprintf(&b, "  limit %s%s\n", l.GetText(), left)
	}
	for _, t := range []struct {
		name string
		d    *durationpb.Duration
	}{
		{"penalty ends in", c.GetPenalty()},
		{"retry in", c.GetRetryAfter()},
		{"resets in", c.GetResetAfter()},
		{"turn in", c.GetWait()},
	} {
		if t.d != nil {
			fmt.Fprintf(&b, "  %s %s\n", t.name, descriptors.WaitText(t.d.AsDuration()))
		}
	}
	fmt.Fprintf(&b, "  counter %s\n", c.GetKey())
	return b.String()
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
