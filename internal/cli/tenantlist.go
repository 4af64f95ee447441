package cli

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// tenantList is what list and export have in common.
type tenantList struct {
	query

	plan, source string
}

func (l *tenantList) add(p *program, cmd *cobra.Command) *cobra.Command {
	l.query.add(p, cmd)
	cmd.Flags().StringVar(&l.plan, "plan", "", "only tenants on this plan")
	cmd.Flags().StringVar(&l.source, "source", "", "only tenants in this source: file or redis")
	return cmd
}

// list returns the tenants that are wanted, or the first most, and a few more, if that is not 0. Without a next page these are all.
func (l *tenantList) list(ctx context.Context, most int) (all *adminv1.ListTenantsResponse, err error) {
	q := &adminv1.ListTenantsRequest{Plan: l.plan}
	switch l.source {
	case "":
	case "file":
		q.Source = adminv1.TenantSource_TENANT_SOURCE_FILE
	case "redis":
		q.Source = adminv1.TenantSource_TENANT_SOURCE_STORE
	default:
		return nil, fmt.Errorf("--source %s: must be file or redis", l.source)
	}
	err = fetchPages(ctx, l.client, adminv1.AdminServiceClient.ListTenants, q, func(page *adminv1.ListTenantsResponse) bool {
		page.Tenants = append(all.GetTenants(), page.GetTenants()...)
		all = page
		return most == 0 || len(page.GetTenants()) < most
	})
	return all, err
}

func (p *program) tenantListCommand() *cobra.Command {
	var (
		l    tenantList
		most int
	)
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List tenants with their plans",
		Long:  "List lists tenants with their plans, sorted by name. If there are more than --most, some are left out.\n\n" + tenantHelp,
		Example: `  ratelimitd tenant list --plan gold
  ratelimitd tenant list --most 0 --output json`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := l.list(cmd.Context(), most)
			if err != nil {
				return err
			}
			more := all.GetNextPageToken() != "" || most > 0 && len(all.GetTenants()) > most
			if most > 0 {
				all.Tenants = all.GetTenants()[:min(most, len(all.GetTenants()))]
			}
			slices.SortFunc(all.GetTenants(), compareTenants)
			all.NextPageToken = ""
			return l.show(all, func() { p.tenantTable(all, more) })
		},
	}
	l.add(p, cmd)
	cmd.Flags().IntVar(&most, "most", 100, "maximum number of tenants; 0 means all")
	return cmd
}

func compareTenants(a, b *adminv1.Tenant) int {
	return cmp.Or(cmp.Compare(tenantName(a), tenantName(b)), cmp.Compare(b.GetSource(), a.GetSource()))
}

func (p *program) tenantTable(all *adminv1.ListTenantsResponse, more bool) {
	heading := []string{"TENANT", "PLAN", "REQUESTS_PER_UNIT", "EXPIRES", "SOURCE"}
	printTable(p, false, heading, all.GetTenants(), func(m *adminv1.Tenant) []string {
		requests, until := "-", "-"
		if n, ok := m.Number(); ok {
			requests = strconv.FormatUint(n, 10)
		}
		if m.GetUntil() != nil {
			until = timeText(m.GetUntil())
		}
		return []string{tenantName(m), m.GetPlan(), requests, until, tenantSourceText(m.GetSource())}
	})
	if more {
		p.printf("more tenants exist: raise --most\n")
	}
	p.printf("%d tenants in Redis, %d in TENANTS_FILE\n", all.GetInStore(), all.GetInFile())
	if all.GetInvalid() != "" {
		p.printf("TENANTS_FILE is invalid; the last valid one is in use:\n")
		for line := range strings.SplitSeq(all.GetInvalid(), "\n") {
			p.printf("  %s\n", line)
		}
	}
}

func (p *program) tenantExportCommand() *cobra.Command {
	var l tenantList
	return l.add(p, &cobra.Command{
		Use:   "export [flags]",
		Short: "Export tenants with their plans",
		Long: `Export writes the tenants in Redis, or with --source file those in TENANTS_FILE, sorted by name, in
the format of TENANTS_FILE and import: CSV, or with --output json lines of JSON. Import restores them
exactly. Export fails for a name with a CRLF, which CSV cannot hold; use JSON.

` + tenantHelp,
		Example: `  ratelimitd tenant export > tenants.csv`,
		Args:    needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l.source = cmp.Or(l.source, "redis")
			found, err := l.list(cmd.Context(), 0)
			if err != nil {
				return err
			}
			all := found.GetTenants()
			if len(all) > 0 && !slices.ContainsFunc(all, func(m *adminv1.Tenant) bool { return !masked.MatchString(m.GetTenant()) }) {
				return errors.New("the server hides the names of tenants from this read-only token: set --token-file to a file with a token from its ADMIN_TOKEN_FILE")
			}
			slices.SortFunc(all, compareTenants)
			return writeTenants(p.stdout.Raw, all, l.json())
		},
	})
}

