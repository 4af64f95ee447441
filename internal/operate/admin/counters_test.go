package admin_test

import (
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
		t.Errorf("key %q; want the name in a store", key)
	}
}

// A value that is not UTF-8 has a counter of its own, which raw_value finds.
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
		t.Errorf("a dry run: %v, %v, and the log has %q", dry, err, s.log.String())
	}
	got, err := s.Reset(t.Context(), &adminv1.ResetRequest{Domain: "shop", Entries: entries("user", "u1")})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetRule().GetPath() != "shop.user" || got.GetCounter().GetLeft() != 3 {
		t.Errorf("%v; want shop.user with 3 left", got)
	}
	if s.hit(t, "shop", 3, "user", "u1") {
		t.Error("after the reset u1 is rejected")
	}
	if !s.hit(t, "shop", 1, "user", "u2") {
		t.Error("the reset of u1 let u2 go")
	}
	want := ` domain=shop keys=[user] what=reset reason="" before="shop.user: 0 left" after="shop.user: 3 left"`
	if log := s.log.String(); !strings.HasPrefix(log, "time=") || !strings.Contains(log, `msg="an operator made a change" method=Reset `) ||
		!strings.Contains(log, ` by="this machine" from="unix socket"`) || !strings.Contains(log, want) || strings.Contains(log, "u1") {
		t.Errorf("the log does not tell who reset what and when, or tells of values: %q", log)
	}
}

// Row 15 of algorithms.md: a reset while a penalty runs is rejected unless forced, and told how long it still runs.
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
		t.Error("a rejected reset ended the penalty")
	}

	q.Force = true
	if _, err := s.Reset(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	if s.hit(t, "shop", 2, "login", "bob") {
		t.Error("after a forced reset a hit is rejected")
	}
}
