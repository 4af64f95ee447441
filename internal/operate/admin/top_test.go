package admin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const topRules = `
domain: shop
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 3}
- key: path
  rate_limit: {unit: hour, requests_per_unit: 100}
`

func entryText(es []*adminv1.Entry) string {
	var pairs []string
	for _, e := range es {
		pairs = append(pairs, e.GetKey()+"="+e.GetValue())
	}
	return strings.Join(pairs, ",")
}

func TestTop(t *testing.T) {
	s := start(t, topRules)
	s.hit(t, "shop", 2, "user", "ann")
	for range 3 {
		s.hit(t, "shop", 4, "user", "bob")
	}
	s.hit(t, "shop", 7, "path", "/")
	s.hit(t, "bank", 1, "user", "\xff")
	filter := func(key string, value *string) []*adminv1.EntryFilter {
		return []*adminv1.EntryFilter{{Key: key, Value: value}}
	}
	for name, c := range map[string]struct {
		ask  *adminv1.TopRequest
		want []string
	}{
		"all":      {&adminv1.TopRequest{}, []string{"shop.user user=bob 12 3", "shop.path path=/ 7 0", "shop.user user=ann 2 0", " user=\uFFFD 1 0"}},
		"hour":     {&adminv1.TopRequest{Window: adminv1.Window_WINDOW_HOUR, PageSize: 1}, []string{"shop.user user=bob 12 3"}},
		"rule":     {&adminv1.TopRequest{Rule: "shop.user"}, []string{"shop.user user=bob 12 3", "shop.user user=ann 2 0"}},
		"domain":   {&adminv1.TopRequest{Domain: "bank"}, []string{" user=\uFFFD 1 0"}},
		"value":    {&adminv1.TopRequest{Entries: filter("user", new("ann"))}, []string{"shop.user user=ann 2 0"}},
		"key":      {&adminv1.TopRequest{Entries: filter("path", nil)}, []string{"shop.path path=/ 7 0"}},
		"rejected": {&adminv1.TopRequest{Ranking: adminv1.Ranking_RANKING_REJECTED}, []string{"shop.user user=bob 12 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := s.Top(t.Context(), c.ask)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range a.GetEntries() {
				got = append(got, fmt.Sprintf("%s %s %d %d", e.GetRule(), entryText(e.GetEntries()), e.GetHits(), e.GetRejected()))
				if e.GetHitsError()+e.GetRejectedError() > 0 {
					t.Errorf("%v has an error, though all hits are counted", e)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("entries %q, want %q", got, c.want)
			}
			if a.GetSampledOneIn() != 1 || a.GetUnknownHits() != 0 || a.GetFrom().AsTime().After(a.GetTo().AsTime()) {
				t.Errorf("the rest of the answer: %v", a)
			}
		})
	}
}

// TestTopRules: the totals of a rule are the sums of its descriptors.
func TestTopRules(t *testing.T) {
	s := start(t, topRules)
	s.hit(t, "shop", 2, "user", "ann")
	for _, user := range []string{"bob", "cyd"} {
		s.hit(t, "shop", 4, "user", user)
	}
	s.hit(t, "shop", 7, "path", "/")
	for _, window := range []adminv1.Window{adminv1.Window_WINDOW_MINUTE, adminv1.Window_WINDOW_HOUR} {
		for ranking, want := range map[adminv1.Ranking]string{
			adminv1.Ranking_RANKING_BUSIEST:  "shop shop.user 10 2; shop shop.path 7 0; ",
			adminv1.Ranking_RANKING_REJECTED: "shop shop.user 10 2; ",
		} {
			a, err := s.Top(t.Context(), &adminv1.TopRequest{Ranking: ranking, Window: window})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, r := range a.GetRules() {
				got += fmt.Sprintf("%s %s %d %d; ", r.GetDomain(), r.GetRule(), r.GetHits(), r.GetRejected())
			}
			if got != want {
				t.Errorf("%v, %v: %q, want %q", window, ranking, got, want)
			}
		}
	}
	for _, q := range []*adminv1.TopRequest{{Rule: "shop.path"}, {Entries: []*adminv1.EntryFilter{{Key: "path"}}}} {
		if a, err := s.Top(t.Context(), q); err != nil || len(a.GetRules()) > 0 || len(a.GetEntries()) != 1 {
			t.Errorf("%v: %v, %v", q, a, err)
		}
	}
}

//nolint:ireturn // signature of gRPC
func watching(t *testing.T, s *server, q *adminv1.WatchRequest) adminv1.AdminService_WatchClient {
	t.Helper()
	return watchingAs(t, t.Context(), s, q)
}

