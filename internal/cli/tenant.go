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
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// tenantHelp explains the sources of tenants' plans.
const tenantHelp = `Rules define the plans (plan_of and plans). TENANTS_FILE, Redis (TENANTS_REDIS=true) or both assign
tenants to plans; Redis wins over the file. These commands change Redis, which all replicas read
within a second. A tenant without a plan, or with one that a rule does not define, gets the default.`

func (p *program) tenantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Show and change the plans of tenants",
		Long:  "Tenant shows and changes the plans of tenants.\n\n" + tenantHelp,
		Example: `  ratelimitd tenant get acme
  ratelimitd tenant set acme gold --reason 'order 4711'`,
		Args:              noCommand,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.tenantGetCommand(), p.tenantSetCommand(), p.tenantUnsetCommand(), p.tenantListCommand(), p.tenantExportCommand(),
		p.tenantImportCommand())
	return cmd
}

func (p *program) tenantGetCommand() *cobra.Command {
	return p.queries(&cobra.Command{
		Use:     "get [flags] TENANT",
		Short:   "Show the plan of a tenant and where it comes from",
		Long:    "Get shows the plan of a tenant, and the plan in each source.\n\n" + tenantHelp,
		Example: `  ratelimitd tenant get acme`,
		Args:    exactly("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			answer, err := p.api.GetTenant(cmd.Context(), &adminv1.GetTenantRequest{RawTenant: []byte(args[0])})
			return p.show(answer, err, func() {
				if m := answer.GetTenant(); m != nil {
					p.printf("%s: %s\n", tenantName(m), planText(m))
				} else {
					p.printf("%s: plan default (its entry has expired)\n", args[0])
				}
				for _, m := range answer.GetSaid() {
					p.printf("  %s: %s%s\n", tenantSourceText(m.GetSource()), planText(m), endedText(m))
				}
				for _, path := range answer.GetRulesWithout() {
					p.printf("  note: %s does not define this plan and uses its default\n", path)
				}
				p.notes(answer)
			})
		},
	})
}

func (p *program) tenantSetCommand() *cobra.Command {
	var (
		requests uint64
		until    string
		span     time.Duration
	)
	cmd := p.changes(&cobra.Command{
		Use:   "set [flags] TENANT PLAN",
		Short: "Put a tenant on a plan",
		Long: `Set puts a tenant on a plan. --requests-per-unit replaces the number of the plan for this tenant;
--until or --for sets an expiry time. Counts are kept.

` + tenantHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd tenant set acme gold
  ratelimitd tenant set acme gold --requests-per-unit 7500 --for 30d --reason 'trial'`,
		Args: exactly("TENANT", "PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := &adminv1.Tenant{RawTenant: []byte(args[0]), Plan: args[1]}
			switch {
			case until != "" && span != 0:
				return errors.New("--until and --for: set only one of them")
			case span < 0:
				return fmt.Errorf("--for %s: must be above 0", span)
			case span > 0:
				m.Until = timestamppb.New(time.Now().Add(span).Truncate(time.Second))
			case until != "":
				at, err := time.Parse(time.RFC3339, until)
				if err != nil {
					return fmt.Errorf("--until %s: must be a time such as 2030-01-31T00:00:00Z", until)
				}
				m.Until = timestamppb.New(at)
			}
			if cmd.Flags().Changed("requests-per-unit") {
				m.SetNumber(requests)
			}
			answer, err := p.api.SetTenant(cmd.Context(), &adminv1.SetTenantRequest{Tenant: m, Reason: p.reason, DryRun: p.dry})
			return p.show(answer, err, func() {
				p.printf("%s %s on %s%s\n", p.done("Put", "put"), tenantName(m), planText(answer.GetTenant()),
					p.undoTenant(m, answer.GetBefore()))
				if was := answer.GetBefore(); was != nil {
					p.printf("  before: %s%s\n", planText(was), endedText(was))
				}
				p.notes(answer)
			})
		},
	})
	cmd.Flags().Uint64Var(&requests, "requests-per-unit", 0, "a limit for this tenant instead of the plan's")
	cmd.Flags().StringVar(&until, "until", "", "expiry time, RFC 3339, such as 2030-01-31T00:00:00Z")
	spanVar(cmd.Flags(), &span, "for", "duration, such as 30d, instead of --until")
	return cmd
}

func (p *program) tenantUnsetCommand() *cobra.Command {
	return p.changes(&cobra.Command{
		Use:   "unset [flags] TENANT",
		Short: "Remove a tenant from Redis",
		Long: "Unset removes a tenant from Redis. It then has its plan in TENANTS_FILE, or else the default.\n\n" +
			tenantHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd tenant unset acme --reason 'has left'`,
		Args:    exactly("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := &adminv1.Tenant{RawTenant: []byte(args[0])}
			request := &adminv1.UnsetTenantRequest{RawTenant: m.GetRawTenant(), Reason: p.reason, DryRun: p.dry}
			answer, err := p.api.UnsetTenant(cmd.Context(), request)
			return p.show(answer, err, func() {
				now := "plan default"
				if then := answer.GetNow(); then != nil {
					now = planText(then) + " in " + tenantSourceText(then.GetSource())
				}
				p.printf("%s %s from Redis: now on %s%s\n  before: %s\n", p.done("Removed", "remove"),
					args[0], now, p.undoTenant(m, answer.GetBefore()), planText(answer.GetBefore()))
			})
		},
	})
}

