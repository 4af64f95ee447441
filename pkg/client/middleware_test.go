package client_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/client"
)

// get sends a request from a client address to a handler, and returns the code, the headers about limits, and the body.
func get(t *testing.T, h http.Handler, path, from string, header ...string) (code int, headers map[string]string, body string) {
	t.Helper()
	r, w := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil), httptest.NewRecorder()
	r.RemoteAddr = from
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	h.ServeHTTP(w, r)
	headers = map[string]string{}
	for name := range w.Header() {
		if strings.Contains(strings.ToLower(name), "rate") || name == "Retry-After" || w.Header().Get(name) == "application/json" {
			headers[name] = w.Header().Get(name)
		}
	}
	return w.Code, headers, w.Body.String()
}

func fine(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }

func TestMiddleware(t *testing.T) {
	t.Parallel()
	c := fresh(t)
	h := c.Middleware(client.ByIP("ip"), client.HTTP{})(http.HandlerFunc(fine))
	for _, tt := range []struct {
		from string
		code int
		left string
	}{
		{"192.0.2.1:1000", 200, "1"},
		{"192.0.2.1:2000", 200, "0"},
		{"192.0.2.1:3000", 429, "0"},
		{"[::ffff:192.0.2.1]:4000", 429, "0"},
		{"192.0.2.2:1000", 200, "1"},
		{"[2001:db8::1]:1000", 200, "1"},
		{"[2001:db8::2%eth0]:1000", 200, "0"},
		{"[2001:db8:0:1::1]:1000", 200, "1"},
		{"@", 200, "1"}, // a unix socket
	} {
		code, headers, _ := get(t, h, "/", tt.from)
		reset := headers["Ratelimit-Reset"]
		want := map[string]string{"Ratelimit-Limit": "2", "Ratelimit-Remaining": tt.left, "Ratelimit-Reset": reset}
		if code == 429 {
			want["Retry-After"] = reset
		}
		if diff := cmp.Diff(want, headers); diff != "" || code != tt.code || reset == "" || reset == "0" {
			t.Errorf("%s: %d (-want +got):\n%s", tt.from, code, diff)
		}
	}
	if code, _, body := get(t, h, "/", "192.0.2.1:1"); code != 429 || body != "over the rate limit" {
		t.Errorf("a rejection is %d %q", code, body)
	}
}

// TestMiddlewareSettings tests skipped requests, costs, and handlers of rejections.
func TestMiddlewareSettings(t *testing.T) {
	t.Parallel()
	c := fresh(t)
	byUser := client.ByHeader("user", "X-User")
	key := func(r *http.Request) []client.Descriptor {
		if r.URL.Path == "/healthz" {
			return nil
		}
		return byUser(r)
	}
	h := c.Middleware(key, client.HTTP{
		Cost: func(r *http.Request) int { return len(r.URL.Path) },
		Denied: func(w http.ResponseWriter, _ *http.Request, result client.Result, err error) {
			w.WriteHeader(http.StatusTeapot)
			if err == nil {
				_, _ = io.WriteString(w, result.Rule)
			}
		},
	})(http.HandlerFunc(fine))
	for _, tt := range []struct {
		path, user string
		code       int
		body       string
	}{
		{"/ab", "cost", 200, "fine"},
		{"/", "cost", 418, "shop.user"},
		{"/healthz", "cost", 200, "fine"},
		{"/ab", "", 200, "fine"},
		{"/", "", 418, "shop.user"}, // without a header
		{"/ab", "\xff", 200, "fine"},
		{"/", "\xff", 418, "shop.user"},
	} {
		if code, _, body := get(t, h, tt.path, "192.0.2.1:1", "X-User", tt.user); code != tt.code || body != tt.body {
			t.Errorf("%s of %q: %d %q; want %d %q", tt.path, tt.user, code, body, tt.code, tt.body)
		}
	}
	code, headers, _ := get(t, h, "/"+strings.Repeat("a", 100), "192.0.2.1:1", "X-User", "large")
	if code != 418 || headers["Retry-After"] != "" || headers["Ratelimit-Reset"] != "60" {
		t.Errorf("a request that can never pass: %d %v", code, headers)
	}
	queue := c.Middleware(func(*http.Request) []client.Descriptor { return []client.Descriptor{client.Pairs("letter", "http")} },
		client.HTTP{})(http.HandlerFunc(fine))
	get(t, queue, "/", "192.0.2.1:1")
	if code, headers, _ := get(t, queue, "/", "192.0.2.1:1"); code != 200 || len(headers["Ratelimit-Wait"]) != len("60000") {
		t.Errorf("a request before its turn: %d %v", code, headers)
	}
}

