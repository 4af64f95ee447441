package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestExplain(t *testing.T) {
	s := start(t, shop)
	for _, over := range []bool{false, false, false, true} {
		if got := s.hit(t, "shop", 1, "user", "u1"); got != over {
			t.Fatalf("a hit: over = %t; want %t", got, over)
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
		t.Errorf("steps %v; want the first to tell what user=u1 met", steps)
	}
	again, err := s.Peek(t.Context(), &adminv1.PeekRequest{Domain: "shop", Entries: entries("user", "u2")})
	if err != nil || again.GetCounter().GetLeft() != 3 {
		t.Errorf("after explaining, Peek: %v, %v; want 3 left", again, err)
	}
}

// summary is an explanation in a line.
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
		t.Errorf("limits in force %v; want the one per day, because boss replaces the other", limits)
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
