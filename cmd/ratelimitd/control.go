package main

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

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// changeHelp says what the commands that change a running server need.
const changeHelp = `The server needs ADMIN=true, and ADMIN_TOKEN_FILE unless it runs on this machine and listens on
127.0.0.1 or a unix socket alone.`

// controlHelp says what a control is about.
const controlHelp = `It holds for --for, at most 30 days (720h), and then ends by itself; lift ends it before. Replicas
that share a Redis obey within a second; without one the server that is asked obeys alone, and the
answer says so. A descriptor is met by the control with the most entries, then by block before
allow before limit. Keys and values are compared as they are: a * stands for itself. With --below it
is also about all descriptors that begin with these entries; DOMAIN --below is the whole domain.

` + descriptorHelp

// changing are the flags of commands that change a running server.
type changing struct {
	client

	reason string
	dry    bool
	output string
}

func (c *changing) add(p *program, cmd *cobra.Command) {
	c.client.add(p, cmd)
	cmd.Flags().StringVar(&c.reason, "reason", "", "why, for those who look later")
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "say what would be done, and change nothing")
	addOutput(cmd, &c.output)
}

// control is the flags of block, allow and limit.
type control struct {
	changing

	below bool
	span  time.Duration
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
			asJSON, err := jsonWanted(c.output)
			if err != nil {
				return err
			}
			one := func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				answer, err := put(ctx, a, c, at)
				if err != nil {
					return err
				}
				if asJSON {
					return p.printJSON(answer)
				}
				p.put(c, answer)
				return nil
			}
			if len(args) == 1 {
				return p.asked(cmd.Context(), &c.client, func(ctx context.Context, a adminv1.AdminServiceClient) error {
					return one(ctx, a, counterAt{args[0], new(descriptor)})
				})
			}
			return p.eachCounter(cmd.Context(), &c.client, args, one)
		},
	}
	c.add(p, cmd)
	cmd.Flags().BoolVar(&c.below, "below", false, "also for all descriptors that begin with these entries")
	cmd.Flags().DurationVar(&c.span, "for", 0, "for how long, such as 30m, 2h or 720h (required)")
	if kind == "limit" {
		cmd.Flags().StringVar(&c.to, "to", "", "the number in force, N/UNIT or N/MxUNIT, such as 500/minute (required)")
		cmd.Flags().StringVar(&c.name, "limit", "", "the name of the rule's limit, instead of its first one")
	}
	return cmd
}

func (c *control) check(args []string) error {
	switch {
	case c.span == 0:
		return errors.New("--for is missing: say for how long, such as --for 2h; 30 days (720h) is the most")
	case len(args) == 1 && !c.below:
		return errors.New("DESCRIPTOR is missing: give one, or --below for the whole domain")
	}
	return nil
}

func (p *program) blockCommand() *cobra.Command {
	return p.controlCommand("block", "Refuse what descriptors match, for a while",
		`Block refuses requests with a descriptor, whatever the rules say, and also where there is none for
it. A blocked request spends nothing, and its callers are told to come back when the block ends.`,
		`  ratelimitd block example fixed=ann --for 2h --reason 'scrapes us'
  ratelimitd block --below --dry-run --for 10m example ip=203.0.113.7`,
		func(ctx context.Context, a adminv1.AdminServiceClient, c *control, at counterAt) (putAnswer, error) {
			return a.Block(ctx, &adminv1.BlockRequest{
				Domain: at.domain, Entries: at.descriptor.messages(), Below: c.below, For: durationpb.New(c.span), Reason: c.reason, DryRun: c.dry,
			})
		})
}

