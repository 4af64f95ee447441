package cli

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) statusCommand() *cobra.Command {
	return p.asks(&cobra.Command{
		Use:   "status [flags]",
		Short: "Show server status",
		Long: `Status shows the health of a running server, one condition per line: the rules and why the last
ones were invalid, the backend, the fallback, the load, controls, and replicas.

` + exitHelp + `
A server that is unhealthy, or not ready to receive traffic (/readyz), is a negative result.`,
		Example: `  ratelimitd status
  ratelimitd status --addr 10.0.0.7:8081 --token-file token --output json`,
		Args: takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.api.Status(cmd.Context(), &adminv1.StatusRequest{})
			err = p.show(s, err, func() { p.print(statusReport(s)) })
			return negativeIf(!s.GetHealthy() || len(s.GetNotReady()) > 0, err)
		},
	})
}

// conditions are the rows of status.
type conditions [][]string

// add adds a condition, its state, since when, and a detail.
func (c *conditions) add(name, state string, since *timestamppb.Timestamp, format string, args ...any) {
	lasted := "-"
	if since != nil {
		lasted = age(since)
	}
	*c = append(*c, []string{name, state, lasted, sprintf(format, args...)})
}

// statusReport returns the status of a server: a verdict, and a table of conditions.
func statusReport(s *adminv1.StatusResponse) string {
	t := conditions{{"CONDITION", "STATE", "AGE", "DETAIL"}}
	shown, rules := map[string]bool{}, "ok"
	for _, c := range s.GetComponents() {
		name, state, detail := c.GetName(), word(c.GetHealth()), ""
		if state != "ok" {
			state, detail, shown[name] = strings.ToUpper(state), c.GetLastError(), true
		}
		switch name {
		case "shutdown":
			name = "serving"
			if s.GetDrained() != nil {
				state, detail = "DRAINED", "undo: ratelimitd drain --undo"
			}
		case "rules":
			rules = state
			continue
		}
		t.add(name, state, c.GetSince(), "%s", detail)
	}
	t.addRules(s, rules)
	for _, why := range s.GetNotReady() {
		if name, _, _ := strings.Cut(why, ":"); !shown[name] {
			t.add("ready", "NO", nil, "%s", why)
		}
	}
	t.addStore(s.GetStore())
	_, fallback, _ := strings.Cut(fallbackText(s.GetOnFailure(), nil), ": ")
	t.add("fallback", word(s.GetOnFailure()), nil, "if the backend fails, %s; rules may differ: see ratelimitd rules", fallback)
	if n := s.GetNearCache(); n != nil {
		t.add("near cache", "on", nil, "%s, %s answered, %d rejected, %d evicted",
			descriptors.CountText(int(n.GetEntries()), "key"), descriptors.CountText(int(n.GetHits()), "descriptor"), n.GetRejections(), n.GetEvictions())
	}
	if l := s.GetLeases(); l != nil {
		t.add("leases", "on", nil, "%s held, %d leased, %d used, %d refunded", descriptors.CountText(int(l.GetHeld()), "hit"), l.GetLeased(),
			l.GetSpent(), l.GetReturned())
	}
	if l := s.GetLoad(); l != nil {
		state, shed := "ok", l.GetShedByProcess()+l.GetShedByStore()+l.GetShedCalls()
		if shed > 0 {
			state = "shed"
		}
		t.add("load", state, nil, "%d of %s in progress, queue wait %s, %d rejected under load", l.GetCalls(),
			descriptors.CountText(int(l.GetLimit()), "call"), millis(l.GetWait().AsDuration()), shed)
	}
	for _, d := range s.GetDividedLimits() {
		t.add("rlqs", d.GetAnswer(), nil, "%s %s: %s", shellWord(d.GetDomain()), entriesArgument(d.GetEntries(), false), dividedText(d))
	}
	t.addReplicas(s)
	if s.GetWatchers() > 0 {
		t.add("watchers", strconv.Itoa(int(s.GetWatchers())), nil, "")
	}
	return sprintf("%s: ratelimitd %s %s, up %s\n", healthWord(s), s.GetVersion(), s.GetGoVersion(),
		age(s.GetStarted())) + strings.Join(tableLines(t), "\n") + "\n"
}

