package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// scopeHelp explains how to choose descriptors.
const scopeHelp = `DOMAIN restricts the output to a domain, and DESCRIPTOR to descriptors with all of its entries:
key=value,key=value,... A key without a value matches any value.`

// scope parses the arguments that select descriptors: a domain and entries.
func scope(args []string) (domain string, entries []*adminv1.EntryFilter, err error) {
	args = append(args, "", "")
	for _, pair := range split(args[1], ',') {
		key, value, valued := cutPair(pair)
		switch e := (&adminv1.EntryFilter{Key: key}); {
		case args[1] == "":
		case key == "":
			return "", nil, fmt.Errorf("descriptor %q: %q is neither a key nor of the form key=value", args[1], pair)
		default:
			if valued {
				e.Value = &value
			}
			entries = append(entries, e)
		}
	}
	return args[0], entries, nil
}

// topFlags are the flags of top.
type topFlags struct {
	rejected, hour, once, near bool
	every                      time.Duration
}

func (p *program) topCommand() *cobra.Command {
	f := topFlags{every: 2 * time.Second}
	q := &adminv1.TopRequest{Ranking: adminv1.Ranking_RANKING_BUSIEST, Window: adminv1.Window_WINDOW_MINUTE}
	cmd := p.queries(&cobra.Command{
		Use:   "top [flags] [DOMAIN [DESCRIPTOR]]",
		Short: "Show the busiest, most rejected or fullest descriptors",
		Long: `Top shows the descriptors with the most hits, or with --rejected the most rejections, in the last
minute or hour. A rejected request counts once, whatever its hits; shadow mode and late charges do not
count. The numbers are estimates: ± is the largest error.

--near shows the descriptors closest to their limit: it reads the counters of the busiest descriptors
of the last hour and sorts by the share of the limit in use.

Each server only sees its own requests. Repeat --addr to merge several servers.

On a terminal the table refreshes until Ctrl+C; --once prints it once.

` + scopeHelp,
		Example: `  ratelimitd top
  ratelimitd top --rejected --hour shop
  ratelimitd top --near shop tenant
  ratelimitd top --addr 10.0.0.7:8081 --addr 10.0.0.8:8081
  ratelimitd top --rule shop.user --once --rows 100
  ratelimitd top --output json shop user`,
		Args: takes(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.Domain, q.Entries, err = scope(args); err != nil {
				return err
			}
			return p.top(cmd.Context(), &f, q)
		},
	})
	flags := cmd.Flags()
	flags.StringVar(&q.Rule, "rule", "", "show only this rule, such as shop.user")
	flags.BoolVar(&f.rejected, "rejected", false, "rank by rejections instead of hits")
	flags.BoolVar(&f.hour, "hour", false, "show the last hour instead of the last minute")
	flags.BoolVar(&f.once, "once", false, "print the table once and exit")
	flags.Int32Var(&q.PageSize, "rows", 20, "number of rows, at most 1000")
	flags.BoolVar(&f.near, "near", false, "show the descriptors closest to their limit")
	spanVar(flags, &f.every, "every", "refresh interval of a live table")
	return cmd
}

func (p *program) top(ctx context.Context, f *topFlags, q *adminv1.TopRequest) error {
	switch {
	case q.GetPageSize() < 1 || q.GetPageSize() > maxTopRows:
		return fmt.Errorf("--rows %d: must be 1 to %d", q.GetPageSize(), maxTopRows)
	case f.every < 100*time.Millisecond:
		return fmt.Errorf("--every %s: must be 100ms or more", descriptors.SpanText(f.every))
	}
	if f.rejected {
		q.Ranking = adminv1.Ranking_RANKING_REJECTED
	}
	if f.hour || f.near {
		q.Window = adminv1.Window_WINDOW_HOUR
	}
	servers := p.client.each()
	defer func() {
		for _, c := range servers {
			c.close()
		}
	}()
	if f.near {
		return p.near(ctx, servers, q)
	}
	live := !f.once && !p.json() && isTerminal(p.stdout.Raw)
	for {
		answer, err := queryTop(ctx, servers, q)
		if live && err == nil {
			fmt.Fprint(p.stdout.Raw, "\x1b[H\x1b[J") // clears the screen
		}
		if err := p.show(answer, err, func() { p.topTable(q, answer, len(servers)) }); err != nil || !live {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.every):
		}
	}
}

