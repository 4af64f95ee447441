package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// domainCalls has JSON requests for every method: one for the token's own domain, and one for another domain or the whole server,
// if the method has such a request.
var domainCalls = map[string]struct{ own, other string }{
	"ListRules":    {`{}`, ``},
	"Explain":      {`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}`, `{"domain":"bank","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}`},
	"Peek":         {`{"domain":"shop","entries":[{"key":"user","value":"u"}]}`, `{"domain":"bank","entries":[{"key":"user","value":"u"}]}`},
	"Reset":        {`{"domain":"shop","entries":[{"key":"user","value":"u"}]}`, `{"domain":"bank","entries":[{"key":"user","value":"u"}]}`},
	"Block":        {`{"domain":"shop","entries":[{"key":"user","value":"x"}],"for":"60s"}`, `{"domain":"bank","below":true,"for":"60s"}`},
	"Allow":        {`{"domain":"shop","entries":[{"key":"user","value":"y"}],"for":"60s"}`, `{"entries":[{"key":"user","value":"y"}],"for":"60s"}`},
	"Limit":        {`{"domain":"shop","entries":[{"key":"user","value":"z"}],"for":"60s","to":{"requestsPerUnit":5,"unit":"UNIT_MINUTE"}}`, `{"domain":"bank","below":true,"for":"60s","to":{"requestsPerUnit":5,"unit":"UNIT_MINUTE"}}`},
	"Grant":        {`{"domain":"shop","entries":[{"key":"user","value":"u"}],"hits":"1"}`, `{"domain":"bank","entries":[{"key":"user","value":"u"}],"hits":"1"}`},
	"ListControls": {`{}`, `{"domain":"bank"}`},
	"Audit":        {`{}`, `{"domain":"bank"}`},
	"Top":          {`{}`, `{"domain":"bank"}`},
	"Watch":        {`{}`, `{"domain":"bank"}`},
	"Status":       {`{}`, ``},
	"Lift":         {``, ``}, // takes IDs; see TestLiftInDomains
	"ReloadRules":  {``, `{}`},
	"Drain":        {``, `{"dryRun":true}`},

	// A tenant has its plan in all domains.
	"GetTenant":     {``, `{"tenant":"acme"}`},
	"SetTenant":     {``, `{"tenant":{"tenant":"acme","plan":"gold"}}`},
	"UnsetTenant":   {``, `{"tenant":"acme"}`},
	"ListTenants":   {``, `{}`},
	"ImportTenants": {``, `{"tenants":[{"tenant":"acme","plan":"gold"}]}`},
}

// twoDomains returns a server with rules of two domains, hits and controls in both, and ann's token for one of them.
func twoDomains(t *testing.T) (s *server, addr, web string) {
	t.Helper()
	policy := access.Policy{
		TokenFile:     tokenFile(t, "root: all\nann[domains=shop,other]: some\nbob[domains=bank]: bank"),
		ReadTokenFile: tokenFile(t, "eve[domains=shop]: look\nsue: read"),
	}
	ln := testkit.Listen(t)
	s = startOn(t, "", ln, admin.Config{Access: policy})
	const rules = "\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]"
	s.load(t, "domain: shop"+rules, "domain: bank"+rules)
	for _, d := range []string{"shop", "bank"} {
		s.hit(t, d, 2, "user", "u")
		if _, err := s.Block(bearer(t.Context(), "Bearer all"), block(d, time.Hour, "user", d)); err != nil {
			t.Fatal(err)
		}
	}
	h, err := s.service.Handler(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	return s, ln.Addr().String(), serveHTTP(t, h)
}

// TestTurns: calls with tokens for some domains leave turns for others while they wait for the backend. The calls of one caller
// are bounded.
func TestTurns(t *testing.T) {
	db := redistest.Start(t)
	b, err := redis.New(redis.Config{URL: db.Addr(), OpTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	testkit.Run(t, b.Run)
	store := replicated.NewScriptStore(b.SideChannel("controls", replicated.Script), controls.MaxKept)
	policy := access.Policy{TokenFile: tokenFile(t, "root: all\nann[domains=shop]: some")}
	s := startOn(t, shop, testkit.Listen(t), admin.Config{Access: policy, Controls: controls.New(controls.Config{Store: store})})
	blocks := func(token string) error {
		_, err := s.Block(bearer(t.Context(), "Bearer "+token), block("shop", time.Hour, "user", "u1"))
		return err
	}
	if err := blocks("some"); err != nil {
		t.Fatal(err)
	}
	db.Stop()
	done := make(chan struct{})
	var all sync.WaitGroup
	for range 40 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_ = blocks("some")
				}
			}
		})
	}
	testkit.Eventually(t, "one more call is denied", func() bool {
		_, err := s.ListRules(bearer(t.Context(), "Bearer some"), &adminv1.ListRulesRequest{})
		return status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "32 of your calls are in progress")
	})
	if _, err := s.ListRules(bearer(t.Context(), "Bearer all"), &adminv1.ListRulesRequest{}); err != nil {
		t.Errorf("a token without domains: %v", err)
	}
	close(done)
	all.Wait()
	db.Cont()
	testkit.Eventually(t, "calls are answered again", func() bool { return blocks("some") == nil && blocks("all") == nil })
}

