package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changeHelp says what the commands that change a running server need.
const changeHelp = `It needs a token (ADMIN_TOKEN_FILE), unless it is the server's user who runs this, on its machine and
without --addr.`

// controlHelp says what a control is about.
const controlHelp = `It holds for --for, at most 30d, and then ends by itself; lift ends it before. Replicas
that share a Redis obey within a second; without one the server that is asked obeys alone, and the
answer says so. A descriptor is met by the control with the most entries, then by block before
allow before limit. Keys and values are compared as they are: a * stands for itself. With --below it
is also about all descriptors that begin with these entries; DOMAIN --below is the whole domain.

` + descriptorHelp

// changing are the flags of commands that change a running server.
type changing struct {
	query

	reason string
	dry    bool
}

func (c *changing) add(p *program, cmd *cobra.Command) {
	c.query.add(p, cmd)
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for later readers")
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "say what would be done, and change nothing")
}

// control is the flags of block, allow and limit.
type control struct {
	changing

	below bool
	span  spanFlag
	to    string
	name  string
}

// controlCommand is one of block, allow and limit; put asks for it.
func (p *program) controlCommand(kind, short, long, example string, put func(context.Context, adminv1.AdminServiceClient, *control, counterAt) (putAnswer, error)) *cobra.Command {
	c := new(control)
	cmd := &cobra.Command{
		Use:     kind + " [flags] DOMAIN DESCRIPTOR... --for TIME",
		Short:   short,
		Long:    long + "\n\n" + controlHelp + "\n\n" + changeHelp,
		Example: example,
		Args:    needs("DOMAIN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.check(args); err != nil {
				return err
			}
			one := func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				answer, err := put(ctx, a, c, at)
				if err != nil {
					return err
				}
				return c.show(answer, func() { p.put(c, answer) })
			}
			if len(args) == 1 {
				return c.asked(cmd.Context(), func(ctx context.Context, a adminv1.AdminServiceClient) error {
					return one(ctx, a, counterAt{args[0], new(descriptor)})
				})
			}
			return c.eachCounter(cmd.Context(), args, one)
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&c.below, "below", false, "also for all descriptors that begin with these entries")
	cmd.Flags().Var(&c.span, "for", "for how long, such as 30m, 2h or 7d (required)")
	if kind == "limit" {
		cmd.Flags().StringVar(&c.to, "to", "", "the number in force, N/UNIT or N/MxUNIT, such as 500/minute (required)")
		cmd.Flags().StringVar(&c.name, "limit", "", "the name of the rule's limit, instead of its first one")
	}
	return cmd
}

func (c *control) check(args []string) error {
	switch {
	case c.span == 0:
		return errors.New("--for is missing: say for how long, such as --for 2h; 30d is the most")
	case len(args) == 1 && !c.below:
		return errors.New("DESCRIPTOR is missing: give one, or --below for the whole domain")
	}
	return nil
}

func (p *program) blockCommand() *cobra.Command {
	return p.controlCommand("block", "Deny what descriptors match, for a while",
		`Block denies requests with a descriptor, whatever the rules say, and also where there is none for
it. A blocked request spends nothing, and its callers are told to come back when the block ends.`,
		`  ratelimitd block example fixed=ann --for 2h --reason 'scrapes us'
  ratelimitd block --below --dry-run --for 10m example ip=203.0.113.7`,
		func(ctx context.Context, a adminv1.AdminServiceClient, c *control, at counterAt) (putAnswer, error) {
			return a.Block(ctx, &adminv1.BlockRequest{
				Domain: at.domain, Entries: at.descriptor.messages(), Below: c.below, For: durationpb.New(time.Duration(c.span)), Reason: c.reason, DryRun: c.dry,
			})
		})
}

func (p *program) allowCommand() *cobra.Command {
	return p.controlCommand("allow", "Let pass what descriptors match, for a while",
		`Allow lets a descriptor pass, and spends nothing for it. Other descriptors of the same request may
still be rejected.`,
		`  ratelimitd allow example fixed=ann --for 30m --reason 'ticket 4711'`,
		func(ctx context.Context, a adminv1.AdminServiceClient, c *control, at counterAt) (putAnswer, error) {
			return a.Allow(ctx, &adminv1.AllowRequest{
				Domain: at.domain, Entries: at.descriptor.messages(), Below: c.below, For: durationpb.New(time.Duration(c.span)), Reason: c.reason, DryRun: c.dry,
			})
		})
}

