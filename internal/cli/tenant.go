package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// tenantHelp explains where the plans of tenants come from.
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
		Args: noCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.tenantGetCommand(), p.tenantSetCommand(), p.tenantUnsetCommand(), p.tenantListCommand(), p.tenantExportCommand())
	noFiles(cmd.Commands()...)
	cmd.AddCommand(p.tenantImportCommand())
	return cmd
}

func (p *program) tenantGetCommand() *cobra.Command {
	var q query
	return q.add(p, &cobra.Command{
		Use:     "get [flags] TENANT",
		Short:   "Show the plan of a tenant and where it comes from",
		Long:    "Get shows the plan of a tenant, and the plan in each source.\n\n" + tenantHelp,
		Example: `  ratelimitd tenant get acme`,
		Args:    exactly("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.GetTenantRequest{RawTenant: []byte(args[0])}
			return ask(cmd.Context(), &q, adminv1.AdminServiceClient.GetTenant, request, func(answer *adminv1.GetTenantResponse) {
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
			})
		},
	})
}

func (p *program) tenantSetCommand() *cobra.Command {
	var (
		c        changing
		requests uint64
		until    string
		span     time.Duration
	)
	cmd := &cobra.Command{
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
			request := &adminv1.SetTenantRequest{Tenant: m, Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.SetTenant, request, func(answer *adminv1.SetTenantResponse) {
				p.printf("%s %s on %s%s\n", doneText(c.dry, "Put", "put"), tenantName(m), planText(answer.GetTenant()),
					undoTenant(&c, m, answer.GetBefore()))
				if was := answer.GetBefore(); was != nil {
					p.printf("  before: %s%s\n", planText(was), endedText(was))
				}
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().Uint64Var(&requests, "requests-per-unit", 0, "a limit for this tenant instead of the plan's")
	cmd.Flags().StringVar(&until, "until", "", "expiry time, RFC 3339, such as 2030-01-31T00:00:00Z")
	cmd.Flags().Var((*spanFlag)(&span), "for", "duration, such as 30d, instead of --until")
	return cmd
}

func (p *program) tenantUnsetCommand() *cobra.Command {
	var c changing
	return c.add(p, &cobra.Command{
		Use:   "unset [flags] TENANT",
		Short: "Remove a tenant from Redis",
		Long: "Unset removes a tenant from Redis. It then has its plan in TENANTS_FILE, or else the default.\n\n" +
			tenantHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd tenant unset acme --reason 'has left'`,
		Args:    exactly("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.UnsetTenantRequest{RawTenant: []byte(args[0]), Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.UnsetTenant, request, func(answer *adminv1.UnsetTenantResponse) {
				now := "plan default"
				if m := answer.GetNow(); m != nil {
					now = planText(m) + " in " + tenantSourceText(m.GetSource())
				}
				p.printf("%s %s from Redis: now on %s%s\n  before: %s\n", doneText(c.dry, "Removed", "remove"),
					args[0], now, undoTenant(&c, &adminv1.Tenant{RawTenant: []byte(args[0])}, answer.GetBefore()), planText(answer.GetBefore()))
			})
		},
	})
}

// undoTenant names the command that gives m back what it had in Redis, if it had anything.
func undoTenant(c *changing, m, was *adminv1.Tenant) string {
	if was == nil {
		return c.undo("tenant unset " + shellWord(tenantName(m)))
	}
	text := "tenant set " + shellWord(tenantName(m)) + " " + shellWord(was.GetPlan())
	if n, ok := was.Number(); ok {
		text += fmt.Sprintf(" --requests-per-unit %d", n)
	}
	if was.GetUntil() != nil {
		text += " --until " + timeText(was.GetUntil())
	}
	return c.undo(text)
}

// tenantName returns the name of a tenant.
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
	switch s {
	case adminv1.TenantSource_TENANT_SOURCE_FILE:
		return "TENANTS_FILE"
	case adminv1.TenantSource_TENANT_SOURCE_STORE:
		return "Redis"
	case adminv1.TenantSource_TENANT_SOURCE_UNSPECIFIED:
	}
	return strings.ToLower(s.String())
}
