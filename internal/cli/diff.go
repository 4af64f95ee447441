package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) diffCommand() *cobra.Command {
	var (
		flags    ruleFlags
		exitCode bool
	)
	cmd := p.outputs(&cobra.Command{
		Use:   "diff [flags] OLD NEW|NEW",
		Short: "Compare rule sets and show the impact",
		Long: `Diff compares the rules in OLD and NEW, each a directory or a file. It shows rules added, removed or
changed, whether their counters are kept or reset, and descriptors that now match a different rule.
Dangerous changes come first: limits removed, counters reset, and limits raised.

With only NEW, and --addr or RATELIMITD_ADDR, it compares NEW with the rules of a running server. A
server does not report domain-level keys, metrics, share_threshold, rlqs, or descriptors without a
limit; diff then ignores these.

With --output json, it prints an array with an object for each change: path, kind (added, removed,
changed, reached, reordered or domain), effect (opens, resets, raises or other), counters (kept, partly,
reset, or empty if there were none), text and place; with --output markdown, it prints a table for a
pull request.

Exit codes: 0, success; 1, error, such as invalid rules; 2, with --exit-code, rules changed.`,
		Example: `  ratelimitd diff main/rules rules
  ratelimitd diff --output markdown --exit-code main/rules rules
  ratelimitd diff --addr 10.0.0.7:8081 rules`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			check := exactly("OLD", "NEW")
			there := cmd.Flags().Changed("addr") || p.client.named && len(args) == 1
			switch {
			case there && len(args) == 2:
				return errors.New("--addr and OLD are mutually exclusive: compare with a server's rules or a directory's")
			case there:
				check = exactly("NEW")
			}
			if err := check(cmd, args); err != nil {
				return err
			}
			changes, err := p.ruleChanges(cmd.Context(), &flags, args)
			if err != nil {
				return err
			}
			rulediff.SortChanges(changes)
			p.print(map[string]func([]rulediff.Change) string{
				"text": changesText, "json": jsonArray[rulediff.Change], "markdown": changesMarkdown,
			}[p.form](changes))
			return negativeIf(exitCode && len(changes) > 0, nil)
		},
	}, "text", "json", "markdown")
	flags.add(p, cmd)
	queriesServer(cmd)
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 if there are changes")
	return cmd
}

// ruleChanges returns the differences between the rules in two places, or between a server's rules and those in one
// place.
func (p *program) ruleChanges(ctx context.Context, flags *ruleFlags, args []string) ([]rulediff.Change, error) {
	var sets []*descriptors.Set
	for _, path := range args {
		set, _, err := flags.loadValid(path)
		if err != nil {
			return nil, err
		}
		sets = append(sets, set)
	}
	if len(sets) == 2 {
		return rulediff.Between(sets[0], sets[1]), nil
	}
	seen, err := p.listRules(ctx, "")
	if err != nil {
		return nil, err
	}
	return changesSince(seen, sets[0])
}

// summaryOfChanges counts the changes by effect.
func summaryOfChanges(all []rulediff.Change) string {
	var t rulediff.Tally
	for i := range all {
		t.Count(all[i].Effect)
	}
	return t.String()
}

func changesText(all []rulediff.Change) string {
	if len(all) == 0 {
		return "no changes\n"
	}
	var b page
	for i := range all {
		line := all[i].Path + ": " + all[i].InFull()
		if all[i].Effect == rulediff.Opens || all[i].Effect == rulediff.Raises {
			line += " (" + all[i].Effect.Text() + ")"
		}
		b.printf("%s\n", line)
	}
	return b.String() + summaryOfChanges(all) + "\n"
}

func changesMarkdown(all []rulediff.Change) string {
	if len(all) == 0 {
		return "The rules do not change.\n"
	}
	cell := strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "<", "&lt;", ">", "&gt;", "&", "&amp;", "[", "\\[", "@", "&#64;")
	var b page
	b.printf("%s.\n\n| | rule | change | where |\n| --- | --- | --- | --- |\n", summaryOfChanges(all))
	for i := range all {
		c := &all[i]
		effect := c.Effect.Text()
		if c.Effect == rulediff.Opens {
			effect = "**" + effect + "**"
		}
		b.printf("| %s | %s | %s | %s |\n", effect, cell.Replace(c.Path), cell.Replace(c.InFull()), cell.Replace(c.Place))
	}
	return b.String()
}

// changesSince returns the differences between a server's rules and set. Both pass through the messages of the admin API, so
// details that the API lacks cause no difference.
func changesSince(seen *rulesSeen, set *descriptors.Set) ([]rulediff.Change, error) {
	var here treeOfRules
	places := map[[2]string]string{} // by domain and path, since rules of domains with dots may have the same path
	for r := range set.Rules() {
		here.add(r.DomainName(), r.Levels(), rulemessage.Of(r))
		places[[2]string{r.DomainName(), r.Path}] = r.Place()
	}
	var there treeOfRules
	for i, state := range seen.states {
		var levels []descriptors.Entry
		for _, l := range state.GetLevels() {
			levels = append(levels, descriptors.Entry{Key: []byte(l.GetKey()), Value: []byte(l.GetValue())})
		}
		there.add(state.GetDomain(), levels, seen.rules[i])
	}
	was, err := there.load()
	if err != nil {
		return nil, fmt.Errorf("reading the server's rules: %w", err)
	}
	now, err := here.load()
	if err != nil {
		return nil, fmt.Errorf("comparing with a server's rules: %w", err)
	}
	changes := rulediff.Between(was, now)
	for i := range changes {
		changes[i].Place = places[[2]string{changes[i].Domain, changes[i].Path}]
	}
	return changes, nil
}

// treeOfRules assembles rules of the admin API into rule files, one for each domain.
type treeOfRules struct {
	domains []object
	byPath  map[string]object // domains, and the descriptors below them
}

func (t *treeOfRules) add(domain string, levels []descriptors.Entry, rule *adminv1.Rule) {
	if t.byPath == nil {
		t.byPath = map[string]object{}
	}
	path := strconv.Quote(domain)
	n := t.byPath[path]
	if n == nil {
		n = object{rulefile.KeyDomain: domain}
		t.byPath[path], t.domains = n, append(t.domains, n)
	}
	for _, l := range levels {
		path += fmt.Sprintf(" %q=%q", l.Key, l.Value)
		d := t.byPath[path]
		if d == nil {
			d = object{rulefile.KeyKey: string(l.Key)}
			put(d, rulefile.KeyValue, string(l.Value))
			siblings, _ := n[rulefile.KeyDescriptors].([]any)
			t.byPath[path], n[rulefile.KeyDescriptors] = d, append(siblings, d)
		}
		n = d
	}
	rulemessage.Into(rule, n)
}

func (t *treeOfRules) load() (*descriptors.Set, error) {
	var sources []descriptors.Source
	for _, d := range t.domains {
		sources = append(sources, descriptors.Source{Name: fmt.Sprint(d[rulefile.KeyDomain]), Root: rulefile.Value(d)})
	}
	set, _, err := descriptors.Load(sources, descriptors.Options{})
	return set, err
}

// object is a mapping of a rule file.
type object = map[string]any

// put sets a key unless v is the zero value.
func put[T comparable](o object, key string, v T) {
	if v != *new(T) {
		o[key] = v
	}
}

// word returns a value of an enumeration as rules spell it.
func word(e protoreflect.Enum) string { return rulemessage.Word(e) }
