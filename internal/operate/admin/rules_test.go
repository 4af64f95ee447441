package admin_test

import (
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/rules.json")

// full has a rule of each algorithm and every key of a rule.
const full = `domain: d
descriptors:
  - key: fixed
    quota_mode: true
    rate_limit: {unit: hour, unit_multiplier: 2, requests_per_unit: 10, align: first, on_failure: deny}
  - key: sliding
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window, precision: 6, lease: off, on_failure: local}
  - key: log
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_log, on_failure: allow, count_refused: true}
  - key: token
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 20, initial: 0, fill_interval: 100ms, on_failure: error}
  - key: debt
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: token_bucket, debt: 30}
  - key: leaky
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_bucket, burst: 5}
  - key: slots
    descriptors:
      - key: owner
        rate_limit: {unit: minute, requests_per_unit: 2, algorithm: concurrency, holder: owner}
  - key: gate
    rate_limit: {unit: minute, requests_per_unit: 2, penalty: {for: 5m, on: reached, escalate: 2, max: 24h}}
  - key: list
    shadow_mode: true
    rate_limits:
      - {name: a, unit: second, requests_per_unit: 10}
      - {unit: day, requests_per_unit: 250, replaces: [{name: b}]}
  - key: free
    rate_limit: {unlimited: true}
  - key: quarter
    rate_limit: {unit: month, unit_multiplier: 3, requests_per_unit: 2, calendar: true, timezone: Europe/Berlin}
  - key: week
    metadata: {team: edge, tier: 2}
    rate_limit: {unit: week, requests_per_unit: 2, calendar: true}
`

// TestListRules: ListRules and the JSON format contain all properties of a rule.
func TestListRules(t *testing.T) {
	var b strings.Builder
	if err := admin.WriteRulesJSON(&b, nil); err != nil || b.String() != "{\"rules\":[\n]}\n" {
		t.Errorf("without rules: %q, %v; want an empty list", b.String(), err)
	}
	s := start(t, full)
	b.Reset()
	if err := admin.WriteRulesJSON(&b, s.limiter.Rules()); err != nil {
		t.Fatal(err)
	}
	goldentest.Golden(t, "testdata/rules.json", b.String(), *rewrite)
	var want adminv1.ListRulesResponse
	if err := protojson.Unmarshal([]byte(b.String()), &want); err != nil {
		t.Fatalf("%v:\n%s", err, b.String())
	}
	got, err := s.ListRules(t.Context(), &adminv1.ListRulesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got, protocmp.Transform(), protocmp.IgnoreFields(got, "states", "time", "total")); diff != "" || got.GetTotal() != 12 {
		t.Errorf("%d rules (-JSON +messages):\n%s", got.GetTotal(), diff)
	}
	if err := admin.WriteRulesJSON(fullWriter{}, s.limiter.Rules()); !errors.Is(err, errFull) {
		t.Errorf("a failing writer: %v; want its error", err)
	}
}

// numbered returns n rules, d.k0 to d.k(n-1), each with a name of size bytes.
func numbered(n, size int) string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	name := strings.Repeat("n", size)
	for i := range n {
		fmt.Fprintf(&b, "  - key: k%d\n    rate_limit: {unit: second, requests_per_unit: 1, name: %q}\n", i, name)
	}
	return b.String()
}

