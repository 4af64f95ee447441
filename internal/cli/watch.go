package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// watchFlags are the flags of watch.
type watchFlags struct {
	scope

	outcomes []string
	oneIn    uint32
	most     uint32
	count    int
}

// outcomeNames are the values of --outcome, in the order of the API.
func outcomeNames() []string {
	return []string{"no_limit", "unlimited", "replaced", "admitted", "rejected", "shadowed", "blocked", "allowed", "failed", "late_charge"}
}

func (p *program) watchCommand() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch [flags] [DOMAIN [DESCRIPTOR]]",
		Short: "Show what a running server decides, while it decides it",
		Long: `Watch prints a line for each descriptor of each request that a running server decides, those that
meet no rule and those that fail too: when, what was decided, the descriptor, its rule and limit,
what is left, what decided (the store of the counters, the near cache, a lease, a control, the
rule's on_failure), how long it took, and which proxy asked. Requests never wait for it: what it is too
slow for is lost, and it says how many lines those are.
A server elsewhere needs a token (ADMIN_TOKEN_FILE).

` + scopeHelp,
		Example: `  ratelimitd watch
  ratelimitd watch --outcome rejected,failed shop
  ratelimitd watch --rule shop.user --one-in 100 --output json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(args); err != nil {
				return err
			}
			return p.watch(cmd.Context(), &f)
		},
	}
	f.add(p, cmd)
	cmd.Flags().StringSliceVar(&f.outcomes, "outcome", nil, "show these alone: "+strings.Join(outcomeNames(), ", "))
	cmd.Flags().Uint32Var(&f.oneIn, "one-in", 1, "show one of so many decisions, chosen at random")
	cmd.Flags().Uint32Var(&f.most, "max-per-second", 1000, "skip what is more than that in a second; at most 10000")
	cmd.Flags().IntVar(&f.count, "count", 0, "end after so many lines; 0 means never")
	return cmd
}

// request returns what the flags ask for.
func (f *watchFlags) request() (*adminv1.WatchRequest, error) {
	q := &adminv1.WatchRequest{Domain: f.domain, Rule: f.rule, Entries: f.entries, OneIn: f.oneIn, MaxPerSecond: f.most}
	if f.count < 0 {
		return nil, fmt.Errorf("--count %d: must be 0 or more", f.count)
	}
	for _, name := range f.outcomes {
		number, ok := adminv1.Outcome_value["OUTCOME_"+strings.ToUpper(name)]
		if !ok || number == 0 {
			return nil, fmt.Errorf("--outcome %s: must be one of %s", name, strings.Join(outcomeNames(), ", "))
		}
		q.Outcomes = append(q.Outcomes, adminv1.Outcome(number))
	}
	return q, nil
}

func (p *program) watch(ctx context.Context, f *watchFlags) error {
	q, err := f.request()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return f.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		stream, err := begin(ctx, &f.scope, func(ctx context.Context) (adminv1.AdminService_WatchClient, error) { return a.Watch(ctx, q) })
		if err != nil {
			return err
		}
		for lines := 0; ; {
			answer, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case status.Code(err) == codes.Unavailable:
				return fmt.Errorf("%s stopped, or the connection to it broke", f.addr)
			case err != nil:
				return err
			}
			n, err := p.watched(f, answer, f.count-lines)
			if lines += n; err != nil || n > 0 && lines == f.count {
				return err
			}
		}
	})
}

// watched prints an answer, of its decisions at most most unless that is less than 1, and returns how many.
func (p *program) watched(f *watchFlags, a *adminv1.WatchResponse, most int) (lines int, err error) {
	if err := p.missed(f, a); err != nil {
		return 0, err
	}
	for _, d := range a.GetDecisions() {
		if err := p.decision(f, d); err != nil {
			return lines, err
		}
		if lines++; lines == most {
			break
		}
	}
	return lines, nil
}

// missed prints what is missing before the decisions of an answer.
func (p *program) missed(f *watchFlags, a *adminv1.WatchResponse) error {
	if a.GetLost()+a.GetSkipped() == 0 {
		return nil
	}
	if f.json() {
		return p.printJSON(&adminv1.WatchResponse{Lost: a.GetLost(), Skipped: a.GetSkipped()})
	}
	if n := a.GetLost(); n > 0 {
		p.printf("… %d lost, because this command was too slow: filter, or set --one-in\n", n)
	}
	if n := a.GetSkipped(); n > 0 {
		p.printf("… %d skipped, because there are more than --max-per-second %d\n", n, f.most)
	}
	return nil
}

func (p *program) decision(f *watchFlags, d *adminv1.Decision) error {
	if f.json() {
		return p.printJSON(d)
	}
	_, err := io.WriteString(p.stdout, decisionText(d))
	return err
}

// decisionText returns d on one line.
func decisionText(d *adminv1.Decision) string {
	var b page
	outcome := strings.ReplaceAll(strings.TrimPrefix(d.GetOutcome().String(), "OUTCOME_"), "_", " ")
	b.printf("%s %-11s %s %s", d.GetTime().AsTime().Local().Format("15:04:05.000"), outcome, d.GetDomain(), entriesArgument(d.GetEntries(), d.GetIsCut()))
	verb := "asked for"
	if d.GetIsNegativeHits() {
		verb = "refunded"
	}
	if d.GetHits() != 1 || d.GetIsNegativeHits() {
		b.printf(", %s %d", verb, d.GetHits())
	}
	if d.GetRule() != "" {
		b.printf(", rule %s", d.GetRule())
	}
	if d.GetLimit() != "" {
		b.printf(", limit %s", d.GetLimit())
		if d.GetIsOverride() {
			b.WriteString(" of the request")
		}
	}
	if d.GetSource() != adminv1.Source_SOURCE_UNSPECIFIED {
		b.printf(", %d left, by %s", d.GetLeft(), sourceText(d))
	}
	if d.GetRetryAfter() != nil {
		b.printf(", retry in %s", descriptors.WaitText(d.GetRetryAfter().AsDuration()))
	}
	if d.GetError() != "" {
		b.printf(", error: %s", d.GetError())
	}
	if d.GetTook() != nil {
		b.printf(", took %s", d.GetTook().AsDuration().Round(time.Microsecond))
	}
	b.printf(", from %s\n", d.GetCaller())
	return b.String()
}

// sourceText says what decided.
func sourceText(d *adminv1.Decision) string {
	switch d.GetSource() {
	case adminv1.Source_SOURCE_STORE:
		return "the store"
	case adminv1.Source_SOURCE_NEAR_CACHE:
		return "the near cache"
	case adminv1.Source_SOURCE_LEASE:
		return "a lease"
	case adminv1.Source_SOURCE_POLICY:
		return "on_failure: " + strings.ToLower(strings.TrimPrefix(d.GetPolicy().String(), "ON_FAILURE_"))
	case adminv1.Source_SOURCE_CONTROL:
		return "the control " + d.GetControl()
	case adminv1.Source_SOURCE_UNSPECIFIED:
	}
	return "something that this command does not know"
}
