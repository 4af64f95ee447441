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
		form     output
		exitCode bool
	)
	cmd := &cobra.Command{
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
	}
	flagsErr := flags.add(p, cmd)
	c := &p.client
	asksServer(cmd)
	form.addForms(cmd, "output format: text, json or markdown", "text", "json", "markdown")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 if there are changes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		takes := exactly("OLD", "NEW")
		there := cmd.Flags().Changed("addr") || c.named && len(args) == 1
		switch {
		case flagsErr != nil:
			return flagsErr
		case there && len(args) == 2:
			return errors.New("--addr and OLD are mutually exclusive: compare with a server's rules or a directory's")
		case there:
			takes = exactly("NEW")
		}
		if err := takes(cmd, args); err != nil {
			return err
		}
		changes, err := p.changes(cmd.Context(), &flags, c, args)
		if err != nil {
			return err
		}
		rulediff.SortChanges(changes)
		text, err := changeWriters()[form.form](changes)
		if err != nil {
			return err
		}
		p.print(text)
		if exitCode && len(changes) > 0 {
			return errNegative
		}
		return nil
	}
	return cmd
}

// changes returns what differs between the rules in two places, or between those of a server and those in one.
func (p *program) changes(ctx context.Context, flags *ruleFlags, c *client, args []string) ([]rulediff.Change, error) {
	var sets []*descriptors.Set
	for _, path := range args {
		set, files, problems := flags.load(path)
		if set == nil {
			_, err := summarize(path, set, files, problems)
			return nil, errors.Join(problems, err)
		}
		sets = append(sets, set)
	}
	if len(sets) == 2 {
		return rulediff.Between(sets[0], sets[1]), nil
	}
	seen, err := c.listRules(ctx, "")
	if err != nil {
		return nil, err
	}
	return changesSince(seen, sets[0])
}

// changeWriters returns how diff can print changes, by the name of the form.
func changeWriters() map[string]func([]rulediff.Change) (string, error) {
	return map[string]func([]rulediff.Change) (string, error){
		"text":     changesText,
		"json":     changesJSON,
		"markdown": changesMarkdown,
	}
}

// summaryOfChanges returns how many changes there are, and of which effects.
func summaryOfChanges(all []rulediff.Change) string {
	var t rulediff.Tally
	for i := range all {
		t.Count(all[i].Effect)
	}
	return t.String()
}

func changesText(all []rulediff.Change) (string, error) {
	if len(all) == 0 {
		return "no changes\n", nil
	}
	var b page
	for i := range all {
		line := all[i].Path + ": " + all[i].InFull()
		if all[i].Effect == rulediff.Opens || all[i].Effect == rulediff.Raises {
			line += " (" + all[i].Effect.Text() + ")"
		}
		b.printf("%s\n", line)
	}
	return b.String() + summaryOfChanges(all) + "\n", nil
}

// changesJSON returns an array with one object, on one line, for each change. The names of its fields do not change.
func changesJSON(all []rulediff.Change) (string, error) {
	type object struct {
		Path     string `json:"path"`
		Kind     string `json:"kind"`
		Effect   string `json:"effect"`
		Counters string `json:"counters"`
		Text     string `json:"text"`
		Place    string `json:"place"`
	}
	objects := make([]object, len(all))
	for i := range all {
		c := &all[i]
		objects[i] = object{c.Path, string(c.Kind), string(c.Effect), string(c.Counters), c.Text, c.Place}
	}
	return jsonArray(objects)
}

