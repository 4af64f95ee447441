package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // as the cluster has health checks
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	grpcstatus "google.golang.org/grpc/status"
)

// Proxy is what a listener of Envoy's does: an [http.Handler].
type Proxy struct {
	config *ratelimitv3.RateLimit
	host   *routev3.VirtualHost
	usages []usage
	access accessLog
	addrs  map[string][]string // of clusters

	conn   *grpc.ClientConn
	client rlsv3.RateLimitServiceClient
	out    http.Transport
	done   sync.WaitGroup // calls at the end of streams

	mu     sync.Mutex // guards what is below
	log    strings.Builder
	stats  Stats
	errors map[string]int
}

// NewProxy returns the proxy of a listener. It calls the rate-limit service and the applications where the clusters of the
// configuration have them. Close ends it.
func NewProxy(b *bootstrapv3.Bootstrap, listener string) (*Proxy, error) {
	m, err := ConnectionManager(b, listener)
	if err != nil {
		return nil, err
	}
	p := &Proxy{config: new(ratelimitv3.RateLimit), host: m.GetRouteConfig().GetVirtualHosts()[0], addrs: map[string][]string{}, errors: map[string]int{}}
	if err := m.GetHttpFilters()[0].GetTypedConfig().UnmarshalTo(p.config); err != nil {
		return nil, err
	}
	if p.config.GetFailureModeDenyPercent() != nil || p.config.GetFilterEnabled() != nil || p.config.GetFilterEnforced() != nil {
		return nil, errors.New("cannot play a filter that is enabled, enforced or denies for a share of requests")
	}
	if p.usages, err = usagesOf(m.GetHttpFilters()); err != nil {
		return nil, err
	}
	if p.access, err = accessLogOf(m); err != nil {
		return nil, err
	}
	for _, c := range b.GetStaticResources().GetClusters() {
		for _, e := range c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			p.addrs[c.GetName()] = append(p.addrs[c.GetName()], net.JoinHostPort(at.GetAddress(), strconv.Itoa(int(at.GetPortValue()))))
		}
		if c.GetName() == p.config.GetRateLimitService().GetGrpcService().GetEnvoyGrpc().GetClusterName() {
			if err := p.dial(c); err != nil {
				return nil, err
			}
		}
	}
	if p.conn == nil {
		return nil, errors.New("the filter's rate_limit_service names no cluster of the file")
	}
	return p, nil
}

// dial connects to all endpoints of the rate-limit service, whose turn it is one after the other, but for those that are not
// healthy.
func (p *Proxy) dial(c *clusterv3.Cluster) error {
	endpoints := manual.NewBuilderWithScheme("envoy")
	var state resolver.State
	for _, addr := range p.addrs[c.GetName()] {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: addr})
	}
	endpoints.InitialState(state)
	health := c.GetHealthChecks()[0].GetGrpcHealthCheck().GetServiceName()
	again := backoff.Config{BaseDelay: c.GetHealthChecks()[0].GetInterval().AsDuration(), Multiplier: 1, MaxDelay: time.Second}
	var err error
	p.conn, err = grpc.NewClient("envoy:///"+c.GetName(), grpc.WithResolvers(endpoints), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: again, MinConnectTimeout: time.Second}),
		grpc.WithDefaultServiceConfig(fmt.Sprintf(`{"loadBalancingConfig":[{"round_robin":{}}],"healthCheckConfig":{"serviceName":%q}}`, health)))
	p.client = rlsv3.NewRateLimitServiceClient(p.conn)
	return err
}

// Ready waits until the rate-limit service is connected, as Envoy is once it has been found healthy.
func (p *Proxy) Ready(ctx context.Context) error {
	p.conn.Connect()
	for state := p.conn.GetState(); state != connectivity.Ready; state = p.conn.GetState() {
		if !p.conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
	return nil
}

// Close waits for the calls that are still made, and closes connections.
func (p *Proxy) Close() error {
	p.done.Wait()
	p.out.CloseIdleConnections()
	return p.conn.Close()
}

// Stats returns what the filter has counted.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stats
}

// Errors returns how calls of requests ended that got no answer, with how many of them ended so.
func (p *Proxy) Errors() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.errors)
}

