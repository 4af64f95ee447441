package main

import (
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) explainCommand() *cobra.Command {
	var (
		flags ruleFlags
		dir   string
	)
	cmd := &cobra.Command{
		Use:   "explain --config DIR DOMAIN DESCRIPTOR...",
		Short: "Tell which rule a descriptor meets, step by step, and with which limit",
		Long: `Explain reads the rules in DIR and tells how each descriptor is looked up in them: what each
entry meets, the rule that is found with its file and line, its limits, and the name of the
counter. It asks no server and counts nothing.

` + descriptorHelp + `
` + optionHelp,
		Example: `  ratelimitd explain --config config/example example fixed=ann
  ratelimitd explain --config config/example example 'fixed=ann;limit=10/minute' api=ann`,
		Args: argsAtLeast(2),
	}
	flagsErr := flags.add(p, cmd)
	configFlag(cmd, &dir)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if flagsErr != nil {
			return flagsErr
		}
		wanted, err := parseDescriptors(args[1:])
		if err != nil {
			return err
		}
		domain, err := flags.domain(p, dir, args[0])
		if err != nil {
			return err
		}
		for i := range wanted {
			p.explain(domain, &wanted[i])
		}
		return nil
	}
	return cmd
}

// configFlag adds the flag that says where the rules are.
func configFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "config", "", "directory, or file, of the rules (required)")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag was added in the line above
	}
}

// explain prints how d is matched in a domain.
func (p *program) explain(domain *descriptors.Domain, d *descriptor) {
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
		p.printf("  counter %s\n", p.counterKey(domain, d))
	}
}

// explainOverride prints what happens to the limit that the request brings along, and reports whether it is used.
func (p *program) explainOverride(domain *descriptors.Domain, match descriptors.Match, o descriptors.Override) bool {
	if !domain.AllowOverride {
		p.printf("  the limit of the request is ignored: the domain has allow_limit_override: false\n")
		return false
	}
	item, err := match.Override(o)
	if err != nil {
		p.printf("  the limit of the request is ignored: %v\n", err)
		return false
	}
	p.printf("  limit %v, which the request brings along\n", item)
	return true
}
