package cli

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// longestAudit is how many entries there may be.
const longestAudit = 1000

func (p *program) auditCommand() *cobra.Command {
	var (
		q    query
		last int
	)
	cmd := &cobra.Command{
		Use:   "audit [flags] [DOMAIN]",
		Short: "List changes by operators",
		Long: `Audit lists changes, latest first, with the caller and the reason: block, allow, limit, lift, grant,
reset, reload, drain and tenant. The last 1,000 changes are kept in Redis, for all replicas that share
it, or in the server's memory. Failed calls are counted by caller. Long cells are cut to fit 120
columns; --output json prints them in full, with the address of each caller.`,
		Example: `  ratelimitd audit
  ratelimitd audit --last 1000 --output json example`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 || last > longestAudit {
				return errors.New("--last must be from 1 to 1000, the number of changes kept")
			}
			answer, err := q.listAudit(cmd.Context(), strings.Join(args, ""), last)
			if err != nil {
				return err
			}
			return q.show(answer, func() { p.auditTable(answer) })
		},
	}
	q.add(p, cmd)
	cmd.Flags().IntVar(&last, "last", 50, "number of changes to list, at most 1,000")
	return cmd
}

// listAudit returns the last entries, of a domain, or of all if it is empty, as one page.
func (c *client) listAudit(ctx context.Context, domain string, last int) (*adminv1.AuditResponse, error) {
	q, all := &adminv1.AuditRequest{Domain: domain, PageSize: int32(min(last, 500))}, new(adminv1.AuditResponse) //nolint:gosec // 1 to 500
	err := fetchPages(ctx, c, adminv1.AdminServiceClient.Audit, q, func(page *adminv1.AuditResponse) bool {
		page.Entries = append(all.GetEntries(), page.GetEntries()...)
		page.Failed = append(all.GetFailed(), page.GetFailed()...) // which only the first page has
		all = page
		q.PageSize = int32(min(last-len(all.GetEntries()), 500)) //nolint:gosec // the same
		return len(all.GetEntries()) < last
	})
	all.NextPageToken = ""
	return all, err
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
