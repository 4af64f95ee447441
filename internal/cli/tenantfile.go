package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// addTenants adds the flag that names a table of tenants.
func (f *ruleFlags) addTenants(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.tenants, "tenants", f.store.Rules.TenantsFile, "file or directory of tenants and plans ($TENANTS_FILE)")
}

// tenantTable reads the table of tenants, whose plans are those of set; nil stands for any.
func (f *ruleFlags) tenantTable(set *descriptors.Set) (*tenants.Tenants, descriptors.Problems) {
	t := tenants.New(tenants.Config{Files: true})
	if set != nil {
		t.SetPlans(set.PlanNames())
	}
	err := server.ReadTenants(t, f.tenants)
	var wrong *tenants.ProblemsError
	if !errors.As(err, &wrong) {
		return t, nil
	}
	var all descriptors.Problems
	for _, p := range wrong.First {
		all = append(all, descriptors.Problem{File: p.File, Line: p.Line, Text: p.Text})
	}
	if wrong.More > 0 {
		all = append(all, descriptors.Problem{File: f.tenants, Text: fmt.Sprintf("and %d more errors", wrong.More)})
	}
	return t, all
}

// checkTenants returns what is wrong with the table of tenants, or else a line that says what is in it; nothing without a table.
func (f *ruleFlags) checkTenants(set *descriptors.Set) (summary string, problems descriptors.Problems) {
	if f.tenants == "" {
		return "", nil
	}
	t, problems := f.tenantTable(set)
	if problems != nil {
		return "", problems
	}
	s := t.Status()
	return sprintf("%s: ok, %s in %s\n", f.tenants, descriptors.CountText(s.Tenants, "tenant"), descriptors.CountText(s.Files, "file")), nil
}

// planned has m, whose rule is one of plans, be on that of the tenant, and returns how d is matched, step by step, as a server with the
// table of tenants would say it.
func (f *ruleFlags) planned(set *descriptors.Set, m *descriptors.Match, d *descriptor) ([]descriptors.Step, error) {
	table, problems := f.tenantTable(set)
	if problems != nil {
		return nil, problems
	}
	entries := d.keys()
	l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Plans: table.Plans(), Reservations: new(limiter.Sealer)})
	l.SetRules(set)
	x, err := l.Explain(context.Background(), &limiter.Request{Domain: []byte(m.Rule.DomainName()), Descriptors: []limiter.Descriptor{{Entries: entries}}})
	if err != nil {
		return nil, err
	}
	if name, ok := m.Tenant(entries); ok {
		if e, from := table.Plans().Load().Find(name); from != plans.Nowhere {
			m.OnPlan(e.Plan)
		}
	}
	return x.Descriptors[0].Steps, nil
}
