package admin_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// called returns the context of a call on the admin socket with a request ID.
const socketPath = "admin.sock" // local address of calls in this process

func called(ctx context.Context, id string) context.Context {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}, LocalAddr: &net.UnixAddr{Name: socketPath, Net: "unix"}})
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("x-request-id", id))
}

// inProcess returns an admin API with counters in memory and the rules shop, and its server. Calls to it need no connection.
func inProcess(t *testing.T, policy access.Policy) (*admin.Service, *server) {
	t.Helper()
	s := &server{}
	store := memory.New(memory.Config{})
	t.Cleanup(func() { _ = store.Close() })
	observer := observe.New(func(context.Context) string { return "10.0.0.7:51234" })
	s.limiter = limiter.New(store, stats.New(), limiter.Config{Observer: observer})
	s.load(t, shop)
	a := admin.New(s.limiter, admin.Config{Access: policy, Observer: observer})
	s.AdminServiceClient = a.Client(policy)
	return a, s
}

// TestRepeated: a call repeated with its ID within ten minutes returns the first answer and changes nothing.
func TestRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, s := inProcess(t, access.Policy{Socket: socketPath})
		s.hit(t, "shop", 3, "user", "u1")
		grant := &adminv1.GrantRequest{Domain: "shop", Entries: entries("user", "u1"), Hits: 1}
		ask := func(id string, q *adminv1.GrantRequest) (uint64, error) {
			answer, err := s.Grant(called(t.Context(), id), q)
			return answer.GetCounter().GetLeft(), err
		}
		told := func() int {
			answer, err := s.Audit(called(t.Context(), ""), &adminv1.AuditRequest{})
			if err != nil {
				t.Fatal(err)
			}
			return len(answer.GetEntries())
		}
		var all sync.WaitGroup
		for range 5 { // concurrently
			all.Go(func() {
				if left, err := ask("one", grant); err != nil || left != 1 {
					t.Errorf("the call has %d left, %v; want 1", left, err)
				}
			})
		}
		all.Wait()
		time.Sleep(10*time.Minute - time.Second)
		s.hit(t, "shop", 2, "user", "u1")
		if left, err := ask("one", grant); err != nil || left != 1 || told() != 1 {
			t.Errorf("nearly ten minutes later: %d left, %v, and %d audited calls; want 1 and 1", left, err, told())
		}
		other := &adminv1.GrantRequest{Domain: "shop", Entries: entries("user", "u2"), Hits: 1}
		_, err := ask("one", other)
		wantStatus(t, err, codes.InvalidArgument, "another call used this x-request-id in the last ten minutes")
		for _, id := range []string{"a b", strings.Repeat("x", 129), "\n"} {
			_, err := ask(id, grant)
			wantStatus(t, err, codes.InvalidArgument, "x-request-id must have at most 128 bytes")
		}
		time.Sleep(time.Second)
		s.hit(t, "shop", 3, "user", "u1")
		if _, err := ask("one", grant); err != nil || told() != 2 {
			t.Errorf("ten minutes later: %v, and %d audited calls; want 2", err, told())
		}

		// A failed call may be repeated.
		nobody := &adminv1.GrantRequest{Domain: "elsewhere", Entries: entries("user", "u1"), Hits: 1}
		for range 2 {
			_, err := ask("two", nobody)
			wantStatus(t, err, codes.NotFound, "no limit applies")
		}
		if told() != 2 {
			t.Errorf("%d audited calls, want 2: failed calls change nothing", told())
		}
	})
}

// lossy is a backend that loses some replies.
type lossy struct {
	backend.Backend

	lose func(op *backend.Op) error // nil if the reply arrives
	done bool                       // whether the operation takes effect although its reply is lost
}

// Apply implements [backend.Backend].
func (l *lossy) Apply(ctx context.Context, ops []backend.Op) {
	err := l.lose(&ops[0])
	if err == nil || l.done {
		l.Backend.Apply(ctx, ops)
	}
	if err != nil {
		ops[0].Err = err
	}
}