func (p *program) limitCommand() *cobra.Command {
	return p.controlCommand("limit", "Put another number in force for descriptors, for a while",
		`Limit puts another number in force: in place of that of the rule's first limit, or of the one that
--limit names, and of the limit that a request carries. The rest of the rule stays, such as its
algorithm; a bucket's burst changes in proportion. What is counted stays counted if the unit stays.`,
		`  ratelimitd limit example fixed=ann --to 500/minute --for 2h`,
		func(ctx context.Context, a adminv1.AdminServiceClient, c *control, at counterAt) (putAnswer, error) {
			if c.to == "" {
				return nil, errors.New("--to is missing: give the number, such as --to 500/minute")
			}
			o, err := ParseOverride(c.to)
			if err != nil {
				return nil, fmt.Errorf("--to %s: %w", c.to, err)
			}
			return a.Limit(ctx, &adminv1.LimitRequest{
				Domain: at.domain, Entries: at.descriptor.messages(), Below: c.below, For: durationpb.New(time.Duration(c.span)), Reason: c.reason, DryRun: c.dry,
				To:        &adminv1.Override{RequestsPerUnit: o.RequestsPerUnit, Unit: adminv1.Unit(o.Unit), UnitMultiplier: o.Multiplier},
				LimitName: c.name,
			})
		})
}

// putAnswer is what Block, Allow and Limit answer with.
type putAnswer interface {
	proto.Message
	GetControl() *adminv1.Control
	GetReplaced() *adminv1.Control
	GetReach() *adminv1.Reach
	GetNotes() []string
}

// put says what has been put in force.
func (p *program) put(c *control, a putAnswer) {
	p.printf("%s%s\n", dryText(c.dry), controlText(a.GetControl()))
	if old := a.GetReplaced(); old != nil {
		p.printf("  instead of the one until %s\n", old.GetUntil().AsTime().Format(time.RFC3339))
	}
	for _, note := range a.GetNotes() {
		p.printf("  note: %s\n", note)
	}
	p.printf("  %s\n", reachText(a.GetReach()))
}

func dryText(dry bool) string {
	if dry {
		return "would be done, without --dry-run: "
	}
	return ""
}

// controlText says what a control does.
func controlText(c *adminv1.Control) string {
	text := kindText(c) + " " + aboutText(c)
	if c.GetTo() != nil {
		text += toText(c)
	}
	return fmt.Sprintf("%s until %s, control %s", text, c.GetUntil().AsTime().Format(time.RFC3339), c.GetId())
}

func kindText(c *adminv1.Control) string {
	return strings.ToLower(strings.TrimPrefix(c.GetKind().String(), "CONTROL_KIND_"))
}

// aboutText says what a control is about, as a command takes it.
func aboutText(c *adminv1.Control) string {
	words := []string{shellWord(c.GetDomain())}
	if len(c.GetEntries()) > 0 {
		words = append(words, entriesArgument(c.GetEntries(), false))
	}
	if c.GetBelow() {
		words = append(words, "--below")
	}
	return strings.Join(words, " ")
}

// toText says which number a control puts in force, and of which limit if it names one.
func toText(c *adminv1.Control) string {
	text := " to " + numberText(c.GetTo())
	if c.GetLimitName() != "" {
		text += " (" + c.GetLimitName() + ")"
	}
	return text
}

func numberText(o *adminv1.Override) string {
	unit := strings.ToLower(strings.TrimPrefix(o.GetUnit().String(), "UNIT_"))
	if m := o.GetUnitMultiplier(); m > 1 {
		unit = fmt.Sprintf("%dx%s", m, unit)
	}
	return fmt.Sprintf("%d/%s", o.GetRequestsPerUnit(), unit)
}

// reachText says which replicas obey.
func reachText(r *adminv1.Reach) string {
	switch n := r.GetReplicas(); {
	case r.GetAlone() != "":
		return "this server alone obeys: " + r.GetAlone()
	case n == 0:
		return "how many replicas obey is not known: the store of the controls does not answer"
	case n == 1:
		return "1 replica obeys"
	default:
		return fmt.Sprintf("%d replicas obey, within a second", n)
	}
}

// countingText says which replicas count with a counter that was changed.
func countingText(r *adminv1.Reach) string {
	if r.GetReplicas() == 0 {
		return "all replicas that share the store obey, within a second; how many there are is not known"
	}
	return reachText(r)
}
