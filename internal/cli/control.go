package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// controlHelp explains what a control applies to.
const controlHelp = `The control expires after --for (at most 30d); lift ends it earlier. It applies to all replicas that
share a Redis, within a second. With in-memory counters, it applies only to the server you address.

If several controls match, the one with the most entries wins; then block wins over allow, and allow
over limit. Keys and values match exactly: * is not a wildcard. --below also matches all descriptors
that begin with these entries; DOMAIN --below matches the whole domain.

` + descriptorHelp

// controlCommands returns block, allow and limit.
func (p *program) controlCommands() []*cobra.Command {
	return []*cobra.Command{
		p.controlCommand("block", "Temporarily reject matching requests",
			`Block rejects requests with a descriptor, even if no rule matches it. Blocked requests consume
nothing; Retry-After tells clients to retry when the block ends.`,
			`  ratelimitd block example fixed=ann --for 2h --reason 'scrapes us'
  ratelimitd block --below --dry-run --for 10m example ip=203.0.113.7`),
		p.controlCommand("allow", "Temporarily exempt matching requests from limits",
			`Allow admits a descriptor without counting it. Other descriptors of the same request can still be
rejected.`,
			`  ratelimitd allow example fixed=ann --for 30m --reason 'ticket 4711'`),
		p.controlCommand("limit", "Temporarily override a limit",
			`Limit sets a new number for the rule's first limit, or for the one that --limit names. It also
replaces a limit carried by the request. The algorithm stays the same, and a bucket's burst changes in
proportion. Counts are kept unless the unit changes.`,
			`  ratelimitd limit example fixed=ann --to 500/minute --for 2h`),
	}
}

// controlCommand is one of block, allow and limit. Its request is that of limit, which has the fields of all.
func (p *program) controlCommand(kind, short, long, example string) *cobra.Command {
	var (
		q    adminv1.LimitRequest
		span time.Duration
		to   string
	)
	cmd := p.changes(&cobra.Command{
		Use:     kind + " [flags] DOMAIN DESCRIPTOR... --for TIME",
		Short:   short,
		Long:    long + "\n\n" + controlHelp + "\n\n" + changeHelp,
		Example: example,
		Args:    needs("DOMAIN"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case span == 0:
				return errors.New("--for is missing: set a duration, such as --for 2h, of at most 30d")
			case len(args) == 1 && !q.GetBelow():
				return errors.New("DESCRIPTOR is missing: add one, or --below for the whole domain")
			case kind != "limit":
			case to == "":
				return errors.New("--to is missing: set the new limit, such as --to 500/minute")
			default:
				o, err := ParseOverride(to)
				if err != nil {
					return fmt.Errorf("--to %s: %w", to, err)
				}
				q.To = overrideMessage(o)
			}
			q.Domain, q.For, q.Reason, q.DryRun = args[0], durationpb.New(span), p.reason, p.dry
			return each(args, func(d *descriptor) error {
				q.Entries = d.messages()
				answer, err := p.put(cmd.Context(), kind, &q)
				return p.show(answer, err, func() { p.putText(span, answer) })
			})
		},
	})
	cmd.Flags().BoolVar(&q.Below, "below", false, "also match all descriptors that begin with these entries")
	spanVar(cmd.Flags(), &span, "for", "duration, such as 30m, 2h or 7d (required)")
	if kind == "limit" {
		cmd.Flags().StringVar(&to, "to", "", "the new limit, N/UNIT or N/MxUNIT, such as 500/minute (required)")
		cmd.Flags().StringVar(&q.LimitName, "limit", "", "name of the limit to override, if the rule has several")
	}
	return cmd
}

// put asks for a control.
func (p *program) put(ctx context.Context, kind string, q *adminv1.LimitRequest) (putAnswer, error) { //nolint:ireturn // one of three
	switch kind {
	case "block":
		return p.api.Block(ctx, &adminv1.BlockRequest{
			Domain: q.GetDomain(), Entries: q.GetEntries(), Below: q.GetBelow(), For: q.GetFor(), Reason: q.GetReason(), DryRun: q.GetDryRun(),
		})
	case "allow":
		return p.api.Allow(ctx, &adminv1.AllowRequest{
			Domain: q.GetDomain(), Entries: q.GetEntries(), Below: q.GetBelow(), For: q.GetFor(), Reason: q.GetReason(), DryRun: q.GetDryRun(),
		})
	}
	return p.api.Limit(ctx, q)
}

// putAnswer is what Block, Allow and Limit answer with.
type putAnswer interface {
	proto.Message
	GetControl() *adminv1.Control
	GetReplaced() *adminv1.Control
	GetReach() *adminv1.Reach
	GetNotes() []string
}