// TestListRulesPages: pages list every rule once, in order, and are smaller than gRPC's default maximum of 4 MiB.
func TestListRulesPages(t *testing.T) {
	for _, tt := range []struct {
		name    string
		n, size int
		page    int32
		prefix  string
		search  string
		want    int
	}{
		{"pages of three", 10, 1, 3, "", "", 10},
		{"a last page that is full", 9, 1, 3, "", "", 9},
		{"the usual size", 2500, 1, 0, "", "", 2500},
		{"a size that is too large", 2500, 1, 1 << 30, "", "", 2500},
		{"large rules", 900, 10_000, 0, "", "", 900},
		{"a prefix", 100, 1, 3, "d.k1", "", 11},
		{"a prefix of none", 100, 1, 3, "e.", "", 0},
		{"words", 100, 1, 3, "", "K1 second rules.yaml", 11},
		{"words of none", 100, 1, 3, "", "k1 unlimited", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t, numbered(tt.n, tt.size))
			var got []string
			q := &adminv1.ListRulesRequest{PageSize: tt.page, PathPrefix: tt.prefix, Search: tt.search}
			for {
				a, err := s.ListRules(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				if int(a.GetTotal()) != tt.want {
					t.Fatalf("total %d, want %d", a.GetTotal(), tt.want)
				}
				if n := len(a.GetRules()); tt.page > 0 && tt.page < 1000 && n > int(tt.page) || n > 1000 {
					t.Fatalf("a page of %d rules", n)
				}
				for _, r := range a.GetRules() {
					got = append(got, r.GetPath())
				}
				if q.PageToken = a.GetNextPageToken(); q.GetPageToken() == "" {
					break
				}
			}
			var want []string
			for i := range tt.n {
				if p := fmt.Sprintf("d.k%d", i); strings.HasPrefix(p, tt.prefix) && (tt.search == "" || tt.want > 0 && strings.HasPrefix(p, "d.k1")) {
					want = append(want, p)
				}
			}
			if !slices.Equal(got, want) || len(got) != tt.want {
				t.Errorf("%d rules: %.200v; want %d: %.200v", len(got), got, tt.want, want)
			}
			_, err := s.ListRules(t.Context(), &adminv1.ListRulesRequest{Search: strings.Repeat("x", 257)})
			wantStatus(t, err, codes.InvalidArgument, "search has 257 bytes: it may have at most 256")
		})
	}
}

// TestListRulesReload: a page token from before a reload that changed the rules is rejected, because the pages would be
// inconsistent.
func TestListRulesReload(t *testing.T) {
	s := start(t, numbered(10, 1))
	first, err := s.ListRules(t.Context(), &adminv1.ListRulesRequest{PageSize: 5})
	if err != nil {
		t.Fatal(err)
	}
	next := &adminv1.ListRulesRequest{PageSize: 5, PageToken: first.GetNextPageToken()}
	for name, rules := range map[string]string{
		"other rules": strings.ReplaceAll(numbered(10, 1), "key: k", "key: j"),
		"fewer rules": numbered(3, 1),
	} {
		s.load(t, rules)
		_, err := s.ListRules(t.Context(), next)
		t.Run(name, func(t *testing.T) { wantStatus(t, err, codes.Aborted, "start again without page_token") })
	}
	s.load(t, numbered(10, 1))
	if a, err := s.ListRules(t.Context(), next); err != nil || len(a.GetRules()) != 5 {
		t.Errorf("with unchanged rules: %v, %v; want the other five", a, err)
	}
}