// check checks whether a call was denied, and that its answer reveals nothing of the other domain.
func check(t *testing.T, what string, denied, want bool, answer string) {
	t.Helper()
	if denied == want {
		t.Errorf("%s: denied %v: %s", what, denied, answer)
	}
	if want && strings.Contains(answer, "bank") {
		t.Errorf("%s reveals another domain: %s", what, answer)
	}
	if !want && !strings.Contains(answer, "your token is limited to the domains shop, other") {
		t.Errorf("%s does not explain the denial: %s", what, answer)
	}
}

func overGRPC(t *testing.T, conn *grpc.ClientConn, token, method, query string) (codes.Code, string) {
	t.Helper()
	answer, err := invoke(t, bearer(t.Context(), "Bearer "+token), conn, method, query)
	if err != nil {
		return status.Code(err), status.Convert(err).Message()
	}
	return codes.OK, protojson.Format(answer)
}

// invoke makes a call. It returns an empty answer for a stream that has begun.
func invoke(t *testing.T, ctx context.Context, conn *grpc.ClientConn, method, query string) (answer proto.Message, err error) { //nolint:ireturn,revive // any message; t comes first
	t.Helper()
	message := func(kind string) proto.Message {
		m, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName("ratelimitd.admin.v1." + method + kind))
		if err != nil {
			t.Fatal(err)
		}
		return m.New().Interface()
	}
	ask, answer := message("Request"), message("Response")
	if err := protojson.Unmarshal([]byte(query), ask); err != nil {
		t.Fatal(err)
	}
	if method != "Watch" {
		return answer, conn.Invoke(ctx, "/ratelimitd.admin.v1.AdminService/"+method, ask, answer)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := adminv1.NewAdminServiceClient(conn).Watch(ctx, ask.(*adminv1.WatchRequest))
	if err == nil {
		if header, failed := stream.Header(); failed != nil || header == nil {
			_, err = stream.Recv()
		}
	}
	return answer, err
}