// addReplicas adds the controls, and the replicas that share them.
func (c *conditions) addReplicas(s *adminv1.StatusResponse) {
	detail := "shared by " + descriptors.CountText(int(s.GetReach().GetReplicas()), "replica")
	switch {
	case s.GetReach().GetAlone() != "":
		detail = "this server only (" + s.GetReach().GetAlone() + ")"
	case s.GetReach().GetReplicas() == 0:
		detail = "last known state: the backend does not answer"
	}
	c.add("controls", fmt.Sprintf("%d active", s.GetControls()), nil, "%s", detail)
	for _, r := range s.GetReplicas() {
		if len(s.GetReplicas()) > 1 {
			c.add("", "", nil, "%s", replicaText(r))
		}
	}
}

// replicaText returns the state of a replica.
func replicaText(r *adminv1.Replica) string {
	state := cmp.Or(word(r.GetHealth()), "unknown")
	if r.GetIsDrained() {
		state = "drained"
	}
	text := r.GetName() + ": " + state
	if v := r.GetRulesVersion(); v != "" {
		text += ", rules " + v
	}
	if r.GetIsSelf() {
		text += " (this one)"
	}
	return text
}

func healthWord(s *adminv1.StatusResponse) string {
	switch {
	case !s.GetHealthy():
		return "UNHEALTHY"
	case len(s.GetNotReady()) > 0:
		return "NOT READY"
	}
	for _, c := range s.GetComponents() {
		if c.GetHealth() == adminv1.Health_HEALTH_DEGRADED {
			return "DEGRADED"
		}
	}
	return "HEALTHY"
}

// addRules adds the rules, their last change, and what is wrong with newer ones.
func (c *conditions) addRules(s *adminv1.StatusResponse, state string) {
	r := s.GetRules()
	if r.GetLoaded() == nil {
		c.add("rules", "NONE", nil, "%s", r.GetMissing())
	} else {
		c.add("rules", state, r.GetLoaded(), "%s", rulesText(r))
	}
	if changed := r.GetLastChange(); changed != nil {
		c.add("", "changed", changed.GetTime(), "%s; --output json lists them", changed.GetSummary())
	}
	if n := int(r.GetTotalWarnings()); n > 0 {
		c.add("", descriptors.CountText(n, "warning"), nil, "%s", problemText(r.GetWarnings()[0]))
	}
	for _, m := range s.GetMistakes() {
		c.add("", "MISTAKE", nil, "%s: %s (%s)", m.GetRule(), m.GetText(), descriptors.CountText(int(m.GetCalls()), "call")) //nolint:gosec // few
	}
	invalid := s.GetInvalidRules()
	if invalid == nil {
		return
	}
	state, problems := "INVALID", descriptors.CountText(int(invalid.GetTotal()), "problem")
	switch {
	case invalid.GetIsOver():
		state, problems = "were invalid", problems+", fixed since"
	case r.GetLoaded() != nil:
		problems += "; the last valid rules stay in use"
	}
	c.add("", state, invalid.GetTime(), "%s", problems)
	for _, problem := range invalid.GetProblems() {
		if !invalid.GetIsOver() {
			c.add("", "", nil, "%s", problemText(problem))
		}
	}
}

// rulesText says which rules are in use.
func rulesText(r *adminv1.RulesStatus) string {
	text := fmt.Sprintf("%s in %s, from %s, version %s", descriptors.CountText(int(r.GetRules()), "rule"),
		descriptors.CountText(int(r.GetDomains()), "domain"), r.GetSource(), r.GetVersion())
	if r.GetBehind() != nil {
		text += ", out of date for " + age(r.GetBehind())
	}
	return text
}