// each returns a client for each --addr, or one for the default server.
func (c *client) each() (all []*client) {
	for _, addr := range c.addrs {
		one := *c
		one.addr, one.addrs = addr, []string{addr}
		all = append(all, &one)
	}
	if all == nil {
		return []*client{c}
	}
	return all
}

// queryTop queries every server and merges the answers.
func queryTop(ctx context.Context, servers []*client, q *adminv1.TopRequest) (*adminv1.TopResponse, error) {
	rows := int(q.GetPageSize())
	if len(servers) > 1 {
		q = proto.CloneOf(q)
		q.PageSize = maxTopRows
	}
	var all []*adminv1.TopResponse
	for _, c := range servers {
		answer, err := adminv1.NewAdminServiceClient(c).Top(ctx, q)
		if err != nil {
			return nil, err
		}
		all = append(all, answer)
	}
	return mergeTop(all, q.GetRanking(), rows), nil
}

// mergeTop adds up the counts of several servers, and omits rules. A descriptor that a server does not list may have up to that
// server's unknown hits, which count as its error.
func mergeTop(all []*adminv1.TopResponse, ranking adminv1.Ranking, rows int) *adminv1.TopResponse {
	if len(all) == 1 {
		return all[0]
	}
	sum, entries := &adminv1.TopResponse{From: all[0].GetFrom(), To: all[0].GetTo()}, map[string]*adminv1.TopEntry{}
	for _, a := range all {
		sum.Hits, sum.Rejected = sum.GetHits()+a.GetHits(), sum.GetRejected()+a.GetRejected()
		sum.UnknownHits, sum.UnknownRejected = sum.GetUnknownHits()+a.GetUnknownHits(), sum.GetUnknownRejected()+a.GetUnknownRejected()
		sum.SampledOneIn = max(sum.GetSampledOneIn(), a.GetSampledOneIn())
	}
	for _, a := range all {
		for _, e := range a.GetEntries() {
			id := fmt.Sprintf("%q %q %s", e.GetDomain(), e.GetRule(), entriesArgument(e.GetEntries(), e.GetIsCut()))
			if entries[id] == nil {
				entries[id] = proto.CloneOf(e)
				entries[id].Hits, entries[id].HitsError = 0, sum.GetUnknownHits()
				entries[id].Rejected, entries[id].RejectedError = 0, sum.GetUnknownRejected()
			}
			was := entries[id]
			was.Hits, was.HitsError = was.GetHits()+e.GetHits(), was.GetHitsError()+e.GetHitsError()-a.GetUnknownHits()
			was.Rejected, was.RejectedError = was.GetRejected()+e.GetRejected(), was.GetRejectedError()+e.GetRejectedError()-a.GetUnknownRejected()
		}
	}
	sum.Entries = slices.SortedFunc(maps.Values(entries), func(a, b *adminv1.TopEntry) int {
		if ranking == adminv1.Ranking_RANKING_REJECTED {
			return cmp.Or(cmp.Compare(b.GetRejected(), a.GetRejected()), cmp.Compare(a.String(), b.String()))
		}
		return cmp.Or(cmp.Compare(b.GetHits(), a.GetHits()), cmp.Compare(a.String(), b.String()))
	})
	sum.Entries = sum.GetEntries()[:min(rows, len(sum.GetEntries()))]
	return sum
}

// use is a descriptor's usage of its limit.
type use struct {
	Descriptor string  `json:"descriptor"` // as arguments: a domain and entries
	Rule       string  `json:"rule"`
	Limit      string  `json:"limit"`
	Left       uint64  `json:"left"`
	Used       float64 `json:"used"` // from 0 to 1
}

