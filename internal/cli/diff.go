package cli

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
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
		here.add(r.DomainName(), r.Levels(), admin.RuleMessage(r))
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
	ruleInto(rule, n)
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

// pick copies the given keys, if from has them.
func pick(to, from object, keys ...string) {
	for _, key := range keys {
		if from[key] != nil {
			to[key] = from[key]
		}
	}
}

// ruleInto sets the limits and the other keys of a rule in a descriptor.
func ruleInto(r *adminv1.Rule, d object) {
	pick(d, fieldsOf(r), rulefile.KeyShadowMode, rulefile.KeyQuotaMode, rulefile.KeyMetadata)
	one, list := limitsOf(r)
	switch {
	case r.GetPlan() == "" && one != nil:
		d[rulefile.KeyRateLimit] = one
	case r.GetPlan() == "" && list != nil:
		d[rulefile.KeyRateLimits] = list
	case r.GetPlan() != "":
		put(d, rulefile.KeyPlanOf, r.GetPlanOf())
		plans, _ := d[rulefile.KeyPlans].(object)
		if plans == nil {
			plans = object{}
			d[rulefile.KeyPlans] = plans
		}
		if plans[r.GetPlan()] = list; one != nil {
			plans[r.GetPlan()] = one
		}
	}
	if list != nil {
		policyInto(r, d)
	}
}

// policyInto sets the keys of a rule other than its limits.
func policyInto(r *adminv1.Rule, o object) {
	fields := fieldsOf(r)
	if lease := r.GetLease(); lease < 0 {
		fields[rulefile.KeyLease] = "off"
	} else if lease > 0 {
		fields[rulefile.KeyLease] = strconv.Itoa(int(lease))
	}
	if r.GetHeadersOff() {
		fields[rulefile.KeyHeaders] = rulefile.HeadersOff
	}
	if reserve, ok := fields[rulefile.KeyReserve].(object); ok {
		delete(reserve, "returns")
		delete(reserve, "learned")
		if l := r.GetReserve().GetLearned(); l != nil {
			learned := fieldsOf(l)
			learned[rulefile.KeyStart] = r.GetReserve().GetEstimate()
			reserve[rulefile.KeyEstimate] = learned
		}
		reserve[rulefile.KeyOnExpiry] = rulefile.ExpiryKeep
		if r.GetReserve().GetReturns() {
			reserve[rulefile.KeyOnExpiry] = rulefile.ExpiryReturn
		}
	}
	pick(o, fields, rulefile.KeyOnFailure, rulefile.KeyHolder, rulefile.KeyLease, rulefile.KeyHeaders, rulefile.KeyPenalty,
		rulefile.KeyReserve)
}

// limitsOf returns either the only limit of a rule, including the rule's policy, or the list of its limits.
func limitsOf(r *adminv1.Rule) (one object, list []any) {
	switch limits := r.GetLimits(); {
	case r.GetIsUnlimited():
		return object{rulefile.KeyUnlimited: true}, nil
	case len(limits) == 1:
		one = limitOf(limits[0], false)
		policyInto(r, one)
		return one, nil
	default:
		for _, l := range limits {
			list = append(list, limitOf(l, true))
		}
		return nil, list
	}
}

// limitOf returns a limit with only the keys that its algorithm uses.
func limitOf(l *adminv1.Limit, listed bool) object {
	out := object{rulefile.KeyRequestsPerUnit: l.Number(), rulefile.KeyUnitMultiplier: l.GetUnitMultiplier()}
	keys := []string{rulefile.KeyUnit, rulefile.KeyName, rulefile.KeyAlgorithm}
	if algorithm, err := engine.ParseAlgorithm(word(l.GetAlgorithm())); err == nil { // otherwise, loading reports the error
		for p := range engine.Parameters() {
			if p.TakenBy(algorithm) && (!listed || !p.Single()) {
				keys = append(keys, p.String())
			}
		}
	}
	fields := fieldsOf(l)
	for _, key := range keys {
		if begin := fields[key+"_begin"]; begin != nil { // a map instead of true
			fields[key] = begin
		}
	}
	pick(out, fields, keys...)
	var replaces []any
	for _, name := range l.GetReplaces() {
		replaces = append(replaces, object{rulefile.KeyName: name})
	}
	if replaces != nil {
		out[rulefile.KeyReplaces] = replaces
	}
	return out
}

// fieldsOf returns the set fields of a message, except lists, in the syntax of rules. Field names equal the rules' keys.
func fieldsOf(m proto.Message) object {
	out := object{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		switch value := v.Interface().(type) {
		case protoreflect.List:
		case protoreflect.EnumNumber:
			out[name] = wordOf(f.Enum(), value)
		case protoreflect.Message:
			switch m := value.Interface().(type) {
			case *durationpb.Duration:
				out[name] = m.AsDuration().String()
			case *structpb.Struct:
				out[name] = m.AsMap()
			default:
				out[name] = fieldsOf(m)
			}
		case uint64:
			out[name] = min(value, math.MaxUint32)
		default:
			out[name] = value
		}
		return true
	})
	return out
}

// word returns an enum value in the syntax of rules: allow for ON_FAILURE_ALLOW. Unspecified is "".
func word(e protoreflect.Enum) string { return wordOf(e.Descriptor(), e.Number()) }

func wordOf(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	none, v := e.Values().ByNumber(0), e.Values().ByNumber(n)
	if v == nil || v == none {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), strings.TrimSuffix(string(none.Name()), "UNSPECIFIED")))
}