// TestGrantedOnce: a grant that is repeated with its ID takes effect only once, here or on another replica, even if its reply or
// the reply to the following peek was lost. A grant that was never sent takes effect.
func TestGrantedOnce(t *testing.T) {
	t.Parallel()
	grant := &adminv1.GrantRequest{Domain: "shop", Entries: entries("user", "u1"), Hits: 1}
	lost := errors.New("the reply is lost")
	for name, lose := range map[string]func(refunds int, op *backend.Op) error{
		"the refund": func(_ int, op *backend.Op) error {
			if op.Mode == backend.Refund {
				return lost
			}
			return nil
		},
		"the look after it": func(refunds int, op *backend.Op) error {
			if op.Mode == backend.Peek && refunds > 0 {
				return lost
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, s := &lossy{Backend: memory.New(memory.Config{}), done: true}, &server{}
			t.Cleanup(func() { _ = store.Close() })
			refunds := 0
			store.lose = func(op *backend.Op) error {
				if op.Mode == backend.Refund {
					refunds++
				}
				return lose(refunds, op)
			}
			s.limiter = limiter.New(store, stats.New(), limiter.Config{})
			s.load(t, shop)
			s.hit(t, "shop", 3, "user", "u1")
			policy, acts := access.Policy{Socket: socketPath}, audit.New(nil, slog.New(slog.DiscardHandler))
			replica := func() adminv1.AdminServiceClient {
				return admin.New(s.limiter, admin.Config{Access: policy, Acts: acts}).Client(policy)
			}
			one := replica()
			for range 2 {
				_, err := one.Grant(called(t.Context(), "once"), grant)
				wantStatus(t, err, codes.Unknown, "the hits may have been refunded: peek at the counter, and grant them again, with a new x-request-id, only if they were not")
			}
			_, err := replica().Grant(called(t.Context(), "once"), grant)
			wantStatus(t, err, codes.AlreadyExists, "or may have been")
			if refunds != 1 {
				t.Errorf("%d refunds, want one", refunds)
			}
		})
	}

	t.Run("not sent", func(t *testing.T) {
		t.Parallel()
		_, s := inProcess(t, access.Policy{Socket: socketPath})
		store, times := &lossy{Backend: memory.New(memory.Config{})}, 0
		t.Cleanup(func() { _ = store.Close() })
		store.lose = func(op *backend.Op) error {
			if op.Mode != backend.Refund {
				return nil
			}
			if times++; times > 1 {
				return nil
			}
			return backend.ErrUnsent
		}
		s.limiter = limiter.New(store, stats.New(), limiter.Config{})
		s.load(t, shop)
		s.hit(t, "shop", 3, "user", "u1")
		policy := access.Policy{Socket: socketPath}
		one := admin.New(s.limiter, admin.Config{Access: policy}).Client(policy)
		_, err := one.Grant(called(t.Context(), "once"), grant)
		wantStatus(t, err, codes.Unavailable, "")
		if answer, err := one.Grant(called(t.Context(), "once"), grant); err != nil || answer.GetCounter().GetLeft() != 1 {
			t.Errorf("repeated: %v, %v", answer, err)
		}
	})
}

// TestRepeatedByOthers: the calls of one caller do not displace the remembered calls of another one.
func TestRepeatedByOthers(t *testing.T) {
	t.Parallel()
	_, s := inProcess(t, access.Policy{TokenFile: tokenFile(t, "root: all\nann: some")})
	s.hit(t, "shop", 3, "user", "u1")
	grant := func(token, id string) uint64 {
		ctx := metadata.NewOutgoingContext(called(t.Context(), ""), metadata.Pairs("x-request-id", id, "authorization", "Bearer "+token))
		answer, err := s.Grant(ctx, &adminv1.GrantRequest{Domain: "shop", Entries: entries("user", "u1"), Hits: 1})
		if err != nil {
			t.Fatal(err)
		}
		return answer.GetBefore().GetLeft()
	}
	first := grant("all", "one")
	for i := range audit.MaxActs + 10 { // displaces the first one from the audit log
		grant("some", fmt.Sprint(i))
	}
	if again := grant("all", "one"); again != first {
		t.Errorf("the repeated call left %d, as a new call; the first one left %d", again, first)
	}
}

