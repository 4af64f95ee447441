package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
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
counts nothing. If the backend is down, it shows the rule and the fallback that decides instead.

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
		x := explanation(&flags, &at, d)
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
			return errors.New("--config and --addr are mutually exclusive: use a directory's rules or a server's")
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
	return p.printObject(all)
}

// found is how a descriptor is matched in a domain.
type found struct {
	domain *descriptors.Domain
	match  descriptors.Match
	steps  []descriptors.Step
}

// explanation returns how d is matched, in the form of the admin API. It has no outcome, because no counter is asked.
func explanation(flags *ruleFlags, at *found, d *descriptor) *adminv1.Explanation {
	domain, match := at.domain, at.match
	rule := admin.RuleMessage(match.Rule)
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
			x.Steps = append(x.Steps, &adminv1.Step{Text: fmt.Sprintf("limit %v, from the request", limit)})
		}
	}
	if x.GetIsOverride() || rule != nil && !rule.GetIsUnlimited() {
		x.Counter = &adminv1.Counter{Key: flags.counterKey(domain, d)}
	}
	return x
}

// explainThere prints how a running server would decide a request with these descriptors.
func (p *program) explainThere(ctx context.Context, q *query, args []string) error {
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	request := &adminv1.ExplainRequest{Domain: args[0]}
	for i := range wanted {
		request.Descriptors = append(request.Descriptors, wanted[i].message())
	}
	return ask(ctx, q, adminv1.AdminServiceClient.Explain, request, func(answer *adminv1.ExplainResponse) {
		if failed := slices.ContainsFunc(answer.GetDescriptors(), isFailed); len(wanted) > 1 {
			p.printf("request: %s\n", map[bool]string{
				answer.GetOverLimit(): "REJECTED", !answer.GetOverLimit(): "ADMITTED",
				failed: "NO ANSWER",
			}[true])
		}
		for i, x := range answer.GetDescriptors() {
			if i < len(wanted) {
				p.print(verdictText(&p.client, x) + "\n" + sprintf("  %s %s\n", args[0], wanted[i].text) + explanationText(x))
			}
		}
	})
}

func isFailed(x *adminv1.Explanation) bool { return x.GetOutcome() == adminv1.Outcome_OUTCOME_FAILED }

// message returns d for the admin API.
func (d *descriptor) message() *adminv1.Descriptor {
	m := &adminv1.Descriptor{Entries: d.messages(), IsNegativeHits: d.give, HitsAddend: d.hits}
	if d.limit != nil {
		m.Limit = &adminv1.Override{
			RequestsPerUnit: d.limit.RequestsPerUnit, LargeRequestsPerUnit: d.limit.LargeRequestsPerUnit,
			Unit: adminv1.Unit(d.limit.Unit), UnitMultiplier: d.limit.Multiplier,
		}
	}
	return m
}

// explanationText says how a descriptor would be decided, and by what.
func explanationText(x *adminv1.Explanation) string {
	var b page
	line := func(format string, args ...any) { b.printf("  %s\n", sprintf(format, args...)) }
	for _, step := range x.GetSteps() {
		if step.GetEntry() == "" {
			line("%s", step.GetText())
		} else {
			line("%s: %s", step.GetEntry(), step.GetText())
		}
	}
	if why := x.GetOverrideIgnored(); why != "" {
		line("the limit in the request is ignored: %s", why)
	}
	if x.GetCounter() != nil {
		b.WriteString(counterText(x.GetCounter(), x.GetHolder()))
	}
	if d := x.GetDivided(); d != nil {
		line("divided among RLQS clients: %s", dividedText(d))
	}
	if why := x.GetStoreError(); why != "" {
		line("store: %s", why)
	} else if x.GetOnFailure() != 0 {
		line("if the backend fails, %s", fallbackText(x.GetOnFailure(), x.GetRule()))
	}
	return b.String()
}

// fallbackText says what decides without the store, and which setting says so. The rule may be nil.
func fallbackText(f adminv1.OnFailure, r *adminv1.Rule) string {
	text := map[adminv1.OnFailure]string{
		adminv1.OnFailure_ON_FAILURE_ERROR: "error: Envoy's failure_mode_deny decides",
		adminv1.OnFailure_ON_FAILURE_ALLOW: "allow: requests pass",
		adminv1.OnFailure_ON_FAILURE_DENY:  "deny: requests are rejected",
		adminv1.OnFailure_ON_FAILURE_LOCAL: "local: each server counts by itself",
	}[f]
	if r.GetOnFailure() != adminv1.OnFailure_ON_FAILURE_UNSPECIFIED {
		return text + " (on_failure of the rule)"
	}
	return text + " (DEFAULT_ON_FAILURE)"
}