// undoTenant returns the command that restores the previous entry of m in Redis, or removes m if there was none.
func (p *program) undoTenant(m, was *adminv1.Tenant) string {
	if was == nil {
		return p.undo("tenant unset " + shellWord(tenantName(m)))
	}
	text := "tenant set " + shellWord(tenantName(m)) + " " + shellWord(was.GetPlan())
	if n, ok := was.Number(); ok {
		text += fmt.Sprintf(" --requests-per-unit %d", n)
	}
	if was.GetUntil() != nil {
		text += " --until " + timeText(was.GetUntil())
	}
	return p.undo(text)
}

// tenantName returns the name of a tenant, whether UTF-8 or not.
func tenantName(m *adminv1.Tenant) string { return cmp.Or(string(m.GetRawTenant()), m.GetTenant()) }

// planText describes the plan of a tenant.
func planText(m *adminv1.Tenant) string {
	text := "plan " + m.GetPlan()
	if n, ok := m.Number(); ok {
		text += fmt.Sprintf(", %d requests_per_unit", n)
	}
	if m.GetUntil() != nil {
		text += ", until " + timeText(m.GetUntil())
	}
	return text
}

func endedText(m *adminv1.Tenant) string {
	if u := m.GetUntil(); u != nil && !time.Now().Before(u.AsTime()) {
		return " (expired)"
	}
	return ""
}

func tenantSourceText(s adminv1.TenantSource) string {
	return cmp.Or(map[adminv1.TenantSource]string{
		adminv1.TenantSource_TENANT_SOURCE_FILE:  "TENANTS_FILE",
		adminv1.TenantSource_TENANT_SOURCE_STORE: "Redis",
	}[s], strings.ToLower(s.String()))
}

// tenantFilter is the flags that select tenants for list and export.
type tenantFilter struct{ plan, source string }

func (f *tenantFilter) add(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&f.plan, "plan", "", "only tenants on this plan")
	cmd.Flags().StringVar(&f.source, "source", "", "only tenants in this source: file or redis")
	return cmd
}

// listTenants returns the selected tenants. Unless most is 0, it stops at the page that reaches most; a next page token means that
// there are more.
func (p *program) listTenants(ctx context.Context, f tenantFilter, most int) (*adminv1.ListTenantsResponse, error) {
	q, all := &adminv1.ListTenantsRequest{Plan: f.plan}, new(adminv1.ListTenantsResponse)
	source, ok := map[string]adminv1.TenantSource{
		"": 0, "file": adminv1.TenantSource_TENANT_SOURCE_FILE, "redis": adminv1.TenantSource_TENANT_SOURCE_STORE,
	}[f.source]
	if q.Source = source; !ok {
		return nil, fmt.Errorf("--source %s: must be file or redis", f.source)
	}
	err := allPages(ctx, p.api.ListTenants, q, all, func() bool { return most > 0 && len(all.GetTenants()) >= most })
	return all, err
}

