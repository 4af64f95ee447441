package admin_test

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	diff "github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// permissions has the code with which each kind of token is answered: a wrong one, those of root, of ann (shop, other), and of bob (bank),
// which are for changes, and those of sue and of eve (shop), which are for looking. A request is about the domain shop, about another
// one or the whole server, or, with none, about no domain in particular.
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

// TestPermissions: what a token is good for is the same over gRPC and over HTTP, for every method and domain.
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
		calls := domainCalls[m]
		if m == "Lift" {
			calls.own = `{"ids":["0123456789abcdef"]}`
		}
		for _, one := range [][2]string{{"own", calls.own}, {"other", calls.other}} {
			if one[1] == "" {
				continue
			}
			line := fmt.Sprintf("%-19s", m+" "+one[0])
			for _, token := range tokens {
				code := codeOverGRPC(t, conn, token, m, one[1])
				line += fmt.Sprintf(" %-18s", code)
				if m == "Watch" && code == codes.OK {
					continue
				}
				httpCode, answer := overHTTP(t, paths[m][0], paths[m][1], token, one[1])
				if (code == codes.PermissionDenied) != (httpCode == http.StatusForbidden) || (code == codes.Unauthenticated) != (httpCode == http.StatusUnauthorized) {
					t.Errorf("%s %s with %s: %v over gRPC, but %d over HTTP: %s", m, one[1], token, code, httpCode, answer)
				}
			}
			got.WriteString(strings.TrimSpace(line) + "\n")
		}
	}
	if d := diff.Diff(permissions, got.String()); d != "" {
		t.Errorf("(-want +got)\n%s\n%s", d, got.String())
	}
}

// codeOverGRPC returns the code of the answer. A stream is answered once it has begun.
func codeOverGRPC(t *testing.T, conn *grpc.ClientConn, token, method, query string) codes.Code {
	t.Helper()
	if method != "Watch" {
		code, _ := overGRPC(t, conn, token, method, query)
		return code
	}
	ctx, cancel := context.WithCancel(bearer(t.Context(), "Bearer "+token))
	defer cancel()
	q := new(adminv1.WatchRequest)
	if err := protojson.Unmarshal([]byte(query), q); err != nil {
		t.Fatal(err)
	}
	stream, err := adminv1.NewAdminServiceClient(conn).Watch(ctx, q)
	if err != nil {
		t.Fatal(err)
	}
	if header, err := stream.Header(); err == nil && header != nil {
		return codes.OK
	}
	_, err = stream.Recv()
	return cmp.Or(status.Code(err), codes.Unknown)
}

// TestProblemsInDomains: what is wrong with rules is for those who may see their domain, and its text for those who may change something.
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