// putText reports a control that is in force, and how to end it.
func (p *program) putText(span time.Duration, a putAnswer) {
	m := a.GetControl()
	past := map[string]string{"block": "Blocked", "allow": "Allowed", "limit": "Limited"}[word(m.GetKind())]
	p.printf("%s %s%s for %s (until %s)%s%s\n", p.done(past, word(m.GetKind())), aboutText(m), toText(m),
		descriptors.SpanText(span), clockText(m.GetUntil()), reachText(a.GetReach()), p.undo("lift "+m.GetId()))
	if old := a.GetReplaced(); old != nil {
		p.printf("  replaces the %s%s until %s\n", word(old.GetKind()), toText(old), clockText(old.GetUntil()))
	}
	p.notes(a)
	p.aloneNote(a.GetReach())
}

// notes prints the notes of an answer.
func (p *program) notes(a interface{ GetNotes() []string }) {
	for _, note := range a.GetNotes() {
		p.printf("  note: %s\n", note)
	}
}

// undo names the command that undoes what was done.
func (p *program) undo(command string) string {
	if p.dry {
		return ""
	}
	return " · undo: " + p.client.command(command)
}

// done returns what was done, or would be.
func (p *program) done(past, verb string) string {
	if p.dry {
		return "Dry run: would " + verb
	}
	return past
}

// controlText describes a control.
func controlText(c *adminv1.Control) string {
	return word(c.GetKind()) + " " + aboutText(c) + toText(c) + " until " + clockText(c.GetUntil())
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
	switch n := int(r.GetReplicas()); {
	case r.GetAlone() != "":
		return ""
	case n == 0:
		return " on all replicas that share the backend (number unknown)"
	default:
		return " on " + descriptors.CountText(n, "replica")
	}
}

// aloneNote prints that a change has effect only on this server, if so.
func (p *program) aloneNote(r *adminv1.Reach) {
	if r.GetAlone() != "" {
		p.printf("  applies to this server only (%s)\n", r.GetAlone())
	}
}

func (p *program) liftCommand() *cobra.Command {
	return p.changes(&cobra.Command{
		Use:   "lift [flags] CONTROL... | DOMAIN [DESCRIPTOR]",
		Short: "End blocks, allows and limits early",
		Long: `Lift ends controls: those with the given IDs, or all controls of exactly one descriptor or domain,
with or without --below. It applies to all replicas that share a Redis, within a second.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd lift example fixed=ann
  ratelimitd lift 0123456789abcdef`,
		Args: needs("CONTROL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := p.controlIDs(cmd.Context(), args)
			if err != nil {
				return err
			}
			answer, err := p.api.Lift(cmd.Context(), &adminv1.LiftRequest{Ids: ids, Reason: p.reason, DryRun: p.dry})
			return p.show(answer, err, func() {
				for _, l := range answer.GetLifted() {
					p.printf("%s %s %s%s%s\n", p.done("Lifted", "lift"), word(l.GetKind()), aboutText(l), reachText(answer.GetReach()),
						p.undo(againText(l)))
				}
				p.aloneNote(answer.GetReach())
			})
		},
	})
}

