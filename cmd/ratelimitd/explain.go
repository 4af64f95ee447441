package main

import (
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) explainCommand() *cobra.Command {
	var flags ruleFlags
	cmd := &cobra.Command{
		Use:   "explain --config DIR DOMAIN DESCRIPTOR...",
		Short: "Show which rule a descriptor matches, step by step, and with which limit",
		Long: `Explain reads the rules in DIR and shows how each descriptor is looked up in them: what each
entry matches, the rule that is found with its file and line, its limits, and the name of the
counter. It asks no server and counts nothing.

` + descriptorHelp + `
` + optionHelp,
		Example: `  ratelimitd explain --config config/example example fixed=ann
  ratelimitd explain --config config/example example 'fixed=ann;limit=10/minute' api=ann`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
	}
	p.eachDescriptor(cmd, &flags, func(domain *descriptors.Domain, d *descriptor) error {
		p.explain(&flags, domain, d)
		return nil
	})
	return cmd
}

// explain prints how d is matched in a domain.
func (p *program) explain(flags *ruleFlags, domain *descriptors.Domain, d *descriptor) {
	keys := d.keys()
	p.printf("%s %s\n", domain.Name, d.text)
	for _, step := range domain.Explain(keys) {
		if step.Entry == "" {
			p.printf("  %s\n", step.Text)
		} else {
			p.printf("  %s: %s\n", step.Entry, step.Text)
		}
	}
	match := domain.Match(keys)
	overridden := d.limit != nil && p.explainOverride(domain, match, *d.limit)
	if overridden || match.Rule != nil && !match.Rule.Unlimited {
		p.printf("  counter %s\n", flags.counterKey(domain, d))
	}
}

// explainOverride prints what happens to the limit that the request brings along, and reports whether it is used.
func (p *program) explainOverride(domain *descriptors.Domain, match descriptors.Match, o descriptors.Override) bool {
	if !domain.AllowOverride {
		p.printf("  the limit in the request is ignored: the domain has allow_limit_override: false\n")
		return false
	}
	item, err := match.Override(o)
	if err != nil {
		p.printf("  the limit in the request is ignored: %v\n", err)
		return false
	}
	p.printf("  limit %v, which the request carries\n", item)
	return true
}
