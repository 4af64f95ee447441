package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
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

	sets []*descriptors.Set // that were checked

	store settings.Settings                           // where counters are, and under which names
	check func(*descriptors.Set) descriptors.Problems // what the store does not support; nil if it supports everything

	secret *descriptors.Secret // of the names of counters; nil if they are plain hashes
	config string              // directory or file
	wrong  error               // with the variables
}

// add adds the flags to a command, with the values of their variables as defaults. The command fails if one of these is wrong.
func (f *ruleFlags) add(p *program, cmd *cobra.Command) {
	s, err := settings.Only(p.Environ, "MERGE_DOMAIN_CONFIG", "RULES_STRICT", "RULES_OVERLAY", "TENANTS_FILE", "QUOTA_GROUP_BY", "USE_CALENDAR_MONTH_RATE_LIMIT",
		"RUNTIME_IGNOREDOTFILES",
		"BACKEND_TYPE", "REDIS_KEY_FORMAT", "MEMCACHE_KEY_FORMAT", "CACHE_KEY_PREFIX", "CACHE_KEY_SECRET_FILE")
	f.store, f.check, f.wrong = s, server.Unsupported(&s), err
	cmd.PreRunE = func(*cobra.Command, []string) error { return f.wrong }
	flags := cmd.Flags()
	flags.BoolVar(&f.merge, "merge", s.Rules.MergeDomains, "merge files with the same domain ($MERGE_DOMAIN_CONFIG)")
	flags.BoolVar(&f.strict, "strict", s.Rules.Strict, "treat warnings as errors ($RULES_STRICT)")
	flags.StringVar(&f.overlay, "overlay", s.Rules.Overlay, "file or directory of overlays ($RULES_OVERLAY)")
	flags.BoolVar(&f.months, "calendar-months", s.Decide.CalendarMonths, "use calendar months in UTC ($USE_CALENDAR_MONTH_RATE_LIMIT)")
	flags.BoolVar(&f.ignoreDotFiles, "ignore-dotfiles", s.Rules.IgnoreDotFiles, "ignore files whose names begin with a dot ($RUNTIME_IGNOREDOTFILES)")
}

// load reads the rules in a directory, or in one file. The set is nil if they have an error.
func (f *ruleFlags) load(path string) (*descriptors.Set, []descriptors.Source, descriptors.Problems) {
	from := f.sources(path)[0]
	set, problems := f.compile(from)
	return set, from.files, problems
}

// loadValid is load of rules that have to be valid. The problems are warnings.
func (f *ruleFlags) loadValid(path string) (*descriptors.Set, descriptors.Problems, error) {
	set, files, problems := f.load(path)
	if set == nil {
		_, err := summarize(path, set, files, problems)
		return nil, nil, errors.Join(problems, err)
	}
	return set, problems, nil
}

// ruleSource is where a set of rules comes from.
type ruleSource struct {
	name     string // for people
	files    []descriptors.Source
	problems descriptors.Problems     // of reading them
	within   map[string]rulefile.Held // by name, those files whose lines are not those of the file that they are in
	skipped  string                   // a line for each file that is not one of rules
}

// sources reads the files in a directory, or one file; none if there is only an overlay. With configMaps there may be several sets.
func (f *ruleFlags) sources(path string) []ruleSource {
	from := ruleSource{name: path}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		from.files, from.problems = file.ReadFile(path)
	} else if path != "" {
		from.files, from.problems = file.Read(file.Layout{Root: path, IgnoreDotFiles: f.ignoreDotFiles})
	}
	if f.configMaps && path != "" {
		return from.configMaps()
	}
	return []ruleSource{from}
}

// compile checks rules. The set is nil if they have an error.
func (f *ruleFlags) compile(from ruleSource) (*descriptors.Set, descriptors.Problems) {
	unreadable := from.problems
	o := descriptors.Options{MergeDomains: f.merge, Strict: f.strict, CalendarMonths: f.months, QuotaGroupBy: f.store.Rules.QuotaGroupBy}
	if f.overlay != "" {
		sources, unread := file.Read(file.Layout{Root: f.overlay, IgnoreDotFiles: f.ignoreDotFiles, What: "overlay"})
		o, unreadable = overlay.With(o, sources), append(unreadable, unread...)
	}
	set, problems, err := descriptors.Load(from.files, o)
	problems = append(unreadable, problems...)
	if err == nil && set != nil && f.check != nil {
		problems = append(problems, f.check(set)...)
	}
	if err == nil && set != nil && f.clients > 0 {
		problems = append(problems, f.checkShares(set)...)
	}
	for i := range problems {
		if p := &problems[i]; from.within[p.File].File != "" {
			h := from.within[p.File]
			p.Text += fmt.Sprintf(" (line %d, column %d of %s)", p.Line, p.Column, strings.TrimPrefix(h.Name, h.File+": "))
			p.File, p.Line, p.Column = h.File, h.At.Number(), h.At.Col()
		}
	}
	if err == nil && problems.Failed() {
		set = nil
	}
	return set, problems
}