func changesMarkdown(all []rulediff.Change) (string, error) {
	if len(all) == 0 {
		return "The rules do not change.\n", nil
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
	return b.String(), nil
}

// changesSince returns what differs between the rules of a server and set. Both go through what a server says about its rules, so
// that nothing differs because a server does not tell it.
func changesSince(seen *rulesSeen, set *descriptors.Set) ([]rulediff.Change, error) {
	var here treeOfRules
	places := map[[2]string]string{} // by domain and path: domains with dots in their names may have rules with one path
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

// treeOfRules puts single rules together to files of rules, one for each domain.
type treeOfRules struct {
	domains []object
	byPath  map[string]object // the domains, and the descriptors below them
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

// object is a map of a file of rules.
type object = map[string]any

// put sets a key, unless v is the zero value of its type.
func put[T comparable](o object, key string, v T) {
	if v != *new(T) {
		o[key] = v
	}
}

// ruleInto gives a descriptor the limits and keys of a rule.
func ruleInto(r *adminv1.Rule, d object) {
	put(d, rulefile.KeyShadowMode, r.GetShadowMode())
	put(d, rulefile.KeyQuotaMode, r.GetQuotaMode())
	if r.GetMetadata() != nil {
		d[rulefile.KeyMetadata] = r.GetMetadata().AsMap()
	}
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

// policyInto gives a map what a rule says beside its limits.
func policyInto(r *adminv1.Rule, o object) {
	put(o, rulefile.KeyOnFailure, word(r.GetOnFailure()))
	put(o, rulefile.KeyHolder, r.GetHolder())
	switch lease := r.GetLease(); {
	case lease < 0:
		o[rulefile.KeyLease] = "off"
	case lease > 0:
		o[rulefile.KeyLease] = strconv.Itoa(int(lease))
	}
	if r.GetHeadersOff() {
		o[rulefile.KeyHeaders] = rulefile.HeadersOff
	}
	if r.GetPenalty() != nil {
		o[rulefile.KeyPenalty] = fieldsOf(r.GetPenalty())
	}
	if r.GetReserve() != nil {
		reserve := fieldsOf(r.GetReserve())
		delete(reserve, "returns")
		reserve[rulefile.KeyOnExpiry] = rulefile.ExpiryKeep
		if r.GetReserve().GetReturns() {
			reserve[rulefile.KeyOnExpiry] = rulefile.ExpiryReturn
		}
		o[rulefile.KeyReserve] = reserve
	}
}

// limitsOf returns the limit of a rule, which has the policy inside, or its limits.
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

// limitOf returns a limit with the keys that mean something for its algorithm.
func limitOf(l *adminv1.Limit, listed bool) object {
	all := fieldsOf(l)
	out := object{rulefile.KeyRequestsPerUnit: l.Number(), rulefile.KeyUnitMultiplier: l.GetUnitMultiplier()}
	keys := []string{rulefile.KeyUnit, rulefile.KeyName, rulefile.KeyAlgorithm}
	if algorithm, err := engine.ParseAlgorithm(word(l.GetAlgorithm())); err == nil { // else loading it says what is wrong
		for p := range engine.Parameters() {
			if p.TakenBy(algorithm) && (!listed || !p.Single()) {
				keys = append(keys, p.String())
			}
		}
	}
	for _, key := range keys {
		if begin := all[key+"_begin"]; begin != nil { // a map in place of true
			out[key] = begin
		} else if all[key] != nil {
			out[key] = all[key]
		}
	}
	var replaces []any
	for _, name := range l.GetReplaces() {
		replaces = append(replaces, object{rulefile.KeyName: name})
	}
	if replaces != nil {
		out[rulefile.KeyReplaces] = replaces
	}
	return out
}

// fieldsOf returns the fields of a message that are set, lists aside, as rules spell them. The names of the fields are those of the keys.
func fieldsOf(m proto.Message) object {
	out := object{}
	m.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch value := v.Interface().(type) {
		case protoreflect.List:
		case protoreflect.EnumNumber:
			out[string(f.Name())] = wordOf(f.Enum(), value)
		case protoreflect.Message:
			if d, ok := value.Interface().(*durationpb.Duration); ok {
				out[string(f.Name())] = d.AsDuration().String()
			} else {
				out[string(f.Name())] = fieldsOf(value.Interface())
			}
		case uint64:
			out[string(f.Name())] = min(value, math.MaxUint32)
		default:
			out[string(f.Name())] = value
		}
		return true
	})
	return out
}

// word returns a value of an enumeration as rules spell it: allow for ON_FAILURE_ALLOW. Without a value it is empty.
func word(e protoreflect.Enum) string { return wordOf(e.Descriptor(), e.Number()) }

func wordOf(e protoreflect.EnumDescriptor, n protoreflect.EnumNumber) string {
	none, v := e.Values().ByNumber(0), e.Values().ByNumber(n)
	if v == nil || v == none {
		return ""
	}
	return strings.ToLower(strings.TrimPrefix(string(v.Name()), strings.TrimSuffix(string(none.Name()), "UNSPECIFIED")))
}