// near prints the descriptors closest to their limits, among the busiest ones.
func (p *program) near(ctx context.Context, servers []*client, q *adminv1.TopRequest) error {
	rows := int(q.GetPageSize())
	q.PageSize = maxTopRows
	answer, err := queryTop(ctx, servers, q)
	if err != nil {
		return err
	}
	var all []use
	api := adminv1.NewAdminServiceClient(servers[0])
	for _, e := range answer.GetEntries() {
		if e.GetRule() == "" || e.GetIsCut() {
			continue
		}
		seen, err := api.Peek(ctx, &adminv1.PeekRequest{Domain: e.GetDomain(), Entries: e.GetEntries()})
		switch {
		case status.Code(err) == codes.NotFound: // not limited
			continue
		case err != nil:
			return err
		}
		k := seen.GetCounter()
		l := k.GetLimits()[k.GetStrictest()]
		most := cmp.Or(l.GetBurst(), l.Number(), 1)
		about := shellWord(e.GetDomain()) + " " + entriesArgument(e.GetEntries(), false)
		all = append(all, use{about, e.GetRule(), limitName(l), k.GetLeft(), 1 - min(float64(k.GetLeft())/float64(most), 1)})
	}
	slices.SortStableFunc(all, func(a, b use) int { return cmp.Compare(b.Used, a.Used) })
	all = all[:min(len(all), rows)]
	return p.show(all, nil, func() {
		p.printf("closest to their limit, of the %d busiest descriptors in the last hour (%s)\n\n", len(answer.GetEntries()),
			sampleText(len(servers)))
		if len(all) == 0 {
			p.print("no matching descriptors\n")
		}
		heading := []string{"USED", "LEFT", "LIMIT", "RULE", "DESCRIPTOR"}
		printTable(p, false, heading, all, func(u use) []string {
			return cells(fmt.Sprintf("%.0f%%", u.Used*100), u.Left, u.Limit, u.Rule, u.Descriptor)
		})
	})
}

// sampleText describes which servers' requests are counted.
func sampleText(servers int) string {
	if servers > 1 {
		return fmt.Sprintf("%d servers", servers)
	}
	return "one server's requests; repeat --addr to merge servers"
}

// isTerminal reports whether w is a character device, such as a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// maxTopRows is the server's maximum number of rows.
const maxTopRows = 1000

// topTable prints a summary and a row for each descriptor. It omits columns without values.
func (p *program) topTable(q *adminv1.TopRequest, a *adminv1.TopResponse, servers int) {
	all, ranking := a.GetEntries(), "busiest"
	if q.GetRanking() == adminv1.Ranking_RANKING_REJECTED {
		ranking = "most rejected"
	}
	span := a.GetTo().AsTime().Sub(a.GetFrom().AsTime()).Round(time.Second)
	p.printf("%s of %s, last %s: %d hits, %d rejected (%s)\n", ranking, cmp.Or(q.GetRule(), "all rules"), descriptors.SpanText(span),
		a.GetHits(), a.GetRejected(), sampleText(servers))
	if n := a.GetSampledOneIn(); n > 1 {
		p.printf("sampled: 1 in %d requests\n", n)
	}
	if a.GetUnknownHits()+a.GetUnknownRejected() > 0 {
		p.printf("descriptors not listed have at most %d hits and %d rejections each\n", a.GetUnknownHits(), a.GetUnknownRejected())
	}
	if p.print("\n"); len(all) == 0 {
		p.printf("no matching descriptors\n")
		return
	}
	rows := [][]string{{"HITS", "±", "RESERVED", "REJECTED", "±", "RULE", "BLOCKED BY", "DESCRIPTOR"}}
	for _, e := range all {
		row := []string{
			"", "", "", "", "", cmp.Or(e.GetRule(), "-"), e.GetControl(),
			shellWord(e.GetDomain()) + " " + entriesArgument(e.GetEntries(), e.GetIsCut()),
		}
		for i, n := range []*uint64{&e.Hits, &e.HitsError, e.Reserved, &e.Rejected, &e.RejectedError} {
			if n != nil && (*n > 0 || i != 1 && i != 4) {
				row[i] = strconv.FormatUint(*n, 10)
			}
		}
		rows = append(rows, row)
	}
	p.table(withoutEmpty(rows))
}