// problemText says what is wrong with rules as check does.
func problemText(m *adminv1.RulesProblem) string {
	p := descriptors.Problem{File: m.GetFile(), Line: int(m.GetLine()), Column: int(m.GetColumn()), Path: m.GetPath(), Text: m.GetText(), Warning: m.GetIsWarning()}
	return strings.TrimPrefix(p.String(), ": ")
}

// addStore adds the store, and its nodes.
func (c *conditions) addStore(s *adminv1.StoreStatus) {
	name, text, _ := strings.Cut(s.GetText(), ": ")
	if len(s.GetNodes()) > 0 || s.GetConnections() > 0 {
		text += ", " + descriptors.CountText(int(s.GetConnections()), "connection")
	}
	if s.GetMemoryKeys() > 0 {
		text += "; " + descriptors.CountText(int(s.GetMemoryKeys()), "counter") + " in memory"
	}
	c.add("store", name, nil, "%s", text)
	for _, n := range s.GetNodes() {
		c.add("", "breaker "+strings.ReplaceAll(word(n.GetBreaker()), "_", " "), nil, "%s: opened %s, wait %s", n.GetName(),
			descriptors.CountText(int(n.GetOpened()), "time"), millis(n.GetWait().AsDuration()))
	}
}

// millis returns a short time in milliseconds.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
}

func (p *program) rlqsCommand() *cobra.Command {
	return p.asks(&cobra.Command{
		Use:   "rlqs [flags]",
		Short: "Show how limits are divided among RLQS clients",
		Long: `Rlqs shows the limits that a running server divides among its RLQS clients (Envoys with the filter
rate_limit_quota): how much of each limit is assigned, and the demand and share of each client, in
hits per second. It shows at most 100 limits and 100 clients of each. --output json prints a line for
each limit.`,
		Example: `  ratelimitd rlqs
  ratelimitd rlqs --addr 10.0.0.7:8081 --token-file token --output json`,
		Args: takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.api.Status(cmd.Context(), &adminv1.StatusRequest{})
			if err == nil && len(s.GetDividedLimits()) == 0 && !p.json() {
				p.printf("this server divides no limits: no Envoy has reported a bucket that matches a rule with rlqs\n")
			}
			for _, d := range s.GetDividedLimits() {
				err = p.show(d, err, func() { p.divided(d) })
			}
			return err
		},
	})
}

// divided prints a limit that is divided, and its clients.
func (p *program) divided(d *adminv1.DividedLimit) {
	p.printf("%s %s: %s\n", shellWord(d.GetDomain()), entriesArgument(d.GetEntries(), false), dividedText(d))
	heading := []string{"  CLIENT", "STATE", "WEIGHT", "DEMAND/S", "SHARE/S"}
	printTable(p, false, heading, d.GetClients(), func(c *adminv1.DividedClient) []string {
		return []string{"  " + c.GetName(), c.GetState(), fmt.Sprint(c.GetWeight()), rateText(c.GetDemand()), rateText(c.GetShare())}
	})
}

func rateText(rate float64) string { return strconv.FormatFloat(rate, 'f', 1, 64) }

// dividedText says how a limit is divided.
func dividedText(d *adminv1.DividedLimit) string {
	if d.GetAnswer() != "divided" {
		return d.GetAnswer()
	}
	mode := "fast"
	if d.GetIsStrict() {
		mode = "strict"
	}
	text := sprintf("%s/s assigned of a limit of %s/s, to %s, %s; %.0f left",
		rateText(d.GetAssigned()), rateText(d.GetRate()), descriptors.CountText(int(d.GetTotalClients()), "client"), mode, d.GetLeft())
	if d.GetPart() < d.GetCapacity() {
		text += sprintf("; this replica may assign %s/s of the %s/s of all replicas", rateText(d.GetPart()), rateText(d.GetCapacity()))
	}
	return text
}

// aloneText says which servers a change reaches.
const aloneText = "applies to this server only: repeat it for each replica"

