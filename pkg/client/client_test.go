package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/pkg/client"
)

func TestTake(t *testing.T) {
	t.Parallel()
	c, ctx := fresh(t), t.Context()
	l := c.Limiter(client.Pairs("user", "take"))
	if !l.Allow(ctx) || !l.AllowN(ctx, 2) || l.Allow(ctx) {
		t.Error("3 hits a minute are not 1, then 2, and no more")
	}
	r, err := l.Take(ctx, 1)
	decided(t, "over the limit", r, err, false)
	if r.RetryAfter <= 0 || r.RetryAfter > time.Minute || r.RetryAfter%time.Second == 0 && r.ResetAfter%time.Second == 0 {
		t.Errorf("times are %v and %v", r.RetryAfter, r.ResetAfter)
	}
	r.RetryAfter, r.ResetAfter = 0, 0
	want := client.Status{Limited: true, Rule: "shop.user", Limit: 3, Window: time.Minute}
	if diff := cmp.Diff(want, r.Status); diff != "" || len(r.Statuses) != 1 {
		t.Errorf("a rejection (-want +got):\n%s", diff)
	}
	if err := l.Refund(ctx, 2); err != nil {
		t.Error(err)
	}
	for range 3 {
		r, err = l.Peek(ctx)
		decided(t, "a look", r, err, true)
		if r.Remaining != 2 {
			t.Errorf("after two were refunded, %d are left", r.Remaining)
		}
	}
	r, err = l.Take(ctx, 3)
	decided(t, "more than is left", r, err, false)
}

// TestTakeSeveral takes several descriptors in one request. The result's Status is the strictest one.
func TestTakeSeveral(t *testing.T) {
	t.Parallel()
	c, ctx := fresh(t), t.Context()
	ds := []client.Descriptor{
		client.Pairs("path", "/a", "user", "several"), client.Pairs("nobody", "limits"), client.Pairs("user", "several"), client.Pairs("tried", "several"),
	}
	rest := func(r client.Result) (all []uint32) {
		for _, s := range r.Statuses {
			all = append(all, s.Remaining)
		}
		return all
	}
	r, err := c.Limiter(ds[:3]...).Take(ctx, 3)
	decided(t, "the first", r, err, true)
	if diff := cmp.Diff([]uint32{97, 0, 0}, rest(r)); diff != "" || r.Rule != "shop.user" || r.Statuses[1].Limited {
		t.Errorf("%+v (-want +got):\n%s", r, diff)
	}
	r, err = c.Limiter(ds...).Take(ctx, 3)
	decided(t, "the second", r, err, false)
	if diff := cmp.Diff([]uint32{94, 0, 0, 0}, rest(r)); diff != "" || r.Rule != "shop.user" || !r.Statuses[0].OK || !r.Statuses[3].OK {
		t.Errorf("%+v (-want +got):\n%s", r, diff)
	}
}

// TestPairs tests that order matters, that invalid UTF-8 is replaced, and that a missing value panics.
func TestPairs(t *testing.T) {
	t.Parallel()
	c, ctx := fresh(t), t.Context()
	if r, err := c.Limiter(client.Pairs("user", "order", "path", "/a")).Peek(ctx); err != nil || r.Limited {
		t.Errorf("in the wrong order: %+v, %v", r, err)
	}
	for _, want := range []bool{true, true, true, false} {
		r, err := c.Limiter(client.Pairs("user", "pairs\xff")).Take(ctx, 1)
		decided(t, "bytes that are not UTF-8", r, err, want)
	}
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "each key needs a value") {
			t.Errorf("Pairs with one argument: %q", text)
		}
	}()
	client.Pairs(strings.Fields("user")...)
}

func TestNew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ addr, domain, want string }{
		{"", "shop", `address "": must be host:port`},
		{"ratelimitd", "shop", `address "ratelimitd": must be host:port, several of them`},
		{"a:1,b", "shop", `address "b": must be host:port`},
		{"a:", "shop", `address "a:": must be host:port`},
		{"a:1", "", "the domain is empty"},
	} {
		if _, err := client.New(tt.addr, tt.domain, client.Config{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("New(%q, %q): %v; want %s", tt.addr, tt.domain, err, tt.want)
		}
	}
}

