// Package client asks ratelimitd whether a request is within its limits. Its API resembles golang.org/x/time/rate, but the limits are
// rules of the server, shared by all of its clients:
//
//	c, err := client.New("dns:///ratelimitd.infra:8081", "shop", client.Config{FailOpen: true})
//	…
//	defer c.Close()
//	if !c.Limiter(client.Pairs("user", "alice")).Allow(ctx) {
//		return errTooMany
//	}
//
// A [Limiter] asks about one or several descriptors. [Limiter.Allow] consumes a hit if the limits admit it. [Limiter.Take] also returns
// the hits left and the time until the next attempt. [Limiter.Peek] checks without consuming. [Limiter.Wait] waits until a hit is
// admitted. [Limiter.Hold] takes a slot of a rule that limits concurrency. [Client.Middleware] and [Client.UnaryServerInterceptor] check
// each request of a server.
//
// # Failures
//
// If no server answers, or a server answers UNKNOWN or an error, [Config.FailOpen] decides, with two exceptions that are always rejected.
// One is a request that the server considers invalid (INVALID_ARGUMENT, RESOURCE_EXHAUSTED), so that input of end users never opens a
// limit. The other is a request whose context has ended.
//
// Requests are never retried, because their hits might count twice. A descriptor without a limit is admitted, with [Status.Limited]
// false. [Result.OK] is the server's decision on all descriptors, even if it has no decision for one of them.
//
// This package is optional: the core works without it.
package client

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // lets connections follow the health of their servers
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// balanced is a gRPC service config that spreads requests over all healthy addresses. A draining server gets none, even before it stops.
const balanced = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "ratelimit"}}`

// Errors of calls. Calls wrap them; errors of gRPC keep their status.
var (
	// ErrOverLimit is returned by Wait if waiting does not help, and by Hold if too few slots are free.
	ErrOverLimit = errors.New("over the limit")
	// ErrNoVerdict means that a server answered UNKNOWN, and that Config.FailOpen decided.
	ErrNoVerdict = errors.New("the server answered UNKNOWN, not a verdict")
	// ErrNoTurn is returned by Wait if the server does not report wait times, which requires DECISION_METADATA=true.
	ErrNoTurn = errors.New("the server does not say when a turn comes: start it with DECISION_METADATA=true")
	// ErrLost is returned by Release if the slot had already ended.
	ErrLost = errors.New("the slot was lost before it was released")
)

// Config configures a [Client]. The zero value uses plain text and fails closed.
type Config struct {
	// TLS configures encrypted connections, including client certificates. Nil means plain text.
	TLS *tls.Config
	// Timeout is the time limit of a request. An earlier deadline of the call's context takes precedence. If it is not positive, it is
	// 250 ms.
	Timeout time.Duration
	// FailOpen admits requests that no server decides. Otherwise, they are rejected.
	FailOpen bool
	// OnError is called with the error of each failed request, even if FailOpen admits the request, but not if the caller's context
	// ended. It may be called concurrently. Nil ignores errors.
	OnError func(error)
	// Dial adds options to connections, such as a stats handler for tracing.
	Dial []grpc.DialOption
}

// Client asks servers about the rules of one domain. It is safe for concurrent use, and usually lives as long as the process.
type Client struct {
	addr, domain string
	config       Config
	conn         *grpc.ClientConn
	service      rls.RateLimitServiceClient
}

// New returns a client for the rules of a domain on the servers at addr. The client connects at the first request, and distributes
// requests over all healthy servers. addr is one of
//
//	host:port               all addresses of the host; DNS is queried again when a connection ends
//	host:port,host:port,…   these servers
//	dns:///…, unix:…, …     a target of gRPC
//
// The error describes an invalid addr or domain; New does not check whether a server is reachable.
func New(addr, domain string, c Config) (*Client, error) {
	if domain == "" {
		return nil, errors.New("client: the domain is empty: use the domain of a rule file")
	}
	c.Timeout = cmp.Or(max(0, c.Timeout), 250*time.Millisecond)
	target, list, err := parse(addr)
	if err != nil {
		return nil, err
	}
	secured := insecure.NewCredentials()
	if c.TLS != nil {
		secured = credentials.NewTLS(c.TLS)
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(secured),
		grpc.WithDefaultServiceConfig(balanced),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}), // servers allow one per 10 s
		grpc.WithResolvers(list),
	}, c.Dial...)
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("client: address %q: %w", addr, err)
	}
	return &Client{addr: addr, domain: domain, config: c, conn: conn, service: rls.NewRateLimitServiceClient(conn)}, nil
}

// parse returns the gRPC target for addr and, if addr is a list, its resolver.
func parse(addr string) (target string, list *manual.Resolver, err error) {
	list = manual.NewBuilderWithScheme("list")
	if strings.Contains(addr, "://") || strings.HasPrefix(addr, "unix:") {
		return addr, list, nil
	}
	var state resolver.State
	for each := range strings.SplitSeq(addr, ",") {
		if _, port, err := net.SplitHostPort(each); err != nil || port == "" {
			return "", nil, fmt.Errorf("client: address %q: must be host:port, several of them separated by commas, or a target such as dns:///host:port", each)
		}
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{{Addr: each, ServerName: each}}})
	}
	if len(state.Endpoints) == 1 {
		return "dns:///" + addr, list, nil
	}
	list.InitialState(state)
	return list.Scheme() + ":///", list, nil
}

// Close closes all connections. Pending requests fail, and held slots are no longer renewed, so release them first.
func (c *Client) Close() error { return c.conn.Close() }