// verdictText returns the verdict on a descriptor in one line: the outcome, what decided, the limit and what is left of it.
func verdictText(to *client, x *adminv1.Explanation) string {
	parts := []string{strings.ReplaceAll(strings.TrimPrefix(x.GetOutcome().String(), "OUTCOME_"), "_", " ")}
	switch o := x.GetOutcome(); {
	case (o == adminv1.Outcome_OUTCOME_BLOCKED || o == adminv1.Outcome_OUTCOME_ALLOWED) && len(x.GetControls()) > 0:
		c := x.GetControls()[0]
		parts[0] += sprintf(" by %s until %s", c.GetBy(), clockText(c.GetUntil()))
		if c.GetReason() != "" {
			parts = append(parts, sprintf("%s", c.GetReason()))
		}
		return strings.Join(append(parts, "undo: "+to.command("lift "+c.GetId())), " · ")
	case isFailed(x):
		parts[0] = "NO ANSWER"
	case o == adminv1.Outcome_OUTCOME_NO_LIMIT:
		parts[0] = "NOT LIMITED"
	}
	if r := x.GetRule(); r != nil {
		parts[0] += sprintf(" %s %s (%s)", map[bool]string{false: "by", true: "for"}[isFailed(x)], r.GetPath(), rulePlace(r))
	}
	c, limits := x.GetCounter(), x.GetCounter().GetLimits()
	if c == nil {
		limits = x.GetRule().GetLimits()
	}
	if i := int(c.GetStrictest()); i < len(limits) {
		parts = append(parts, limitName(limits[i]))
	}
	if c != nil {
		parts = append(parts, fmt.Sprintf("%d left", c.GetLeft()))
	}
	for text, d := range map[string]*durationpb.Duration{"retry": c.GetRetryAfter(), "turn": c.GetWait()} { // never both
		if d != nil {
			parts = append(parts, text+" in "+descriptors.WaitText(d.AsDuration()))
		}
	}
	switch x.GetOutcome() { //nolint:exhaustive // the others are clear
	case adminv1.Outcome_OUTCOME_SHADOWED:
		parts = append(parts, "over the limit, admitted in shadow mode")
	case adminv1.Outcome_OUTCOME_REPLACED:
		parts = append(parts, "another descriptor replaces its limits")
	case adminv1.Outcome_OUTCOME_SKIPPED:
		parts = append(parts, "another descriptor is blocked, or the reservation's ID is not valid")
	case adminv1.Outcome_OUTCOME_LATE_CHARGE:
		text := "charges for a request that has already run, and rejects nothing"
		if c.GetRejects() {
			text = "charged in full; requests that check first, with 0 hits, are REJECTED"
		}
		parts = append(parts, text)
	}
	if x.GetStoreError() != "" {
		parts = append(parts, "the backend is down, fallback "+fallbackText(x.GetOnFailure(), x.GetRule()))
	}
	return strings.Join(parts, " · ")
}

// limitName returns a limit as --to takes it, or how many it admits at a time.
func limitName(l *adminv1.Limit) string {
	if l.GetAlgorithm() == adminv1.Algorithm_ALGORITHM_CONCURRENCY {
		return fmt.Sprintf("%d at a time", l.Number())
	}
	return rateName(l.Number(), l.GetUnit(), l.GetUnitMultiplier())
}

func (p *program) keyCommand() *cobra.Command {
	var (
		flags ruleFlags
		o     output
	)
	cmd := &cobra.Command{
		Use:   "key --config DIR DOMAIN DESCRIPTOR...",
		Short: "Print a counter's name in the backend",
		Long: `Key reads the rules in DIR and prints the name of each descriptor's counter in the backend. The keys
of its limits and its penalty consist of this name and a short suffix; the server adds CACHE_KEY_PREFIX
in front. With REDIS_KEY_FORMAT=reference, MEMCACHE_KEY_FORMAT=reference or BACKEND_TYPE=memcache, the
name is that of the current window. Set CACHE_KEY_SECRET_FILE as the servers do. A descriptor without a
limit is an error. --output json prints an object for each descriptor.

` + descriptorHelp + `
` + optionHelp,
		Example: `  ratelimitd key --config config/example example fixed=ann
  redis-cli --scan --pattern "$(ratelimitd key --config config/example example fixed=ann)*"`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
	}
	p.eachDescriptor(cmd, &flags, func(_ *descriptors.Set, domain *descriptors.Domain, d *descriptor) error {
		rule := domain.Match(d.keys()).Rule
		if (rule == nil || rule.Unlimited) && !overridden(domain, d) {
			return fmt.Errorf("descriptor %q: %w", d.text, errNotLimited)
		}
		key := flags.counterKey(domain, d)
		if o.json() {
			return p.printObject(struct {
				Domain     string `json:"domain"`
				Descriptor string `json:"descriptor"` // as it was given
				Key        string `json:"key"`
			}{domain.Name, d.text, key})
		}
		p.printf("%s\n", key)
		return nil
	})
	o.add(cmd)
	return cmd
}

var errNotLimited = errors.New("not limited, so it has no counter; see ratelimitd explain")

// counterKey returns the name of the counter of d, which must be limited, in the store.
func (f *ruleFlags) counterKey(domain *descriptors.Domain, d *descriptor) string {
	keys := d.keys()
	match, own := domain.Match(keys), overridden(domain, d)
	limit := func() engine.Limit {
		if own {
			item, _ := match.Override(*d.limit) // overridden has checked it
			return item.Limit
		}
		return match.Rule.RateLimits.Limits()[0]
	}
	op := backend.Op{
		Key:    f.secret.Hash(match.AppendName(f.secret.Begin(nil), domain, keys, own)),
		Name:   match.AppendReferenceName(nil, domain, keys, own),
		Limits: engine.Limits{limit()},
	}
	return server.CounterKey(&f.store, &op, engine.Micros(time.Now().UnixMicro()))
}

// overridden reports whether the limit that d brings along is used.
func overridden(domain *descriptors.Domain, d *descriptor) bool {
	if d.limit == nil || !domain.AllowOverride {
		return false
	}
	_, err := domain.Match(d.keys()).Override(*d.limit)
	return err == nil
}
