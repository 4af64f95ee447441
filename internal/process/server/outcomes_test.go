package server

import (
	"context"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	ratelimitcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// outcomeRules has a rule for each outcome.
const outcomeRules = `
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: late, rate_limit: {unit: hour, requests_per_unit: 2, late_charge: true}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: one, rate_limit: {name: small, unit: hour, requests_per_unit: 2}}
  - {key: two, rate_limit: {unit: hour, requests_per_unit: 2, replaces: [{name: small}]}}
`

// TestOutcomes: all outputs agree on the outcome of a descriptor. After two requests with one hit each, the test explains and
// then makes a third one. Each row is about its first descriptor.
func TestOutcomes(t *testing.T) { //nolint:paralleltest // grpc-gateway has a variable that each new server sets
	for _, tt := range []struct {
		name        string
		env         string
		descriptors string // of the request
		operator    string // control on the last descriptor: block or allow
		explain     string
		watch       string
		code        string // of the response, and of the first descriptor
		headers     string // rule, Retry-After, and body
		class       string // counted in ratelimitd_decisions_total
		rejections  string // rule in the log
	}{
		{name: "no limit", descriptors: "none=1", explain: "NO_LIMIT", watch: "NO_LIMIT", code: "OK OK", class: "ok"},
		{name: "unlimited", descriptors: "free=1", explain: "UNLIMITED", watch: "UNLIMITED", code: "OK OK", class: "ok"},
		{
			name: "replaced", descriptors: "one=1 two=2", explain: "REPLACED", watch: "REPLACED", code: "OVER_LIMIT OK",
			headers: "shop.two retry body shop.two", class: "over_limit", rejections: "shop.two",
		},
		{name: "admitted", descriptors: "user=2", explain: "ADMITTED", watch: "ADMITTED", code: "OK OK", headers: "shop.user", class: "ok"},
		{
			name: "rejected", descriptors: "user=1", explain: "REJECTED", watch: "REJECTED", code: "OVER_LIMIT OVER_LIMIT",
			headers: "shop.user retry body shop.user", class: "over_limit", rejections: "shop.user",
		},
		{
			name: "shadow mode of the rule", descriptors: "trial=1", explain: "SHADOWED",
			watch: "SHADOWED", code: "OK OK", headers: "shop.trial", class: "shadow",
		},
		{
			name: "shadow mode of the server", env: "SHADOW_MODE=true", descriptors: "user=1", explain: "SHADOWED",
			watch: "SHADOWED", code: "OK OVER_LIMIT", headers: "shop.user", class: "shadow",
		},
		{name: "late charge", descriptors: "late=1", explain: "LATE_CHARGE", watch: "LATE_CHARGE", code: "OVER_LIMIT OVER_LIMIT", class: "late_charge"},
		{
			name: "late charge beside a rejection", descriptors: "late=1 user=1", explain: "LATE_CHARGE", watch: "LATE_CHARGE",
			code: "OVER_LIMIT OVER_LIMIT", headers: "shop.user retry body shop.user", class: "over_limit", rejections: "shop.user",
		},
		{
			name: "a rejection beside a late charge", descriptors: "user=1 late=1", explain: "REJECTED", watch: "REJECTED",
			code: "OVER_LIMIT OVER_LIMIT", headers: "shop.user retry body shop.user", class: "over_limit", rejections: "shop.user",
		},
		{
			name: "blocked", descriptors: "user=2", operator: "block", explain: "BLOCKED", watch: "BLOCKED",
			code: "OVER_LIMIT OVER_LIMIT", headers: "block:ID retry body block:ID", class: "control", rejections: "block:ID",
		},
		{
			name: "allowed", descriptors: "user=1", operator: "allow", explain: "ALLOWED",
			watch: "ALLOWED", code: "OK OK", headers: "allow:ID", class: "control",
		},
		{
			name: "skipped", descriptors: "user=3 user=2", operator: "block", explain: "SKIPPED", watch: "SKIPPED",
			code: "OVER_LIMIT OK", headers: "block:ID retry body block:ID", class: "control", rejections: "block:ID",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startOutcomes(t, tt.env)
			request := outcomeRequest(tt.descriptors)
			if tt.name != "admitted" && tt.operator != "block" {
				for range 2 {
					s.ask(t, request)
				}
			}
			s.operate(t, tt.operator, request)
			before := s.v.limiter.Decisions()
			explained, err := s.admin.Explain(t.Context(), &adminv1.ExplainRequest{Domain: "shop", Descriptors: outcomeAdmin(tt.descriptors)})
			if err != nil {
				t.Fatal(err)
			}
			watched := s.watch(t)
			answer := s.ask(t, request)
			classes := ""
			for class, n := range s.v.limiter.Decisions() {
				if n > before[class] {
					classes += limiter.Class(class).String()
				}
			}
			got := []string{
				"explain: " + strings.TrimPrefix(explained.GetDescriptors()[0].GetOutcome().String(), "OUTCOME_"),
				"watch: " + strings.TrimPrefix(watched(t).GetOutcome().String(), "OUTCOME_"),
				"code: " + answer.GetOverallCode().String() + " " + answer.GetStatuses()[0].GetCode().String(),
				"headers: " + outcomeHeaders(answer),
				"class: " + classes,
				"rejections: " + s.rejections(),
			}
			want := []string{
				"explain: " + tt.explain, "watch: " + tt.watch, "code: " + tt.code,
				"headers: " + tt.headers, "class: " + tt.class, "rejections: " + tt.rejections,
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("%s\n  want %s", got[i], want[i])
				}
			}
		})
	}
}

