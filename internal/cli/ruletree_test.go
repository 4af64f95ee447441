package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// ruleState returns a rule of the domain shop with these counts.
func ruleState(key string, allowed, rejected uint64) *adminv1.RuleState {
	return &adminv1.RuleState{Domain: "shop", Levels: []*adminv1.EntryFilter{{Key: key}}, Allowed: allowed, Rejected: rejected}
}

// TestRates: rates are of rules that existed before, whatever their position, separately for each plan. After a restart of the server,
// they are unknown.
func TestRates(t *testing.T) {
	t.Parallel()
	seen := func(at int64, states ...*adminv1.RuleState) *rulesSeen {
		s := &rulesSeen{at: time.Unix(at, 0), states: states}
		for i := range states {
			s.rules = append(s.rules, &adminv1.Rule{Line: int32(i)})
		}
		last := len(states) - 1
		s.rules[last-1].Plan, s.rules[last].Plan = "default", "gold"
		return s
	}
	before := seen(1e9, ruleState("gone", 5, 5), ruleState("user", 10, 1), ruleState("reset", 10, 1), ruleState("tenant", 100, 0), ruleState("tenant", 9, 0))
	now := seen(1e9+2, ruleState("user", 25, 2), ruleState("new", 9, 9), ruleState("reset", 20, 0), ruleState("tenant", 102, 4), ruleState("tenant", 9, 0))
	if d := cmp.Diff([]rates{{7.5, 0.5}, {}, {}, {1, 2}, {}}, now.since(before)); d != "" {
		t.Errorf("rates (-want +got):\n%s", d)
	}
	if d := cmp.Diff(make([]rates, 5), now.since(now)); d != "" {
		t.Errorf("rates of no time (-want +got):\n%s", d)
	}
}

func TestTableLines(t *testing.T) {
	t.Parallel()
	got := strings.Join(tableLines([][]string{{"RULE", "HITS", "WHERE"}, {"ü", "7", "a"}, {"user", "1234.5", "12:3"}, {"x", "", "-"}}), "\n")
	const want = "" +
		"RULE    HITS  WHERE\n" +
		"ü          7  a\n" +
		"user  1234.5  12:3\n" +
		"x             -"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("table (-want +got):\n%s", d)
	}
}

func TestReloadedText(t *testing.T) {
	t.Parallel()
	rules := &adminv1.RulesStatus{
		Source: "2 files in rules", Version: "8b46ac87e51b", Rules: 4, Domains: 2, Loaded: timestamppb.New(time.Unix(1e9, 0)), Age: durationpb.New(90*time.Second + 1),
	}
	problem := &adminv1.RulesProblem{File: "rules/a.yaml", Line: 3, Column: 7, Path: "shop.user", Text: "no unit"}
	for _, tt := range []struct {
		answer *adminv1.ReloadRulesResponse
		dry    bool
		want   string
	}{
		{&adminv1.ReloadRulesResponse{Rules: rules}, false, "Reloaded rules: no changes\n"},
		{
			&adminv1.ReloadRulesResponse{Rules: rules, Changes: []string{"shop: domain added", "\x1b"}, TotalChanges: 5}, false,
			"Reloaded rules: 5 changes\n  shop: domain added\n  \\u001b\n  and 3 more\n",
		},
		{
			&adminv1.ReloadRulesResponse{Rules: rules, Changes: []string{"shop: domain added"}, TotalChanges: 1}, true,
			"Dry run: would reload rules: 1 change\n  shop: domain added\n",
		},
		{
			&adminv1.ReloadRulesResponse{Rules: rules, Invalid: true, Problems: []*adminv1.RulesProblem{problem}, TotalProblems: 2}, false,
			"Reloaded rules: INVALID, the last valid rules stay in use\n  rules/a.yaml:3:7: shop.user: no unit\n  and 1 more\n",
		},
		{
			&adminv1.ReloadRulesResponse{Rules: rules, Invalid: true, Problems: []*adminv1.RulesProblem{problem}, TotalProblems: 1, Changes: []string{"b: domain added"}, TotalChanges: 1}, false,
			"Reloaded rules: INVALID in part: the last valid rules or overlay stay in use, 1 change\n  rules/a.yaml:3:7: shop.user: no unit\n  b: domain added\n",
		},
	} {
		var out bytes.Buffer
		(&program{stdout: &plain.Writer{Raw: &out}, dry: tt.dry}).reloaded(tt.answer)
		want := tt.want + "  in use: 4 rules in 2 domains, from 2 files in rules, version 8b46ac87e51b\n  " + aloneText + "\n"
		if d := cmp.Diff(want, out.String()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

// TestStatusReportIsPlain: control characters are not printed.
func TestStatusReportIsPlain(t *testing.T) {
	t.Parallel()
	s := &adminv1.StatusResponse{Version: "\x1b[2J", NotReady: []string{"\x1b]0;x\a"}, InvalidRules: &adminv1.InvalidRules{Problems: []*adminv1.RulesProblem{{Text: "\x1b[31m"}}}}
	if got := statusReport(s); strings.ContainsAny(got, "\x1b\a") {
		t.Errorf("control characters in %q", got)
	}
}
