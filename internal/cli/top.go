package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// topFlags are the flags of top.
type topFlags struct {
	scope

	rejected, hour, once, near bool
	rows                       int32
	every                      time.Duration
}

func (p *program) topCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
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
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.parse(args); err != nil {
				return err
			}
			return p.top(cmd.Context(), &f)
		},
	}
	f.add(p, cmd)
	cmd.Flags().BoolVar(&f.rejected, "rejected", false, "rank by rejections instead of hits")
	cmd.Flags().BoolVar(&f.hour, "hour", false, "show the last hour instead of the last minute")
	cmd.Flags().BoolVar(&f.once, "once", false, "print the table once and exit")
	cmd.Flags().Int32Var(&f.rows, "rows", 20, "number of rows, at most 1000")
	cmd.Flags().BoolVar(&f.near, "near", false, "show the descriptors closest to their limit")
	f.every = 2 * time.Second
	cmd.Flags().Var((*spanFlag)(&f.every), "every", "refresh interval of a live table")
	return cmd
}

func (p *program) top(ctx context.Context, f *topFlags) error {
	switch {
	case f.rows < 1 || f.rows > maxTopRows:
		return fmt.Errorf("--rows %d: must be 1 to %d", f.rows, maxTopRows)
	case f.every < 100*time.Millisecond:
		return fmt.Errorf("--every %s: must be 100ms or more", descriptors.SpanText(f.every))
	}
	q := &adminv1.TopRequest{
		Domain:   f.domain,
		Rule:     f.rule,
		Entries:  f.entries,
		Ranking:  adminv1.Ranking_RANKING_BUSIEST,
		Window:   adminv1.Window_WINDOW_MINUTE,
		PageSize: f.rows,
	}
	if f.rejected {
		q.Ranking = adminv1.Ranking_RANKING_REJECTED
	}
	if f.hour || f.near {
		q.Window = adminv1.Window_WINDOW_HOUR
	}
	if f.near {
		return p.near(ctx, f, q)
	}
	live := !f.once && !f.json() && isTerminal(p.stdout.Raw)
	for {
		answer, err := f.ask(ctx, q)
		if err != nil {
			return err
		}
		if live {
			fmt.Fprint(p.stdout.Raw, "\x1b[H\x1b[J") // clears the screen
		}
		if err := f.show(answer, func() { p.topTable(q, answer, len(f.addrs)) }); err != nil || !live {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(f.every):
		}
	}
}

// ask asks every server, and merges the answers.
func (f *topFlags) ask(ctx context.Context, q *adminv1.TopRequest) (*adminv1.TopResponse, error) {
	all, rows := make([]*adminv1.TopResponse, max(len(f.addrs), 1)), int(q.GetPageSize())
	if len(all) > 1 {
		q = proto.CloneOf(q)
		q.PageSize = maxTopRows
	}
	for i := range all {
		c := f.at(i)
		answer, err := fetch(ctx, &c, adminv1.AdminServiceClient.Top, q)
		if err != nil {
			return nil, err
		}
		all[i] = answer
	}
	return mergeTop(all, q.GetRanking(), rows), nil
}

// at returns a client of the i-th server that was given, or of the one that was found.
func (c *client) at(i int) client {
	one := *c
	if one.addrs = nil; len(c.addrs) > 0 {
		one.addr = c.addrs[i]
	}
	return one
}

// mergeTop adds up what several servers have counted; rules are left out. A descriptor that a server does not list may have that server's
// unknown hits.
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

// use is how much of its limit a descriptor uses.
type use struct {
	Descriptor string  `json:"descriptor"` // as arguments: a domain, and entries
	Rule       string  `json:"rule"`
	Limit      string  `json:"limit"`
	Left       uint64  `json:"left"`
	Used       float64 `json:"used"` // from 0 to 1
}

// near prints the descriptors that use most of their limits, of the busiest ones.
func (p *program) near(ctx context.Context, f *topFlags, q *adminv1.TopRequest) error {
	q.PageSize = maxTopRows
	answer, err := f.ask(ctx, q)
	if err != nil {
		return err
	}
	var all []use
	c := f.at(0)
	if err := c.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		for _, e := range answer.GetEntries() {
			if e.GetRule() == "" || e.GetIsCut() {
				continue
			}
			seen, err := a.Peek(ctx, &adminv1.PeekRequest{Domain: e.GetDomain(), Entries: e.GetEntries()})
			switch {
			case status.Code(err) == codes.NotFound: // not limited
				continue
			case err != nil:
				return err
			}
			k := seen.GetCounter()
			l := k.GetLimits()[k.GetStrictest()]
			most := cmp.Or(l.GetBurst(), l.Number(), 1)
			all = append(all, use{
				shellWord(e.GetDomain()) + " " + entriesArgument(e.GetEntries(),
					false), e.GetRule(), limitName(l), k.GetLeft(), 1 - min(float64(k.GetLeft())/float64(most), 1),
			})
		}
		return nil
	}); err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b use) int { return cmp.Compare(b.Used, a.Used) })
	all = all[:min(len(all), int(f.rows))]
	if f.json() {
		return p.printObject(all)
	}
	p.printf("closest to their limit, of the %d busiest descriptors in the last hour (%s)\n\n", len(answer.GetEntries()),
		sampleText(len(f.addrs)))
	if len(all) == 0 {
		p.print("no matching descriptors\n")
	}
	heading := []string{"USED", "LEFT", "LIMIT", "RULE", "DESCRIPTOR"}
	printTable(p, false, heading, all, func(u use) []string {
		return []string{fmt.Sprintf("%.0f%%", u.Used*100), strconv.FormatUint(u.Left, 10), u.Limit, u.Rule, u.Descriptor}
	})
	return nil
}

// sampleText says whose requests are counted.
func sampleText(servers int) string {
	if servers > 1 {
		return fmt.Sprintf("%d servers", servers)
	}
	return "one server's requests; repeat --addr to merge servers"
}

// isTerminal reports whether w is a terminal, as far as a file tells.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// maxTopRows is the most rows that the server returns.
const maxTopRows = 1000

// topTable prints a summary, and a row for each descriptor. Columns without a number are left out.
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

// withoutEmpty leaves out columns that have nothing below their heading.
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