const outcomeToken = "sesame-of-ann-0123456789abcdef"

// bearer adds a token to each call.
type bearer string

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(b)}, nil
}

func (bearer) RequireTransportSecurity() bool { return false }

// outcomeServer is a server with counters in memory, and its clients.
type outcomeServer struct {
	v     *Server
	rls   ratelimitv3.RateLimitServiceClient
	admin adminv1.AdminServiceClient
	log   testkit.Buffer
}

func startOutcomes(t *testing.T, env string) *outcomeServer {
	t.Helper()
	dir := t.TempDir()
	testkit.WriteFile(t, filepath.Join(dir, "rules", "shop.yaml"), outcomeRules)
	token := filepath.Join(dir, "token")
	testkit.WriteFile(t, token, outcomeToken)
	s := &outcomeServer{}
	s.v = newServer(t, &s.log, "RUNTIME_ROOT="+dir, "RUNTIME_SUBDIRECTORY=.", "RUNTIME_APPDIRECTORY=rules", "RUNTIME_WATCH_ROOT=false",
		"ADMIN=true", "ADMIN_TOKENS_IN_CLEAR=true", "ADMIN_TOKEN_FILE="+token, "LOG_REJECTED=true",
		"LIMIT_RULE_HEADER=x-rule", "LIMIT_RETRY_AFTER_HEADER=retry-after", "LIMIT_BODY=by {{rule}}", env)
	testkit.Run(t, s.v.Run)
	testkit.Eventually(t, "the rules are loaded", func() bool { return s.v.limiter.Rules() != nil })
	conn, err := grpc.NewClient(s.v.listeners.grpc.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithPerRPCCredentials(bearer(outcomeToken)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	s.rls, s.admin = ratelimitv3.NewRateLimitServiceClient(conn), adminv1.NewAdminServiceClient(conn)
	return s
}

func (s *outcomeServer) ask(t *testing.T, r *ratelimitv3.RateLimitRequest) *ratelimitv3.RateLimitResponse {
	t.Helper()
	answer, err := s.rls.ShouldRateLimit(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// operate blocks or allows the last descriptor of a request. In rows with one descriptor, that is also the first.
func (s *outcomeServer) operate(t *testing.T, operator string, r *ratelimitv3.RateLimitRequest) {
	t.Helper()
	last := r.GetDescriptors()[len(r.GetDescriptors())-1].GetEntries()[0]
	entries, err := []*adminv1.Entry{{Key: last.GetKey(), Value: last.GetValue()}}, error(nil)
	switch operator {
	case "block":
		_, err = s.admin.Block(t.Context(), &adminv1.BlockRequest{Domain: "shop", Entries: entries, For: durationpb.New(time.Hour)})
	case "allow":
		_, err = s.admin.Allow(t.Context(), &adminv1.AllowRequest{Domain: "shop", Entries: entries, For: durationpb.New(time.Hour)})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// watch starts a watch. The returned function waits for the decision on the first descriptor.
func (s *outcomeServer) watch(t *testing.T) func(*testing.T) *adminv1.Decision {
	t.Helper()
	stream, err := s.admin.Watch(t.Context(), &adminv1.WatchRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Header(); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) *adminv1.Decision {
		t.Helper()
		for {
			m, err := stream.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if all := m.GetDecisions(); len(all) > 0 {
				return all[0]
			}
		}
	}
}

var controlID = regexp.MustCompile(`(block|allow):[0-9a-f]+`)

// rejections returns the rule of the last rejection in the log.
func (s *outcomeServer) rejections() string {
	rules := ""
	for line := range strings.Lines(s.log.String()) {
		if _, rest, ok := strings.Cut(line, `msg="a request was rejected"`); ok {
			rule, _, _ := strings.Cut(rest[strings.Index(rest, " rule=")+len(" rule="):], " ")
			rules = controlID.ReplaceAllString(rule, "$1:ID") // the last line belongs to the request
		}
	}
	return rules
}

// outcomeHeaders returns the rule header, whether there is a retry-after header, and the body.
func outcomeHeaders(r *ratelimitv3.RateLimitResponse) string {
	var words []string
	for _, name := range []string{"x-rule", "retry-after"} {
		for _, h := range r.GetResponseHeadersToAdd() {
			switch {
			case h.GetKey() != name:
			case name == "retry-after":
				words = append(words, "retry")
			default:
				words = append(words, h.GetValue())
			}
		}
	}
	if body := string(r.GetRawBody()); body != "" {
		words = append(words, "body", strings.TrimPrefix(body, "by "))
	}
	return controlID.ReplaceAllString(strings.Join(words, " "), "$1:ID")
}

// outcomeRequest parses descriptors of one entry each.
func outcomeRequest(descriptors string) *ratelimitv3.RateLimitRequest {
	r := &ratelimitv3.RateLimitRequest{Domain: "shop"}
	for pair := range strings.FieldsSeq(descriptors) {
		key, value, _ := strings.Cut(pair, "=")
		r.Descriptors = append(r.Descriptors, &ratelimitcommonv3.RateLimitDescriptor{Entries: []*ratelimitcommonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}})
	}
	return r
}

// outcomeAdmin is outcomeRequest for the admin API.
func outcomeAdmin(descriptors string) (all []*adminv1.Descriptor) {
	for pair := range strings.FieldsSeq(descriptors) {
		key, value, _ := strings.Cut(pair, "=")
		all = append(all, &adminv1.Descriptor{Entries: []*adminv1.Entry{{Key: key, Value: value}}})
	}
	return all
}
