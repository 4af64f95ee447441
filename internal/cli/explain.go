package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) explainCommand() *cobra.Command {
	var (
		flags ruleFlags
		q     query
		all   adminv1.ExplainResponse
	)
	cmd := &cobra.Command{
		Use:   "explain [--config DIR] DOMAIN DESCRIPTOR...",
		Short: "Show which rule or control decides a request, and why",
		Long: `Explain shows how a running server would decide a request now: the verdict, then each step. It
counts nothing. If the store is down, it shows the rule and the fallback that decides instead.

With --config it reads the rules in DIR without a server, and shows the rule that matches, its
limits, and the name of the counter. With --tenants it also shows the plan of a tenant.

` + descriptorHelp + `
` + optionHelp,
		Example: `  ratelimitd explain example fixed=ann
  ratelimitd explain --config config/example example fixed=ann
  ratelimitd explain --config config/example example 'fixed=ann;limit=10/minute' api=ann`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
	}
	p.eachDescriptor(cmd, &flags, func(set *descriptors.Set, domain *descriptors.Domain, d *descriptor) error {
		at := found{domain, domain.Match(d.keys()), domain.Explain(d.keys())}
		if at.match.Rule != nil && at.match.Rule.Plan != "" && flags.tenants != "" {
			var err error
			if at.steps, err = flags.planned(set, &at.match, d); err != nil {
				return err
			}
		}
		x, err := explanation(&flags, &at, d)
		if err != nil {
			return err
		}
		if all.Descriptors = append(all.Descriptors, x); !q.json() {
			p.print(sprintf("%s %s\n", domain.Name, d.text) + explanationText(x))
		}
		return nil
	})
	cmd.Flags().Lookup("config").Usage = "directory or file of rules to use instead of a server"
	flags.addTenants(cmd)
	q.add(p, cmd)
	here := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		config, there := cmd.Flags().Changed("config"), cmd.Flags().Changed("addr")
		switch {
		case config && there:
			return errors.New("--config and --addr: give one of them, for rules here or for those of a server")
		case !config:
			return p.explainThere(cmd.Context(), &q, args)
		}
		if err := here(cmd, args); err != nil || !q.json() {
			return err
		}
		return p.explainJSON(&all)
	}
	return cmd
}

// explainJSON prints how descriptors are matched by rules here.
func (p *program) explainJSON(all *adminv1.ExplainResponse) error {
	all.DomainKnown = true
	for _, x := range all.GetDescriptors() {
		for _, step := range x.GetSteps() {
			step.Entry, step.Text = strings.ToValidUTF8(step.GetEntry(), "\uFFFD"), strings.ToValidUTF8(step.GetText(), "\uFFFD")
		}
	}
	return p.printJSON(all)
}

// found is how a descriptor is matched in a domain.
type found struct {
	domain *descriptors.Domain
	match  descriptors.Match
	steps  []descriptors.Step
}

// explanation returns how d is matched, in the form of the admin API. It has no outcome, because no counter is asked.
func explanation(flags *ruleFlags, at *found, d *descriptor) (*adminv1.Explanation, error) {
	domain, match := at.domain, at.match
	rule, err := admin.RuleMessage(match.Rule)
	if err != nil {
		return nil, err
	}
	x := &adminv1.Explanation{Rule: rule}
	for _, step := range at.steps {
		x.Steps = append(x.Steps, &adminv1.Step{Entry: step.Entry, Text: step.Text})
	}
	if d.limit != nil {
		limit, err := match.Override(*d.limit)
		switch {
		case !domain.AllowOverride:
			x.OverrideIgnored = "the domain has allow_limit_override: false"
		case err != nil:
			x.OverrideIgnored = err.Error()
		default:
			x.IsOverride = true
			x.Steps = append(x.Steps, &adminv1.Step{Text: fmt.Sprintf("limit %v, which the request carries", limit)})
		}
	}
	if x.GetIsOverride() || rule != nil && !rule.GetIsUnlimited() {
		x.Counter = &adminv1.Counter{Key: flags.counterKey(domain, d)}
	}
	return x, nil
}
