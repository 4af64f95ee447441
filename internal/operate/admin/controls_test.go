package admin_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func block(domain string, d time.Duration, kvs ...string) *adminv1.BlockRequest {
	return &adminv1.BlockRequest{Domain: domain, Entries: entries(kvs...), For: durationpb.New(d)}
}

// TestInvalidControls: an invalid control is INVALID_ARGUMENT, and the error explains what is valid.
func TestInvalidControls(t *testing.T) {
	s := start(t, shop)
	ctx := t.Context()
	limit := func(change func(*adminv1.LimitRequest)) error {
		q := &adminv1.LimitRequest{
			Domain: "shop", Entries: entries("user", "u1"), For: durationpb.New(time.Hour),
			To: &adminv1.Override{RequestsPerUnit: 5, Unit: adminv1.Unit_UNIT_MINUTE},
		}
		change(q)
		_, err := s.Limit(ctx, q)
		return err
	}
	blocked := func(q *adminv1.BlockRequest) error {
		_, err := s.Block(ctx, q)
		return err
	}
	lift := func(ids ...string) error {
		_, err := s.Lift(ctx, &adminv1.LiftRequest{Ids: ids})
		return err
	}
	list := func(q *adminv1.ListControlsRequest) error {
		_, err := s.ListControls(ctx, q)
		return err
	}
	grant := func(q *adminv1.GrantRequest) error {
		_, err := s.Grant(ctx, q)
		return err
	}
	for _, tt := range []struct {
		err  error
		code codes.Code
		want string
	}{
		{blocked(&adminv1.BlockRequest{}), codes.InvalidArgument, "the duration is missing: set the field for, from 1s to 30 days (720h)"},
		{
			blocked(&adminv1.BlockRequest{For: &durationpb.Duration{Seconds: 9999999 * 3600}}),
			codes.InvalidArgument, "for is 35999996400 seconds: it must be from 1s to 30 days (720h)",
		},
		{blocked(&adminv1.BlockRequest{For: &durationpb.Duration{Seconds: 1, Nanos: -1}}), codes.InvalidArgument, "from 1s to 30 days"},
		{blocked(&adminv1.BlockRequest{For: &durationpb.Duration{Seconds: 1 << 40}}), codes.InvalidArgument, "from 1s to 30 days"},
		{blocked(block("", time.Hour, "user", "u1")), codes.InvalidArgument, "the domain is empty"},
		{blocked(block("shop", time.Hour)), codes.InvalidArgument, "add at least one, or set below"},
		{blocked(block("shop", time.Hour, "", "u1")), codes.InvalidArgument, "each entry needs a key"},
		{blocked(block("shop", -time.Hour, "user", "u1")), codes.InvalidArgument, "from 1s to 30 days"},
		{blocked(block("shop", time.Hour, "user", strings.Repeat("x", 4096))), codes.InvalidArgument, "at most 4096"},
		{limit(func(q *adminv1.LimitRequest) { q.To = nil }), codes.InvalidArgument, "set the field to"},
		{limit(func(q *adminv1.LimitRequest) { q.To.Unit = 0 }), codes.InvalidArgument, "it must be second, minute,"},
		{limit(func(q *adminv1.LimitRequest) { q.To.Unit = 99 }), codes.InvalidArgument, "it must be second, minute,"},
		{limit(func(q *adminv1.LimitRequest) { q.To.UnitMultiplier = 1 << 31 }), codes.InvalidArgument, "a window of more than 2^48"},
		{limit(func(q *adminv1.LimitRequest) { q.LimitName = "x" }), codes.NotFound, "has no limit called"},
		{limit(func(q *adminv1.LimitRequest) { q.Domain = "nowhere" }), codes.NotFound, "no domain nowhere"},
		{limit(func(q *adminv1.LimitRequest) { q.Domain, q.Below = "nowhere", true }), codes.NotFound, "no domain nowhere"},
		{limit(func(q *adminv1.LimitRequest) { q.Entries = entries("none", "1") }), codes.NotFound, "no limit applies"},
		{lift(), codes.InvalidArgument, "pass one or more IDs"},
		{lift(make([]string, 101)...), codes.InvalidArgument, "at most 100"},
		{lift("x"), codes.NotFound, `no such control is active: "x"`},
		{list(&adminv1.ListControlsRequest{PageSize: -1}), codes.InvalidArgument, "want 1 to 500, or 0 for 100"},
		{list(&adminv1.ListControlsRequest{PageToken: "x"}), codes.InvalidArgument, "page_token"},
		{grant(&adminv1.GrantRequest{Domain: "shop", Entries: entries("user", "u1")}), codes.InvalidArgument, "it must be 1 or more"},
		{grant(&adminv1.GrantRequest{Domain: "shop", Hits: 1}), codes.InvalidArgument, "no entries"},
		{grant(&adminv1.GrantRequest{Hits: 1, Entries: entries("user", "u1")}), codes.InvalidArgument, "domain must not be empty"},
	} {
		if status.Code(tt.err) != tt.code || !strings.Contains(fmt.Sprint(tt.err), tt.want) {
			t.Errorf("got %v, want %v with %q", tt.err, tt.code, tt.want)
		}
	}
}

