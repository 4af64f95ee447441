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

// HTTP says how a middleware limits. Its zero value rejects with 429 Too Many Requests, or 503 Service Unavailable where
// no server decided.
type HTTP struct {
	// Cost returns how many hits a request spends. Nil means 1.
	Cost func(*http.Request) int
	// Denied answers a request that is rejected. The headers are set already. err is not nil if no server decided.
	Denied func(w http.ResponseWriter, r *http.Request, result Result, err error)
}

// Middleware returns what wraps a handler so that only requests within their limits reach it. key says what limits a
// request, and without a descriptor nothing does: return nil for what is to be skipped. Every response has RateLimit-Limit,
// RateLimit-Remaining and RateLimit-Reset, and rejections have Retry-After, both in seconds, unless [Never] is known; the server's
// variables LIMIT_… add more, and what they add under the same name replaces it. With LIMIT_HEADERS_FORMAT=draft RateLimit and
// RateLimit-Policy take the place of the first three. Rules with headers: off have none of them, nor Retry-After. Requests
// do not wait for a turn in a queue (leaky_bucket); RateLimit-Wait says when it comes, in milliseconds.
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

// deny answers with the server's LIMIT_BODY, if it has one.
func deny(w http.ResponseWriter, _ *http.Request, result Result, err error) {
	text, code := cmp.Or(string(result.Body), "over the rate limit"), http.StatusTooManyRequests
	if err != nil {
		text, code = "the rate limit could not be checked", http.StatusServiceUnavailable
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // a client that does not read it is gone
}

// ByIP limits each client by its address, in a descriptor with this key. An IPv6 address counts as its network of 64 bits,
// such as 2001:db8::/64, since one client has all of its addresses. The address is that of the connection: behind a proxy,
// write a function that reads the header which that proxy sets, for clients can send any.
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

// ByHeader limits by the value of a header, in a descriptor with this key. All requests without the header share one
// value, the empty one, so that no client escapes the limit by leaving it out.
func ByHeader(key, header string) func(*http.Request) []Descriptor {
	return func(r *http.Request) []Descriptor { return []Descriptor{Pairs(key, r.Header.Get(header))} }
}

// CallKey says what limits a call, by its context, which has its metadata and its peer, and its method, such as
// /shop.Cart/Add. Without a descriptor nothing does: return nil for what is to be skipped.
type CallKey func(ctx context.Context, method string) []Descriptor

// UnaryServerInterceptor lets only calls within their limits reach their handler. Others get RESOURCE_EXHAUSTED, or
// UNAVAILABLE where no server decided. Their headers are those of [Client.Middleware], in lower case.
func (c *Client) UnaryServerInterceptor(key CallKey) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if err := c.enter(ctx, key(ctx, info.FullMethod)); err != nil {
			return nil, err
		}
		return next(ctx, request)
	}
}

// StreamServerInterceptor is the same for streams, which spend one hit when they begin.
func (c *Client) StreamServerInterceptor(key CallKey) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if err := c.enter(stream.Context(), key(stream.Context(), info.FullMethod)); err != nil {
			return err
		}
		return next(server, stream)
	}
}

// enter returns an error for a call that is rejected. It sets headers in any case.
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