// masked matches a name that the server hides.
var masked = regexp.MustCompile(`^#[0-9a-f]{12}$`)

// writeTenants writes tenants as CSV, or as lines of JSON, in a form that [tenants.ReadRows] makes the same of.
func writeTenants(to io.Writer, all []*adminv1.Tenant, asJSON bool) error {
	w := bufio.NewWriter(to) // Flush returns errors
	lines := json.NewEncoder(w)
	if !asJSON {
		_, _ = w.WriteString("tenant,plan,requests_per_unit,until\n")
	}
	for _, m := range all {
		row := tenants.Row{Tenant: m.GetTenant(), Raw: m.GetRawTenant(), Plan: m.GetPlan()}
		if n, ok := m.Number(); ok {
			row.Requests = &n
		}
		if row.Raw != nil {
			row.Tenant = ""
		}
		if m.GetUntil() != nil {
			row.Until = timeText(m.GetUntil())
		}
		if asJSON {
			if err := lines.Encode(&row); err != nil {
				return fmt.Errorf("writing the tenants: %w", err)
			}
			continue
		}
		requests := ""
		if row.Requests != nil {
			requests = strconv.FormatUint(*row.Requests, 10)
		}
		if strings.Contains(row.Name(), "\r\n") {
			return fmt.Errorf("CSV cannot hold the name %q, which has a CRLF in it: use --output json", row.Name())
		}
		_, _ = fmt.Fprintf(w, "%s,%s,%s,%s\n", csvField(row.Name()), csvField(row.Plan), requests, row.Until)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("writing the tenants: %w", err)
	}
	return nil
}

// csvField returns text as a field of CSV, in quotes unless it is sure to need none.
func csvField(text string) string {
	if plain.IsWord(text) && !strings.Contains(text, ",") {
		return text
	}
	return `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
}

func (p *program) tenantImportCommand() *cobra.Command {
	var c changing
	return c.add(p, &cobra.Command{
		Use:   "import [flags] FILE",
		Short: "Import tenants with their plans",
		Long: `Import puts the tenants in FILE on plans; - is standard input. Lines have the format of
TENANTS_FILE: tenant,plan[,requests_per_unit[,until]], or JSON. If a line is invalid, nothing changes.
Tenants are sent in batches of 500; a batch succeeds or fails as a whole. Other tenants do not change.

` + tenantHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd tenant import tenants.csv --dry-run`,
		Args:    exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := readTenants(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			sum := &adminv1.ImportTenantsResponse{}
			if err := c.importTenants(cmd.Context(), all, sum); err != nil {
				return err
			}
			return c.show(sum, func() {
				p.printf("%s tenants: %d added, %d changed, %d unchanged\n", doneText(c.dry, "Imported", "import"), sum.GetAdded(), sum.GetChanged(),
					sum.GetUnchanged())
			})
		},
	})
}

// importTenants sends tenants in parts, and adds up what became of them.
func (c *changing) importTenants(ctx context.Context, all []*adminv1.Tenant, sum *adminv1.ImportTenantsResponse) error {
	return c.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		done := 0
		for some := range slices.Chunk(all, tenants.MaxAtOnce) {
			part, err := a.ImportTenants(ctx, &adminv1.ImportTenantsRequest{Tenants: some, Reason: c.reason, DryRun: c.dry})
			sum.Added += part.GetAdded()
			sum.Changed += part.GetChanged()
			sum.Unchanged += part.GetUnchanged()
			if err != nil && done > 0 && !c.dry {
				return fmt.Errorf("after importing the first %d of %d tenants: %w", done, len(all), c.explain(err))
			}
			if err != nil {
				return err
			}
			done += len(some)
		}
		return nil
	})
}

// readTenants reads a file of tenants; - is in.
func readTenants(path string, in io.Reader) (all []*adminv1.Tenant, err error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // it is only read
		in = f
	}
	problems := new(tenants.ProblemsError)
	wrong := func(line int, text string) { problems.Add(path, line, text) }
	tenants.ReadRows(tenants.Input{Name: path, Reader: in}, func(line int, r *tenants.Row) bool {
		e, err := r.Entry()
		if err != nil {
			wrong(line, err.Error())
			return true
		}
		m := &adminv1.Tenant{RawTenant: []byte(r.Name()), Plan: r.Plan}
		if e.Numbered {
			m.SetNumber(e.Requests)
		}
		if !e.Until.IsZero() {
			m.Until = timestamppb.New(e.Until.Truncate(time.Second))
		}
		all = append(all, m)
		return true
	}, wrong)
	switch {
	case len(problems.First) > 0:
		return nil, problems
	case len(all) == 0:
		return nil, fmt.Errorf("%s: no tenants: write lines of tenant,plan[,requests_per_unit[,until]], or of JSON", path)
	}
	return all, nil
}