// Log returns the access log.
func (p *Proxy) Log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	remote, _, _ := net.SplitHostPort(r.RemoteAddr)
	s := &Stream{Config: p.config, Path: r.URL.RequestURI(), Remote: remote, Request: r.Header, Response: http.Header{}}
	cluster, err := p.route(s)
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotImplemented)
		return
	}
	status, flags, err := p.pass(w, r, s, cluster)
	if err != nil {
		status, flags = http.StatusServiceUnavailable, "UF"
		http.Error(w, err.Error(), status)
	}
	p.finish(r.Context(), &exchange{stream: s, method: r.Method, status: status, flags: flags, begin: begin})
}

// route finds the route of a stream, and returns its cluster.
func (p *Proxy) route(s *Stream) (string, error) {
	for _, r := range p.host.GetRoutes() {
		if !strings.HasPrefix(s.Path, r.GetMatch().GetPrefix()) {
			continue
		}
		var own ratelimitv3.RateLimitPerRoute
		if err := r.GetTypedPerFilterConfig()[FilterName].UnmarshalTo(&own); err != nil {
			return "", err
		}
		s.Limits = own.GetRateLimits()
		return r.GetRoute().GetCluster(), nil
	}
	return "", fmt.Errorf("there is no route for %s", s.Path)
}

// pass lets the request pass to the cluster, or answers it, and returns the status of the answer and Envoy's flags.
func (p *Proxy) pass(w http.ResponseWriter, r *http.Request, s *Stream, cluster string) (status int, flags string, err error) {
	call, err := s.Call(false)
	if err != nil {
		return 0, "", err
	}
	answer, err := p.ask(r.Context(), s, call)
	switch {
	case err != nil && p.config.GetFailureModeDeny():
		status = int(p.config.GetStatusOnError().GetCode())
		if status == 0 {
			status = http.StatusInternalServerError
		}
		w.WriteHeader(status)
		return status, "RLSE", nil
	case answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT:
		s.headers(w.Header(), answer)
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write(answer.GetRawBody()) // nobody is there to be told
		return http.StatusTooManyRequests, "RL", nil
	}
	if len(p.addrs[cluster]) == 0 {
		return 0, "", fmt.Errorf("there is no cluster %q", cluster)
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", p.addrs[cluster][0], ""
	asHeader(out.Header, answer.GetRequestHeadersToAdd())
	resp, err := p.out.RoundTrip(out)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	s.Response = resp.Header
	maps.Copy(w.Header(), resp.Header)
	s.headers(w.Header(), answer)
	w.WriteHeader(resp.StatusCode)
	body := relay(w, resp.Body)
	for _, u := range p.usages {
		u.read(s, body)
	}
	return resp.StatusCode, "-", nil
}

// ask makes the call of a request, if there is one to make, and counts how it ended. Without an answer there is an error.
func (p *Proxy) ask(ctx context.Context, s *Stream, call *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	if call == nil {
		return nil, nil //nolint:nilnil // there was nothing to ask
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout())
	defer cancel()
	answer, err := p.client.ShouldRateLimit(ctx, call)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.stats.Error++
		said := grpcstatus.Convert(err)
		p.errors[said.Code().String()+": "+said.Message()]++
		if !p.config.GetFailureModeDeny() {
			p.stats.Allowed++
		}
	case answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT:
		p.stats.Over++
		s.Keep(answer)
	default: // UNKNOWN too
		p.stats.OK++
		s.Keep(answer)
	}
	return answer, err
}

func (p *Proxy) timeout() time.Duration {
	if t := p.config.GetTimeout(); t != nil {
		return t.AsDuration()
	}
	return 20 * time.Millisecond
}

// finish logs the stream, and makes its last call, for which nobody waits.
func (p *Proxy) finish(ctx context.Context, x *exchange) {
	call, err := x.stream.Call(true)
	if call != nil {
		p.done.Go(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.timeout())
			defer cancel()
			_, _ = p.client.ShouldRateLimit(ctx, call) // as Envoy does
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		fmt.Fprintln(&p.log, err)
	}
	line, err := p.access.line(x)
	if err != nil {
		line = err.Error() + "\n"
	}
	p.log.WriteString(line)
}

// relay copies a body as it comes, and returns it.
func relay(w http.ResponseWriter, body io.Reader) string {
	var all strings.Builder
	b := make([]byte, 4096)
	for {
		n, err := body.Read(b)
		all.Write(b[:n])
		if _, gone := w.Write(b[:n]); gone != nil || err != nil {
			return all.String()
		}
		_ = http.NewResponseController(w).Flush() // a caller that has gone is noticed by the next Write
	}
}
