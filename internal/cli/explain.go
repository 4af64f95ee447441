package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) peekCommand() *cobra.Command {
	return p.asks(&cobra.Command{
		Use:   "peek [flags] DOMAIN DESCRIPTOR...",
		Short: "Show the state of a counter",
		Long: `Peek shows the state of each descriptor's counter without changing it.

` + descriptorHelp,
		Example: `  ratelimitd peek example fixed=ann
  ratelimitd peek --addr 10.0.0.7:8081 --token-file token example fixed=ann`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(d *descriptor) error {
				answer, err := p.api.Peek(cmd.Context(), &adminv1.PeekRequest{Domain: args[0], Entries: d.messages()})
				return p.show(answer, err, func() {
					p.printf("%s %s\n", args[0], d.text)
					if r := answer.GetRule(); r != nil {
						p.printf("  rule %s at %s\n", r.GetPath(), rulePlace(r))
					}
					p.print(counterText(answer.GetCounter(), d.holder(answer.GetRule())))
					if answer.GetRule().GetReserve() != nil {
						p.printf("  bound: %s\n", descriptors.ReserveBound)
					}
				})
			})
		},
	})
}

// holder returns the entry that names the holder of the slots that the rule limits, or "".
func (d *descriptor) holder(r *adminv1.Rule) (holder string) {
	for _, e := range d.Entries {
		if string(e.Key) == r.GetHolder() { // the last one if there are several
			holder = string(e.Key) + "=" + string(e.Value)
		}
	}
	return holder
}

// counterText returns the state of a counter in words, as it is for a holder of slots, if there is one.
func counterText(c *adminv1.Counter, holder string) string {
	var b page
	for i, l := range c.GetLimits() {
		left := ""
		if i == int(c.GetStrictest()) {
			left = ": " + leftText(c.Balance())
			if holder != "" && l.GetAlgorithm() == adminv1.Algorithm_ALGORITHM_CONCURRENCY {
				left += fmt.Sprintf(" for %s, including its own", holder)
			}
		}
		if reserved := c.GetReserved(); reserved > 0 && left != "" {
			left += fmt.Sprintf(", %d reserved", reserved)
		}
		b.printf("  limit %s%s\n", l.GetText(), left)
	}
	in := func(what string, d *durationpb.Duration) {
		if d != nil {
			b.printf("  %s in %s\n", what, descriptors.WaitText(d.AsDuration()))
		}
	}
	in("penalty ends", c.GetPenalty())
	in("retry", c.GetRetryAfter())
	in("resets", c.GetResetAfter())
	in("turn", c.GetWait())
	if c.GetRejects() && c.GetRetryAfter() == nil {
		b.WriteString("  never passes\n")
	}
	b.printf("  counter %s\n", c.GetKey())
	return b.String()
}

// leftText describes a balance.
func leftText(balance int64) string {
	if balance < 0 {
		return fmt.Sprintf("0 left, %d over the limit", -balance)
	}
	return fmt.Sprintf("%d left", balance)
}