// withoutEmpty removes columns with only a heading.
func withoutEmpty(rows [][]string) [][]string {
	for i := range slices.Backward(rows[0]) {
		if !slices.ContainsFunc(rows[1:], func(row []string) bool { return row[i] != "" }) {
			for n, row := range rows {
				rows[n] = slices.Delete(row, i, i+1)
			}
		}
	}
	return rows
}

// outcomeNames returns the values of --outcome, in the API's order.
func outcomeNames() []string {
	return []string{"no_limit", "unlimited", "replaced", "admitted", "rejected", "shadowed", "blocked", "allowed", "failed", "late_charge", "skipped"}
}

func (p *program) watchCommand() *cobra.Command {
	var (
		q        adminv1.WatchRequest
		outcomes []string
		count    int
	)
	cmd := p.queries(&cobra.Command{
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
		Args: takes(2),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if q.Domain, q.Entries, err = scope(args); err != nil {
				return err
			}
			if count < 0 {
				return fmt.Errorf("--count %d: must be 0 or more", count)
			}
			for _, name := range outcomes {
				number := adminv1.Outcome_value["OUTCOME_"+strings.ToUpper(name)]
				if number == 0 {
					return fmt.Errorf("--outcome %s: must be one of %s", name, strings.Join(outcomeNames(), ", "))
				}
				q.Outcomes = append(q.Outcomes, adminv1.Outcome(number))
			}
			return p.watch(cmd.Context(), &q, count)
		},
	})
	flags := cmd.Flags()
	flags.StringVar(&q.Rule, "rule", "", "show only this rule, such as shop.user")
	flags.StringSliceVar(&outcomes, "outcome", nil, "show only these outcomes: "+strings.Join(outcomeNames(), ", "))
	flags.Uint32Var(&q.OneIn, "one-in", 1, "show a random sample of one in N decisions")
	flags.Uint32Var(&q.MaxPerSecond, "max-per-second", 1000, "skip more lines than this per second; at most 10000")
	flags.IntVar(&count, "count", 0, "exit after N lines; 0 means never")
	return cmd
}

// errNoHeader is the cause of cancelling a stream that did not begin in time.
var errNoHeader = errors.New("no header in time")

// watch prints count decisions, or without end if count is 0. The stream must begin within --timeout.
func (p *program) watch(ctx context.Context, q *adminv1.WatchRequest, count int) error {
	if err := p.client.connect(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(p.client.timeout, func() { cancel(errNoHeader) })
	stream, err := p.api.Watch(ctx, q)
	if err == nil {
		_, err = stream.Header()
	}
	if timer.Stop(); errors.Is(context.Cause(ctx), errNoHeader) {
		err = context.DeadlineExceeded
	}
	if err != nil {
		return p.client.explain(err)
	}
	if !p.json() {
		p.printf(watchColumns, "TIME", "OUTCOME", "HITS", "LEFT", "RETRY IN", "TOOK", "BY", "LIMIT", "RULE", "DESCRIPTOR", "FROM")
	}
	for {
		answer, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case status.Code(err) == codes.Unavailable:
			return fmt.Errorf("%s stopped, or the connection to it broke", p.client.addr)
		case err != nil:
			return p.client.explain(err)
		}
		if err := p.missed(q, answer); err != nil {
			return err
		}
		for _, d := range answer.GetDecisions() {
			if err := p.show(d, nil, func() { p.print(decisionText(d)) }); err != nil {
				return err
			}
			if count--; count == 0 {
				return nil
			}
		}
	}
}

// missed prints how many decisions are missing before those of an answer.
func (p *program) missed(q *adminv1.WatchRequest, a *adminv1.WatchResponse) error {
	if a.GetLost()+a.GetSkipped() == 0 {
		return nil
	}
	return p.show(&adminv1.WatchResponse{Lost: a.GetLost(), Skipped: a.GetSkipped()}, nil, func() {
		if n := a.GetLost(); n > 0 {
			p.printf("… %d lines dropped, because this command was too slow: add a filter or --one-in\n", n)
		}
		if n := a.GetSkipped(); n > 0 {
			p.printf("… %d lines skipped, above --max-per-second %d\n", n, q.GetMaxPerSecond())
		}
	})
}

// watchColumns formats a line of watch. Columns of unbounded width are last.
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

// sourceText names the source of a decision.
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
