package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) peekCommand() *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use:   "peek [flags] DOMAIN DESCRIPTOR...",
		Short: "Show the state of a counter",
		Long: `Peek shows the state of each descriptor's counter without changing it.

` + descriptorHelp,
		Example: `  ratelimitd peek example fixed=ann
  ratelimitd peek --addr 10.0.0.7:8081 --token-file token example fixed=ann`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.eachCounter(cmd.Context(), args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				answer, err := a.Peek(ctx, &adminv1.PeekRequest{Domain: at.domain, Entries: at.descriptor.messages()})
				if err != nil {
					return err
				}
				return q.show(answer, func() {
					p.printf("%s %s\n", at.domain, at.descriptor.text)
					if r := answer.GetRule(); r != nil {
						p.printf("  rule %s at %s\n", r.GetPath(), rulePlace(r))
					}
					p.print(counterText(answer.GetCounter(), at.descriptor.holder(answer.GetRule())))
				})
			})
		},
	}
	q.add(p, cmd)
	return cmd
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