func overHTTP(t *testing.T, verb, at, token, query string) (code int, answer string) {
	t.Helper()
	body := io.Reader(strings.NewReader(query))
	if verb == http.MethodGet {
		var all map[string]any
		if err := json.Unmarshal([]byte(query), &all); err != nil {
			t.Fatal(err)
		}
		values := url.Values{}
		for k, v := range all {
			values.Set(k, fmt.Sprint(v))
		}
		at, body = at+"?"+values.Encode(), nil
	}
	r, err := http.NewRequestWithContext(t.Context(), verb, at, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close() // it has been read
	return a.StatusCode, string(text)
}

// TestLiftInDomains: a token cannot lift controls of other domains, even together with its own.
func TestLiftInDomains(t *testing.T) {
	s, _, _ := twoDomains(t)
	all, err := s.ListControls(bearer(t.Context(), "Bearer all"), &adminv1.ListControlsRequest{})
	if err != nil || len(all.GetControls()) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	bank, own := all.GetControls()[0].GetId(), all.GetControls()[1].GetId() // sorted by domain
	ann := bearer(t.Context(), "Bearer some")
	for _, ids := range [][]string{{bank}, {own, bank}, {"0123456789abcdef"}} {
		_, err := s.Lift(ann, &adminv1.LiftRequest{Ids: ids})
		wantStatus(t, err, codes.NotFound, "no such control is active")
	}
	if a, err := s.Lift(ann, &adminv1.LiftRequest{Ids: []string{own}}); err != nil || len(a.GetLifted()) != 1 {
		t.Errorf("its own control: %v, %v", a, err)
	}
	if a, err := s.Audit(ann, &adminv1.AuditRequest{}); err != nil || !strings.Contains(fmt.Sprint(a), `by:"ann"`) || strings.Contains(fmt.Sprint(a), "bank") {
		t.Errorf("the audit log of its own domain: %v, %v", a, err)
	}
	if a, err := s.ListControls(bearer(t.Context(), "Bearer bank"), &adminv1.ListControlsRequest{}); err != nil || len(a.GetControls()) != 1 {
		t.Errorf("the other control: %v, %v", a, err)
	}
}

// TestWatchInDomains: a watcher with a token for one domain gets no decisions of others, and Top does not count them.
func TestWatchInDomains(t *testing.T) {
	s, _, _ := twoDomains(t)
	ann := bearer(t.Context(), "Bearer some")
	ctx, cancel := context.WithCancel(ann)
	defer cancel()
	w := watchingAs(t, ctx, s, &adminv1.WatchRequest{})
	for range 3 {
		s.hit(t, "bank", 1, "user", "u")
	}
	s.hit(t, "shop", 1, "user", "u")
	m, err := w.Recv()
	if err != nil || len(m.GetDecisions()) != 1 || m.GetDecisions()[0].GetDomain() != "shop" {
		t.Errorf("%v, %v", m, err)
	}
	a, err := s.Top(ann, &adminv1.TopRequest{})
	if err != nil || len(a.GetEntries()) != 1 || a.GetEntries()[0].GetHits() != 3 || a.GetHits() != 0 {
		t.Errorf("top: %v, %v", a, err)
	}
	_, err = s.Top(ann, &adminv1.TopRequest{Rule: "bank.user"})
	wantStatus(t, err, codes.NotFound, "no rule bank.user: use the path of a rule, such as shop.user")
	_, err = s.Block(ann, &adminv1.BlockRequest{Domain: "bank", Entries: entries("user", "u"), For: durationpb.New(time.Hour)})
	wantStatus(t, err, codes.PermissionDenied, `your token is limited to the domains shop, other and does not cover "bank"`)
	if log := s.log.String(); !strings.Contains(log, "a change failed") || !strings.Contains(log, "by=ann") {
		t.Errorf("the log does not name the denied caller: %s", log)
	}
}

// TestTokenIsReplaced: a watch ends once its token is no longer valid.
func TestTokenIsReplaced(t *testing.T) {
	file := tokenFile(t, "ann[domains=shop]: some\nbob[domains=shop]: other")
	s := startOn(t, shop, testkit.Listen(t), admin.Config{Access: access.Policy{TokenFile: file}})
	ann := watchingAs(t, bearer(t.Context(), "Bearer some"), s, &adminv1.WatchRequest{})
	bob := watchingAs(t, bearer(t.Context(), "Bearer other"), s, &adminv1.WatchRequest{})
	testkit.WriteFile(t, file, "bob[domains=bank]: other")
	_, err := ann.Recv()
	wantStatus(t, err, codes.Unauthenticated, "the token is wrong")
	_, err = bob.Recv()
	wantStatus(t, err, codes.PermissionDenied, "the permissions of your token have changed: start again")
}

// TestDomainsInFiles: the domains of tokens are parsed, and errors in them name the line.
func TestDomainsInFiles(t *testing.T) {
	for text, want := range map[string][]string{
		"ann[domains=shop]: one":                    {"shop"},
		"bob: two\nann[domains=shop,a.b/c:d]:  one": {"shop", "a.b/c:d"},
		"ann: one": nil,
		"x[y]z":    nil, // a token without a name
	} {
		all, err := access.ReadTokens(tokenFile(t, text))
		if err != nil || strings.Join(all[len(all)-1].Domains, " ") != strings.Join(want, " ") || want != nil && all[len(all)-1].Text != "one" {
			t.Errorf("%q: %v, %v", text, all, err)
		}
	}
	for _, line := range []string{
		"ann[domains=]: one", "ann[domains=shop]:one", "ann[domains=shop,]: one", "ann[domains=shop,shop]: one", "ann[domains=a b]: one",
		"ann[shop]: one", "ann[domains=shop] one", "ann[domains=shop: one", "ann[domain=shop]: one", "ann[domains=shop]",
	} {
		_, err := access.ReadTokens(tokenFile(t, "bob: two\n"+line))
		if err == nil || !strings.Contains(err.Error(), "line 2: the domains of a token follow its name, separated by commas without spaces, such as ann[domains=shop,search]: TOKEN") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// permissions has the code of each call by kind of token: a wrong one, those for changes of root (all), ann (shop, other) and bob
// (bank), and those for reading of sue (all) and eve (shop). A request is about the domain shop, about another domain or the
// whole server, or, with none, about no particular domain.
const permissions = `
                    wrong              all                some               bank               read               look
Watch own           Unauthenticated    OK                 OK                 OK                 OK                 OK
Watch other         Unauthenticated    OK                 PermissionDenied   OK                 OK                 PermissionDenied
ListRules own       Unauthenticated    OK                 OK                 OK                 OK                 OK
Explain own         Unauthenticated    OK                 OK                 PermissionDenied   OK                 OK
Explain other       Unauthenticated    OK                 PermissionDenied   OK                 OK                 PermissionDenied
Peek own            Unauthenticated    OK                 OK                 PermissionDenied   OK                 OK
Peek other          Unauthenticated    OK                 PermissionDenied   OK                 OK                 PermissionDenied
Reset own           Unauthenticated    OK                 OK                 PermissionDenied   PermissionDenied   PermissionDenied
Reset other         Unauthenticated    OK                 PermissionDenied   OK                 PermissionDenied   PermissionDenied
Block own           Unauthenticated    OK                 OK                 PermissionDenied   PermissionDenied   PermissionDenied
Block other         Unauthenticated    OK                 PermissionDenied   OK                 PermissionDenied   PermissionDenied
Allow own           Unauthenticated    OK                 OK                 PermissionDenied   PermissionDenied   PermissionDenied
Allow other         Unauthenticated    InvalidArgument    PermissionDenied   PermissionDenied   PermissionDenied   PermissionDenied
Limit own           Unauthenticated    OK                 OK                 PermissionDenied   PermissionDenied   PermissionDenied
Limit other         Unauthenticated    OK                 PermissionDenied   OK                 PermissionDenied   PermissionDenied
Lift own            Unauthenticated    NotFound           NotFound           NotFound           PermissionDenied   PermissionDenied
ListControls own    Unauthenticated    OK                 OK                 OK                 OK                 OK
ListControls other  Unauthenticated    OK                 PermissionDenied   OK                 OK                 PermissionDenied
Grant own           Unauthenticated    OK                 OK                 PermissionDenied   PermissionDenied   PermissionDenied
Grant other         Unauthenticated    OK                 PermissionDenied   OK                 PermissionDenied   PermissionDenied
Audit own           Unauthenticated    OK                 OK                 OK                 OK                 OK
Audit other         Unauthenticated    OK                 PermissionDenied   OK                 OK                 PermissionDenied
Top own             Unauthenticated    OK                 OK                 OK                 OK                 OK
Top other           Unauthenticated    OK                 PermissionDenied   OK                 OK                 PermissionDenied
Status own          Unauthenticated    OK                 OK                 OK                 OK                 OK
ReloadRules other   Unauthenticated    OK                 PermissionDenied   PermissionDenied   PermissionDenied   PermissionDenied
Drain other         Unauthenticated    OK                 PermissionDenied   PermissionDenied   PermissionDenied   PermissionDenied
GetTenant other     Unauthenticated    NotFound           PermissionDenied   PermissionDenied   NotFound           PermissionDenied
SetTenant other     Unauthenticated    InvalidArgument    PermissionDenied   PermissionDenied   PermissionDenied   PermissionDenied
UnsetTenant other   Unauthenticated    FailedPrecondition PermissionDenied   PermissionDenied   PermissionDenied   PermissionDenied
ListTenants other   Unauthenticated    OK                 PermissionDenied   PermissionDenied   OK                 PermissionDenied
ImportTenants other Unauthenticated    InvalidArgument    PermissionDenied   PermissionDenied   PermissionDenied   PermissionDenied
`

// TestPermissions: a token has the same permissions over gRPC and HTTP, for every method and domain. A token for some domains
// cannot read or change others.
func TestPermissions(t *testing.T) {
	_, addr, web := twoDomains(t)
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	paths := map[string][2]string{}
	for path, verbs := range openAPI(t) {
		for verb, m := range verbs {
			paths[strings.TrimPrefix(m.OperationID, "AdminService_")] = [2]string{strings.ToUpper(verb), web + path}
		}
	}
	desc, methods := adminv1.AdminService_ServiceDesc, []string{"Watch"}
	for _, m := range desc.Methods {
		methods = append(methods, m.MethodName)
	}
	var got strings.Builder
	tokens := []string{"wrong", "all", "some", "bank", "read", "look"}
	fmt.Fprintf(&got, "\n%19s", "")
	for _, token := range tokens[:5] {
		fmt.Fprintf(&got, " %-18s", token)
	}
	got.WriteString(" look\n")
	for _, m := range methods {
		calls, known := domainCalls[m]
		if !known {
			t.Errorf("%s is not in the table: add requests for a token for some domains", m)
		}
		if m == "Lift" {
			calls.own = `{"ids":["0123456789abcdef"]}`
		}
		for _, one := range [][2]string{{"own", calls.own}, {"other", calls.other}} {
			if one[1] == "" {
				continue
			}
			line := fmt.Sprintf("%-19s", m+" "+one[0])
			for _, token := range tokens {
				code, answer := overGRPC(t, conn, token, m, one[1])
				line += fmt.Sprintf(" %-18s", code)
				if m == "Watch" && code == codes.OK {
					continue
				}
				httpCode, httpAnswer := overHTTP(t, paths[m][0], paths[m][1], token, one[1])
				if (code == codes.PermissionDenied) != (httpCode == http.StatusForbidden) || (code == codes.Unauthenticated) != (httpCode == http.StatusUnauthorized) {
					t.Errorf("%s %s with %s: %v over gRPC, but %d over HTTP: %s", m, one[1], token, code, httpCode, httpAnswer)
				}
				if token == "some" {
					check(t, "gRPC "+m+" "+one[1], code == codes.PermissionDenied, one[0] == "own", answer)
					check(t, "HTTP "+m+" "+one[1], httpCode == http.StatusForbidden, one[0] == "own", httpAnswer)
				}
			}
			got.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	if d := cmp.Diff(permissions, got.String()); d != "" {
		t.Errorf("(-want +got)\n%s\n%s", d, got.String())
	}
}

// TestProblemsInDomains: callers see problems of rules only in their domains, and the text only if they may make changes.
func TestProblemsInDomains(t *testing.T) {
	all := descriptors.Problems{
		{File: "a.yaml", Domain: "shop", Path: "shop.user", Text: "secret warning", Bare: "warning", Warning: true},
		{File: "b.yaml", Domain: "bank", Path: "bank.user", Text: "secret error", Bare: "error"},
		{File: "c.yaml", Text: "secret text", Bare: "no YAML"},
	}
	for _, tt := range []struct {
		who  access.Who
		want string
	}{
		{access.Who{Full: true}, "b.yaml bank.user secret error; c.yaml  secret text; a.yaml shop.user secret warning; of 3"},
		{access.Who{}, "b.yaml  error; c.yaml  no YAML; a.yaml  warning; of 3"},
		{access.Who{Full: true, Domains: []string{"shop"}}, "a.yaml shop.user secret warning; of 1"},
		{access.Who{Domains: []string{"bank", "none"}}, "b.yaml  error; of 1"},
		{access.Who{Full: true, Domains: []string{}}, "of 0"},
	} {
		first, total := admin.Problems(&tt.who, all)
		got := ""
		for _, p := range first {
			got += fmt.Sprintf("%s %s %s; ", p.GetFile(), p.GetPath(), p.GetText())
		}
		if got += fmt.Sprintf("of %d", total); got != tt.want {
			t.Errorf("%+v sees %q, want %q", tt.who, got, tt.want)
		}
	}
}