func (p *program) grantCommand() *cobra.Command {
	var hits uint64
	cmd := p.changes(&cobra.Command{
		Use:   "grant [flags] DOMAIN DESCRIPTOR... --hits N",
		Short: "Refund hits to a counter",
		Long: `Grant refunds hits once, at most as many as were used: for more, use limit, or raise the number of the
tenant or the rule. It fails for leaky_bucket, for concurrency, and during a penalty, because a refund
would have no effect.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd grant example fixed=ann --hits 50 --reason 'our fault'`,
		Args:    needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if hits == 0 {
				return errors.New("--hits is missing: set the number of hits to refund, such as --hits 50")
			}
			return each(args, func(d *descriptor) error {
				answer, err := p.api.Grant(cmd.Context(), &adminv1.GrantRequest{
					Domain: args[0], Entries: d.messages(), Hits: hits, Reason: p.reason, DryRun: p.dry,
				})
				return p.show(answer, err, func() {
					before, after := answer.GetBefore().Balance(), answer.GetCounter().Balance()
					did, left := fmt.Sprintf("Refunded %d", after-before), leftText(after)+", "+strings.TrimPrefix(leftText(before), "0 left, ")
					left = strings.TrimSuffix(left, " left") + " before"
					if p.dry {
						did, left = fmt.Sprintf("Dry run: would refund up to %d", hits), leftText(before)+" now"
						if before < 0 {
							l := answer.GetCounter().GetLimits()[0] // the only one
							most := cmp.Or(l.GetBurst(), l.Number())
							left += ", then " + leftText(min(before+int64(min(hits, engine.MaxHits)), int64(most))) //nolint:gosec // likewise
						}
					}
					p.printf("%s hits to %s %s%s: %s\n", did, args[0], d.text, reachText(answer.GetReach()), left)
					p.changedCounter(answer.GetCounter(), answer.GetReach())
				})
			})
		},
	})
	cmd.Flags().Uint64Var(&hits, "hits", 0, "number of hits to refund (required)")
	return cmd
}

// changedCounter prints the state of a counter that was changed, and where it was.
func (p *program) changedCounter(c *adminv1.Counter, r *adminv1.Reach) {
	p.print(counterText(c, ""))
	p.aloneNote(r)
}

func (p *program) resetCommand() *cobra.Command {
	var force bool
	cmd := p.changes(&cobra.Command{
		Use:   "reset [flags] DOMAIN DESCRIPTOR...",
		Short: "Clear a counter",
		Long: `Reset clears the counter of each descriptor. It fails during a penalty, unless --force ends the
penalty too. A reset cannot be undone.

` + descriptorHelp + "\n\n" + changeHelp,
		Example: `  ratelimitd reset example fixed=ann
  ratelimitd reset --force example login=bob`,
		Args: needs("DOMAIN", "DESCRIPTOR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return each(args, func(d *descriptor) error {
				answer, err := p.api.Reset(cmd.Context(), &adminv1.ResetRequest{
					Domain: args[0], Entries: d.messages(), Force: force, Reason: p.reason, DryRun: p.dry,
				})
				if status.Code(err) == codes.FailedPrecondition {
					err = fmt.Errorf("%s (--force ends it)", status.Convert(err).Message())
				}
				return p.show(answer, err, func() {
					p.printf("%s %s %s%s\n", p.done("Reset", "reset"), args[0], d.text, reachText(answer.GetReach()))
					p.changedCounter(answer.GetCounter(), answer.GetReach())
				})
			})
		},
	})
	cmd.Flags().BoolVar(&force, "force", false, "end a penalty too")
	return cmd
}

func (p *program) explainCommand() *cobra.Command {
	var flags ruleFlags
	cmd := p.asks(&cobra.Command{
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
		RunE: func(cmd *cobra.Command, args []string) error {
			config, there := cmd.Flags().Changed("config"), cmd.Flags().Changed("addr")
			switch {
			case config && there:
				return errors.New("--config and --addr are mutually exclusive: use a directory's rules or a server's")
			case config:
				return p.explainHere(&flags, cmd, args)
			}
			return p.explainThere(cmd.Context(), args)
		},
	})
	flags.addConfig(p, cmd, "directory or file of rules to use instead of a server")
	flags.addTenants(cmd)
	return cmd
}

// explainHere prints how descriptors are matched by rules here.
func (p *program) explainHere(flags *ruleFlags, cmd *cobra.Command, args []string) error {
	all := &adminv1.ExplainResponse{DomainKnown: true}
	err := flags.each(p, cmd, args, func(set *descriptors.Set, domain *descriptors.Domain, d *descriptor) error {
		x, err := flags.explanation(set, domain, d)
		if err != nil {
			return err
		}
		if all.Descriptors = append(all.Descriptors, x); !p.json() {
			p.print(sprintf("%s %s\n", domain.Name, d.text) + explanationText(x))
		}
		return nil
	})
	for _, x := range all.GetDescriptors() {
		for _, step := range x.GetSteps() {
			step.Entry, step.Text = strings.ToValidUTF8(step.GetEntry(), "\uFFFD"), strings.ToValidUTF8(step.GetText(), "\uFFFD")
		}
	}
	return p.show(all, err, func() {}) // the text was printed above
}