// TestMiddlewareOfServer tests that headers and bodies of the server take precedence.
func TestMiddlewareOfServer(t *testing.T) {
	t.Parallel()
	d := start(t, "LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=X-RateLimit-Limit", "LIMIT_RETRY_AFTER_HEADER=Retry-After",
		"LIMIT_RULE_HEADER=X-Rate-Rule", `LIMIT_BODY={"rule": "{{rule}}"}`)
	h := connect(t, d.At["GRPC"], client.Config{}).Middleware(client.ByIP("ip"), client.HTTP{})(http.HandlerFunc(fine))
	get(t, h, "/", "192.0.2.1:1")
	code, headers, _ := get(t, h, "/", "192.0.2.1:1")
	if code != 200 || headers["X-Ratelimit-Limit"] != "2" || headers["Ratelimit-Remaining"] != "0" || headers["X-Rate-Rule"] != "shop.ip" {
		t.Errorf("%d %v", code, headers)
	}
	code, headers, body := get(t, h, "/", "192.0.2.1:1")
	if code != 429 || headers["Content-Type"] != "application/json" || body != `{"rule": "shop.ip"}` || headers["Retry-After"] == "" {
		t.Errorf("%d %v %q", code, headers, body)
	}
	d.Kill()
	code, headers, body = get(t, h, "/", "192.0.2.1:1")
	if code != 503 || body != "the rate limit could not be checked" || headers["Ratelimit-Limit"] != "" {
		t.Errorf("without a server: %d %v %q", code, headers, body)
	}
	open := connect(t, d.At["GRPC"], client.Config{FailOpen: true}).Middleware(client.ByIP("ip"), client.HTTP{})(http.HandlerFunc(fine))
	if code, _, _ := get(t, open, "/", "192.0.2.1:1"); code != 200 {
		t.Errorf("without a server, but open: %d", code)
	}
}

// TestMiddlewareOfTheDraft tests that the draft's headers of the server replace the older ones, and that a rule with headers: off has
// neither.
func TestMiddlewareOfTheDraft(t *testing.T) {
	t.Parallel()
	d := start(t, "LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_HEADERS_FORMAT=draft")
	c := connect(t, d.At["GRPC"], client.Config{})
	h := c.Middleware(client.ByIP("ip"), client.HTTP{})(http.HandlerFunc(fine))
	for _, code := range []int{200, 200, 429} {
		got, headers, _ := get(t, h, "/", "192.0.2.1:1")
		if got != code || headers["Ratelimit-Policy"] != `"shop.ip";q=2;w=60` || headers["Ratelimit"] == "" || headers["Ratelimit-Limit"] != "" ||
			(headers["Retry-After"] == "") != (code == 200) {
			t.Errorf("%d, want %d: %v", got, code, headers)
		}
	}
	secret := c.Middleware(client.ByIP("secret"), client.HTTP{})(http.HandlerFunc(fine))
	for _, code := range []int{200, 429} {
		got, headers, _ := get(t, secret, "/", "192.0.2.1:1")
		delete(headers, "Content-Type")
		if got != code || len(headers) > 0 {
			t.Errorf("%d, want %d: %v", got, code, headers)
		}
	}
	if err := c.Limiter(client.Pairs("secret", "192.0.2.1")).Wait(t.Context()); !errors.Is(err, client.ErrNoTurn) {
		t.Errorf("waiting for what does not tell its turn: %v", err)
	}
}

// TestInterceptors tests that calls and streams within their limits reach their handlers.
func TestInterceptors(t *testing.T) {
	t.Parallel()
	d := start(t)
	c := connect(t, d.At["GRPC"], client.Config{})
	key := func(ctx context.Context, method string) []client.Descriptor {
		md, _ := metadata.FromIncomingContext(ctx)
		if len(md["user"]) == 0 {
			return nil
		}
		return []client.Descriptor{client.Pairs("user", md["user"][0]+method)}
	}
	l := testkit.Listen(t)
	server := grpc.NewServer(grpc.UnaryInterceptor(c.UnaryServerInterceptor(key)), grpc.StreamInterceptor(c.StreamServerInterceptor(key)))
	healthpb.RegisterHealthServer(server, health.NewServer())
	testkit.Run(t, func(ctx context.Context) error {
		context.AfterFunc(ctx, server.Stop)
		return server.Serve(l)
	})
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	of := func(user string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), "user", user)
	}
	for kind, call := range map[string]func(context.Context) (metadata.MD, error){
		"unary": func(ctx context.Context) (md metadata.MD, err error) {
			_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&md))
			return md, err
		},
		"stream": func(ctx context.Context) (metadata.MD, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
			if err != nil {
				return nil, err
			}
			_, err = watch.Recv()
			md, _ := watch.Header()
			return md, err
		},
	} {
		for range 5 {
			if md, err := call(t.Context()); err != nil || len(md["ratelimit-limit"]) != 0 {
				t.Fatalf("%s: a call that is skipped: %v, %v", kind, md, err)
			}
		}
		for _, left := range []string{"2", "1", "0"} {
			if md, err := call(of(kind)); err != nil || md["ratelimit-limit"][0] != "3" || md["ratelimit-remaining"][0] != left {
				t.Fatalf("%s: %v, %v; want %s left", kind, md, err, left)
			}
		}
		md, err := call(of(kind))
		if status.Code(err) != codes.ResourceExhausted || len(md["retry-after"]) != 1 || md["retry-after"][0] != md["ratelimit-reset"][0] {
			t.Errorf("%s: a rejection: %v, %v", kind, md, err)
		}
	}
	d.Kill()
	if _, err := healthpb.NewHealthClient(conn).Check(of("late"), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("without a server: %v", err)
	}
}
