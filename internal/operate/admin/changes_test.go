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

// called is the context of a call from this machine with a request ID.
const socketPath = "admin.sock" // of those who call in this process

func called(ctx context.Context, id string) context.Context {
	ctx = peer.NewContext(ctx, &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4711}, LocalAddr: &net.UnixAddr{Name: socketPath, Net: "unix"}})
	return metadata.NewOutgoingContext(ctx, metadata.Pairs("x-request-id", id))
}

// inProcess is an admin API that is called without a connection, over counters in memory with the rules shop.
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

// TestRepeated: a call that is made again within ten minutes, with the ID that it had, gets the same answer and changes nothing.
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
		for range 5 { // at once
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
			t.Errorf("nearly ten minutes later %d are left, %v, and %d calls are told; want 1 and 1", left, err, told())
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
			t.Errorf("ten minutes later: %v, and %d calls are told; want 2", err, told())
		}

		// What failed may be tried again.
		nobody := &adminv1.GrantRequest{Domain: "elsewhere", Entries: entries("user", "u1"), Hits: 1}
		for range 2 {
			_, err := ask("two", nobody)
			wantStatus(t, err, codes.NotFound, "no limit applies")
		}
		if told() != 2 {
			t.Errorf("%d calls are told, want 2: those that were failed changed nothing", told())
		}
	})
}

// lossy is a store of which some replies are lost.
type lossy struct {
	backend.Backend

	lose func(op *backend.Op) error // nil for one that is not lost
	done bool                       // the operation is carried out all the same
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

// TestGrantedOnce: a grant whose reply, or that of the look after it, is lost is not made again with its ID, here or on another replica. One
// that was not sent is.
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
				t.Errorf("there were %d refunds, want one", refunds)
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
			t.Errorf("sent again: %v, %v", answer, err)
		}
	})
}

// TestRepeatedByOthers: however many calls one caller names, those of another one are known.
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
	for i := range audit.MaxActs + 10 { // which push the first one out of the audit
		grant("some", fmt.Sprint(i))
	}
	if again := grant("all", "one"); again != first {
		t.Errorf("a call that is made again finds %d left, and is carried out; it found %d", again, first)
	}
}

// TestStrangersAreSlowed: a client that tries wrong tokens waits for each answer, and four at a time are looked at; others do not wait,
// and nor does, even there, who has a token that no one guesses.
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
					t.Errorf("a wrong token is answered %v after %v", code, took)
				}
			}()
		}
		synctest.Wait()
		if _, code, took := ask("10.0.0.1", "hidden"); code != codes.ResourceExhausted || took != 0 {
			t.Errorf("the fifth is answered %v after %v", code, took)
		}
		if who, code, took := ask("10.0.0.1", long); code != codes.OK || took != 0 || who.Name != "cleo" {
			t.Errorf("with a long token it is %+v, %v after %v", who, code, took)
		}
		if _, code, took := ask("10.0.0.1", long[1:]+"0"); code != codes.ResourceExhausted || took != 0 {
			t.Errorf("a long one that is wrong is answered %v after %v", code, took)
		}
		if who, code, took := ask("10.0.0.2", "hidden"); code != codes.OK || took != 0 || who.Name != "bob" || who.From != "10.0.0.2:4711" {
			t.Errorf("someone else is %+v, %v after %v", who, code, took)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if who, code, took := ask("10.0.0.1", "secret"); code != codes.OK || took != 0 || who.Name != "ann" || failed.Load() != 6 {
			t.Errorf("a second later it is %+v, %v after %v, and %d were failed", who, code, took, failed.Load())
		}

		// A network of IPv6 counts as one address, and so that those from many cannot be more than so many at a time, they count together.
		for i := range 256 {
			go ask(fmt.Sprintf("2001:db8:0:%x::%x", i/4, i), "guess")
			synctest.Wait()
		}
		if _, code, _ := ask("2001:db8:0:1::ffff", "secret"); code != codes.ResourceExhausted {
			t.Errorf("another address of the network is answered %v", code)
		}
		if _, code, _ := ask("10.0.0.9", "guess"); code != codes.ResourceExhausted {
			t.Errorf("the 257th is answered %v", code)
		}
		if _, code, _ := ask("10.0.0.9", long); code != codes.OK {
			t.Errorf("a long token is answered %v", code)
		}
		time.Sleep(time.Second)
	})
}

// TestTokenFiles: what is wrong with a file of tokens is said with its line, and without a token.
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

// openAPI are the paths of the OpenAPI file, each with its verbs.
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

// TestOpenAPI: the OpenAPI file has each method of the service, once, and each of its paths is served.
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
				t.Errorf("%s %s: %d %s; want 401, as every method says without a token", verb, path, code, body)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the file has %v\nthe service %v", got, want)
	}
}

// serveHTTP serves h until the test ends, and returns its address.
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

// TestWatchHTTP: over HTTP a watcher gets lines of JSON while decisions are made, and errors have their status.
func TestWatchHTTP(t *testing.T) {
	policy := access.Policy{Listener: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	a, s := inProcess(t, policy)
	h, err := a.Handler(t.Context(), policy)
	if err != nil {
		t.Fatal(err)
	}
	url := serveHTTP(t, h) + "/admin/v1/watch"
	if code, body := ask(t, "POST", url, `{"rule":"shop.nothing.here"}`); code != http.StatusNotFound || !strings.Contains(body, "no rule shop.nothing.here") {
		t.Errorf("a rule that there is not: %d %s", code, body)
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
		answer, err := client.Do(r) // which returns with the first line
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
			t.Errorf("a line is %s, %v", line, err)
		}
	}
	close(stop)
	hits.Wait()
	cancel()
	for range lines { // until the watcher has gone
	}
	client.CloseIdleConnections()
}

// TestAuditOfStrangers: calls that are failed are counted by caller, whether their permission lacks or what they ask for cannot be, and
// push out nothing that was changed.
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
		t.Errorf("the audit has %d acts, want the three that were done: %v", len(all), all)
	}
	if len(failed) != 2 {
		t.Fatalf("failed calls are %v, want those of two callers", failed)
	}
	for _, r := range failed {
		if r.GetCount() != audit.MaxActs+1 || r.GetFrom() == "10.1.2.3" != (r.GetCode() == "PermissionDenied" && r.GetBy() == "") {
			t.Errorf("failed: %v", r)
		}
	}
	_, err := s.Audit(near, &adminv1.AuditRequest{PageToken: "x"})
	wantStatus(t, err, codes.InvalidArgument, "page_token is invalid or has expired")
}