// explanation returns how d is matched, in the form of the admin API. It has no outcome, because no counter is asked.
func (f *ruleFlags) explanation(set *descriptors.Set, domain *descriptors.Domain, d *descriptor) (_ *adminv1.Explanation, err error) {
	match, steps := domain.Match(d.Entries), domain.Explain(d.Entries)
	if match.Rule != nil && match.Rule.Plan != "" && f.tenants != "" {
		if steps, err = f.planned(set, &match, d); err != nil {
			return nil, err
		}
	}
	rule := admin.RuleMessage(match.Rule)
	x := &adminv1.Explanation{Rule: rule}
	for _, step := range steps {
		x.Steps = append(x.Steps, &adminv1.Step{Entry: step.Entry, Text: step.Text})
	}
	if d.HasOverride {
		limit, err := match.Override(d.Override)
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
		x.Counter = &adminv1.Counter{Key: f.counterKey(domain, d)}
	}
	return x, nil
}

// explainThere prints how a running server would decide a request with these descriptors.
func (p *program) explainThere(ctx context.Context, args []string) error {
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	request := &adminv1.ExplainRequest{Domain: args[0]}
	for i := range wanted {
		request.Descriptors = append(request.Descriptors, wanted[i].message())
	}
	answer, err := p.api.Explain(ctx, request)
	return p.show(answer, err, func() {
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
	var flags ruleFlags
	cmd := p.outputs(&cobra.Command{
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
		Args:              needs("DOMAIN", "DESCRIPTOR"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return flags.each(p, cmd, args, func(_ *descriptors.Set, domain *descriptors.Domain, d *descriptor) error {
				rule := domain.Match(d.Entries).Rule
				if (rule == nil || rule.Unlimited) && !overridden(domain, d) {
					return fmt.Errorf("descriptor %q: %w", d.text, errNotLimited)
				}
				type counter struct {
					Domain     string `json:"domain"`
					Descriptor string `json:"descriptor"` // as it was given
					Key        string `json:"key"`
				}
				c := counter{domain.Name, d.text, flags.counterKey(domain, d)}
				return p.show(c, nil, func() { p.printf("%s\n", c.Key) })
			})
		},
	}, "text", "json")
	flags.addConfig(p, cmd, "directory or file of rules (required)")
	return cmd
}

var errNotLimited = errors.New("not limited, so it has no counter; see ratelimitd explain")

// counterKey returns the name of the counter of d, which must be limited, in the store.
func (f *ruleFlags) counterKey(domain *descriptors.Domain, d *descriptor) string {
	match, own := domain.Match(d.Entries), overridden(domain, d)
	var limit engine.Limit
	if own {
		item, _ := match.Override(d.Override) // overridden has checked it
		limit = item.Limit
	} else {
		limit = match.Rule.RateLimits.Limits()[0]
	}
	op := backend.Op{
		Key:    f.secret.Hash(match.AppendName(f.secret.Begin(nil), domain, d.Entries, own)),
		Name:   match.AppendReferenceName(nil, domain, d.Entries, own),
		Limits: engine.Limits{limit},
	}
	return server.CounterKey(&f.store, &op, engine.Micros(time.Now().UnixMicro()))
}

// overridden reports whether the limit that d brings along is used.
func overridden(domain *descriptors.Domain, d *descriptor) bool {
	if !d.HasOverride || !domain.AllowOverride {
		return false
	}
	_, err := domain.Match(d.Entries).Override(d.Override)
	return err == nil
}