// TestStrangersAreSlowed: a client with wrong tokens waits for each answer, at most four at a time. Other clients do not wait,
// nor does a client at the same address with a long token.
func TestStrangersAreSlowed(t *testing.T) {
	const long = "0123456789abcdef0123456789abcdef"
	file := tokenFile(t, "ann: secret\nbob: hidden\ncleo: "+long+"\n")
	synctest.Test(t, func(t *testing.T) {
		var failed atomic.Int32
		policy := access.Policy{TokenFile: file, InClear: true}
		policy.Guard = access.NewGuard(func() { failed.Add(1) })
		ask := func(host, token string) (who access.Who, code codes.Code, took time.Duration) {
			began := time.Now()
			from := &net.TCPAddr{IP: net.ParseIP(host), Port: 4711}
			who, err := policy.Allow(access.Caller{From: from, Authorization: []string{"Bearer " + token}}, true)
			return who, status.Code(err), time.Since(began)
		}
		for range 4 {
			go func() {
				if _, code, took := ask("10.0.0.1", "guess"); code != codes.Unauthenticated || took != time.Second {
					t.Errorf("wrong token: %v after %v", code, took)
				}
			}()
		}
		synctest.Wait()
		if _, code, took := ask("10.0.0.1", "hidden"); code != codes.ResourceExhausted || took != 0 {
			t.Errorf("fifth wrong token: %v after %v", code, took)
		}
		if who, code, took := ask("10.0.0.1", long); code != codes.OK || took != 0 || who.Name != "cleo" {
			t.Errorf("long token: %+v, %v after %v", who, code, took)
		}
		if _, code, took := ask("10.0.0.1", long[1:]+"0"); code != codes.ResourceExhausted || took != 0 {
			t.Errorf("wrong long token: %v after %v", code, took)
		}
		if who, code, took := ask("10.0.0.2", "hidden"); code != codes.OK || took != 0 || who.Name != "bob" || who.From != "10.0.0.2:4711" {
			t.Errorf("another client: %+v, %v after %v", who, code, took)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if who, code, took := ask("10.0.0.1", "secret"); code != codes.OK || took != 0 || who.Name != "ann" || failed.Load() != 6 {
			t.Errorf("a second later: %+v, %v after %v, and %d failed", who, code, took, failed.Load())
		}

		// An IPv6 network counts as one address. All addresses together are limited too.
		for i := range 256 {
			go ask(fmt.Sprintf("2001:db8:0:%x::%x", i/4, i), "guess")
			synctest.Wait()
		}
		if _, code, _ := ask("2001:db8:0:1::ffff", "secret"); code != codes.ResourceExhausted {
			t.Errorf("another address of the network: %v", code)
		}
		if _, code, _ := ask("10.0.0.9", "guess"); code != codes.ResourceExhausted {
			t.Errorf("the 257th: %v", code)
		}
		if _, code, _ := ask("10.0.0.9", long); code != codes.OK {
			t.Errorf("long token: %v", code)
		}
		time.Sleep(time.Second)
	})
}

// TestTokenFiles: errors in a token file name the line and contain no token.
func TestTokenFiles(t *testing.T) {
	for text, want := range map[string]string{
		"one":                          "",
		"# mine\n\nann: one\nbob: two": "",
		"one\ntwo":                     "line 2: with more than one token, each line must be a name, a colon, a space, and a token, such as ann: TOKEN",
		"ann: one\nann: two":           "line 2: ann already has a token",
		"ann: one\nbob two":            "line 2: with more than one token",
		"# nothing":                    "the file is empty; write a token into it",
		"\uFEFFone\r\n":                "",
		"\uFEFFann: one\r\nbob: two":   "",
		"ann:":                         "line 1: write a name, a colon, a space, and a token without whitespace",
		": one":                        "line 1: write a name, a colon",
		"ann: o ne":                    "line 1: write a name, a colon",
		"ann b: one":                   "line 1: write a name, a colon",
		"ann: one\nbob:":               "line 2: write a name, a colon",
		"ann: one\nbob: one":           "line 2: this token is also listed under a different name",
		"\xff\xfeo\x00n\x00e\x00":      "it is not valid UTF-8",
		"o\x00ne":                      "it is not valid UTF-8",
	} {
		all, err := access.ReadTokens(tokenFile(t, text))
		if want == "" && (err != nil || len(all) == 0 || all[0].Text != "one") {
			t.Errorf("%q: %v, %v", text, all, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; want %s", text, err, want)
		}
	}
}

// openAPI returns the paths of the OpenAPI file with their verbs.
func openAPI(t *testing.T) map[string]map[string]struct{ OperationID string } {
	t.Helper()
	text, err := os.ReadFile("../../../proto/ratelimitd/admin/v1/openapi.swagger.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Paths map[string]map[string]struct{ OperationID string }
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	return file.Paths
}

// TestOpenAPI: the OpenAPI file lists each method of the service once, and the server serves each of its paths.
func TestOpenAPI(t *testing.T) {
	a, _ := inProcess(t, access.Policy{TokenFile: tokenFile(t, "secret")})
	h, err := a.Handler(t.Context(), access.Policy{TokenFile: tokenFile(t, "secret")})
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	desc := adminv1.AdminService_ServiceDesc
	for _, m := range desc.Methods {
		want = append(want, "AdminService_"+m.MethodName)
	}
	for _, m := range desc.Streams {
		want = append(want, "AdminService_"+m.StreamName)
	}
	ts := serveHTTP(t, h)
	for path, verbs := range openAPI(t) {
		for verb, m := range verbs {
			got = append(got, m.OperationID)
			if code, body := ask(t, strings.ToUpper(verb), ts+path, "{}"); code != http.StatusUnauthorized {
				t.Errorf("%s %s: %d %s; want 401, the answer of every method without a token", verb, path, code, body)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the file has %v\nthe service %v", got, want)
	}
}

// serveHTTP serves h until the test ends and returns its address.
func serveHTTP(t *testing.T, h http.Handler) string {
	t.Helper()
	ln := testkit.Listen(t)
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	testkit.Run(t, func(context.Context) error { _ = s.Serve(ln); return nil })
	t.Cleanup(func() { _ = s.Close() })
	return "http://" + ln.Addr().String()
}

func ask(t *testing.T, method, url, body string) (code int, answer string) {
	t.Helper()
	code, answer, err := testkit.Fetch(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return code, answer
}

// TestWatchHTTP: a watcher over HTTP receives lines of JSON, and errors with their status.
func TestWatchHTTP(t *testing.T) {
	policy := access.Policy{Listener: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	a, s := inProcess(t, policy)
	h, err := a.Handler(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	url := serveHTTP(t, h) + "/admin/v1/watch"
	if code, body := ask(t, "POST", url, `{"rule":"shop.nothing.here"}`); code != http.StatusNotFound || !strings.Contains(body, "no rule shop.nothing.here") {
		t.Errorf("an unknown rule: %d %s", code, body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"domain":"shop"}`))
	if err != nil {
		t.Fatal(err)
	}
	lines := make(chan string)
	var client http.Client
	testkit.Run(t, func(context.Context) error {
		defer close(lines)
		answer, err := client.Do(r) // returns with the first line
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		for scan := bufio.NewScanner(answer.Body); scan.Scan(); {
			lines <- scan.Text()
		}
		return nil
	})
	stop := make(chan struct{})
	var hits sync.WaitGroup
	hits.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				s.hit(t, "shop", 1, "user", "ann")
			}
		}
	})
	for range 3 {
		line := <-lines
		var m struct {
			Result struct {
				Decisions []struct{ Domain, Rule string }
			}
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil || len(m.Result.Decisions) == 0 || m.Result.Decisions[0].Rule != "shop.user" {
			t.Errorf("line %s, %v", line, err)
		}
	}
	close(stop)
	hits.Wait()
	cancel()
	for range lines { // until the watcher has stopped
	}
	client.CloseIdleConnections()
}

// TestAuditOfStrangers: failed calls are counted by caller, whether they lack permission or are invalid. They displace no change
// from the audit log.
func TestAuditOfStrangers(t *testing.T) {
	_, s := inProcess(t, access.Policy{Socket: socketPath})
	q := &adminv1.BlockRequest{Domain: "shop", Entries: entries("user", "u1"), For: durationpb.New(time.Hour)}
	near := called(t.Context(), "")
	for range 3 {
		if _, err := s.Block(near, q); err != nil {
			t.Fatal(err)
		}
	}
	far := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 4711}})
	for range audit.MaxActs + 1 {
		_, err := s.Block(far, q)
		wantStatus(t, err, codes.PermissionDenied, "")
		_, err = s.Lift(near, &adminv1.LiftRequest{Ids: []string{"none"}})
		wantStatus(t, err, codes.NotFound, "")
	}
	var all []*adminv1.AuditEntry
	var failed []*adminv1.FailedCalls
	for token := ""; ; {
		answer, err := s.Audit(near, &adminv1.AuditRequest{PageSize: 2, PageToken: token})
		if err != nil {
			t.Fatal(err)
		}
		all, failed = append(all, answer.GetEntries()...), append(failed, answer.GetFailed()...)
		if token = answer.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(all) != 3 || all[0].GetMethod() != "Block" || all[0].GetTime().AsTime().Equal(all[1].GetTime().AsTime()) {
		t.Errorf("the audit log has %d acts, want the three changes: %v", len(all), all)
	}
	if len(failed) != 2 {
		t.Fatalf("failed calls %v, want those of two callers", failed)
	}
	for _, r := range failed {
		if r.GetCount() != audit.MaxActs+1 || r.GetFrom() == "10.1.2.3" != (r.GetCode() == "PermissionDenied" && r.GetBy() == "") {
			t.Errorf("failed: %v", r)
		}
	}
	_, err := s.Audit(near, &adminv1.AuditRequest{PageToken: "x"})
	wantStatus(t, err, codes.InvalidArgument, "page_token is invalid or has expired")
}