// configMaps returns the rules in the ConfigMaps of manifests: a set for each namespace. Files in a directory that are no manifests by
// their names are ignored.
func (from *ruleSource) configMaps() (sets []ruleSource) {
	other := func(name string) bool {
		return filepath.Clean(name) != filepath.Clean(from.name) && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
	}
	problems := slices.DeleteFunc(from.problems, func(p descriptors.Problem) bool { return other(p.File) })
	var skipped page
	for _, s := range slices.DeleteFunc(from.files, func(s descriptors.Source) bool { return other(s.Name) }) {
		held, wrong := rulefile.FromConfigMaps(s)
		problems = append(problems, wrong...)
		for _, h := range held {
			if h.Foreign {
				skipped.printf("%s: skipped, because it has neither domain nor descriptors\n", h.Name)
				continue
			}
			name := from.name + ", namespace " + cmp.Or(h.Namespace, "(none)")
			i := slices.IndexFunc(sets, func(s ruleSource) bool { return s.name == name })
			if i < 0 {
				i, sets = len(sets), append(sets, ruleSource{name: name, within: map[string]rulefile.Held{}})
			}
			sets[i].files = append(sets[i].files, h.Source)
			if h.Name != h.File {
				sets[i].within[h.Name] = h
			}
		}
	}
	if len(sets)+len(problems) == 0 {
		problems = descriptors.Problems{{File: from.name, Text: "no ConfigMap here has rules"}}
	}
	if len(sets) <= 1 {
		sets = append(sets, ruleSource{})[:1]
		sets[0].name = from.name
	}
	sets[0].problems, sets[0].skipped = problems, skipped.String()
	return sets
}

// addConfig adds the flags to a command that reads rules here if the flag --config is given.
func (f *ruleFlags) addConfig(p *program, cmd *cobra.Command, usage string) {
	f.add(p, cmd)
	cmd.PreRunE = nil // each does it
	cmd.Flags().StringVar(&f.config, "config", "", usage)
}

// each reads the rules in --config, and calls do for each descriptor in the arguments, which begin with a domain. Warnings go to stderr.
func (f *ruleFlags) each(
	p *program, cmd *cobra.Command, args []string, do func(*descriptors.Set, *descriptors.Domain, *descriptor) error,
) error {
	if f.config == "" {
		return fmt.Errorf("--config is missing: usage: %s", cmd.UseLine())
	}
	if f.wrong != nil {
		return f.wrong
	}
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	if f.secret, err = server.CounterSecret(&f.store); err != nil {
		return err
	}
	set, _, problems := f.load(f.config)
	if set == nil {
		return problems
	}
	p.problems(problems)
	domain := set.Domain([]byte(args[0]))
	if domain == nil {
		return fmt.Errorf("%s: %s", f.config, set.Unknown(args[0]))
	}
	for i := range wanted {
		if err := do(set, domain, &wanted[i]); err != nil {
			return err
		}
	}
	return nil
}

// addTenants adds the flag that names a table of tenants.
func (f *ruleFlags) addTenants(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.tenants, "tenants", f.store.Rules.TenantsFile, "file or directory of tenants and plans ($TENANTS_FILE)")
}

// tenantTable reads the table of tenants, whose plans are those of set; nil stands for any.
func (f *ruleFlags) tenantTable(set *descriptors.Set) (*tenants.Tenants, descriptors.Problems) {
	t := tenants.New(tenants.Config{Files: true, Check: set.CheckNumber})
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
	for _, p := range s.Warnings {
		problems = append(problems, descriptors.Problem{File: p.File, Line: p.Line, Text: p.Text, Warning: true})
	}
	return sprintf("%s: ok, %s in %s\n", f.tenants, descriptors.CountText(s.Tenants, "tenant"), descriptors.CountText(s.Files, "file")), problems
}

// planned has m, whose rule is one of plans, be on that of the tenant, and returns how d is matched, step by step, as a server with the
// table of tenants would say it.
func (f *ruleFlags) planned(set *descriptors.Set, m *descriptors.Match, d *descriptor) ([]descriptors.Step, error) {
	table, problems := f.tenantTable(set)
	if problems != nil {
		return nil, problems
	}
	l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Plans: table.Plans(), Reservations: new(limiter.Sealer)})
	l.SetRules(set)
	x, err := l.Explain(context.Background(), &limiter.Request{Domain: []byte(m.Rule.DomainName()), Descriptors: []limiter.Descriptor{{Entries: d.Entries}}})
	if err != nil {
		return nil, err
	}
	if name, ok := m.Tenant(d.Entries); ok {
		if e, from := table.Plans().Load().Find(name); from != plans.Nowhere {
			m.OnPlan(e.Plan)
		}
	}
	return x.Descriptors[0].Steps, nil
}
