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

// tenantHelp says where the plans of tenants come from.
const tenantHelp = `Which plans there are is in the rules (plan_of and plans). Who is on them is said in TENANTS_FILE, in
Redis (TENANTS_REDIS=true), or in both, of which Redis goes first. Changes are made in Redis, and all
replicas obey within a second; a file is changed with an editor. A tenant that is on no plan, or on
one that a rule does not have, gets the rule's default.`

func (p *program) tenantCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tenant",
		Short: "Show and change which tenants are on which plan in a running server",
		Long:  "Tenant shows and changes which tenants are on which plan.\n\n" + tenantHelp,
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
	cmd := &cobra.Command{
		Use:     "get [flags] TENANT",
		Short:   "Say which plan a tenant is on, and who says so",
		Long:    "Get says which plan a tenant is on, and what each source says.\n\n" + tenantHelp,
		Example: `  ratelimitd tenant get acme`,
		Args:    exactly("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.GetTenantRequest{RawTenant: []byte(args[0])}
			return ask(cmd.Context(), &q, adminv1.AdminServiceClient.GetTenant, request, func(answer *adminv1.GetTenantResponse) {
				if m := answer.GetTenant(); m != nil {
					p.printf("%s: %s\n", tenantName(m), planText(m))
				} else {
					p.printf("%s: plan default, because its entry has ended\n", args[0])
				}
				for _, m := range answer.GetSaid() {
					p.printf("  %s says: %s%s\n", tenantSourceText(m.GetSource()), planText(m), endedText(m))
				}
				for _, path := range answer.GetRulesWithout() {
					p.printf("  note: %s has no such plan, so that it gets the default there\n", path)
				}
			})
		},
	}
	q.add(p, cmd)
	return cmd
}

func (p *program) tenantSetCommand() *cobra.Command {
	var (
		c        changing
		requests int64
		until    string
		span     time.Duration
	)
	cmd := &cobra.Command{
		Use:   "set [flags] TENANT PLAN",
		Short: "Put a tenant on a plan",
		Long: `Set puts a tenant on a plan, with a number of its own in place of the plan's if --requests-per-unit
is given, and until a time if --until or --for is. What is counted stays counted.

` + tenantHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd tenant set acme gold
  ratelimitd tenant set acme gold --requests-per-unit 7500 --for 30d --reason 'trial'`,
		Args: exactly("TENANT", "PLAN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			m := &adminv1.Tenant{RawTenant: []byte(args[0]), Plan: args[1]}
			switch {
			case until != "" && span != 0:
				return errors.New("--until and --for say the same: give one of them")
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
				if requests < 0 || requests > 1<<32-1 {
					return fmt.Errorf("--requests-per-unit %d: must be from 0 to 4294967295", requests)
				}
				m.RequestsPerUnit = new(uint32(requests))
			}
			request := &adminv1.SetTenantRequest{Tenant: m, Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.SetTenant, request, func(answer *adminv1.SetTenantResponse) {
				p.printf("%s%s: %s\n", dryText(c.dry), tenantName(m), planText(answer.GetTenant()))
				if was := answer.GetBefore(); was != nil {
					p.printf("  before: %s%s\n", planText(was), endedText(was))
				}
			})
		},
	}
	c.add(p, cmd)
	cmd.Flags().Int64Var(&requests, "requests-per-unit", 0, "a number of its own, in place of the plan's")
	cmd.Flags().StringVar(&until, "until", "", "from when on nothing is said of it any more, such as 2030-01-31T00:00:00Z")
	cmd.Flags().Var((*spanFlag)(&span), "for", "for how long, such as 30d, instead of --until")
	return cmd
}

func (p *program) tenantUnsetCommand() *cobra.Command {
	var c changing
	cmd := &cobra.Command{
		Use:     "unset [flags] TENANT",
		Short:   "Take a tenant out of the table",
		Long:    "Unset takes a tenant out of the table in Redis. What TENANTS_FILE says of it counts again, or else the default.\n\n" + tenantHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd tenant unset acme --reason 'has left'`,
		Args:    exactly("TENANT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.UnsetTenantRequest{RawTenant: []byte(args[0]), Reason: c.reason, DryRun: c.dry}
			return ask(cmd.Context(), &c.query, adminv1.AdminServiceClient.UnsetTenant, request, func(answer *adminv1.UnsetTenantResponse) {
				now := "plan default"
				if m := answer.GetNow(); m != nil {
					now = planText(m) + ", as " + tenantSourceText(m.GetSource()) + " says"
				}
				p.printf("%s%s: %s\n  before: %s\n", dryText(c.dry), args[0], now, planText(answer.GetBefore()))
			})
		},
	}
	c.add(p, cmd)
	return cmd
}

// tenantName returns the name of a tenant.
func tenantName(m *adminv1.Tenant) string { return cmp.Or(string(m.GetRawTenant()), m.GetTenant()) }

// planText says what is said of a tenant.
func planText(m *adminv1.Tenant) string {
	text := "plan " + m.GetPlan()
	if m.RequestsPerUnit != nil {
		text += fmt.Sprintf(", %d requests_per_unit", m.GetRequestsPerUnit())
	}
	if m.GetUntil() != nil {
		text += ", until " + timeText(m.GetUntil())
	}
	return text
}

func endedText(m *adminv1.Tenant) string {
	if u := m.GetUntil(); u != nil && !time.Now().Before(u.AsTime()) {
		return ", which is over"
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
