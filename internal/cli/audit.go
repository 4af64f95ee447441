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
		Short: "List what operators changed in running servers",
		Long: `Audit lists who changed what with block, allow, limit, lift, grant, reset, reload, drain and tenant,
from where and why, the latest first. The last 1,000 changes are kept where controls are: in Redis,
for all replicas that share it, or in the server that is asked. Calls that failed changed
nothing; the server that is asked counts its own, by caller.
A server elsewhere needs a token (ADMIN_TOKEN_FILE).`,
		Example: `  ratelimitd audit
  ratelimitd audit --last 1000 --output json example`,
		Args: atMost(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if last < 1 || last > longestAudit {
				return errors.New("--last must be from 1 to 1000, which is how many are kept")
			}
			return q.asked(cmd.Context(), func(ctx context.Context, a adminv1.AdminServiceClient) error {
				answer, err := listAudit(ctx, a, strings.Join(args, ""), last)
				if err != nil {
					return err
				}
				return q.show(answer, func() { p.auditTable(answer) })
			})
		},
	}
	q.add(p, cmd)
	cmd.Flags().IntVar(&last, "last", 50, "how many to list, of the last 1,000")
	return cmd
}

// listAudit returns the last entries, of a domain, or of all if it is empty, as one page.
func listAudit(ctx context.Context, a adminv1.AdminServiceClient, domain string, last int) (*adminv1.AuditResponse, error) {
	q, all := &adminv1.AuditRequest{Domain: domain}, new(adminv1.AuditResponse)
	for {
		q.PageSize = int32(min(last-len(all.GetEntries()), 500)) //nolint:gosec // 1 to 500
		answer, err := a.Audit(ctx, q)
		if err != nil {
			return nil, err
		}
		answer.Entries = append(all.GetEntries(), answer.GetEntries()...)
		if q.GetPageToken() != "" {
			answer.Failed = all.GetFailed()
		}
		all = answer
		if q.PageToken = answer.GetNextPageToken(); q.GetPageToken() == "" || len(all.GetEntries()) >= last {
			all.NextPageToken = ""
			return all, nil
		}
	}
}

// auditTable prints what operators changed, one call a line.
func (p *program) auditTable(a *adminv1.AuditResponse) {
	rows := [][]string{{"WHEN", "WHO", "FROM", "WHAT", "ABOUT", "BEFORE", "AFTER", "REASON"}}
	for _, e := range a.GetEntries() {
		after := e.GetAfter()
		if e.GetFailed() != "" {
			after = "failed, and may have been done: " + e.GetFailed()
		}
		about := aboutText(&adminv1.Control{Domain: e.GetDomain(), Entries: e.GetEntries()})
		rows = append(rows, []string{
			e.GetTime().AsTime().Format(time.RFC3339), cmp.Or(e.GetBy(), "?"), e.GetFrom(), e.GetWhat(), cmp.Or(about, "-"),
			cmp.Or(e.GetBefore(), "-"), cmp.Or(after, "-"), cmp.Or(e.GetReason(), "-"),
		})
	}
	if len(rows) == 1 {
		p.printf("nothing was changed\n")
	} else {
		p.table(rows)
	}
	p.failedTable(a.GetFailed())
	switch {
	case a.GetIsPartial():
		p.printf("only what this server was asked: the store of the controls does not answer\n")
	case a.GetAlone() != "":
		p.printf("only what this server was asked: %s\n", a.GetAlone())
	}
}

// failedTable prints whose calls failed, one caller a line.
func (p *program) failedTable(all []*adminv1.FailedCalls) {
	if len(all) == 0 {
		return
	}
	rows := [][]string{{"LAST", "SINCE", "WHO", "FROM", "LAST CALL", "CODE"}}
	for _, r := range all {
		rows = append(rows, []string{
			r.GetLast().AsTime().Format(time.RFC3339), r.GetFirst().AsTime().Format(time.RFC3339), cmp.Or(r.GetBy(), "?"), r.GetFrom(),
			r.GetMethod() + ": " + r.GetCode(), strconv.FormatUint(r.GetCount(), 10),
		})
	}
	p.printf("\ncalls that failed here and changed nothing:\n")
	p.table(rows)
}
