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

	"github.com/gdamore/tcell/v2"
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

Keys: r ranks by rejections or hits, w shows the last minute or hour, / searches (Enter keeps the
result, Esc shows all), arrow and page keys scroll, q quits. Without a terminal, and with --once or
--output json, the table is printed once.

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
	cmd.Flags().Int32Var(&f.rows, "rows", 20, "number of rows to print, at most 1000; a live table fills the screen")
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
	answer, err := f.ask(ctx, q) // so that errors appear on an ordinary screen
	if err != nil {
		return err
	}
	if f.json() || f.once || !isTerminal(p.stdout.Raw) {
		return f.show(answer, func() { p.print(strings.Join(topTable(q, answer, "", len(f.addrs)), "\n") + "\n") })
	}
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return errors.New("this terminal cannot show a live table: use --once")
	}
	live := &topScreen{screen: screen, ask: f.ask, servers: len(f.addrs), query: q, about: q, answer: answer, every: f.every}
	live.run(ctx)
	return nil
}

// ask asks every server, and merges the answers.
func (f *topFlags) ask(ctx context.Context, q *adminv1.TopRequest) (*adminv1.TopResponse, error) {
	all, rows := make([]*adminv1.TopResponse, max(len(f.addrs), 1)), int(q.GetPageSize())
	if len(all) > 1 {
		q = proto.CloneOf(q)
		q.PageSize = maxTopRows
	}
	for i := range all {
		c := *f.client
		if c.addrs = nil; len(f.addrs) > 0 {
			c.addr = f.addrs[i]
		}
		if err := c.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) (err error) {
			all[i], err = a.Top(ctx, q)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return mergeTop(all, q.GetRanking(), rows), nil
}

// mergeTop adds up what several servers have counted. A descriptor that is not in the list of a server may have that server's unknown
// hits.
func mergeTop(all []*adminv1.TopResponse, ranking adminv1.Ranking, rows int) *adminv1.TopResponse {
	sum, entries, rules := all[0], map[string]*adminv1.TopEntry{}, map[string]*adminv1.TopRule{}
	for n, a := range all {
		known := map[string]bool{}
		for _, e := range a.GetEntries() {
			id := fmt.Sprintf("%q %q %s", e.GetDomain(), e.GetRule(), entriesArgument(e.GetEntries(), e.GetIsCut()))
			known[id] = true
			was := entries[id]
			if was == nil {
				e.HitsError += sum.GetUnknownHits() * uint64(min(n, 1))
				e.RejectedError += sum.GetUnknownRejected() * uint64(min(n, 1))
				entries[id] = e
				continue
			}
			was.Hits, was.HitsError = was.GetHits()+e.GetHits(), was.GetHitsError()+e.GetHitsError()
			was.Rejected, was.RejectedError = was.GetRejected()+e.GetRejected(), was.GetRejectedError()+e.GetRejectedError()
		}
		for id, e := range entries {
			if !known[id] {
				e.HitsError, e.RejectedError = e.GetHitsError()+a.GetUnknownHits(), e.GetRejectedError()+a.GetUnknownRejected()
			}
		}
		for _, r := range a.GetRules() {
			if was := rules[r.GetRule()]; was != nil {
				was.Hits, was.Rejected = was.GetHits()+r.GetHits(), was.GetRejected()+r.GetRejected()
			} else {
				rules[r.GetRule()] = r
			}
		}
		if n > 0 {
			sum.Hits, sum.Rejected, sum.SampledOneIn = sum.GetHits()+a.GetHits(), sum.GetRejected()+a.GetRejected(), max(sum.GetSampledOneIn(), a.GetSampledOneIn())
			sum.UnknownHits, sum.UnknownRejected = sum.GetUnknownHits()+a.GetUnknownHits(), sum.GetUnknownRejected()+a.GetUnknownRejected()
			sum.FromAllRules = sum.GetFromAllRules() || a.GetFromAllRules()
		}
	}
	if len(all) > 1 {
		sum.Entries = ranked(entries, ranking, rows)
		sum.Rules = ranked(rules, ranking, rows)
	}
	return sum
}

// ranked returns the first so many of what has the most hits or rejections.
func ranked[T interface {
	GetHits() uint64
	GetRejected() uint64
	GetRule() string
}](all map[string]T, ranking adminv1.Ranking, rows int) []T {
	sorted := slices.SortedFunc(maps.Values(all), func(a, b T) int {
		if ranking == adminv1.Ranking_RANKING_REJECTED {
			return cmp.Or(cmp.Compare(b.GetRejected(), a.GetRejected()), cmp.Compare(a.GetRule(), b.GetRule()))
		}
		return cmp.Or(cmp.Compare(b.GetHits(), a.GetHits()), cmp.Compare(a.GetRule(), b.GetRule()))
	})
	return sorted[:min(rows, len(sorted))]
}

// use is how much of its limit a descriptor uses.
type use struct {
	Descriptor string  `json:"descriptor"` // as arguments: a domain, and entries
	Rule       string  `json:"rule"`
	Limit      string  `json:"limit"`
	Left       uint64  `json:"left"`
	Used       float64 `json:"used"` // from 0 to 1

	resets string
}

// near prints the descriptors that use most of their limits, of the busiest ones.
func (p *program) near(ctx context.Context, f *topFlags, q *adminv1.TopRequest) error {
	q.PageSize = maxTopRows
	answer, err := f.ask(ctx, q)
	if err != nil {
		return err
	}
	var all []use
	c := *f.client
	c.addrs = nil
	err = c.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		for _, e := range answer.GetEntries() {
			if e.GetRule() == "" || e.GetIsCut() {
				continue
			}
			seen, err := a.Peek(ctx, &adminv1.PeekRequest{Domain: e.GetDomain(), Entries: e.GetEntries()})
			if status.Code(err) == codes.NotFound { // not limited
				continue
			}
			if err != nil {
				return err
			}
			k := seen.GetCounter()
			l := k.GetLimits()[k.GetStrictest()]
			u := use{
				Descriptor: shellWord(e.GetDomain()) + " " + entriesArgument(e.GetEntries(), false), Rule: e.GetRule(), Limit: limitName(l), Left: k.GetLeft(),
				Used: 1, resets: "-",
			}
			if most := cmp.Or(l.GetBurst(), uint64(l.GetRequestsPerUnit())); most > 0 {
				u.Used = 1 - min(float64(k.GetLeft())/float64(most), 1)
			}
			if d := k.GetResetAfter(); d != nil {
				u.resets = briefly(d.AsDuration())
			}
			all = append(all, u)
		}
		return nil
	})
	if err != nil {
		return err
	}
	slices.SortStableFunc(all, func(a, b use) int { return cmp.Compare(b.Used, a.Used) })
	all = all[:min(len(all), int(f.rows))]
	if f.json() {
		return p.printObject(all)
	}
	rows := [][]string{{"USED", "LEFT", "LIMIT", "RESETS IN", "RULE", "DESCRIPTOR"}}
	for _, u := range all {
		rows = append(rows, []string{fmt.Sprintf("%.0f%%", u.Used*100), strconv.FormatUint(u.Left, 10), u.Limit, u.resets, u.Rule, u.Descriptor})
	}
	p.printf("closest to their limit, of the busiest descriptors in the last hour (%s)\n\n", sampleText(len(f.addrs)))
	p.table(rows)
	if len(all) == 0 {
		p.printf("no limited descriptors\n")
	}
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

