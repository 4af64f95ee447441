package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) peekCommand() *cobra.Command {
	var q query
	return q.add(p, &cobra.Command{
		Use:   "peek [flags] DOMAIN DESCRIPTOR...",
		Short: "Show the state of a counter",
		Long: `Peek shows the state of each descriptor's counter without changing it.

` + descriptorHelp,
		Example: `  ratelimitd peek example fixed=ann
  ratelimitd peek --addr 10.0.0.7:8081 --token-file token example fixed=ann`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askEach(cmd.Context(), &q, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) (*adminv1.PeekResponse, error) {
				return a.Peek(ctx, &adminv1.PeekRequest{Domain: at.domain, Entries: at.descriptor.messages()})
			}, func(at counterAt, answer *adminv1.PeekResponse) {
				p.printf("%s %s\n", at.domain, at.descriptor.text)
				if r := answer.GetRule(); r != nil {
					p.printf("  rule %s at %s\n", r.GetPath(), rulePlace(r))
				}
				p.print(counterText(answer.GetCounter(), at.descriptor.holder(answer.GetRule())))
				if answer.GetRule().GetReserve() != nil {
					p.printf("  bound: %s\n", descriptors.ReserveBound)
				}
			})
		},
	})
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

// counterText returns the state of a counter in words, as it is for a holder of slots, if there is one.
func counterText(c *adminv1.Counter, holder string) string {
	var b page
	for i, l := range c.GetLimits() {
		left := ""
		if i == int(c.GetStrictest()) {
			left = fmt.Sprintf(": %d left", c.GetLeft())
			if holder != "" && l.GetAlgorithm() == adminv1.Algorithm_ALGORITHM_CONCURRENCY {
				left += fmt.Sprintf(" for %s, including its own", holder)
			}
		}
		if reserved := c.GetReserved(); reserved > 0 && left != "" {
			left += fmt.Sprintf(", %d reserved", reserved)
		}
		b.printf("  limit %s%s\n", l.GetText(), left)
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
			b.printf("  %s %s\n", t.name, descriptors.WaitText(t.d.AsDuration()))
		}
	}
	if c.GetRejects() && c.GetRetryAfter() == nil {
		b.WriteString("  never passes\n")
	}
	b.printf("  counter %s\n", c.GetKey())
	return b.String()
}

func (p *program) grantCommand() *cobra.Command {
	var (
		c    changing
		hits uint64
	)
	cmd := &cobra.Command{
		Use:   "grant [flags] DOMAIN DESCRIPTOR... --hits N",
		Short: "Refund hits to a counter",
		Long: `Grant refunds hits once, at most as many as were used. It fails for leaky_bucket, for concurrency, and
during a penalty, because a refund would have no effect.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd grant example fixed=ann --hits 50 --reason 'our fault'`,
		Args:    needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if hits == 0 {
				return errors.New("--hits is missing: set the number of hits to refund, such as --hits 50")
			}
			return askEach(cmd.Context(), &c.query, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) (*adminv1.GrantResponse, error) {
				return a.Grant(ctx, &adminv1.GrantRequest{
					Domain: at.domain, Entries: at.descriptor.messages(), Hits: hits, Reason: c.reason, DryRun: c.dry,
				})
			}, func(at counterAt, answer *adminv1.GrantResponse) {
				before, after := answer.GetBefore().GetLeft(), answer.GetCounter().GetLeft()
				did, left := fmt.Sprintf("Refunded %d", after-before), fmt.Sprintf("%d left, %d before", after, before)
				if c.dry {
					did, left = fmt.Sprintf("Dry run: would refund up to %d", hits), fmt.Sprintf("%d left now", before)
				}
				p.printf("%s hits to %s %s%s: %s\n", did, at.domain, at.descriptor.text, reachText(answer.GetReach()), left)
				p.print(counterText(answer.GetCounter(), ""))
				p.aloneNote(answer.GetReach())
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().Uint64Var(&hits, "hits", 0, "number of hits to refund (required)")
	return cmd
}

func (p *program) resetCommand() *cobra.Command {
	var (
		c     changing
		force bool
	)
	cmd := &cobra.Command{
		Use:   "reset [flags] DOMAIN DESCRIPTOR...",
		Short: "Clear a counter",
		Long: `Reset clears the counter of each descriptor. It fails during a penalty, unless --force ends the
penalty too. A reset cannot be undone.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd reset example fixed=ann
  ratelimitd reset --force example login=bob`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return askEach(cmd.Context(), &c.query, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) (*adminv1.ResetResponse, error) {
				answer, err := a.Reset(ctx, &adminv1.ResetRequest{
					Domain: at.domain, Entries: at.descriptor.messages(), Force: force, Reason: c.reason, DryRun: c.dry,
				})
				if status.Code(err) == codes.FailedPrecondition {
					err = fmt.Errorf("%s (--force ends it)", status.Convert(err).Message())
				}
				return answer, err
			}, func(at counterAt, answer *adminv1.ResetResponse) {
				p.printf("%s %s %s%s\n", doneText(c.dry, "Reset", "reset"), at.domain, at.descriptor.text, reachText(answer.GetReach()))
				p.print(counterText(answer.GetCounter(), ""))
				p.aloneNote(answer.GetReach())
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&force, "force", false, "end a penalty too")
	return cmd
}