func TestWriteRules(t *testing.T) {
	var b strings.Builder
	if err := admin.WriteRules(&b, nil); err != nil || b.String() != "" {
		t.Errorf("without rules: %q, %v; want nothing", b.String(), err)
	}
	s := start(t, `domain: shop
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 2}
- key: a
  value: b
  shadow_mode: true
  rate_limit: {unit: day, requests_per_unit: 3}
  descriptors:
  - key: c
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 7}
- key: u
  rate_limit: {unlimited: true}
- key: nothing
`)
	if err := admin.WriteRulesVerbose(&b, s.limiter.Rules()); err != nil {
		t.Fatal(err)
	}
	want := `# rules.yaml:3
shop.a: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false
# rules.yaml:5
shop.a_b: unit=DAY requests_per_unit=3, shadow_mode: true, quota_mode: false
# rules.yaml:10
shop.a_b.c: unit=MINUTE requests_per_unit=7, shadow_mode: false, quota_mode: true
# rules.yaml:13, unlimited
shop.u: unit=UNKNOWN requests_per_unit=0, shadow_mode: false, quota_mode: false
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	b.Reset()
	if err := admin.WriteRules(&b, s.limiter.Rules()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(want, ""), b.String()); diff != "" {
		t.Errorf("format of envoyproxy/ratelimit (-want +got):\n%s", diff)
	}
	if err := admin.WriteRules(fullWriter{}, s.limiter.Rules()); !errors.Is(err, errFull) {
		t.Errorf("a failing writer: %v; want its error", err)
	}
}

var errFull = errors.New("full")

// fullWriter fails every write.
type fullWriter struct{}

func (fullWriter) Write([]byte) (int, error) { return 0, errFull }

// TestMessageHasWhatTheEngineHas: the message of a limit has a value for each algorithm and a field for each parameter.
func TestMessageHasWhatTheEngineHas(t *testing.T) {
	for a := range engine.Algorithms() {
		if name := "ALGORITHM_" + strings.ToUpper(a.String()); adminv1.Algorithm_value[name] == 0 {
			t.Errorf("admin.proto lacks %s", name)
		}
	}
	fields := (&adminv1.Limit{}).ProtoReflect().Descriptor().Fields()
	for p := range engine.Parameters() {
		if fields.ByName(protoreflect.Name(p.String())) == nil {
			t.Errorf("admin.proto lacks the field %s in Limit", p)
		}
	}
}

// TestRuleStates: the state of a rule has its levels, even if domains and keys contain dots, its tally, and its controls.
func TestRuleStates(t *testing.T) {
	t.Parallel()
	s := start(t, `domain: shop.eu
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
    descriptors:
      - key: to.where
        value: a.b
        rate_limit: {unit: minute, requests_per_unit: 1}
  - key: any
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: free
    rate_limit: {unlimited: true}
`)
	for range 5 {
		s.hit(t, "shop.eu", 1, "user", "ann")
		s.hit(t, "shop.eu", 1, "user", "ann", "to.where", "a.b")
		s.hit(t, "shop.eu", 2, "free", "x")
	}
	for _, value := range []string{"a", "b", "c"} {
		s.hit(t, "shop.eu", 2, "any", value)
		s.hit(t, "shop.eu", 1, "any", value)
	}
	b, err := s.Block(t.Context(), &adminv1.BlockRequest{Domain: "shop.eu", Entries: entries("user", "eve"), For: durationpb.New(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	want := []*adminv1.RuleState{
		{
			Domain: "shop.eu", Levels: []*adminv1.EntryFilter{{Key: "user"}}, Allowed: 3, Rejected: 2,
			OnFailure: adminv1.OnFailure_ON_FAILURE_ERROR, Controls: []string{b.GetControl().GetId()},
		},
		{
			Domain: "shop.eu", Levels: []*adminv1.EntryFilter{{Key: "user"}, {Key: "to.where", Value: new("a.b")}}, Allowed: 1, Rejected: 4,
			OnFailure: adminv1.OnFailure_ON_FAILURE_ERROR,
		},
		{Domain: "shop.eu", Levels: []*adminv1.EntryFilter{{Key: "any"}}, Allowed: 6, Rejected: 3, OnFailure: adminv1.OnFailure_ON_FAILURE_ERROR},
		{Domain: "shop.eu", Levels: []*adminv1.EntryFilter{{Key: "free"}}, Allowed: 10, OnFailure: adminv1.OnFailure_ON_FAILURE_ERROR},
	}
	var got []*adminv1.RuleState
	q := &adminv1.ListRulesRequest{PageSize: 3}
	for more := true; more; more = q.GetPageToken() != "" {
		page, err := s.ListRules(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.GetRules()) != len(page.GetStates()) {
			t.Errorf("%d rules and %d states on a page", len(page.GetRules()), len(page.GetStates()))
		}
		got, q.PageToken = append(got, page.GetStates()...), page.GetNextPageToken()
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}