// TestControlPages: controls come in pages, sorted by domain and entries. Bytes that are not UTF-8 are preserved.
func TestControlPages(t *testing.T) {
	all := controls.New(controls.Config{})
	s := startOn(t, shop, socket(t), admin.Config{Controls: all})
	for i := range 5 {
		if _, err := s.Block(t.Context(), block("shop", time.Hour, "user", fmt.Sprintf("u%d", 4-i))); err != nil {
			t.Fatal(err)
		}
	}
	raw := []*adminv1.Entry{{Key: "user", RawValue: []byte("\xff")}}
	if _, err := s.Block(t.Context(), &adminv1.BlockRequest{Domain: "other", Entries: raw, For: durationpb.New(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	q, got := &adminv1.ListControlsRequest{PageSize: 4}, ""
	for {
		page, err := s.ListControls(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.GetControls() {
			got += fmt.Sprintf("%s.%s%s ", c.GetDomain(), c.GetEntries()[0].GetValue(), c.GetEntries()[0].GetRawValue())
		}
		got += "| "
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			break
		}
	}
	if want := "other.\uFFFD\xff shop.u0 shop.u1 shop.u2 | shop.u3 shop.u4 | "; got != want {
		t.Errorf("pages %q, want %q", got, want)
	}
}

// TestPagesOfLargeControls: all controls are listed, and every page is small enough for any client, however large the controls
// are.
func TestPagesOfLargeControls(t *testing.T) {
	all := controls.New(controls.Config{})
	s := startOn(t, shop, socket(t), admin.Config{Controls: all})
	for i := range 500 {
		c := override.Control{Domain: "shop", Entries: []override.Entry{{Key: "user", Value: strings.Repeat("\xffa", 2040) + strconv.Itoa(i)}}}
		if _, err := all.Set(t.Context(), &c, time.Hour, false); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for q := (&adminv1.ListControlsRequest{PageSize: 500}); ; {
		page, err := s.ListControls(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.GetControls() {
			seen[c.GetId()] = true
		}
		if q.PageToken = page.GetNextPageToken(); q.PageToken == "" {
			break
		}
	}
	if len(seen) != 500 {
		t.Errorf("%d controls, want 500", len(seen))
	}
}

// TestEnormousControls: overlong texts are rejected with a message that is small enough for any client.
func TestEnormousControls(t *testing.T) {
	s := start(t, shop)
	long, hour := strings.Repeat("x", 1<<20), durationpb.New(time.Hour)
	limit := func(domain string, below bool, name string, e ...string) *adminv1.LimitRequest {
		to := &adminv1.Override{RequestsPerUnit: 5, Unit: adminv1.Unit_UNIT_MINUTE}
		return &adminv1.LimitRequest{Domain: domain, Below: below, LimitName: name, Entries: entries(e...), For: hour, To: to}
	}
	for name, err := range map[string]error{
		"block domain":     failing(t, s.Block, block(long, time.Hour, "user", "u1")),
		"block key":        failing(t, s.Block, block("shop", time.Hour, long, "u1")),
		"block reason":     failing(t, s.Block, &adminv1.BlockRequest{Domain: "shop", Below: true, For: hour, Reason: long}),
		"limit name":       failing(t, s.Limit, limit("shop", false, long, "user", "u1")),
		"limit name below": failing(t, s.Limit, limit("shop", true, long)),
		"limit domain":     failing(t, s.Limit, limit(long, false, "", "user", "u1")),
		"limit value":      failing(t, s.Limit, limit("shop", false, "", "none", long)),
		"limit key":        failing(t, s.Limit, limit("shop", false, "", long, "x")),
		"lift":             failing(t, s.Lift, &adminv1.LiftRequest{Ids: []string{long}}),
		"grant domain":     failing(t, s.Grant, &adminv1.GrantRequest{Domain: long, Hits: 1, Entries: entries("user", "u1")}),
		"grant key":        failing(t, s.Grant, &adminv1.GrantRequest{Domain: "shop", Hits: 1, Entries: entries(long, "u1")}),
		"top rule":         failing(t, s.Top, &adminv1.TopRequest{Rule: long}),
		"top domain":       failing(t, s.Top, &adminv1.TopRequest{Rule: "shop.user", Domain: long}),
	} {
		if c := status.Code(err); c != codes.InvalidArgument && c != codes.NotFound {
			t.Errorf("%s: code %v", name, c)
		}
		if n := len(status.Convert(err).Message()); n > 2100 {
			t.Errorf("%s: the message has %d bytes", name, n)
		}
	}
}
