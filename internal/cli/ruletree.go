package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) rulesCommand() *cobra.Command {
	over := time.Second
	cmd := p.queries(&cobra.Command{
		Use:   "rules [flags] [DOMAIN]",
		Short: "Show the rules in use, with their limits and rates",
		Long: `Rules shows the rules of a running server as a tree: limits, algorithm, the fallback if the backend
fails (on_failure or DEFAULT_ON_FAILURE), hits allowed and rejected per second, file and line, and
active controls. It queries the server twice, --over apart. Hits that shadow mode admits count as
rejected.`,
		Example: `  ratelimitd rules
  ratelimitd rules --over 10s shop
  ratelimitd rules --output json`,
		Args: takes(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if over < 0 {
				return fmt.Errorf("--over %s: must be 0 or more", descriptors.SpanText(over))
			}
			ctx, domain := cmd.Context(), strings.Join(args, "")
			before, err := p.listRules(ctx, domain)
			if err != nil {
				return err
			}
			select {
			case <-time.After(over):
			case <-ctx.Done():
				return ctx.Err()
			}
			now, err := p.listRules(ctx, domain)
			if err != nil {
				return err
			}
			controls, err := p.listControls(ctx, domain)
			if err != nil {
				return err
			}
			perSecond := now.since(before)
			return p.show(newRulesObject(now, perSecond, controls), nil, func() { p.ruleTree(now, perSecond, controls.GetControls()) })
		},
	})
	spanVar(cmd.Flags(), &over, "over", "how long to measure the rates")
	return cmd
}

// rulesSeen is a server's rules at one time.
type rulesSeen struct {
	at     time.Time
	rules  []*adminv1.Rule
	states []*adminv1.RuleState
}

// listRules returns the rules of a domain, or all rules if domain is empty.
func (p *program) listRules(ctx context.Context, domain string) (*rulesSeen, error) {
	q, all := new(adminv1.ListRulesRequest), new(adminv1.ListRulesResponse)
	if domain != "" {
		q.PathPrefix = domain + "."
	}
	err := allPages(ctx, p.api.ListRules, q, all, nil)
	seen := &rulesSeen{at: all.GetTime().AsTime()}
	for i, state := range all.GetStates()[:min(len(all.GetStates()), len(all.GetRules()))] {
		if domain == "" || state.GetDomain() == domain { // the prefix shop. also matches the domain shop.x
			seen.rules, seen.states = append(seen.rules, all.GetRules()[i]), append(seen.states, state)
		}
	}
	return seen, err
}

// rates are the hits that a rule allows and the requests that it rejects, per second.
type rates struct {
	Allowed  float64 `json:"allowedPerSecond"`
	Rejected float64 `json:"rejectedPerSecond"`
}

// since returns the rates of the rules since before. Rates of new rules and of restarted counts are 0.
func (s *rulesSeen) since(before *rulesSeen) []rates {
	id := func(seen *rulesSeen, i int) string { // rules of plans may differ only in the plan
		return fmt.Sprintf("%q %q %q", seen.states[i].GetDomain(), levelTexts(seen.states[i]), seen.rules[i].GetPlan())
	}
	earlier := make(map[string]*adminv1.RuleState, len(before.states))
	for i, state := range before.states {
		earlier[id(before, i)] = state
	}
	all, seconds := make([]rates, len(s.states)), s.at.Sub(before.at).Seconds()
	for i, state := range s.states {
		was := earlier[id(s, i)]
		if was == nil || seconds <= 0 || state.GetAllowed() < was.GetAllowed() || state.GetRejected() < was.GetRejected() {
			continue
		}
		all[i] = rates{float64(state.GetAllowed()-was.GetAllowed()) / seconds, float64(state.GetRejected()-was.GetRejected()) / seconds}
	}
	return all
}

// rulesObject is the JSON form of the rules with their rates, and of the controls.
type rulesObject struct {
	Rules    []ratedRule `json:"rules"`
	Controls []message   `json:"controls"`
}

type ratedRule struct {
	Rule  message `json:"rule"`
	State message `json:"state"`
	rates
}

func newRulesObject(now *rulesSeen, perSecond []rates, controls *adminv1.ListControlsResponse) rulesObject {
	all := rulesObject{[]ratedRule{}, []message{}}
	for i, r := range perSecond {
		all.Rules = append(all.Rules, ratedRule{message{now.rules[i]}, message{now.states[i]}, r})
	}
	for _, c := range controls.GetControls() {
		all.Controls = append(all.Controls, message{c})
	}
	return all
}

