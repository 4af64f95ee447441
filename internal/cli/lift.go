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

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) liftCommand() *cobra.Command {
	var c changing
	cmd := &cobra.Command{
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
						undoText(c.dry, againText(l)))
				}
				p.aloneNote(answer.GetReach())
			})
		},
	}
	c.add(p, cmd)
	return cmd
}

// controlIDs returns the IDs that the arguments of lift are or, for a domain and its descriptor, those of the controls about exactly
// that. One argument may look like an ID and be the name of a domain.
func (c *client) controlIDs(ctx context.Context, args []string) (ids []string, err error) {
	named := !slices.ContainsFunc(args, func(arg string) bool { return !isControlID(arg) })
	switch {
	case named && len(args) > 1:
		return args, nil
	case len(args) > 2:
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
		return nil, fmt.Errorf("no control is about exactly %s: see ratelimitd controls", strings.Join(args, " "))
	case named && slices.ContainsFunc(all, func(c *adminv1.Control) bool { return c.GetId() == args[0] }):
		return nil, fmt.Errorf("%s is the ID of a control, and a domain that controls are about: give %s for those of the domain, or %[1]s twice for the control",
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
	err := fetchPages(ctx, c, adminv1.AdminServiceClient.ListControls, q, &q.PageToken, func(page *adminv1.ListControlsResponse) bool {
		all.Controls, all.Reach = append(all.GetControls(), page.GetControls()...), page.GetReach()
		return true
	})
	return all, err
}

func (p *program) controlsCommand() *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use:   "controls [flags] [DOMAIN]",
		Short: "List active blocks, allows and limits",
		Long: `Controls lists the active blocks, allows and limits, and when they expire. Long cells are cut to fit
120 columns; --output json has them in full.`,
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
	}
	q.add(p, cmd)
	return cmd
}

// controlTable prints controls, one a line.
func (p *program) controlTable(all []*adminv1.Control, reach *adminv1.Reach) {
	rows := [][]string{{"CONTROL", "ACTION", "DESCRIPTOR", "AGE", "EXPIRES IN", "BY", "REASON"}}
	for _, c := range all {
		rows = append(rows, []string{
			c.GetId(), kindText(c) + toText(c), aboutText(c), age(c.GetSince()),
			briefly(time.Until(c.GetUntil().AsTime())), c.GetBy(), cmp.Or(c.GetReason(), "-"),
		})
	}
	if len(all) == 0 {
		p.printf("no active controls\n")
	} else {
		p.table(fit(rows))
	}
	p.aloneNote(reach)
}
