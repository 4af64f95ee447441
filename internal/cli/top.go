package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// topFlags are the flags of top.
type topFlags struct {
	scope

	rejected, hour, once bool
	rows                 int32
	every                time.Duration
}

func (p *program) topCommand() *cobra.Command {
	var f topFlags
	cmd := &cobra.Command{
		Use:   "top [flags] [DOMAIN [DESCRIPTOR]]",
		Short: "Show the busiest and the most rejected descriptors of a running server",
		Long: `Top shows which descriptors a running server is asked about most, or rejects most, with how many
hits and how many rejections that were in the last minute or hour, and follows it. A rejected request
is one rejection, whatever its hits; what passes in shadow mode and late charges are none. What the
server counts is a sample: each number says how far it may be off.
A server elsewhere needs a token (ADMIN_TOKEN_FILE).

Keys: r ranks by rejections or by hits, w shows the last minute or hour, / searches (Enter
keeps what was found, Esc shows all), the arrows and page keys scroll, q ends.
Where the output is no terminal, and with --once or --output json, the table is printed once.

` + scopeHelp,
		Example: `  ratelimitd top
  ratelimitd top --rejected --hour shop
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
	cmd.Flags().BoolVar(&f.rejected, "rejected", false, "rank by how often each was rejected, not by hits")
	cmd.Flags().BoolVar(&f.hour, "hour", false, "show the last hour, not the last minute")
	cmd.Flags().BoolVar(&f.once, "once", false, "print the table once, and end")
	cmd.Flags().Int32Var(&f.rows, "rows", 20, "rows to print, at most 1000; a live table has as many as fit")
	f.every = 2 * time.Second
	cmd.Flags().Var((*spanFlag)(&f.every), "every", "how often a live table asks the server")
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
	if f.hour {
		q.Window = adminv1.Window_WINDOW_HOUR
	}
	return f.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		answer, err := a.Top(ctx, q) // so that what is wrong is said on an ordinary screen
		if err != nil {
			return err
		}
		if f.json() || f.once || !isTerminal(p.stdout.Raw) {
			return f.show(answer, func() { p.print(strings.Join(topTable(q, answer, ""), "\n") + "\n") })
		}
		screen, err := tcell.NewScreen()
		if err == nil {
			err = screen.Init()
		}
		if err != nil {
			return errors.New("this terminal cannot show a live table: use --once")
		}
		ask := func(ctx context.Context, q *adminv1.TopRequest) (*adminv1.TopResponse, error) { return a.Top(ctx, q) }
		live := &topScreen{screen: screen, ask: ask, explain: f.explain, query: q, about: q, answer: answer, every: f.every}
		live.run(ctx)
		return nil
	})
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

// topTable returns the lines of the table: what it is about, the heading, and a row for each descriptor that has search in it.
func topTable(q *adminv1.TopRequest, a *adminv1.TopResponse, search string) []string {
	heading := []string{"HITS", "±", "REJECTED", "±", "RULE", "DESCRIPTOR"}
	reserves := slices.ContainsFunc(a.GetEntries(), func(e *adminv1.TopEntry) bool { return e.Reserved != nil })
	if reserves {
		heading = slices.Insert(heading, 2, "RESERVED")
	}
	rows := [][]string{heading}
	for _, e := range a.GetEntries() {
		rule, descriptor := e.GetRule(), entriesArgument(e.GetEntries(), e.GetIsCut())
		if rule == "" {
			rule = e.GetDomain() + ": no rule"
		}
		if e.GetControl() != "" {
			rule += ", control " + e.GetControl()
		}
		if !strings.Contains(strings.ToLower(rule+" "+descriptor), strings.ToLower(search)) {
			continue
		}
		row := []string{
			strconv.FormatUint(e.GetHits(), 10), strconv.FormatUint(e.GetHitsError(), 10),
			strconv.FormatUint(e.GetRejected(), 10), strconv.FormatUint(e.GetRejectedError(), 10), rule, descriptor,
		}
		if reserves {
			reserved := "-"
			if e.Reserved != nil {
				reserved = strconv.FormatUint(e.GetReserved(), 10)
			}
			row = slices.Insert(row, 2, reserved)
		}
		rows = append(rows, row)
	}
	lines := append(topHead(q, a), tableLines(rows)...)
	if len(rows) == 1 {
		lines = append(lines, "nothing was counted that is to be shown")
	}
	return lines
}

// topHead returns the lines above the table.
func topHead(q *adminv1.TopRequest, a *adminv1.TopResponse) []string {
	ranking, about, counted := "busiest", "all rules", "all hits counted"
	if q.GetRanking() == adminv1.Ranking_RANKING_REJECTED {
		ranking = "most rejected"
	}
	if q.GetRule() != "" {
		about = q.GetRule()
	}
	if n := a.GetSampledOneIn(); n > 1 {
		counted = fmt.Sprintf("1 in %d counted", n)
	}
	span := a.GetTo().AsTime().Sub(a.GetFrom().AsTime()).Round(time.Second)
	lines := []string{sprintf("%s, %s, last %s: %d hits, %d rejected; %s", about, ranking, descriptors.SpanText(span), a.GetHits(), a.GetRejected(), counted)}
	if a.GetUnknownHits()+a.GetUnknownRejected() > 0 {
		lines = append(lines, fmt.Sprintf("a descriptor that is not in the list may have up to %d hits, %d of them rejected", a.GetUnknownHits(), a.GetUnknownRejected()))
	}
	if a.GetFromAllRules() {
		lines = append(lines, "the server has no memory for a list of this rule: these are those that are in the list of all rules")
	}
	return append(lines, "")
}