// TestTargets tests the accepted forms of an address.
func TestTargets(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	socket := filepath.Join(t.TempDir(), "grpc")
	start(t, "GRPC_UDS="+socket)
	_, port, _ := net.SplitHostPort(addr)
	for _, at := range []string{addr, "127.0.0.1:" + port, "dns:///" + addr, addr + "," + addr, "passthrough:///" + addr, "unix:" + socket} {
		r, err := connect(t, at, client.Config{}).Limiter(client.Pairs("user", "target")).Peek(t.Context())
		if err != nil || r.Remaining != 3 {
			t.Errorf("%s: %+v, %v", at, r, err)
		}
	}
}

// stub is a server with answers that ratelimitd never sends.
type stub struct {
	rls.UnimplementedRateLimitServiceServer

	answer *rls.RateLimitResponse
	err    error
}

func (s stub) ShouldRateLimit(context.Context, *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	return s.answer, s.err
}

func (s stub) listen(t *testing.T) string {
	t.Helper()
	l, server := testkit.Listen(t), grpc.NewServer()
	rls.RegisterRateLimitServiceServer(server, s)
	testkit.Run(t, func(ctx context.Context) error {
		context.AfterFunc(ctx, server.Stop)
		return server.Serve(l)
	})
	return l.Addr().String()
}

// TestFailures tests the result of requests that no server decides.
func TestFailures(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	away := testkit.Listen(t)
	away.Close()
	silent := testkit.NewProxy(t, addr)
	silent.Silent.Store(true)
	for _, tt := range []struct {
		name, addr string
		timeout    time.Duration
		ds         []client.Descriptor
		code       codes.Code
		is         error
		opens      bool
	}{
		{name: "nobody listens", addr: away.Addr().String(), code: codes.Unavailable, opens: true},
		{name: "nobody answers in time", addr: silent.Addr(), timeout: 50 * time.Millisecond, code: codes.DeadlineExceeded, opens: true},
		{name: "the error UNKNOWN", addr: stub{err: status.Error(codes.Unknown, "who knows")}.listen(t), code: codes.Unknown, opens: true},
		{name: "the verdict UNKNOWN", addr: stub{answer: &rls.RateLimitResponse{}}.listen(t), code: codes.Unknown, is: client.ErrNoVerdict, opens: true},
		{name: "too long to read", addr: addr, ds: []client.Descriptor{client.Pairs("user", strings.Repeat("x", 5<<20))}, code: codes.ResourceExhausted},
		{name: "no descriptor", addr: addr, ds: []client.Descriptor{}, code: codes.InvalidArgument},
	} {
		if tt.ds == nil {
			tt.ds = []client.Descriptor{client.Pairs("user", "failure")}
		}
		for _, open := range []bool{false, true} {
			var told atomic.Int32
			config := client.Config{Timeout: tt.timeout, FailOpen: open, OnError: func(error) { told.Add(1) }}
			l := connect(t, tt.addr, config).Limiter(tt.ds...)
			r, err := l.Take(t.Context(), 1)
			if status.Code(err) != tt.code || tt.is != nil && !errors.Is(err, tt.is) || !strings.Contains(err.Error(), "client: asking "+tt.addr) {
				t.Errorf("%s: %v; want %v", tt.name, err, tt.code)
			}
			if want := open && tt.opens; r.OK != want || l.Allow(t.Context()) != want {
				t.Errorf("%s, FailOpen %v: passes %v", tt.name, open, r.OK)
			}
			waited := l.Wait(t.Context())
			if (waited == nil) != (open && tt.opens) {
				t.Errorf("%s, FailOpen %v: waiting ends with %v", tt.name, open, waited)
			}
			if told.Load() != 3 {
				t.Errorf("%s: OnError was called %d times, for 3 questions", tt.name, told.Load())
			}
		}
	}
	if r, err := connect(t, addr, client.Config{FailOpen: true}).Limiter(client.Pairs("user", "failure")).Take(t.Context(), -1); r.OK || err == nil {
		t.Errorf("a negative cost: %+v, %v", r, err)
	}
}