// ruleTree prints the rules as a tree, and each control below its rule.
func (p *program) ruleTree(now *rulesSeen, perSecond []rates, controls []*adminv1.Control) {
	rows, notes := [][]string{{"RULE", "LIMIT", "ALGORITHM", "ON FAILURE", "ALLOWED/S", "REJECTED/S", "WHERE"}}, map[int][]string{} // by row
	byID := make(map[string]*adminv1.Control, len(controls))
	for _, c := range controls {
		byID[c.GetId()] = c
	}
	var above []string // path of the previous row, beginning with the domain
	for i, r := range perSecond {
		state := now.states[i]
		path := append([]string{state.GetDomain()}, levelTexts(state)...)
		same := 0
		for same < min(len(above), len(path)-1) && above[same] == path[same] {
			same++
		}
		for depth := same; depth < len(path)-1; depth++ { // levels without a limit
			rows = append(rows, []string{strings.Repeat("  ", depth) + path[depth]})
		}
		rows = append(rows, []string{
			strings.Repeat("  ", len(path)-1) + path[len(path)-1], limitsText(now.rules[i]), algorithmsText(now.rules[i]),
			fallbackName(now.rules[i], state), fmt.Sprintf("%.1f", r.Allowed), fmt.Sprintf("%.1f", r.Rejected), rulePlace(now.rules[i]),
		})
		for _, id := range state.GetControls() {
			if c := byID[id]; c != nil {
				notes[len(rows)-1] = append(notes[len(rows)-1], strings.Repeat("  ", len(path))+controlText(c))
				delete(byID, id)
			}
		}
		above = path
	}
	for i, line := range tableLines(rows) {
		p.print(line + "\n")
		for _, note := range notes[i] {
			p.printf("%s\n", note)
		}
	}
	for _, c := range controls {
		if byID[c.GetId()] != nil {
			p.printf("matches no rule, or several: %s\n", controlText(c))
		}
	}
	if len(now.rules) == 0 {
		p.printf("no rules\n")
	}
}

// levelTexts returns the entries from the root to a rule, in the syntax of arguments.
func levelTexts(state *adminv1.RuleState) []string {
	texts := make([]string, 0, len(state.GetLevels()))
	for _, l := range state.GetLevels() {
		text := escape(l.GetKey())
		if l.Value != nil {
			text = pairText(l.GetKey(), l.GetValue())
		}
		texts = append(texts, text)
	}
	return texts
}

// fallbackName returns the fallback of a rule, in the syntax of rules.
func fallbackName(r *adminv1.Rule, state *adminv1.RuleState) string {
	if r.GetIsUnlimited() {
		return "-"
	}
	return cmp.Or(word(state.GetOnFailure()), word(r.GetOnFailure()), "?") // older servers do not report it
}

// algorithmsText returns the algorithms of a rule.
func algorithmsText(r *adminv1.Rule) string {
	var names []string
	for _, l := range r.GetLimits() {
		names = append(names, word(l.GetAlgorithm()))
	}
	return cmp.Or(strings.Join(slices.Compact(names), ", "), "-")
}

// rulePlace returns the file and line, or the resource, that defines a rule.
func rulePlace(r *adminv1.Rule) string {
	place := r.GetFile()
	if r.GetLine() != 0 {
		place = fmt.Sprintf("%s:%d", place, r.GetLine())
	}
	if r.GetOverlay() != "" {
		place += ", changed by " + r.GetOverlay()
	}
	return place
}

// limitsText describes the limits of a rule, without their algorithms.
func limitsText(r *adminv1.Rule) string {
	var texts []string
	for _, l := range r.GetLimits() {
		texts = append(texts, strings.Replace(l.GetText(), ", "+word(l.GetAlgorithm()), "", 1))
	}
	if r.GetIsUnlimited() {
		texts = []string{"unlimited"}
	}
	text := strings.Join(texts, " and ")
	if r.GetPlan() != "" {
		text += ", plan " + r.GetPlan()
	}
	if q := r.GetReserve(); q != nil {
		text += fmt.Sprintf(", reserves %s for %s", estimateText(q), descriptors.SpanText(q.GetTtl().AsDuration()))
	}
	if r.GetShadowMode() {
		text += ", shadow mode"
	}
	if r.GetQuotaMode() {
		text += ", quota mode"
	}
	return text
}

// estimateText describes the estimate of a reservation.
func estimateText(q *adminv1.Reserve) string {
	l := q.GetLearned()
	return descriptors.EstimateText(q.GetEstimate(), descriptors.Learn{Percentile: l.GetPercentile(), Min: l.GetMin(), Max: l.GetMax()})
}

// complete completes domains and keys from the rules of the server.
func (p *program) complete(cmd *cobra.Command, args []string, typed string) (found []string, _ cobra.ShellCompDirective) {
	p.client.timeout = min(p.client.timeout, time.Second)
	domain, directive := "", cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 {
		domain, directive = args[0], cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace
	}
	seen, err := p.listRules(cmd.Context(), domain)
	if err != nil { // a shell cannot show errors
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, state := range seen.states {
		text := state.GetDomain()
		if len(args) > 0 {
			text = nextEntry(state, typed)
		}
		if plain.IsWord(text) && strings.HasPrefix(text, typed) { // cobra's scripts would let the shell evaluate other texts
			found = append(found, text)
		}
	}
	slices.Sort(found)
	return slices.Compact(found), directive
}

// nextEntry completes the last entry that was typed of a descriptor from a rule; "" if the rule does not match.
func nextEntry(state *adminv1.RuleState, typed string) string {
	done := split(typed, ',')
	done = done[:len(done)-1]
	if len(done) >= len(state.GetLevels()) {
		return ""
	}
	for i, entry := range done {
		key, value, _ := cutPair(entry)
		l := state.GetLevels()[i]
		if key != l.GetKey() || l.Value != nil && !strings.Contains(l.GetValue(), "*") && value != l.GetValue() {
			return ""
		}
	}
	l := state.GetLevels()[len(done)]
	value := l.GetValue()
	if strings.Contains(value, "*") {
		value = ""
	}
	return strings.Join(append(slices.Clone(done), pairText(l.GetKey(), value)), ",")
}
