package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/configwatch/file"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/server"
	"github.com/ratelimitd/ratelimitd/internal/settings"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// ruleFlags say how commands that need no server read the rules.
type ruleFlags struct {
	merge, strict, ignoreDotFiles, months bool

	configMaps bool // files are Kubernetes manifests, and rules are in the data of their ConfigMaps

	overlay string // file or directory; none if empty
	tenants string // the same
	envoy   string // configuration of an Envoy; none if empty
	clients int    // that divide a limit with rlqs; 0 if that does not matter

	store settings.Settings                           // where counters are, and under which names
	check func(*descriptors.Set) descriptors.Problems // what the store does not support; nil if it supports everything

	secret *descriptors.Secret // of the names of counters; nil if they are plain hashes
}

// add adds the flags to a command, with the values of their variables as defaults.
func (f *ruleFlags) add(p *program, cmd *cobra.Command) error {
	s, err := settings.Only(p.Environ, "MERGE_DOMAIN_CONFIG", "RULES_STRICT", "RULES_OVERLAY", "TENANTS_FILE", "QUOTA_GROUP_BY", "USE_CALENDAR_MONTH_RATE_LIMIT",
		"RUNTIME_IGNOREDOTFILES",
		"BACKEND_TYPE", "REDIS_KEY_FORMAT", "MEMCACHE_KEY_FORMAT", "CACHE_KEY_PREFIX", "CACHE_KEY_SECRET_FILE")
	f.store, f.check = s, server.Unsupported(&s)
	flags := cmd.Flags()
	flags.BoolVar(&f.merge, "merge", s.Rules.MergeDomains, "merge files with the same domain ($MERGE_DOMAIN_CONFIG)")
	flags.BoolVar(&f.strict, "strict", s.Rules.Strict, "treat warnings as errors ($RULES_STRICT)")
	flags.StringVar(&f.overlay, "overlay", s.Rules.Overlay, "file or directory of overlays ($RULES_OVERLAY)")
	flags.BoolVar(&f.months, "calendar-months", s.Decide.CalendarMonths, "use calendar months in UTC ($USE_CALENDAR_MONTH_RATE_LIMIT)")
	flags.BoolVar(&f.ignoreDotFiles, "ignore-dotfiles", s.Rules.IgnoreDotFiles, "ignore files whose names begin with a dot ($RUNTIME_IGNOREDOTFILES)")
	return err
}

// load reads the rules in a directory, or in one file. The set is nil if they have an error.
func (f *ruleFlags) load(path string) (*descriptors.Set, []descriptors.Source, descriptors.Problems) {
	read := func() ([]descriptors.Source, descriptors.Problems) {
		return file.Read(file.Layout{Root: path, IgnoreDotFiles: f.ignoreDotFiles})
	}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		read = func() ([]descriptors.Source, descriptors.Problems) { return file.ReadFile(path) }
	}
	var (
		sources    []descriptors.Source
		unreadable descriptors.Problems
	)
	if path != "" { // or else there is only an overlay
		sources, unreadable = read()
	}
	if f.configMaps {
		sources, unreadable = fromConfigMaps(path, sources, unreadable)
	}
	o := descriptors.Options{MergeDomains: f.merge, Strict: f.strict, CalendarMonths: f.months, QuotaGroupBy: f.store.Rules.QuotaGroupBy}
	if f.overlay != "" {
		var unread descriptors.Problems
		o.Overlay, unread = file.Read(file.Layout{Root: f.overlay, IgnoreDotFiles: f.ignoreDotFiles, What: "overlay"})
		unreadable = append(unreadable, unread...)
	}
	set, problems, err := descriptors.Load(sources, o)
	problems = append(unreadable, problems...)
	if err == nil && set != nil && f.check != nil {
		problems = append(problems, f.check(set)...)
	}
	if err == nil && set != nil && f.clients > 0 {
		problems = append(problems, f.checkShares(set)...)
	}
	if err == nil && problems.Failed() {
		set = nil
	}
	return set, sources, problems
}

// fromConfigMaps returns the files in the ConfigMaps of sources, which were read from path with the given problems.
func fromConfigMaps(path string, sources []descriptors.Source, problems descriptors.Problems) ([]descriptors.Source, descriptors.Problems) {
	var held []descriptors.Source
	for _, s := range sources {
		files, wrong := rulefile.FromConfigMaps(s)
		held, problems = append(held, files...), append(problems, wrong...)
	}
	if len(held)+len(problems) == 0 {
		problems = descriptors.Problems{{File: path, Text: "no ConfigMap here has data"}}
	}
	return held, problems
}

// domain returns the rules in a directory, and a domain of them. Warnings go to stderr.
func (f *ruleFlags) domain(p *program, path, name string) (*descriptors.Set, *descriptors.Domain, error) {
	set, _, problems := f.load(path)
	if set == nil {
		return nil, nil, problems
	}
	for _, problem := range problems {
		fmt.Fprintln(p.stderr, problem)
	}
	if d := set.Domain([]byte(name)); d != nil {
		return set, d, nil
	}
	return nil, nil, fmt.Errorf("%s: %s", path, set.Unknown(name))
}

// eachDescriptor has cmd, whose arguments are a domain and descriptors, read the rules that its flag --config names, and
// do something with each of the descriptors.
func (p *program) eachDescriptor(cmd *cobra.Command, flags *ruleFlags, do func(*descriptors.Set, *descriptors.Domain, *descriptor) error) {
	var dir string
	flagsErr := flags.add(p, cmd)
	cmd.Flags().StringVar(&dir, "config", "", "directory or file of rules (required)")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if dir == "" {
			return fmt.Errorf("--config is missing: usage: %s", cmd.UseLine())
		}
		if flagsErr != nil {
			return flagsErr
		}
		wanted, err := parseDescriptors(args[1:])
		if err != nil {
			return err
		}
		if flags.secret, err = server.CounterSecret(&flags.store); err != nil {
			return err
		}
		set, domain, err := flags.domain(p, dir, args[0])
		if err != nil {
			return err
		}
		for i := range wanted {
			if err := do(set, domain, &wanted[i]); err != nil {
				return err
			}
		}
		return nil
	}
}
