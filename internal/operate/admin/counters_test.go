package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestPeek(t *testing.T) {
	s := start(t, shop)
	s.hit(t, "shop", 2, "user", "u1")
	s.sleep(10 * time.Second)
	got, err := s.Peek(t.Context(), &adminv1.PeekRequest{Domain: "shop", Entries: entries("user", "u1")})
	if err != nil {
		t.Fatal(err)
	}
	limit := &adminv1.Limit{
		Algorithm: adminv1.Algorithm_ALGORITHM_FIXED_WINDOW, RequestsPerUnit: 3, Unit: adminv1.Unit_UNIT_MINUTE, UnitMultiplier: 1,
		Window: durationpb.New(time.Minute), Align: adminv1.Align_ALIGN_CLOCK, CountRefused: true, Text: "3 per minute",
	}
	want := &adminv1.PeekResponse{
		Rule: &adminv1.Rule{Path: "shop.user", File: "rules.yaml", Line: 3, Limits: []*adminv1.Limit{limit}},
		Counter: &adminv1.Counter{
			Key: got.GetCounter().GetKey(), Limits: []*adminv1.Limit{limit}, Left: 1, ResetAfter: durationpb.New(50 * time.Second),
		},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if key := got.GetCounter().GetKey(); !strings.HasPrefix(key, "rl:{") {
		t.Errorf("key %q; want the name in the backend", key)
	}
}

// TestPeekRawValue: a value that is not UTF-8 has its own counter, which raw_value finds.
func TestPeekRawValue(t *testing.T) {
	s := start(t, shop)
	s.hit(t, "shop", 2, "user", "\xff\xfe")
	got, err := s.Peek(t.Context(), &adminv1.PeekRequest{
		Domain: "shop", Entries: []*adminv1.Entry{{Key: "user", RawValue: []byte("\xff\xfe")}},
	})
	if err != nil || got.GetCounter().GetLeft() != 1 {
		t.Errorf("%v, %v; want 1 left", got, err)
	}
}

func TestReset(t *testing.T) {
	s := start(t, shop)
	s.hit(t, "shop", 3, "user", "u1")
	s.hit(t, "shop", 3, "user", "u2")
	dry, err := s.Reset(t.Context(), &adminv1.ResetRequest{Domain: "shop", Entries: entries("user", "u1"), DryRun: true})
	if err != nil || dry.GetCounter().GetLeft() != 0 || s.log.String() != "" {
		t.Errorf("dry run: %v, %v, and the log has %q", dry, err, s.log.String())
	}
	got, err := s.Reset(t.Context(), &adminv1.ResetRequest{Domain: "shop", Entries: entries("user", "u1")})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetRule().GetPath() != "shop.user" || got.GetCounter().GetLeft() != 3 {
		t.Errorf("%v; want shop.user with 3 left", got)
	}
	if s.hit(t, "shop", 3, "user", "u1") {
		t.Error("u1 is rejected after the reset")
	}
	if !s.hit(t, "shop", 1, "user", "u2") {
		t.Error("the reset of u1 has reset u2")
	}
	want := ` domain=shop keys=[user] what=reset reason="" before="shop.user: 0 left" after="shop.user: 3 left"`
	if log := s.log.String(); !strings.HasPrefix(log, "time=") || !strings.Contains(log, `msg="an operator made a change" method=Reset `) ||
		!strings.Contains(log, ` by="this machine" from="unix socket"`) || !strings.Contains(log, want) || strings.Contains(log, "u1") {
		t.Errorf("the log lacks the caller or the subject of the reset, or contains values: %q", log)
	}
}

// TestResetDuringPenalty is row 15 of algorithms.md: during a penalty, a reset fails unless forced, and its error tells the
// remaining time.
func TestResetDuringPenalty(t *testing.T) {
	s := start(t, shop)
	s.hit(t, "shop", 2, "login", "bob")
	if !s.hit(t, "shop", 1, "login", "bob") {
		t.Fatal("the third hit is not rejected")
	}
	s.sleep(90 * time.Second)
	q := &adminv1.ResetRequest{Domain: "shop", Entries: entries("login", "bob")}
	_, err := s.Reset(t.Context(), q)
	wantStatus(t, err, codes.FailedPrecondition, "a penalty runs for another 3m30s: wait, or set force to end it")

	peek, err := s.Peek(t.Context(), &adminv1.PeekRequest{Domain: "shop", Entries: entries("login", "bob")})
	if err != nil || peek.GetCounter().GetPenalty().AsDuration() != 210*time.Second || !peek.GetCounter().GetRejects() {
		t.Errorf("Peek: %v, %v; want rejections and a penalty of 210 s", peek, err)
	}
	if !s.hit(t, "shop", 1, "login", "bob") {
		t.Error("a failed reset ended the penalty")
	}

	q.Force = true
	if _, err := s.Reset(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if s.hit(t, "shop", 2, "login", "bob") {
		t.Error("a hit is rejected after a forced reset")
	}
}

func TestExplain(t *testing.T) {
	s := start(t, shop)
	for _, over := range []bool{false, false, false, true} {
		if got := s.hit(t, "shop", 1, "user", "u1"); got != over {
			t.Fatalf("hit: over = %t; want %t", got, over)
		}
	}
	s.hit(t, "shop", 2, "quiet", "q")
	s.hit(t, "shop", 1, "queue", "q")
	s.sleep(500 * time.Millisecond)

	got, err := s.Explain(t.Context(), &adminv1.ExplainRequest{
		Domain: "shop",
		Descriptors: []*adminv1.Descriptor{
			{Entries: entries("user", "u1")},
			{Entries: entries("user", "u2"), HitsAddend: new(uint64(2))},
			{Entries: entries("user", "vip")},
			{Entries: entries("quiet", "q")},
			{Entries: entries("nothing", "x")},
			{Entries: entries("nowhere", "x")},
			{Entries: entries("queue", "q")},
			{Entries: entries("user", "u3"), Limit: &adminv1.Override{RequestsPerUnit: 7, Unit: adminv1.Unit_UNIT_HOUR}},
			{Entries: entries("user", "u3"), Limit: &adminv1.Override{RequestsPerUnit: 7, Unit: 99}},
			{Entries: entries("user", "u1"), HitsAddend: new(uint64(1)), IsNegativeHits: true},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if !got.GetOverLimit() || !got.GetDomainKnown() || got.GetChargeTogether() {
		t.Errorf("over_limit %t, domain_known %t, charge_together %t; want true, true, false",
			got.GetOverLimit(), got.GetDomainKnown(), got.GetChargeTogether())
	}
	var lines []string
	for _, d := range got.GetDescriptors() {
		lines = append(lines, summary(d))
	}
	want := []string{
		"REJECTED rule=shop.user:3 3/MINUTE hits=1 left=0 rejects retry=59.5s reset=59.5s",
		"ADMITTED rule=shop.user:3 3/MINUTE hits=2 left=3 reset=59.5s",
		"UNLIMITED rule=shop.user_vip:5 hits=1",
		"SHADOWED rule=shop.quiet:8 1/MINUTE hits=1 left=0 rejects retry=59.5s reset=59.5s",
		"NO_LIMIT hits=1",
		"NO_LIMIT hits=1",
		"ADMITTED rule=shop.queue:22 1/SECOND hits=1 left=5 reset=500ms wait=500ms",
		"ADMITTED rule=shop.user:3 7/HOUR hits=1 left=7 reset=59m59.5s override",
		"ADMITTED rule=shop.user:3 3/MINUTE hits=1 left=3 reset=59.5s ignored",
		"ADMITTED rule=shop.user:3 3/MINUTE hits=1 back left=0 reset=59.5s",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	steps := got.GetDescriptors()[0].GetSteps()
	if len(steps) == 0 || steps[0].GetEntry() != "user=u1" || steps[0].GetText() == "" {
		t.Errorf("steps %v; want the first to explain user=u1", steps)
	}
	again, err := s.Peek(t.Context(), &adminv1.PeekRequest{Domain: "shop", Entries: entries("user", "u2")})
	if err != nil || again.GetCounter().GetLeft() != 3 {
		t.Errorf("Peek after Explain: %v, %v; want 3 left", again, err)
	}
}

// summary formats an explanation as one line.
func summary(e *adminv1.Explanation) string {
	var b strings.Builder
	b.WriteString(strings.TrimPrefix(e.GetOutcome().String(), "OUTCOME_"))
	if r := e.GetRule(); r != nil {
		fmt.Fprintf(&b, " rule=%s:%d", r.GetPath(), r.GetLine())
	}
	for _, l := range e.GetCounter().GetLimits() {
		fmt.Fprintf(&b, " %d/%s", l.GetRequestsPerUnit(), strings.TrimPrefix(l.GetUnit().String(), "UNIT_"))
	}
	fmt.Fprintf(&b, " hits=%d", e.GetHits())
	if e.GetIsNegativeHits() {
		b.WriteString(" back")
	}
	if c := e.GetCounter(); c != nil {
		fmt.Fprintf(&b, " left=%d", c.GetLeft())
		if c.GetRejects() {
			b.WriteString(" rejects")
		}
		for _, x := range []struct {
			name string
			d    *durationpb.Duration
		}{{"retry", c.GetRetryAfter()}, {"reset", c.GetResetAfter()}, {"wait", c.GetWait()}, {"penalty", c.GetPenalty()}} {
			if x.d != nil {
				fmt.Fprintf(&b, " %s=%v", x.name, x.d.AsDuration())
			}
		}
	}
	if e.GetIsOverride() {
		b.WriteString(" override")
	}
	if e.GetOverrideIgnored() != "" {
		b.WriteString(" ignored")
	}
	return b.String()
}

func TestExplainReplaces(t *testing.T) {
	s := start(t, shop)
	got, err := s.Explain(t.Context(), &adminv1.ExplainRequest{
		Domain:      "shop",
		Descriptors: []*adminv1.Descriptor{{Entries: entries("both", "x")}, {Entries: entries("boss", "y")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	limits := got.GetDescriptors()[0].GetCounter().GetLimits()
	if len(limits) != 1 || limits[0].GetUnit() != adminv1.Unit_UNIT_DAY {
		t.Errorf("limits in force %v; want only the one per day, because boss replaces the other", limits)
	}
}

func TestExplainUnknownDomain(t *testing.T) {
	s := start(t, shop)
	got, err := s.Explain(t.Context(), &adminv1.ExplainRequest{
		Domain: "nobody", Descriptors: []*adminv1.Descriptor{{Entries: entries("user", "u1")}},
	})
	if err != nil || got.GetDomainKnown() || got.GetOverLimit() || len(got.GetDescriptors()) != 1 {
		t.Errorf("%v, %v; want one descriptor without a limit", got, err)
	}
}