func (p *program) allowCommand() *cobra.Command {
	return p.controlCommand("allow", "Let pass what descriptors match, for a while",
		`Allow lets a descriptor pass, and spends nothing for it. Other descriptors of the same request may
still be refused.`,
		`  ratelimitd allow example fixed=ann --for 30m --reason 'ticket 4711'`,
		func(ctx context.Context, a adminv1.AdminServiceClient, c *control, at counterAt) (putAnswer, error) {
			return a.Allow(ctx, &adminv1.AllowRequest{
				Domain: at.domain, Entries: at.descriptor.messages(), Below: c.below, For: durationpb.New(c.span), Reason: c.reason, DryRun: c.dry,
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
			o, err := parseOverride(c.to)
			if err != nil {
				return nil, fmt.Errorf("--to %s: %w", c.to, err)
			}
			return a.Limit(ctx, &adminv1.LimitRequest{
				Domain: at.domain, Entries: at.descriptor.messages(), Below: c.below, For: durationpb.New(c.span), Reason: c.reason, DryRun: c.dry,
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
	if to := c.GetTo(); to != nil {
		text += " to " + numberText(to)
		if c.GetLimitName() != "" {
			text += " (" + c.GetLimitName() + ")"
		}
	}
	return fmt.Sprintf("%s until %s, control %s", text, c.GetUntil().AsTime().Format(time.RFC3339), c.GetId())
}

func kindText(c *adminv1.Control) string {
	return strings.ToLower(strings.TrimPrefix(c.GetKind().String(), "CONTROL_KIND_"))
}

// aboutText says what a control is about, as a command takes it.
func aboutText(c *adminv1.Control) string {
	text := c.GetDomain()
	for i, e := range c.GetEntries() {
		if i == 0 {
			text += " "
		} else {
			text += ","
		}
		text += escape(e.GetKey()) + "=" + escape(e.GetValue())
	}
	if c.GetBelow() {
		text += " --below"
	}
	return text
}

// escape puts a backslash before what would end a value in an argument.
func escape(text string) string {
	return strings.NewReplacer(`\`, `\\`, ",", `\,`, ";", `\;`).Replace(text)
}

func numberText(o *adminv1.Override) string {
	unit := strings.ToLower(strings.TrimPrefix(o.GetUnit().String(), "UNIT_"))
	if m := o.GetUnitMultiplier(); m > 1 {
		unit = fmt.Sprintf("%dx%s", m, unit)
	}
	return fmt.Sprintf("%d/%s", o.GetRequestsPerUnit(), unit)
}

// reachText says who obeys.
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

// asked calls f, which asks the server once.
func (p *program) asked(ctx context.Context, c *client, f func(context.Context, adminv1.AdminServiceClient) error) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	ctx, cancel := context.WithTimeout(c.admin(ctx), c.timeout)
	defer cancel()
	if err := f(ctx, adminv1.NewAdminServiceClient(conn)); err != nil {
		return c.explain(ctx, err)
	}
	return nil
}

func (p *program) liftCommand() *cobra.Command {
	var c changing
	cmd := &cobra.Command{
		Use:   "lift [flags] CONTROL... | DOMAIN [DESCRIPTOR]",
		Short: "End controls before their time",
		Long: `Lift ends controls: those with the given IDs, or all that are about exactly one descriptor, with
--below or without, or about a whole domain. Replicas that share a Redis obey within a second.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd lift example fixed=ann
  ratelimitd lift 0123456789abcdef`,
		Args: needs("CONTROL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := jsonWanted(c.output)
			if err != nil {
				return err
			}
			return p.asked(cmd.Context(), &c.client, func(ctx context.Context, a adminv1.AdminServiceClient) error {
				ids, err := controlIDs(ctx, a, args)
				if err != nil {
					return err
				}
				answer, err := a.Lift(ctx, &adminv1.LiftRequest{Ids: ids, Reason: c.reason, DryRun: c.dry})
				switch {
				case err != nil:
					return err
				case asJSON:
					return p.printJSON(answer)
				}
				for _, l := range answer.GetLifted() {
					p.printf("%slifted: %s\n", dryText(c.dry), controlText(l))
				}
				p.printf("  %s\n", reachText(answer.GetReach()))
				return nil
			})
		},
	}
	c.add(p, cmd)
	return cmd
}

// controlIDs returns the IDs that the arguments of lift are or, for a domain and its descriptor, those of the controls about it.
func controlIDs(ctx context.Context, a adminv1.AdminServiceClient, args []string) ([]string, error) {
	if !slices.ContainsFunc(args, func(arg string) bool { return !isControlID(arg) }) {
		return args, nil
	}
	if len(args) > 2 {
		return nil, errors.New("lift takes IDs of controls, or one DOMAIN and DESCRIPTOR")
	}
	var about []entry
	if len(args) == 2 {
		d, err := parseDescriptor(args[1])
		if err != nil {
			return nil, fmt.Errorf("descriptor %q: %w", args[1], err)
		}
		about = d.entries
	}
	all, _, err := listControls(ctx, a, args[0])
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, c := range all {
		if slices.EqualFunc(c.GetEntries(), about, func(e *adminv1.Entry, want entry) bool {
			return e.GetKey() == want.key && (e.GetValue() == want.value || string(e.GetRawValue()) == want.value)
		}) {
			ids = append(ids, c.GetId())
		}
	}
	if ids == nil {
		return nil, fmt.Errorf("no control is about exactly %s: see ratelimitd controls", strings.Join(args, " "))
	}
	return ids, nil
}

func isControlID(text string) bool {
	return len(text) == 16 && strings.Trim(text, "0123456789abcdef") == ""
}

// listControls returns the controls of a domain, or all if it is empty.
func listControls(ctx context.Context, a adminv1.AdminServiceClient, domain string) (all []*adminv1.Control, reach *adminv1.Reach, err error) {
	q := &adminv1.ListControlsRequest{Domain: domain, PageSize: 500}
	for {
		answer, err := a.ListControls(ctx, q)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, answer.GetControls()...)
		if q.PageToken = answer.GetNextPageToken(); q.PageToken == "" {
			return all, answer.GetReach(), nil
		}
	}
}

func (p *program) controlsCommand() *cobra.Command {
	var (
		c      client
		output string
	)
	cmd := &cobra.Command{
		Use:   "controls [flags] [DOMAIN]",
		Short: "List the controls in force in a running server",
		Long: `Controls lists what block, allow and limit have put in force, and until when.
The server needs ADMIN=true, and ADMIN_TOKEN_FILE unless it runs on this machine.`,
		Example: `  ratelimitd controls
  ratelimitd controls --output json example`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			asJSON, err := jsonWanted(output)
			if err != nil {
				return err
			}
			return p.asked(cmd.Context(), &c, func(ctx context.Context, a adminv1.AdminServiceClient) error {
				all, reach, err := listControls(ctx, a, strings.Join(args, ""))
				switch {
				case err != nil:
					return err
				case asJSON:
					return p.printJSON(&adminv1.ListControlsResponse{Controls: all, Reach: reach})
				}
				p.controlTable(all, reach)
				return nil
			})
		},
	}
	c.add(p, cmd)
	addOutput(cmd, &output)
	return cmd
}

// controlTable prints controls, one a line.
func (p *program) controlTable(all []*adminv1.Control, reach *adminv1.Reach) {
	if len(all) == 0 {
		p.printf("no controls are in force\n")
		return
	}
	rows := [][]string{{"CONTROL", "DOES", "ABOUT", "UNTIL", "BY", "REASON"}}
	for _, c := range all {
		does := kindText(c)
		if c.GetTo() != nil {
			does += " to " + numberText(c.GetTo())
		}
		rows = append(rows, []string{
			c.GetId(), does, aboutText(c), c.GetUntil().AsTime().Format(time.RFC3339), c.GetBy(), cmp.Or(c.GetReason(), "-"),
		})
	}
	p.table(rows)
	p.printf("%s\n", reachText(reach))
}

func (p *program) grantCommand() *cobra.Command {
	var (
		c    changing
		hits uint64
	)
	cmd := &cobra.Command{
		Use:   "grant [flags] DOMAIN DESCRIPTOR... --hits N",
		Short: "Give hits back to the counters of descriptors in a running server",
		Long: `Grant gives hits back, now and once: at most what is spent, so that nobody gets more than a full
limit. It is refused where it would mean nothing: for a leaky_bucket, whose turns are promised, for
concurrency, whose slots are given back by those who hold them, and while a penalty runs.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd grant example fixed=ann --hits 50 --reason 'our fault'`,
		Args:    needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if hits == 0 {
				return errors.New("--hits is missing: say how many hits to give back, 1 or more")
			}
			asJSON, err := jsonWanted(c.output)
			if err != nil {
				return err
			}
			return p.eachCounter(cmd.Context(), &c.client, args, func(ctx context.Context, a adminv1.AdminServiceClient, at counterAt) error {
				answer, err := a.Grant(ctx, &adminv1.GrantRequest{
					Domain: at.domain, Entries: at.descriptor.messages(), Hits: hits, Reason: c.reason, DryRun: c.dry,
				})
				switch {
				case err != nil:
					return err
				case asJSON:
					return p.printJSON(answer)
				}
				before, after := answer.GetBefore().GetLeft(), answer.GetCounter().GetLeft()
				if c.dry {
					p.printf("%s%s %s: at most %d hits back, %d left now\n", dryText(true), at.domain, at.descriptor.text, hits, before)
				} else {
					p.printf("%s %s: %d left, %d before\n", at.domain, at.descriptor.text, after, before)
				}
				p.printf("%s", counterText(answer.GetCounter(), ""))
				return nil
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().Uint64Var(&hits, "hits", 0, "how many hits to give back (required)")
	return cmd
}
