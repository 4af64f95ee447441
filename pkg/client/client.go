// Package client asks ratelimitd whether something may happen now. It reads like golang.org/x/time/rate, but the limits are rules
// of the server, which all processes that ask it share:
//
//	c, err := client.New("dns:///ratelimitd.infra:8081", "shop", client.Config{FailOpen: true})
//	…
//	defer c.Close()
//	if !c.Limiter(client.Pairs("user", "alice")).Allow(ctx) {
//		return errTooMany
//	}
//
// A [Limiter] asks about one or several descriptors. [Limiter.Allow] takes a hit or reports that there is none. [Limiter.Take]
// returns what is left and when to come again. [Limiter.Peek] spends nothing. [Limiter.Wait] waits for its turn. [Limiter.Hold]
// takes a slot of a rule that limits how much runs at the same time. [Client.Middleware] and [Client.UnaryServerInterceptor] ask
// about each request of a server.
//
// # What can go wrong
//
// While no server answers, or one answers UNKNOWN or any other error, [Config.FailOpen] decides. There are two exceptions, in which
// the answer is always no. One is a request that the server does not accept (INVALID_ARGUMENT, RESOURCE_EXHAUSTED), so that input
// of end users never opens a limit. The other is a context of the caller that has ended.
//
// No question is asked twice, for its hits might count twice. A descriptor that no rule limits passes, with [Status.Limited] false.
// The verdict is that on all descriptors, even if the server does not know about one of them.
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

// balanced spreads questions over all addresses of healthy servers. A server that drains is left out before it stops.
const balanced = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "ratelimit"}}`

// Errors of calls, which are wrapped; errors of gRPC keep their status.
var (
	// ErrOverLimit is returned by Wait if no time is long enough, and by Hold if no slot is free.
	ErrOverLimit = errors.New("over the limit")
	// ErrNoVerdict means that a server answered, but with the code UNKNOWN. Config.FailOpen has decided.
	ErrNoVerdict = errors.New("the server answered UNKNOWN, not a verdict")
	// ErrNoTurn is returned by Wait where the server does not say when a turn comes: it needs DECISION_METADATA=true.
	ErrNoTurn = errors.New("the server does not say when a turn comes: start it with DECISION_METADATA=true")
	// ErrLost is returned by Release where the slot had ended before.
	ErrLost = errors.New("the slot was lost before it was released")
)

// Config says how servers are asked. The zero value asks in plain text, and fails closed.
type Config struct {
	// TLS secures connections; its certificates are presented to servers that ask for one. Nil means plain text.
	TLS *tls.Config
	// Timeout is how long to wait for an answer, if the context of a call does not end before. 0 and less mean 250 ms.
	Timeout time.Duration
	// FailOpen lets pass what no server decides. Otherwise it is rejected.
	FailOpen bool
	// OnError gets each failed question, also where FailOpen hides it, but not those whose callers gave up. It may
	// be called concurrently. Nil reports nothing.
	OnError func(error)
	// Dial are further options of connections, such as a stats handler for tracing.
	Dial []grpc.DialOption
}

// Client asks servers about the rules of one domain. It is safe for concurrent use, and meant to live as long as the
// process.
type Client struct {
	addr, domain string
	config       Config
	conn         *grpc.ClientConn
	service      rls.RateLimitServiceClient
}

// New returns a client that asks the servers at addr about a domain. It connects when it is first asked something, and
// takes turns between all servers that are healthy. addr is one of
//
//	host:port               each address that DNS has for the host, which is asked again when a connection ends
//	host:port,host:port,…   these servers
//	dns:///…, unix:…, …     a target of gRPC
//
// The error says what is wrong with addr or domain, not whether a server is there.
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
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}), // servers allow a ping each 10 s
		grpc.WithResolvers(list),
	}, c.Dial...)
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return nil, fmt.Errorf("client: address %q: %w", addr, err)
	}
	return &Client{addr: addr, domain: domain, config: c, conn: conn, service: rls.NewRateLimitServiceClient(conn)}, nil
}

// parse returns the target that addr means to gRPC, and what resolves it if it is a list.
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

// Close closes all connections. Questions that have not been answered fail, and slots that are still held are no longer
// renewed: release them first.
func (c *Client) Close() error { return c.conn.Close() }