func (p *program) reloadCommand() *cobra.Command {
	return p.changes(&cobra.Command{
		Use:   "reload [flags]",
		Short: "Reload rules and show the result",
		Long: `Reload makes a running server read its rule files again, or fetch its rules again from the control
plane, and shows the changes. If the new rules are invalid, it shows why, and the last valid rules
stay in use. Each replica reads its own files.

` + changeHelp + `

` + exitHelp + `
Invalid rules are a negative result.`,
		Example: `  ratelimitd reload
  ratelimitd reload --dry-run --addr 10.0.0.7:8081`,
		Args: takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := p.api.ReloadRules(cmd.Context(), &adminv1.ReloadRulesRequest{Reason: p.reason, DryRun: p.dry})
			err = p.show(answer, err, func() { p.reloaded(answer) })
			return negativeIf(answer.GetInvalid(), err)
		},
	})
}

// reloaded shows the result of a reload, or what it would be.
func (p *program) reloaded(a *adminv1.ReloadRulesResponse) {
	changes := int(a.GetTotalChanges())
	result := descriptors.CountText(changes, "change")
	switch {
	case a.GetInvalid() && a.GetRules().GetLoaded() == nil:
		result = "INVALID, and no rules are in use"
	case a.GetInvalid() && changes > 0: // there is an overlay
		result = "INVALID in part: the last valid rules or overlay stay in use, " + result
	case a.GetInvalid():
		result = "INVALID, the last valid rules stay in use"
	case changes == 0:
		result = "no changes"
	}
	p.printf("%s rules: %s\n", p.done("Reloaded", "reload"), result)
	for _, problem := range a.GetProblems() {
		p.printf("  %s\n", problemText(problem))
	}
	p.more(int(a.GetTotalProblems()), len(a.GetProblems()))
	for _, line := range a.GetChanges() {
		p.printf("  %s\n", line)
	}
	p.more(changes, len(a.GetChanges()))
	if r := a.GetRules(); r.GetLoaded() != nil {
		p.printf("  in use: %s\n", rulesText(r))
	}
	p.printf("  %s\n", aloneText)
}

// more says how many of all are not shown.
func (p *program) more(all, shown int) {
	if n := all - shown; n > 0 {
		p.printf("  and %d more\n", n)
	}
}

func (p *program) drainCommand() *cobra.Command {
	var undo bool
	cmd := p.changes(&cobra.Command{
		Use:   "drain [flags]",
		Short: "Take a server out of service without stopping it, or put it back",
		Long: `Drain makes a running server report that it is unhealthy and not ready, so that Envoy and Kubernetes
send it no more requests. It keeps running and keeps answering; /livez stays OK. It lasts until
drain --undo or until the process ends. Kubernetes restarts the server if a liveness probe queries
/healthcheck instead of /livez.

` + changeHelp + `

` + exitHelp,
		Example: `  ratelimitd drain --reason 'profiling it'
  ratelimitd drain --undo`,
		Args: takes(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			answer, err := p.api.Drain(cmd.Context(), &adminv1.DrainRequest{Undo: undo, Reason: p.reason, DryRun: p.dry})
			return p.show(answer, err, func() { p.printf("%s\n  %s\n", p.drained(answer, undo), aloneText) })
		},
	})
	cmd.Flags().BoolVar(&undo, "undo", false, "put the server back into service")
	return cmd
}

// drained returns the result of drain.
func (p *program) drained(a *adminv1.DrainResponse, undo bool) string {
	switch {
	case !undo && a.GetChanged():
		return p.done("Drained", "drain") + ": reports unhealthy, still answers requests" + p.undo("drain --undo")
	case !undo:
		return "Already drained for " + age(a.GetDrained()) + " · undo: " + p.client.command("drain --undo")
	case !a.GetChanged():
		return "Not drained: nothing to undo"
	case !a.GetOtherwiseHealthy():
		return p.done("Back", "go back") + " in service, but unhealthy for another reason: see ratelimitd status"
	}
	return p.done("Back", "go back") + " in service: reports healthy" + p.undo("drain")
}