// controlIDs returns the IDs that the arguments of lift are or, for a domain and its descriptor, those of the controls about exactly
// that. One argument may look like an ID and be the name of a domain.
func (p *program) controlIDs(ctx context.Context, args []string) (ids []string, err error) {
	named := !slices.ContainsFunc(args, func(arg string) bool { return len(arg) != 16 || strings.Trim(arg, "0123456789abcdef") != "" })
	switch {
	case named && len(args) > 1:
		return args, nil
	case len(args) > 2:
		return nil, errors.New("lift takes control IDs, or one DOMAIN and DESCRIPTOR")
	}
	about, err := parseDescriptors(args[1:])
	if err != nil {
		return nil, err
	}
	found, err := p.listControls(ctx, "")
	if err != nil {
		return nil, err
	}
	all := found.GetControls()
	same := func(e *adminv1.Entry, want descriptors.Entry) bool {
		return e.GetKey() == string(want.Key) && entryValue(e) == string(want.Value)
	}
	for _, c := range all {
		if c.GetDomain() == args[0] && slices.EqualFunc(c.GetEntries(), append(about, descriptor{})[0].Entries, same) {
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
	text := word(c.GetKind()) + " " + aboutText(c) + " --for " + descriptors.SpanText(max(time.Until(c.GetUntil().AsTime()),
		time.Second).Truncate(time.Second))
	if c.GetTo() != nil {
		text += " --to " + numberText(c.GetTo())
	}
	if c.GetLimitName() != "" {
		text += " --limit " + shellWord(c.GetLimitName())
	}
	return text
}

// listControls returns the controls of a domain, or all if it is empty.
func (p *program) listControls(ctx context.Context, domain string) (*adminv1.ListControlsResponse, error) {
	all := new(adminv1.ListControlsResponse)
	return all, allPages(ctx, p.api.ListControls, &adminv1.ListControlsRequest{Domain: domain, PageSize: 500}, all, nil)
}

func (p *program) controlsCommand() *cobra.Command {
	return p.asks(&cobra.Command{
		Use:   "controls [flags] [DOMAIN]",
		Short: "List active blocks, allows and limits",
		Long: `Controls lists the active blocks, allows and limits, and when they expire. Long cells are cut to fit
120 columns; --output json prints them in full.`,
		Example: `  ratelimitd controls
  ratelimitd controls --output json example`,
		Args: takes(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := p.listControls(cmd.Context(), strings.Join(args, ""))
			return p.show(all, err, func() { p.controlTable(all.GetControls(), all.GetReach()) })
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
		return []string{c.GetId(), word(c.GetKind()) + toText(c), aboutText(c), age(c.GetSince()), expires, c.GetBy(), cmp.Or(c.GetReason(), "-")}
	})
	p.aloneNote(reach)
}

// longestAudit is how many entries there may be.
const longestAudit = 1000

func (p *program) auditCommand() *cobra.Command {
	var last int
	cmd := p.asks(&cobra.Command{
		Use:   "audit [flags] [DOMAIN]",
		Short: "List changes by operators",
		Long: `Audit lists changes, latest first, with the caller and the reason: block, allow, limit, lift, grant,
reset, reload, drain and tenant. The last 1,000 changes are kept in Redis, for all replicas that share
it, or in the server's memory. Failed calls are counted by caller. Long cells are cut to fit 120
columns; --output json prints them in full, with the address of each caller.`,
		Example: `  ratelimitd audit
  ratelimitd audit --last 1000 --output json example`,
		Args: takes(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 || last > longestAudit {
				return errors.New("--last must be from 1 to 1000, the number of changes kept")
			}
			q, all := &adminv1.AuditRequest{Domain: strings.Join(args, "")}, new(adminv1.AuditResponse)
			enough := func() bool {
				q.PageSize = int32(min(last-len(all.GetEntries()), 500)) //nolint:gosec // at most 500
				return q.GetPageSize() <= 0
			}
			enough()
			err := allPages(cmd.Context(), p.api.Audit, q, all, enough)
			all.NextPageToken = ""
			return p.show(all, err, func() { p.auditTable(all) })
		},
	})
	cmd.Flags().IntVar(&last, "last", 50, "number of changes to list, at most 1,000")
	return cmd
}

// auditTable prints what operators changed, one call a line, and whose calls failed.
func (p *program) auditTable(a *adminv1.AuditResponse) {
	zeros := strings.NewReplacer("h0m0s", "h", "m0s", "m") // as Go writes times
	if len(a.GetEntries()) == 0 {
		p.print("no changes\n")
	}
	heading := []string{"AGE", "WHO", "CHANGE", "DESCRIPTOR", "RESULT", "EXPIRES IN", "REASON"}
	printTable(p, true, heading, a.GetEntries(), func(e *adminv1.AuditEntry) []string {
		before, _ := expiryOf(e.GetBefore())
		after, expires := expiryOf(e.GetAfter())
		if e.GetFailed() != "" {
			after = "failed, but may have been applied: " + e.GetFailed()
		}
		about := aboutText(&adminv1.Control{Domain: e.GetDomain(), Entries: e.GetEntries()})
		return []string{
			age(e.GetTime()), cmp.Or(e.GetBy(), "?"), zeros.Replace(e.GetWhat()), cmp.Or(about, "-"),
			changeText(before, after), expires, cmp.Or(e.GetReason(), "-"),
		}
	})
	if len(a.GetFailed()) > 0 {
		p.print("\nfailed calls to this server:\n")
	}
	heading = []string{"AGE", "SINCE", "WHO", "FROM", "LAST CALL", "FAILURES"}
	printTable(p, true, heading, a.GetFailed(), func(r *adminv1.FailedCalls) []string {
		last := r.GetMethod() + ": " + r.GetCode()
		return []string{age(r.GetLast()), age(r.GetFirst()), cmp.Or(r.GetBy(), "?"), r.GetFrom(), last, strconv.FormatUint(r.GetCount(), 10)}
	})
	switch {
	case a.GetIsPartial():
		p.printf("only changes made through this server: Redis does not answer\n")
	case a.GetAlone() != "":
		p.printf("only changes made through this server (%s)\n", a.GetAlone())
	}
}

// changeText returns what something was and is, each without what they begin with both.
func changeText(before, after string) string {
	if was, rest, _ := strings.Cut(before, ": "); rest != "" && strings.HasPrefix(after, was+": ") {
		before, after = rest, strings.TrimPrefix(after, was+": ")
	}
	switch {
	case before == after || before == "":
		return cmp.Or(after, "-")
	case after == "":
		return "ended " + before
	}
	return before + " → " + after
}

// expiryOf splits what a change led to, such as a control with its end, from the time until that.
func expiryOf(text string) (what, expires string) {
	what, end, _ := strings.Cut(text, " until ")
	until, err := time.Parse(time.RFC3339, end)
	switch {
	case err != nil:
		return text, "-"
	case time.Now().After(until):
		return what, "expired"
	}
	return what, briefly(time.Until(until))
}