// TestUnknownStatus tests that the overall code is the result even if a descriptor's code is unknown.
func TestUnknownStatus(t *testing.T) {
	t.Parallel()
	for code, want := range map[rls.RateLimitResponse_Code]bool{rls.RateLimitResponse_OK: true, rls.RateLimitResponse_OVER_LIMIT: false} {
		at := stub{answer: &rls.RateLimitResponse{OverallCode: code, Statuses: []*rls.RateLimitResponse_DescriptorStatus{{}}}}.listen(t)
		r, err := connect(t, at, client.Config{}).Limiter(client.Pairs("a", "b"), client.Pairs("c", "d")).Take(t.Context(), 1)
		decided(t, code.String(), r, err, want)
		if len(r.Statuses) != 1 || r.Limited {
			t.Errorf("%v: %+v", code, r)
		}
	}
}

// TestCallerEnds tests that a request whose context has ended is rejected, and not reported as a server's failure.
func TestCallerEnds(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	silent := testkit.NewProxy(t, addr)
	silent.Silent.Store(true)
	c := connect(t, silent.Addr(), client.Config{FailOpen: true, OnError: func(err error) { t.Errorf("OnError was told: %v", err) }})
	l := c.Limiter(client.Pairs("user", "gone"))
	cancelled, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	late, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
		if r, err := l.Take(ctx, 1); r.OK || !errors.Is(err, want) {
			t.Errorf("%+v, %v; want %v", r, err, want)
		}
		if l.Allow(ctx) {
			t.Errorf("allowed after %v", want)
		}
		if err := l.Wait(ctx); !errors.Is(err, want) {
			t.Errorf("waiting ends with %v; want %v", err, want)
		}
		if _, err := c.Limiter(client.Pairs("desk", "gone")).Hold(ctx, ""); err == nil {
			t.Error("a slot is held")
		}
	}
}

// TestBalance tests that requests are distributed over the servers, and that a draining server gets none although it still answers.
func TestBalance(t *testing.T) {
	t.Parallel()
	one, two := start(t, "DRAIN_DELAY=10m"), start(t)
	c := connect(t, one.At["GRPC"]+","+two.At["GRPC"], client.Config{})
	both := func(user string) int { // each server counts on its own, so both together admit 6
		passed := 0
		for range 12 {
			if c.Limiter(client.Pairs("user", user)).Allow(t.Context()) {
				passed++
			}
		}
		return passed
	}
	n := 0
	testkit.Eventually(t, "both servers are asked in turns", func() bool { n++; return both("both"+strings.Repeat("x", n)) == 6 })
	if err := one.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the other one answers alone", func() bool { n++; return both("one"+strings.Repeat("x", n)) == 3 })
	if one.Over() {
		t.Error("the server has ended instead of draining")
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	dir, ca := t.TempDir(), certstest.NewCA(t, "test")
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	ca.Issue(t, x509.Certificate{}).Write(t, cert, key)
	d := start(t, "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key)
	at := d.At["GRPC"]
	for _, tt := range []struct {
		addr string
		tls  *tls.Config
		want bool
	}{
		{at, &tls.Config{RootCAs: ca.Pool()}, true},
		{at + "," + at, &tls.Config{RootCAs: ca.Pool()}, true},
		{at, &tls.Config{}, false},
		{at + "," + at, &tls.Config{}, false},
		{at, nil, false},
	} {
		l := connect(t, tt.addr, client.Config{TLS: tt.tls}).Limiter(client.Pairs("user", "tls"))
		if r, err := l.Peek(t.Context()); r.OK != tt.want {
			t.Errorf("%s, with a CA %v: %+v, %v", tt.addr, tt.tls != nil && tt.tls.RootCAs != nil, r, err)
		}
	}
}