func (p *program) tenantListCommand() *cobra.Command {
	var (
		f    tenantFilter
		most int
	)
	cmd := f.add(p.queries(&cobra.Command{
		Use:   "list [flags]",
		Short: "List tenants with their plans",
		Long:  "List lists tenants with their plans, sorted by name. If there are more than --most, some are left out.\n\n" + tenantHelp,
		Example: `  ratelimitd tenant list --plan gold
  ratelimitd tenant list --most 0 --output json`,
		Args: takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := p.listTenants(cmd.Context(), f, most)
			if err != nil {
				return err
			}
			more := all.GetNextPageToken() != "" || most > 0 && len(all.GetTenants()) > most
			if most > 0 {
				all.Tenants = all.GetTenants()[:min(most, len(all.GetTenants()))]
			}
			slices.SortFunc(all.GetTenants(), compareTenants)
			all.NextPageToken = ""
			return p.show(all, nil, func() { p.tenantTable(all, more) })
		},
	}))
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
	p.printf("%s in Redis, %d in TENANTS_FILE\n", descriptors.CountText(int(all.GetInStore()), "tenant"), all.GetInFile())
	if all.GetInvalid() != "" {
		p.printf("TENANTS_FILE is invalid; the last valid one is in use:\n")
		for line := range strings.SplitSeq(all.GetInvalid(), "\n") {
			p.printf("  %s\n", line)
		}
	}
}

func (p *program) tenantExportCommand() *cobra.Command {
	var f tenantFilter
	return f.add(p.queries(&cobra.Command{
		Use:   "export [flags]",
		Short: "Export tenants with their plans",
		Long: `Export writes the tenants in Redis, or with --source file those in TENANTS_FILE, sorted by name, in
the format of TENANTS_FILE and import: CSV, or with --output json lines of JSON. Import restores them
exactly. Export fails for a name with a CRLF, which CSV cannot hold; use JSON.

` + tenantHelp,
		Example: `  ratelimitd tenant export > tenants.csv`,
		Args:    takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.source = cmp.Or(f.source, "redis")
			found, err := p.listTenants(cmd.Context(), f, 0)
			if err != nil {
				return err
			}
			all := found.GetTenants()
			if len(all) > 0 && !slices.ContainsFunc(all, func(m *adminv1.Tenant) bool { return !masked.MatchString(m.GetTenant()) }) {
				return errors.New("the server hides the names of tenants from this read-only token: set --token-file to a file with a token from its ADMIN_TOKEN_FILE")
			}
			slices.SortFunc(all, compareTenants)
			return writeTenants(p.stdout.Raw, all, p.json())
		},
	}))
}

// masked matches a name that the server has masked.
var masked = regexp.MustCompile(`^#[0-9a-f]{12}$`)

// writeTenants writes tenants as CSV or as lines of JSON, for [tenants.ReadRows] to read.
func writeTenants(to io.Writer, all []*adminv1.Tenant, asJSON bool) error {
	w := bufio.NewWriter(to)
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
			_ = lines.Encode(&row) // Flush returns errors
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

// csvField quotes text as a CSV field unless it certainly needs no quotes.
func csvField(text string) string {
	if plain.IsWord(text) && !strings.Contains(text, ",") {
		return text
	}
	return `"` + strings.ReplaceAll(text, `"`, `""`) + `"`
}

func (p *program) tenantImportCommand() *cobra.Command {
	cmd := p.changes(&cobra.Command{
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
			sum, err := p.importTenants(cmd.Context(), all)
			return p.show(sum, err, func() {
				p.printf("%s tenants: %d added, %d changed, %d unchanged\n", p.done("Imported", "import"), sum.GetAdded(), sum.GetChanged(),
					sum.GetUnchanged())
				p.notes(sum)
			})
		},
	})
	cmd.ValidArgsFunction = nil // complete file names
	return cmd
}

// importTenants imports tenants in chunks of [tenants.MaxAtOnce], and adds up the results.
func (p *program) importTenants(ctx context.Context, all []*adminv1.Tenant) (*adminv1.ImportTenantsResponse, error) {
	done, sum := 0, new(adminv1.ImportTenantsResponse)
	for some := range slices.Chunk(all, tenants.MaxAtOnce) {
		part, err := p.api.ImportTenants(ctx, &adminv1.ImportTenantsRequest{Tenants: some, Reason: p.reason, DryRun: p.dry})
		if err != nil && done > 0 && !p.dry {
			return nil, fmt.Errorf("after importing the first %d of %d tenants: %w", done, len(all), err)
		}
		if err != nil {
			return nil, err
		}
		sum.Added += part.GetAdded()
		sum.Changed += part.GetChanged()
		sum.Unchanged += part.GetUnchanged()
		sum.Notes = append(sum.Notes, part.GetNotes()...)
		done += len(some)
	}
	slices.Sort(sum.Notes)
	sum.Notes = slices.Compact(sum.Notes)
	return sum, nil
}

// readTenants reads a file of tenants, or in if path is -.
func readTenants(path string, in io.Reader) (all []*adminv1.Tenant, err error) {
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // opened for reading only
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