// topTable returns the lines of the table: a summary, the heading, and a row for each descriptor that has search in it.
func topTable(q *adminv1.TopRequest, a *adminv1.TopResponse, search string, servers int) []string {
	all := a.GetEntries()
	inexact := slices.ContainsFunc(all, func(e *adminv1.TopEntry) bool { return e.GetHitsError()+e.GetRejectedError() > 0 })
	reserves := slices.ContainsFunc(all, func(e *adminv1.TopEntry) bool { return e.Reserved != nil })
	controlled := slices.ContainsFunc(all, func(e *adminv1.TopEntry) bool { return e.GetControl() != "" })
	row := func(hits, hitsError, reserved, rejected, rejectedError, rule, control, descriptor string) (cells []string) {
		for _, c := range []struct {
			text  string
			shown bool
		}{{hits, true}, {hitsError, inexact}, {reserved, reserves}, {rejected, true}, {rejectedError, inexact}, {rule, true}, {control, controlled}, {descriptor, true}} {
			if c.shown {
				cells = append(cells, c.text)
			}
		}
		return cells
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	rows := [][]string{row("HITS", "±", "RESERVED", "REJECTED", "±", "RULE", "BLOCKED BY", "DESCRIPTOR")}
	for _, e := range all {
		descriptor, reserved := shellWord(e.GetDomain())+" "+entriesArgument(e.GetEntries(), e.GetIsCut()), "-"
		if e.Reserved != nil {
			reserved = number(e.GetReserved())
		}
		if strings.Contains(strings.ToLower(e.GetRule()+" "+descriptor), strings.ToLower(search)) {
			rows = append(rows, row(number(e.GetHits()), number(e.GetHitsError()), reserved, number(e.GetRejected()), number(e.GetRejectedError()),
				cmp.Or(e.GetRule(), "-"), cmp.Or(e.GetControl(), "-"), descriptor))
		}
	}
	lines := append(topHead(q, a, servers), tableLines(rows)...)
	if len(rows) == 1 {
		lines = append(lines, "no matching descriptors")
	}
	return lines
}

// topHead returns the lines above the table.
func topHead(q *adminv1.TopRequest, a *adminv1.TopResponse, servers int) []string {
	ranking := "busiest"
	if q.GetRanking() == adminv1.Ranking_RANKING_REJECTED {
		ranking = "most rejected"
	}
	span := a.GetTo().AsTime().Sub(a.GetFrom().AsTime()).Round(time.Second)
	lines := []string{sprintf("%s of %s, last %s: %d hits, %d rejected (%s)", ranking, cmp.Or(q.GetRule(), "all rules"), descriptors.SpanText(span), a.GetHits(), a.GetRejected(), sampleText(servers))}
	if n := a.GetSampledOneIn(); n > 1 {
		lines = append(lines, fmt.Sprintf("sampled: 1 in %d requests", n))
	}
	if a.GetUnknownHits()+a.GetUnknownRejected() > 0 {
		lines = append(lines, fmt.Sprintf("descriptors not listed have at most %d hits and %d rejections each", a.GetUnknownHits(), a.GetUnknownRejected()))
	}
	if a.GetFromAllRules() {
		lines = append(lines, "no separate list for this rule (memory limit): taken from the list of all rules")
	}
	return append(lines, "")
}
