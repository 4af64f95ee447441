package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
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
	return []string{"no_limit", "unlimited", "replaced", "admitted", "rejected", "shadowed", "blocked", "allowed", "failed", "late_charge", "skipped"}
}

func (p *program) watchCommand() *cobra.Command {
	var f watchFlags
	cmd := &cobra.Command{
		Use:   "watch [flags] [DOMAIN [DESCRIPTOR]]",
		Short: "Show decisions live",
		Long: `Watch prints a line for each descriptor that a running server decides, including those without a
rule and those that fail. BY is what decided: the backend, the near cache, a lease, a control, or the
fallback (on_failure). For a rule with reserve, HITS are those reserved, refunded, or charged: admitted
hits never exceed the limit by more than what open reservations cost beyond their estimates, and late
charges of repeated values. Watching never delays requests: if it is too slow, lines are dropped and
counted.

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
	cmd.Flags().StringSliceVar(&f.outcomes, "outcome", nil, "show only these outcomes: "+strings.Join(outcomeNames(), ", "))
	cmd.Flags().Uint32Var(&f.oneIn, "one-in", 1, "show a random sample of one in N decisions")
	cmd.Flags().Uint32Var(&f.most, "max-per-second", 1000, "skip more lines than this per second; at most 10000")
	cmd.Flags().IntVar(&f.count, "count", 0, "exit after N lines; 0 means never")
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
		if !f.json() {
			p.printf(watchColumns, "TIME", "OUTCOME", "HITS", "LEFT", "RETRY IN", "TOOK", "BY", "LIMIT", "RULE", "DESCRIPTOR", "FROM")
		}
		return p.follow(f, stream)
	})
}

// follow prints the decisions of a stream.
func (p *program) follow(f *watchFlags, stream adminv1.AdminService_WatchClient) error {
	for left := f.count; ; {
		answer, err := stream.Recv()
		if err == nil {
			err = p.missed(f, answer)
		}
		if err != nil {
			return f.ended(err)
		}
		for _, d := range answer.GetDecisions() {
			if err := f.show(d, func() { p.print(decisionText(d)) }); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
	}
}

// ended returns the error of a stream that has ended, nil if the server ended it.
func (f *watchFlags) ended(err error) error {
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case status.Code(err) == codes.Unavailable:
		return fmt.Errorf("%s stopped, or the connection to it broke", f.addr)
	}
	return err
}

// missed prints what is missing before the decisions of an answer.
func (p *program) missed(f *watchFlags, a *adminv1.WatchResponse) error {
	if a.GetLost()+a.GetSkipped() == 0 {
		return nil
	}
	if f.json() {
		return p.printObject(&adminv1.WatchResponse{Lost: a.GetLost(), Skipped: a.GetSkipped()})
	}
	if n := a.GetLost(); n > 0 {
		p.printf("… %d lines dropped, because this command was too slow: add a filter or --one-in\n", n)
	}
	if n := a.GetSkipped(); n > 0 {
		p.printf("… %d lines skipped, above --max-per-second %d\n", n, f.most)
	}
	return nil
}

// watchColumns is a line of watch; columns whose length is not known come last.
const watchColumns = "%-12s  %-11s  %5s  %6s  %8s  %8s  %-15s  %-13s  %-20s  %-30s  %s\n"

// decisionText returns d on one line.
func decisionText(d *adminv1.Decision) string {
	hits, left, retry, took := strconv.FormatUint(d.GetHits(), 10), "-", "-", "-"
	if d.GetIsNegativeHits() {
		hits = "-" + hits
	}
	if d.GetSource() != adminv1.Source_SOURCE_UNSPECIFIED {
		left = strconv.FormatUint(d.GetLeft(), 10)
	}
	if d.GetRetryAfter() != nil {
		retry = descriptors.WaitText(d.GetRetryAfter().AsDuration())
	}
	if d.GetTook() != nil {
		took = d.GetTook().AsDuration().Round(time.Microsecond).String()
	}
	limit, _, _ := strings.Cut(d.GetLimit(), ", ")
	if d.GetIsOverride() {
		limit += " (request)"
	}
	what := strings.TrimSpace(d.GetDomain() + " " + entriesArgument(d.GetEntries(), d.GetIsCut()))
	if d.GetError() != "" {
		what += " (error: " + d.GetError() + ")"
	}
	return sprintf(watchColumns, d.GetTime().AsTime().Local().Format("15:04:05.000"),
		strings.ReplaceAll(strings.TrimPrefix(d.GetOutcome().String(), "OUTCOME_"), "_", " "),
		hits, left, retry, took, sourceText(d), cmp.Or(limit, "-"), cmp.Or(d.GetRule(), "-"), what, d.GetCaller())
}

// sourceText says what decided.
func sourceText(d *adminv1.Decision) string {
	switch d.GetSource() {
	case adminv1.Source_SOURCE_UNSPECIFIED:
		return "-"
	case adminv1.Source_SOURCE_POLICY:
		return "fallback " + word(d.GetPolicy())
	case adminv1.Source_SOURCE_CONTROL:
		return d.GetControl()
	case adminv1.Source_SOURCE_STORE, adminv1.Source_SOURCE_NEAR_CACHE, adminv1.Source_SOURCE_LEASE:
	}
	return strings.ReplaceAll(word(d.GetSource()), "_", " ")
}
