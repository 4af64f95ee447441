package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changeHelp says what the commands that change a running server need.
const changeHelp = `Requires an admin token (--token-file), unless you run it as the server's user on the server's machine
without --addr. If the server's port is not 8081, set GRPC_PORT to that port.`

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

func (c *changing) add(p *program, cmd *cobra.Command) *cobra.Command {
	c.query.add(p, cmd)
	cmd.Flags().StringVar(&c.reason, "reason", "", "reason for the audit log")
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "show the effect without changing anything")
	return cmd
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
			return askEach(cmd.Context(), &c.query, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) (putAnswer, error) {
				request.Domain, request.Entries = at.domain, at.descriptor.messages()
				return c.put(ctx, a, request)
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
		return nil, errors.New("--for is missing: set a duration, such as --for 2h, of at most 30d")
	case len(args) == 1 && !c.below:
		return nil, errors.New("DESCRIPTOR is missing: add one, or --below for the whole domain")
	case c.kind != "limit":
		return q, nil
	case c.to == "":
		return nil, errors.New("--to is missing: set the new limit, such as --to 500/minute")
	}
	o, err := ParseOverride(c.to)
	if err != nil {
		return nil, fmt.Errorf("--to %s: %w", c.to, err)
	}
	q.To = &adminv1.Override{RequestsPerUnit: o.RequestsPerUnit, LargeRequestsPerUnit: o.LargeRequestsPerUnit, Unit: adminv1.Unit(o.Unit), UnitMultiplier: o.Multiplier}
	return q, nil
}

// put asks for the control.
func (c *control) put(ctx context.Context, a adminv1.AdminServiceClient, q *adminv1.LimitRequest) (putAnswer, error) { //nolint:ireturn // one of three
	switch c.kind {
	case "block":
		return a.Block(ctx, &adminv1.BlockRequest{
			Domain: q.GetDomain(), Entries: q.GetEntries(), Below: q.GetBelow(), For: q.GetFor(), Reason: q.GetReason(), DryRun: q.GetDryRun(),
		})
	case "allow":
		return a.Allow(ctx, &adminv1.AllowRequest{
			Domain: q.GetDomain(), Entries: q.GetEntries(), Below: q.GetBelow(), For: q.GetFor(), Reason: q.GetReason(), DryRun: q.GetDryRun(),
		})
	}
	return a.Limit(ctx, q)
}

func (p *program) blockCommand() *cobra.Command {
	return p.controlCommand("block", "Temporarily reject matching requests",
		`Block rejects requests with a descriptor, even if no rule matches it. Blocked requests consume
nothing; Retry-After tells clients to retry when the block ends.`,
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
		`Limit sets a new number for the rule's first limit, or for the one that --limit names. It also
replaces a limit carried by the request. The algorithm stays the same, and a bucket's burst changes in
proportion. Counts are kept unless the unit changes.`,
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
		descriptors.SpanText(time.Duration(c.span)), clockText(m.GetUntil()), reachText(a.GetReach()), c.undo("lift "+m.GetId()))
	if old := a.GetReplaced(); old != nil {
		p.printf("  replaces the %s%s until %s\n", kindText(old), toText(old), clockText(old.GetUntil()))
	}
	for _, note := range a.GetNotes() {
		p.printf("  note: %s\n", note)
	}
	p.aloneNote(a.GetReach())
}

// undo names the command that undoes what was done.
func (c *changing) undo(command string) string {
	if c.dry {
		return ""
	}
	return " · undo: " + c.command(command)
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
	return word(c.GetKind())
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
	return rateName(o.Number(), o.GetUnit(), o.GetUnitMultiplier())
}

