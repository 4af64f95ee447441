package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func (p *program) statusCommand() *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use:   "status [flags]",
		Short: "Show how a running server is: rules, health, store, load, controls",
		Long: `Status shows how a running server is: its version, which rules it runs and why the last ones were
invalid, what its health consists of, the nodes of its store, its near cache, its load, and how many
replicas share its controls.
A server elsewhere needs a token (ADMIN_TOKEN_FILE).

` + exitHelp + `
A server that is not healthy, or not ready, is a negative result; a degraded one is not.`,
		Example: `  ratelimitd status
  ratelimitd status --addr 10.0.0.7:8081 --token-file token --output json`,
		Args: needsNone,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.asked(cmd.Context(), func(ctx context.Context, a adminv1.AdminServiceClient) error {
				s, err := a.Status(ctx, &adminv1.StatusRequest{})
				if err != nil {
					return err
				}
				err = q.show(s, func() { p.print(statusReport(s)) })
				if err == nil && !serving(s) {
					return errNegative
				}
				return err
			})
		},
	}
	q.add(p, cmd)
	return cmd
}

// serving reports whether a server is healthy and ready.
func serving(s *adminv1.StatusResponse) bool { return s.GetHealthy() && len(s.GetNotReady()) == 0 }

// statusReport returns how a server is, for people.
func statusReport(s *adminv1.StatusResponse) string {
	var b page
	line := func(name, format string, args ...any) {
		b.printf("  %-10s  %s\n", name, sprintf(format, args...))
	}
	b.printf("ratelimitd %s %s, up %s: %s\n", s.GetVersion(), s.GetGoVersion(), spanText(s.GetUptime()), healthWord(s))
	for _, why := range s.GetNotReady() {
		line("not ready", "%s", why)
	}
	if since := s.GetDrained(); since != nil {
		line("drained", "since %s; drain --undo puts it back", timeText(since))
	}
	rulesLines(s, line)
	for _, c := range s.GetComponents() {
		text := strings.ToLower(strings.TrimPrefix(c.GetHealth().String(), "HEALTH_")) + " since " + timeText(c.GetSince())
		if c.GetLastError() != "" && c.GetHealth() != adminv1.Health_HEALTH_OK {
			text += ": " + c.GetLastError()
		}
		line("health", "%s %s", c.GetName(), text)
	}
	storeLines(s.GetStore(), line)
	if n := s.GetNearCache(); n != nil {
		line("near cache", "%s, %s answered, %d of them rejected; %d forgotten to make room",
			descriptors.CountText(int(n.GetEntries()), "key"), descriptors.CountText(int(n.GetHits()), "descriptor"), n.GetRejections(), n.GetEvictions())
	}
	if l := s.GetLeases(); l != nil {
		line("leases", "%s held; %d leased, %d spent, %d refunded", descriptors.CountText(int(l.GetHeld()), "hit"), l.GetLeased(), l.GetSpent(), l.GetReturned())
	}
	if l := s.GetLoad(); l != nil {
		line("load", "%s in progress, of at most %d; waiting %s; shed %d for this process, %d for the backend, %d before they were read",
			descriptors.CountText(int(l.GetCalls()), "call"), l.GetLimit(), millis(l.GetWait().AsDuration()), l.GetShedByProcess(), l.GetShedByStore(), l.GetShedCalls())
	}
	for _, d := range s.GetDividedLimits() {
		line("divided", "%s %s: %s", shellWord(d.GetDomain()), entriesArgument(d.GetEntries(), false), dividedText(d))
	}
	line("controls", "%d in force; %s", s.GetControls(), reachText(s.GetReach()))
	for _, r := range s.GetReplicas() {
		if len(s.GetReplicas()) > 1 {
			line("", "  %s", replicaText(r))
		}
	}
	line("watchers", "%d", s.GetWatchers())
	return b.String()
}

// replicaText says how a replica is.
func replicaText(r *adminv1.Replica) string {
	state := "does not say how it is"
	switch {
	case r.GetIsDrained():
		state = "drained"
	case r.GetHealth() != adminv1.Health_HEALTH_UNSPECIFIED:
		state = strings.ToLower(strings.TrimPrefix(r.GetHealth().String(), "HEALTH_"))
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
		return "NOT HEALTHY"
	case len(s.GetNotReady()) > 0:
		return "NOT READY"
	}
	for _, c := range s.GetComponents() {
		if c.GetHealth() == adminv1.Health_HEALTH_DEGRADED {
			return "healthy, degraded"
		}
	}
	return "healthy"
}

// rulesLines adds lines about the rules, and about those that were rejected if that was later.
func rulesLines(s *adminv1.StatusResponse, line func(name, format string, args ...any)) {
	r := s.GetRules()
	if r.GetLoaded() == nil {
		line("rules", "none: %s", r.GetMissing())
	} else {
		line("rules", "%s", rulesText(r))
	}
	if c := r.GetLastChange(); c != nil {
		line("changed", "at %s, %s; --output json lists them", timeText(c.GetTime()), c.GetSummary())
	}
	invalid := s.GetInvalidRules()
	if invalid == nil {
		return
	}
	when := "and the last good ones stay in use"
	switch {
	case r.GetLoaded() == nil:
		when = "and there are none"
	case invalid.GetIsOver():
		when = "which is over"
	}
	line("invalid", "at %s, %s: %s", timeText(invalid.GetTime()), when, descriptors.CountText(int(invalid.GetTotal()), "problem"))
	for _, problem := range invalid.GetProblems() {
		if !invalid.GetIsOver() {
			line("", "  %s", problemText(problem))
		}
	}
}

// rulesText says which rules are in use.
func rulesText(r *adminv1.RulesStatus) string {
	text := fmt.Sprintf("%s in %s, from %s, version %s, loaded %s (%s ago)", descriptors.CountText(int(r.GetRules()), "rule"),
		descriptors.CountText(int(r.GetDomains()), "domain"), r.GetSource(), r.GetVersion(), timeText(r.GetLoaded()), spanText(r.GetAge()))
	if r.GetBehind() != nil {
		text += "; not up to date since " + timeText(r.GetBehind())
	}
	return text
}

// problemText says what is wrong with rules as check does.
func problemText(m *adminv1.RulesProblem) string {
	p := descriptors.Problem{File: m.GetFile(), Line: int(m.GetLine()), Column: int(m.GetColumn()), Path: m.GetPath(), Text: m.GetText(), Warning: m.GetIsWarning()}
	return strings.TrimPrefix(p.String(), ": ")
}

func storeLines(s *adminv1.StoreStatus, line func(name, format string, args ...any)) {
	text := s.GetText()
	if len(s.GetNodes()) > 0 || s.GetConnections() > 0 {
		text += "; " + descriptors.CountText(int(s.GetConnections()), "connection")
	}
	if s.GetMemoryKeys() > 0 {
		text += "; " + descriptors.CountText(int(s.GetMemoryKeys()), "counter") + " in memory"
	}
	line("store", "%s", text)
	for _, n := range s.GetNodes() {
		breaker := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(n.GetBreaker().String(), "BREAKER_")), "_", " ")
		line("", "  %s: breaker %s, opened %s, waiting %s", n.GetName(), breaker, descriptors.CountText(int(n.GetOpened()), "time"), millis(n.GetWait().AsDuration()))
	}
}

// millis returns a short time in milliseconds.
func millis(d time.Duration) string {
	return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
}