func watchingAs(t *testing.T, ctx context.Context, s *server, q *adminv1.WatchRequest) adminv1.AdminService_WatchClient { //nolint:ireturn,revive // signature of gRPC; t comes first
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	t.Cleanup(cancel)
	stream, err := s.Watch(ctx, q)
	if err == nil {
		_, err = stream.Header() // no decision is missed after this
	}
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestWatch(t *testing.T) {
	s := start(t, topRules)
	all := watching(t, s, &adminv1.WatchRequest{})
	rejected := watching(t, s, &adminv1.WatchRequest{Rule: "shop.user", Outcomes: []adminv1.Outcome{adminv1.Outcome_OUTCOME_REJECTED}})
	one := watching(t, s, &adminv1.WatchRequest{MaxPerSecond: 1})
	s.hit(t, "shop", 2, "user", "ann")
	s.hit(t, "shop", 4, "user", "bob")
	s.hit(t, "shop", 1, "other", "x")
	var got []string
	for len(got) < 3 {
		a, err := all.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range a.GetDecisions() {
			got = append(got, fmt.Sprintf("%s %s %s %q %v %v %d left %d %s", d.GetCaller(), d.GetDomain(), entryText(d.GetEntries()), d.GetRule(),
				d.GetOutcome(), d.GetSource(), d.GetHits(), d.GetLeft(), d.GetLimit()))
			if time.Since(d.GetTime().AsTime()).Abs() > time.Minute {
				t.Errorf("time %v", d.GetTime().AsTime())
			}
		}
	}
	want := []string{
		`10.0.0.7:51234 shop user=ann "shop.user" OUTCOME_ADMITTED SOURCE_STORE 2 left 1 3 per hour`,
		`10.0.0.7:51234 shop user=bob "shop.user" OUTCOME_REJECTED SOURCE_STORE 4 left 0 3 per hour`,
		`10.0.0.7:51234 shop other=x "" OUTCOME_NO_LIMIT SOURCE_UNSPECIFIED 1 left 0 `,
	}
	if !slices.Equal(got, want) {
		t.Errorf("decisions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	a, err := rejected.Recv()
	if err != nil || len(a.GetDecisions()) != 1 || entryText(a.GetDecisions()[0].GetEntries()) != "user=bob" || a.GetDecisions()[0].GetRetryAfter() != nil { // 4 of 3 are never admitted
		t.Errorf("rejected: %v, %v", a, err)
	}
	lines, skipped := 0, uint64(0)
	for lines+int(skipped) < 3 {
		a, err := one.Recv()
		if err != nil {
			t.Fatal(err)
		}
		lines, skipped = lines+len(a.GetDecisions()), skipped+a.GetSkipped()
	}
	if lines == 3 {
		t.Error("three lines in a second, want one")
	}
}

// TestSlowWatcher: a slow caller loses lines, learns their number, and delays no decision.
func TestSlowWatcher(t *testing.T) {
	s := start(t, topRules)
	slow := watching(t, s, &adminv1.WatchRequest{MaxPerSecond: 10_000})
	const asked = 5000
	began := time.Now()
	for range asked {
		s.hit(t, "shop", 1, "other", strings.Repeat("x", 900))
	}
	t.Logf("%d requests took %v", asked, time.Since(began))
	lines, missed := 0, uint64(0)
	for lines+int(missed) < asked {
		a, err := slow.Recv()
		if err != nil {
			t.Fatal(err)
		}
		lines, missed = lines+len(a.GetDecisions()), missed+a.GetLost()+a.GetSkipped()
	}
	if lines+int(missed) != asked || missed == 0 {
		t.Errorf("%d lines: %d arrived, and %d were missed", asked, lines, missed)
	}
}

// TestTopReserved: Top reports reserved hits only for rules that reserve, not for a rule with the same path in another domain.
func TestTopReserved(t *testing.T) {
	s := start(t, "")
	s.load(t, `
domain: shop
descriptors:
- key: eu
  descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 9}
`, `
domain: shop.eu
descriptors:
- key: user
  rate_limit: {unit: hour, requests_per_unit: 9, reserve: {estimate: 2, ttl: 5m}}
`)
	s.hit(t, "shop", 1, "eu", "x", "user", "ann")
	s.hit(t, "shop.eu", 2, "user", "ann")
	a, err := s.Top(t.Context(), &adminv1.TopRequest{Rule: "shop.eu.user"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range a.GetEntries() {
		got = append(got, fmt.Sprintf("%s %d %t", e.GetDomain(), e.GetHits(), e.Reserved != nil))
	}
	if want := []string{"shop.eu 2 true", "shop 1 false"}; !slices.Equal(got, want) {
		t.Errorf("entries, and whether they have reserved hits: %q, want %q", got, want)
	}
}

func TestTopAndWatchRejectBadInput(t *testing.T) {
	s := start(t, topRules)
	keyless := []*adminv1.EntryFilter{{Value: new("ann")}}
	many := slices.Repeat([]*adminv1.EntryFilter{{Key: "user"}}, 257)
	for _, c := range []struct {
		top   *adminv1.TopRequest
		watch *adminv1.WatchRequest
		code  codes.Code
		text  string
	}{
		{
			&adminv1.TopRequest{Rule: "shop.usr"}, &adminv1.WatchRequest{Rule: "shop.usr"}, codes.NotFound,
			"no rule shop.usr: use the path of a rule, such as shop.user; ListRules returns all of them",
		},
		{
			&adminv1.TopRequest{Rule: "shop.user", Domain: "bank"}, &adminv1.WatchRequest{Rule: "shop.user", Domain: "bank"}, codes.InvalidArgument,
			"the rule shop.user is not in the domain bank: leave one of them out",
		},
		{
			&adminv1.TopRequest{Entries: keyless}, &adminv1.WatchRequest{Entries: keyless}, codes.InvalidArgument,
			"an element of entries has no key: set the key of an entry, such as user, and a value unless any value matches",
		},
		{
			&adminv1.TopRequest{Entries: many}, &adminv1.WatchRequest{Entries: many}, codes.InvalidArgument,
			"entries has 257 elements: want at most 256, the maximum for a descriptor",
		},
		{&adminv1.TopRequest{Ranking: 3}, nil, codes.InvalidArgument, "ranking is 3: want RANKING_BUSIEST or RANKING_REJECTED"},
		{&adminv1.TopRequest{Window: 9}, nil, codes.InvalidArgument, "window is 9: want WINDOW_MINUTE or WINDOW_HOUR"},
		{&adminv1.TopRequest{PageSize: -1}, nil, codes.InvalidArgument, "page_size is -1: want 1 to 1000, or 0 for 20"},
		{&adminv1.TopRequest{PageSize: 1001}, nil, codes.InvalidArgument, "page_size is 1001: want 1 to 1000, or 0 for 20"},
		{nil, &adminv1.WatchRequest{MaxPerSecond: 10_001}, codes.InvalidArgument, "max_per_second is 10001: want 1 to 10000, or 0 for 1000"},
		{
			nil, &adminv1.WatchRequest{Outcomes: []adminv1.Outcome{0}}, codes.InvalidArgument,
			"outcomes has OUTCOME_UNSPECIFIED: want OUTCOME_NO_LIMIT, _UNLIMITED, _REPLACED, _ADMITTED, _REJECTED, _SHADOWED, _BLOCKED, _ALLOWED, _FAILED, _LATE_CHARGE or _SKIPPED",
		},
	} {
		check := func(err error) {
			t.Helper()
			if got := status.Convert(err); got.Code() != c.code || got.Message() != c.text {
				t.Errorf("error %v: %s\nwant %v: %s", got.Code(), got.Message(), c.code, c.text)
			}
		}
		if c.top != nil {
			_, err := s.Top(t.Context(), c.top)
			check(err)
		}
		if c.watch != nil {
			stream, err := s.Watch(t.Context(), c.watch)
			if err == nil {
				_, err = stream.Recv()
			}
			check(err)
		}
	}
}

func TestWatchersAreBounded(t *testing.T) {
	s := start(t, topRules)
	for range 8 {
		watching(t, s, &adminv1.WatchRequest{})
	}
	stream, err := s.Watch(t.Context(), &adminv1.WatchRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if got := status.Convert(err); got.Code() != codes.ResourceExhausted || !strings.HasSuffix(got.Message(), "end one of them") {
		t.Errorf("the ninth watcher: %v", err)
	}
}

// TestMaskedValues: a caller without permission for values sees keys, rules, and which values are equal.
func TestMaskedValues(t *testing.T) {
	s := startOn(t, topRules, testkit.Listen(t), admin.Config{Access: access.Policy{ReadTokenFile: tokenFile(t, "looks")}})
	ctx := bearer(t.Context(), "Bearer looks")
	stream := watchingAs(t, ctx, s, &adminv1.WatchRequest{})
	s.hit(t, "shop", 2, "user", "ann")
	s.hit(t, "shop", 1, "user", "bob")
	s.hit(t, "shop", 1, "path", "ann")
	a, err := s.Top(ctx, &adminv1.TopRequest{})
	if err != nil || len(a.GetEntries()) != 3 {
		t.Fatalf("answer %v, %v", a, err)
	}
	if all := a.String(); strings.Contains(all, "ann") || strings.Contains(all, "bob") || !strings.Contains(all, "shop.user") {
		t.Errorf("answer %s", all)
	}
	value := a.GetEntries()[0].GetEntries()[0].GetValue()
	if same := a.GetEntries()[1].GetEntries()[0].GetValue(); value != same || !strings.HasPrefix(value, "#") {
		t.Errorf("the same value is %s and %s", value, same)
	}
	w, err := stream.Recv()
	if err != nil || w.GetDecisions()[0].GetEntries()[0].GetValue() != value || strings.Contains(w.String(), "ann") {
		t.Errorf("watcher: %v, %v", w, err)
	}
	byValue := []*adminv1.EntryFilter{{Key: "user", Value: new("ann")}}
	if _, err := s.Top(ctx, &adminv1.TopRequest{Entries: byValue}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a filter by value: %v", err)
	}
	if _, err := s.Top(ctx, &adminv1.TopRequest{Entries: []*adminv1.EntryFilter{{Key: "user"}}}); err != nil {
		t.Errorf("a filter by key: %v", err)
	}
}