// rateName returns a limit as --to takes it.
func rateName(requests uint64, unit adminv1.Unit, multiplier uint32) string {
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
		return " on all replicas that share the backend (number unknown)"
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

func (p *program) liftCommand() *cobra.Command {
	var c changing
	return c.add(p, &cobra.Command{
		Use:   "lift [flags] CONTROL... | DOMAIN [DESCRIPTOR]",
		Short: "End blocks, allows and limits early",
		Long: `Lift ends controls: those with the given IDs, or all controls of exactly one descriptor or domain,
with or without --below. It applies to all replicas that share a Redis, within a second.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd lift example fixed=ann
  ratelimitd lift 0123456789abcdef`,
		Args: needs("CONTROL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := c.controlIDs(cmd.Context(), args)
			if err != nil {
				return err
			}
			request := &adminv1.LiftRequest{Ids: ids, Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.Lift, request, func(answer *adminv1.LiftResponse) {
				for _, l := range answer.GetLifted() {
					p.printf("%s %s %s%s%s\n", doneText(c.dry, "Lifted", "lift"), kindText(l), aboutText(l), reachText(answer.GetReach()),
						c.undo(againText(l)))
				}
				p.aloneNote(answer.GetReach())
			})
		},
	})
}

// controlIDs returns the IDs that the arguments of lift are or, for a domain and its descriptor, those of the controls about exactly
// that. One argument may look like an ID and be the name of a domain.
func (c *client) controlIDs(ctx context.Context, args []string) (ids []string, err error) {
	named := !slices.ContainsFunc(args, func(arg string) bool { return !isControlID(arg) })
	switch {
	case named && len(args) > 1:
		return args, nil
	case len(args) > 2:
		return nil, errors.New("lift takes control IDs, or one DOMAIN and DESCRIPTOR")
	}
	var about []entry
	if len(args) == 2 {
		d, err := parseDescriptor(args[1])
		if err != nil {
			return nil, fmt.Errorf("descriptor %q: %w", args[1], err)
		}
		about = d.entries
	}
	found, err := c.listControls(ctx, "")
	if err != nil {
		return nil, err
	}
	all := found.GetControls()
	for _, c := range all {
		if c.GetDomain() == args[0] && slices.EqualFunc(c.GetEntries(), about, func(e *adminv1.Entry, want entry) bool {
			return e.GetKey() == want.key && cmp.Or(string(e.GetRawValue()), e.GetValue()) == want.value
		}) {
			ids = append(ids, c.GetId())
		}
	}
	switch {
	case ids == nil && named:
		return args, nil
	case ids == nil:
		return nil, fmt.Errorf("no control matches exactly %s: see ratelimitd controls", strings.Join(args, " "))
	case named && slices.ContainsFunc(all, func(c *adminv1.Control) bool { return c.GetId() == args[0] }):
		return nil, fmt.Errorf("%s is both a control ID and a domain with controls: use %s for the domain's controls, or %[1]s twice for the control",
			args[0], strings.Join(ids, " "))
	}
	return ids, nil
}

// againText returns the command that puts a control in force again, for the time that was left.
func againText(c *adminv1.Control) string {
	text := kindText(c) + " " + aboutText(c) + " --for " + descriptors.SpanText(max(time.Until(c.GetUntil().AsTime()),
		time.Second).Truncate(time.Second))
	if c.GetTo() != nil {
		text += " --to " + numberText(c.GetTo())
	}
	if c.GetLimitName() != "" {
		text += " --limit " + shellWord(c.GetLimitName())
	}
	return text
}

func isControlID(text string) bool {
	return len(text) == 16 && strings.Trim(text, "0123456789abcdef") == ""
}

// listControls returns the controls of a domain, or all if it is empty.
func (c *client) listControls(ctx context.Context, domain string) (*adminv1.ListControlsResponse, error) {
	q, all := &adminv1.ListControlsRequest{Domain: domain, PageSize: 500}, new(adminv1.ListControlsResponse)
	err := fetchPages(ctx, c, adminv1.AdminServiceClient.ListControls, q, func(page *adminv1.ListControlsResponse) bool {
		all.Controls, all.Reach = append(all.GetControls(), page.GetControls()...), page.GetReach()
		return true
	})
	return all, err
}

func (p *program) controlsCommand() *cobra.Command {
	var q query
	return q.add(p, &cobra.Command{
		Use:   "controls [flags] [DOMAIN]",
		Short: "List active blocks, allows and limits",
		Long: `Controls lists the active blocks, allows and limits, and when they expire. Long cells are cut to fit
120 columns; --output json prints them in full.`,
		Example: `  ratelimitd controls
  ratelimitd controls --output json example`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := q.listControls(cmd.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			return q.show(all, func() { p.controlTable(all.GetControls(), all.GetReach()) })
		},
	})
}

// controlTable prints controls, one a line.
func (p *program) controlTable(all []*adminv1.Control, reach *adminv1.Reach) {
	if len(all) == 0 {
		p.print("no active controls\n")
	}
	heading := []string{"CONTROL", "ACTION", "DESCRIPTOR", "AGE", "EXPIRES IN", "BY", "REASON"}
	printTable(p, true, heading, all, func(c *adminv1.Control) []string {
		expires := briefly(time.Until(c.GetUntil().AsTime()))
		return []string{c.GetId(), kindText(c) + toText(c), aboutText(c), age(c.GetSince()), expires, c.GetBy(), cmp.Or(c.GetReason(), "-")}
	})
	p.aloneNote(reach)
}
