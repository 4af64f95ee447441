package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changeHelp says what the commands that change a running server need.
const changeHelp = `Requires an admin token (--token-file), unless you run it as the server's user on the server's machine
without --addr.`

// controlHelp explains what a control applies to.
const controlHelp = `The control expires after --for (at most 30d); lift ends it earlier. It applies to all replicas that
share a Redis, within a second. With in-memory counters, it applies only to the server you address.

If several controls match, the one with the most entries wins; then block wins over allow, and allow
over limit. Keys and values match exactly: * is not a wildcard. --below also matches all descriptors
that begin with these entries; DOMAIN --below matches the whole domain.

` + descriptorHelp

// changing are the flags of commands that change a running server.
type changing struct {
	query

	reason string
	dry    bool
}

func (c *changing) add(p *program, cmd *cobra.Command) {
	c.query.add(p, cmd)
	cmd.Flags().StringVar(&c.reason, "reason", "", "reason for the audit log")
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "show the effect without changing anything")
}

// control is the flags of block, allow and limit.
type control struct {
	changing

	kind  string
	below bool
	span  spanFlag
	to    string
	name  string
}

// controlCommand is one of block, allow and limit.
func (p *program) controlCommand(kind, short, long, example string) *cobra.Command {
	c := &control{kind: kind}
	cmd := &cobra.Command{
		Use:     kind + " [flags] DOMAIN DESCRIPTOR... --for TIME",
		Short:   short,
		Long:    long + "\n\n" + controlHelp + "\n\n" + changeHelp,
		Example: example,
		Args:    needs("DOMAIN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := c.request(args)
			if err != nil {
				return err
			}
			return askEach(cmd.Context(), &c.query, args, c.put, func(at counterAt) *adminv1.LimitRequest {
				request.Domain, request.Entries = at.domain, at.descriptor.messages()
				return request
			}, func(_ counterAt, answer putAnswer) { p.put(c, answer) })
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&c.below, "below", false, "also match all descriptors that begin with these entries")
	cmd.Flags().Var(&c.span, "for", "duration, such as 30m, 2h or 7d (required)")
	if kind == "limit" {
		cmd.Flags().StringVar(&c.to, "to", "", "the new limit, N/UNIT or N/MxUNIT, such as 500/minute (required)")
		cmd.Flags().StringVar(&c.name, "limit", "", "name of the limit to override, if the rule has several")
	}
	return cmd
}

// request returns what the flags ask for, in the form of a limit, which has the fields of all controls.
func (c *control) request(args []string) (*adminv1.LimitRequest, error) {
	q := &adminv1.LimitRequest{Below: c.below, For: durationpb.New(time.Duration(c.span)), Reason: c.reason, DryRun: c.dry, LimitName: c.name}
	switch {
	case c.span == 0:
		return nil, errors.New("--for is missing: say for how long, such as --for 2h; 30d is the most")
	case len(args) == 1 && !c.below:
		return nil, errors.New("DESCRIPTOR is missing: give one, or --below for the whole domain")
	case c.kind != "limit":
		return q, nil
	case c.to == "":
		return nil, errors.New("--to is missing: give the number, such as --to 500/minute")
	}
	o, err := ParseOverride(c.to)
	if err != nil {
		return nil, fmt.Errorf("--to %s: %w", c.to, err)
	}
	q.To = &adminv1.Override{RequestsPerUnit: o.RequestsPerUnit, Unit: adminv1.Unit(o.Unit), UnitMultiplier: o.Multiplier}
	return q, nil
}

// put asks for the control.
func (c *control) put(a adminv1.AdminServiceClient, ctx context.Context, q *adminv1.LimitRequest, _ ...grpc.CallOption) (putAnswer, error) { //nolint:ireturn,revive // it is a method
	switch c.kind {
	case "block":
		return a.Block(ctx, &adminv1.BlockRequest{Domain: q.GetDomain(), Entries: q.GetEntries(), Below: q.GetBelow(), For: q.GetFor(), Reason: q.GetReason(), DryRun: q.GetDryRun()})
	case "allow":
		return a.Allow(ctx, &adminv1.AllowRequest{Domain: q.GetDomain(), Entries: q.GetEntries(), Below: q.GetBelow(), For: q.GetFor(), Reason: q.GetReason(), DryRun: q.GetDryRun()})
	}
	return a.Limit(ctx, q)
}

func (p *program) blockCommand() *cobra.Command {
	return p.controlCommand("block", "Temporarily reject matching requests",
		`Block rejects requests with a descriptor, even if no rule matches it. Blocked requests use up no
limit; Retry-After tells clients to come back when the block ends.`,
		`  ratelimitd block example fixed=ann --for 2h --reason 'scrapes us'
  ratelimitd block --below --dry-run --for 10m example ip=203.0.113.7`)
}

func (p *program) allowCommand() *cobra.Command {
	return p.controlCommand("allow", "Temporarily exempt matching requests from limits",
		`Allow admits a descriptor without counting it. Other descriptors of the same request can still be
rejected.`,
		`  ratelimitd allow example fixed=ann --for 30m --reason 'ticket 4711'`)
}

func (p *program) limitCommand() *cobra.Command {
	return p.controlCommand("limit", "Temporarily override a limit",
		`Limit replaces the number of the rule's first limit, or of the limit that --limit names. It also
replaces a limit that the request carries. The algorithm stays the same, and a bucket's burst changes
in proportion. Counts are kept unless the unit changes.`,
		`  ratelimitd limit example fixed=ann --to 500/minute --for 2h`)
}

// putAnswer is what Block, Allow and Limit answer with.
type putAnswer interface {
	proto.Message
	GetControl() *adminv1.Control
	GetReplaced() *adminv1.Control
	GetReach() *adminv1.Reach
	GetNotes() []string
}

// put reports a control that is in force, and how to end it.
func (p *program) put(c *control, a putAnswer) {
	m := a.GetControl()
	past := map[adminv1.ControlKind]string{
		adminv1.ControlKind_CONTROL_KIND_BLOCK: "Blocked",
		adminv1.ControlKind_CONTROL_KIND_ALLOW: "Allowed", adminv1.ControlKind_CONTROL_KIND_LIMIT: "Limited",
	}[m.GetKind()]
	p.printf("%s %s%s for %s (until %s)%s%s\n", doneText(c.dry, past, kindText(m)), aboutText(m), toText(m),
		descriptors.SpanText(time.Duration(c.span)), clockText(m.GetUntil()), reachText(a.GetReach()), undoText(c.dry, "lift "+m.GetId()))
	if old := a.GetReplaced(); old != nil {
		p.printf("  replaces the %s%s until %s\n", kindText(old), toText(old), clockText(old.GetUntil()))
	}
	for _, note := range a.GetNotes() {
		p.printf("  note: %s\n", note)
	}
	p.aloneNote(a.GetReach())
}

// undoText names the command that undoes what was done.
func undoText(dry bool, command string) string {
	if dry {
		return ""
	}
	return " · undo: ratelimitd " + command
}

// doneText returns what was done, or would be.
func doneText(dry bool, past, verb string) string {
	if dry {
		return "Dry run: would " + verb
	}
	return past
}

// controlText describes a control.
func controlText(c *adminv1.Control) string {
	return kindText(c) + " " + aboutText(c) + toText(c) + " until " + clockText(c.GetUntil())
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

// toText says which number a limit puts in force, and of which limit if it names one; it is empty for other controls.
func toText(c *adminv1.Control) string {
	if c.GetTo() == nil {
		return ""
	}
	text := " to " + numberText(c.GetTo())
	if c.GetLimitName() != "" {
		text += " (" + c.GetLimitName() + ")"
	}
	return text
}

func numberText(o *adminv1.Override) string {
	return rateName(o.GetRequestsPerUnit(), o.GetUnit(), o.GetUnitMultiplier())
}

// rateName returns a limit as --to takes it.
func rateName(requests uint32, unit adminv1.Unit, multiplier uint32) string {
	name := word(unit)
	if multiplier > 1 {
		name = fmt.Sprintf("%dx%s", multiplier, name)
	}
	return fmt.Sprintf("%d/%s", requests, name)
}

// reachText says on how many replicas a change has effect, unless it is only this server.
func reachText(r *adminv1.Reach) string {
	switch n := r.GetReplicas(); {
	case r.GetAlone() != "":
		return ""
	case n == 0:
		return " on all replicas that share the store (number unknown)"
	case n == 1:
		return " on 1 replica"
	default:
		return fmt.Sprintf(" on %d replicas", n)
	}
}

// aloneNote prints that a change has effect only on this server, if so.
func (p *program) aloneNote(r *adminv1.Reach) {
	if r.GetAlone() != "" {
		p.printf("  applies to this server only (%s)\n", r.GetAlone())
	}
}
