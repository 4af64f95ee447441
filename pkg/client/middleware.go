package client

import (
	"cmp"
	"context"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// HTTP configures a middleware. The zero value answers rejections with 429 Too Many Requests, or with 503 Service Unavailable if no
// server decided.
type HTTP struct {
	// Cost returns the number of hits of a request. Nil means 1.
	Cost func(*http.Request) int
	// Denied answers a rejected request, after the headers are set. err is not nil if no server decided.
	Denied func(w http.ResponseWriter, r *http.Request, result Result, err error)
}

// Middleware wraps a handler so that only requests within their limits reach it. key returns the descriptors of a request; a request
// without descriptors is not limited. Responses to limited requests have RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset, in
// seconds. Rejections also have Retry-After, in seconds, unless RetryAfter is [Never]. Headers that the server adds (its variables
// LIMIT_…) replace those of the same name. With LIMIT_HEADERS_FORMAT=draft, RateLimit and RateLimit-Policy replace the first three.
// Responses for rules with headers: off have none of these headers. Requests do not wait for their turn in a queue (leaky_bucket);
// RateLimit-Wait is the time until then, in milliseconds.
func (c *Client) Middleware(key func(*http.Request) []Descriptor, h HTTP) func(http.Handler) http.Handler {
	if h.Denied == nil {
		h.Denied = deny
	}
	if h.Cost == nil {
		h.Cost = func(*http.Request) int { return 1 }
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if d := key(r); len(d) > 0 {
				result, err := c.Limiter(d...).Take(r.Context(), h.Cost(r))
				maps.Copy(w.Header(), result.headers())
				if !result.OK {
					h.Denied(w, r, result, err)
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

// deny answers with the server's LIMIT_BODY, if set.
func deny(w http.ResponseWriter, _ *http.Request, result Result, err error) {
	text, code := cmp.Or(string(result.Body), "over the rate limit"), http.StatusTooManyRequests
	if err != nil {
		text, code = "the rate limit could not be checked", http.StatusServiceUnavailable
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // fails only if the client is gone
}

// ByIP limits each client by its address, in a descriptor with this key. It limits IPv6 clients by network of 64 bits, such as
// 2001:db8::/64, because a client usually owns all addresses of its network. The address is that of the connection. Behind a proxy, write
// a function that reads the header set by that proxy, because clients can send any header.
func ByIP(key string) func(*http.Request) []Descriptor {
	return func(r *http.Request) []Descriptor {
		value := r.RemoteAddr
		if at, err := netip.ParseAddrPort(value); err == nil {
			ip := at.Addr().Unmap()
			value = ip.String()
			if p, err := ip.Prefix(64); err == nil && ip.Is6() {
				value = p.String()
			}
		}
		return []Descriptor{Pairs(key, value)}
	}
}

// ByHeader limits by the value of a header, in a descriptor with this key. All requests without the header share the empty value, so
// clients cannot escape the limit by omitting it.
func ByHeader(key, header string) func(*http.Request) []Descriptor {
	return func(r *http.Request) []Descriptor { return []Descriptor{Pairs(key, r.Header.Get(header))} }
}

// CallKey returns the descriptors of a call, given its context, which contains its metadata and its peer, and its method, such as
// /shop.Cart/Add. A call without descriptors is not limited.
type CallKey func(ctx context.Context, method string) []Descriptor

// UnaryServerInterceptor lets only calls within their limits reach their handler. Other calls fail with RESOURCE_EXHAUSTED, or with
// UNAVAILABLE if no server decided. The headers are those of [Client.Middleware], in lower case.
func (c *Client) UnaryServerInterceptor(key CallKey) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := c.enter(ctx, key(ctx, info.FullMethod)); err != nil {
			return nil, err
		}
		return next(ctx, request)
	}
}

// StreamServerInterceptor is UnaryServerInterceptor for streams. A stream consumes one hit when it begins.
func (c *Client) StreamServerInterceptor(key CallKey) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := c.enter(stream.Context(), key(stream.Context(), info.FullMethod)); err != nil {
			return err
		}
		return next(server, stream)
	}
}

// enter sets the headers of a call, and returns an error if the call is rejected.
func (c *Client) enter(ctx context.Context, d []Descriptor) error {
	if len(d) == 0 {
		return nil
	}
	result, err := c.Limiter(d...).Take(ctx, 1)
	headers := metadata.MD{}
	for name, values := range result.headers() {
		headers[strings.ToLower(name)] = values
	}
	_ = grpc.SetHeader(ctx, headers) // fails only if the call is over
	if result.OK {
		return nil
	}
	if err != nil {
		return status.Error(codes.Unavailable, "the rate limit could not be checked")
	}
	return status.Error(codes.ResourceExhausted, "over the rate limit")
}
