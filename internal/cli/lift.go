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

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) liftCommand() *cobra.Command {
	var c changing
	cmd := &cobra.Command{
		Use:   "lift [flags] CONTROL... | DOMAIN [DESCRIPTOR]",
		Short: "End controls before their time",
		Long: `Lift ends controls: those with the given IDs, or all that are about exactly one descriptor, with
--below or without, or about a whole domain. Replicas that share a Redis obey within a second.
What could be an ID is taken for a domain only where controls are about a domain of that name.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd lift example fixed=ann
  ratelimitd lift 0123456789abcdef`,
		Args: needs("CONTROL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.asked(cmd.Context(), func(ctx context.Context, a adminv1.AdminServiceClient) error {
				ids, err := controlIDs(ctx, a, args)
				if err != nil {
					return err
				}
				answer, err := a.Lift(ctx, &adminv1.LiftRequest{Ids: ids, Reason: c.reason, DryRun: c.dry})
				if err != nil {
					return err
				}
				return c.show(answer, func() {
					for _, l := range answer.GetLifted() {
						p.printf("%slifted: %s\n", dryText(c.dry), controlText(l))
					}
					p.printf("  %s\n", reachText(answer.GetReach()))
				})
			})
		},
	}
	c.add(p, cmd)
	return cmd
}

// controlIDs returns the IDs that the arguments of lift are or, for a domain and its descriptor, those of the controls about it.
func controlIDs(ctx context.Context, a adminv1.AdminServiceClient, args []string) ([]string, error) {
	switch named := !slices.ContainsFunc(args, func(arg string) bool { return !isControlID(arg) }); {
	case named && len(args) == 1:
		return idOrDomain(ctx, a, args[0])
	case named:
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
	ids, err := controlsAbout(ctx, a, args[0], about)
	if err == nil && ids == nil {
		return nil, fmt.Errorf("no control is about exactly %s: see ratelimitd controls", strings.Join(args, " "))
	}
	return ids, err
}

// idOrDomain returns the IDs that an argument stands for, which looks like an ID, but may be the name of a domain too.
func idOrDomain(ctx context.Context, a adminv1.AdminServiceClient, arg string) ([]string, error) {
	ids, err := controlsAbout(ctx, a, arg, nil)
	if err != nil {
		return nil, err
	}
	if ids == nil {
		return []string{arg}, nil
	}
	all, _, err := listControls(ctx, a, "")
	if err == nil && slices.ContainsFunc(all, func(c *adminv1.Control) bool { return c.GetId() == arg }) {
		return nil, fmt.Errorf("%s is the ID of a control, and a domain that controls are about: give %s for those of the domain, or %s twice for the control",
			arg, strings.Join(ids, " "), arg)
	}
	return ids, err
}

// controlsAbout returns the IDs of the controls about exactly a descriptor, or a whole domain; nil if there are none.
func controlsAbout(ctx context.Context, a adminv1.AdminServiceClient, domain string, about []entry) (ids []string, err error) {
	all, _, err := listControls(ctx, a, domain)
	for _, c := range all {
		if slices.EqualFunc(c.GetEntries(), about, func(e *adminv1.Entry, want entry) bool {
			return e.GetKey() == want.key && cmp.Or(string(e.GetRawValue()), e.GetValue()) == want.value
		}) {
			ids = append(ids, c.GetId())
		}
	}
	return ids, err
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
	var q query
	cmd := &cobra.Command{
		Use:   "controls [flags] [DOMAIN]",
		Short: "List the controls in force in a running server",
		Long: `Controls lists what block, allow and limit have put in force, and until when.
A server elsewhere needs a token (ADMIN_TOKEN_FILE).`,
		Example: `  ratelimitd controls
  ratelimitd controls --output json example`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return q.asked(cmd.Context(), func(ctx context.Context, a adminv1.AdminServiceClient) error {
				all, reach, err := listControls(ctx, a, strings.Join(args, ""))
				if err != nil {
					return err
				}
				return q.show(&adminv1.ListControlsResponse{Controls: all, Reach: reach}, func() { p.controlTable(all, reach) })
			})
		},
	}
	q.add(p, cmd)
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
			does += toText(c)
		}
		rows = append(rows, []string{
			c.GetId(), does, aboutText(c), c.GetUntil().AsTime().Format(time.RFC3339), c.GetBy(), cmp.Or(c.GetReason(), "-"),
		})
	}
	p.table(rows)
	p.printf("%s\n", reachText(reach))
}
