package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

func (p *program) checkCommand() *cobra.Command {
	var (
		flags ruleFlags
		dir   string // of ratelimit_config_check
	)
	cmd := &cobra.Command{
		Use:   "check DIR...",
		Short: "Check rules, and print every error and every warning",
		Long: `Check reads all files in each DIR and below it, as the server does, and prints every error
and every warning with file, line and column. Each DIR is a set of rules of its own; it may
be a single file too. With BACKEND_TYPE=memcache or REDIS_KEY_FORMAT=reference what such counters
cannot serve is an error. The exit code is 1 where there is an error, and 0 with warnings alone.

With a flag of envoyproxy/ratelimit's ratelimit_config_check (-config_dir, -merge_domain_configs),
or started under that name, it prints what that program prints.`,
		Example: `  ratelimitd check config/example
  ratelimitd check --merge --strict /srv/runtime_data/current/ratelimit/config`,
		Args: unless(checkFlags(), needs("DIR")),
	}
	flagsErr := flags.add(p, cmd)
	cmd.Flags().StringVar(&dir, "config_dir", "", "the directory to check")
	cmd.Flags().BoolVar(&flags.merge, "merge_domain_configs", flags.merge, "the same as --merge")
	hide(cmd, checkFlags())
	cmd.RunE = func(cmd *cobra.Command, dirs []string) error {
		if flagsErr != nil {
			return flagsErr
		}
		if given(cmd, checkFlags()) {
			return p.configCheck(&flags, dir)
		}
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, p.check(&flags, dir))
		}
		return errors.Join(errs...)
	}
	return cmd
}

// check prints the problems of the rules in dir.
func (p *program) check(flags *ruleFlags, dir string) error {
	set, files, problems := flags.load(dir)
	warnings := 0
	for _, problem := range problems {
		p.printf("%s\n", problem)
		if problem.Warning {
			warnings++
		}
	}
	if set == nil {
		return fmt.Errorf("%s: %s in %s", dir, count(len(problems)-warnings, "error"), count(len(files), "file"))
	}
	rules := 0
	for range set.Rules() {
		rules++
	}
	p.printf("%s: ok, %s in %s, %s\n", dir, count(rules, "rule"), count(len(files), "file"), count(warnings, "warning"))
	return nil
}

// count returns n things in words.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
