package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	configv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/config/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// recording is what Envoy Gateway sends for some policies: rules to the rate-limit service, the rest to Envoy. make gateways compares it
// with what Envoy Gateway sends now.
type recording struct {
	Rules     []json.RawMessage `json:"rules"`     // each a ratelimitd.config.v1.RateLimitConfig
	Listeners []tree            `json:"listeners"` // without those that have no rate limits, and without access logs
	Routes    []tree            `json:"routes"`    // by the name of the listener
	Clusters  []tree            `json:"clusters"`
}

// tree is a message of Envoy in JSON.
type tree = map[string]any

// rulesType is the type of rules over xDS.
const rulesType = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// serviceCluster is the name that Envoy Gateway has for the cluster of the rate-limit service.
const serviceCluster = "ratelimit_cluster"

func recordingPath(name string) string {
	return filepath.Join("testdata", "envoy-gateway", name+".json")
}

// recorded reads a recording.
func recorded(w *world, name string) *recording {
	w.Helper()
	r := new(recording)
	text, err := os.ReadFile(recordingPath(name))
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	testkit.Check(w, err)
	return r
}

// text is the recording as files have it.
func (r *recording) text() (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(r)
	return b.String(), err
}

// record makes a recording of Envoy's /config_dump and of the rules that a control plane has sent.
func record(dump []byte, rules *discoveryv3.DiscoveryResponse) (*recording, error) {
	r := new(recording)
	for _, packed := range rules.GetResources() {
		m := new(configv1.RateLimitConfig)
		if err := proto.Unmarshal(packed.GetValue(), m); err != nil {
			return nil, err
		}
		text, err := protojson.Marshal(m)
		if err != nil {
			return nil, err
		}
		var plain tree // protojson varies its spaces
		if err := json.Unmarshal(text, &plain); err != nil {
			return nil, err
		}
		if text, err = json.Marshal(plain); err != nil {
			return nil, err
		}
		r.Rules = append(r.Rules, text)
	}
	slices.SortFunc(r.Rules, func(a, b json.RawMessage) int { return bytes.Compare(a, b) })
	var all struct{ Configs []tree }
	if err := json.Unmarshal(dump, &all); err != nil {
		return nil, err
	}
	for _, c := range all.Configs {
		for _, l := range items(c["dynamic_listeners"]) {
			if l := child(child(l, "active_state"), "listener"); l["default_filter_chain"] != nil {
				r.Listeners = append(r.Listeners, l)
			}
		}
		for _, x := range items(c["dynamic_route_configs"]) {
			r.Routes = append(r.Routes, child(x, "route_config"))
		}
		for _, x := range items(c["dynamic_active_clusters"]) {
			r.Clusters = append(r.Clusters, child(x, "cluster"))
		}
	}
	for _, resources := range [][]tree{r.Listeners, r.Routes, r.Clusters} {
		slices.SortFunc(resources, func(a, b tree) int { return strings.Compare(a["name"].(string), b["name"].(string)) })
		for _, x := range resources {
			delete(x, "@type")
			delete(x, "access_log")
		}
	}
	for _, l := range r.Listeners {
		delete(manager(l), "access_log")
	}
	return r, nil
}

func child(t tree, key string) tree {
	c, _ := t[key].(tree)
	return c
}

// items are the messages of a list, which may be missing.
func items(list any) (all []tree) {
	of, _ := list.([]any)
	for _, x := range of {
		all = append(all, x.(tree))
	}
	return all
}

// manager is the connection manager of a listener of Envoy Gateway.
func manager(listener tree) tree {
	return child(items(child(listener, "default_filter_chain")["filters"])[0], "typed_config")
}

// bootstrap is the recorded configuration for an Envoy without a control plane: one listener on port, and clusters where they are here.
func (r *recording) bootstrap(port int, service, upstream string) tree {
	at := func(addr string) tree {
		host, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port) // it is one of these
		return tree{"socket_address": tree{"address": host, "port_value": n}}
	}
	routes := map[any]tree{}
	for _, x := range r.Routes {
		routes[x["name"]] = x
	}
	for _, l := range r.Listeners {
		l["address"] = at(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if m := manager(l); m["rds"] != nil { // not at a second attempt
			m["route_config"] = routes[child(m, "rds")["route_config_name"]]
			delete(m, "rds")
		}
	}
	var clusters []tree
	for _, x := range r.Clusters {
		c := tree{"name": x["name"], "type": "STATIC"}
		to := upstream
		if x["name"] == serviceCluster {
			to, c["typed_extension_protocol_options"] = service, x["typed_extension_protocol_options"]
		}
		c["load_assignment"] = tree{"cluster_name": x["name"], "endpoints": []tree{{"lb_endpoints": []tree{{"endpoint": tree{"address": at(to)}}}}}}
		clusters = append(clusters, c)
	}
	return tree{"admin": tree{"address": at("127.0.0.1:0")}, "static_resources": tree{"listeners": r.Listeners, "clusters": clusters}}
}

// plane is a control plane that sends recorded rules to any node.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

	answer *discoveryv3.DiscoveryResponse
}

// StreamAggregatedResources implements the service.
func (p plane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	_, err := s.Recv()
	if err == nil {
		err = s.Send(p.answer)
	}
	if err == nil {
		<-s.Context().Done()
	}
	return err
}

// serveRecorded starts the server with recorded rules, which come over xDS.
func (w *world) serveRecorded(r *recording, env ...string) *service {
	w.Helper()
	p := plane{answer: &discoveryv3.DiscoveryResponse{VersionInfo: "1", Nonce: "1", TypeUrl: rulesType}}
	for _, text := range r.Rules {
		m := new(configv1.RateLimitConfig)
		err := protojson.Unmarshal(text, m)
		var raw []byte
		if err == nil {
			raw, err = proto.Marshal(m)
		}
		testkit.Check(w, err)
		p.answer.Resources = append(p.answer.Resources, &anypb.Any{TypeUrl: rulesType, Value: raw})
	}
	at := w.serveGRPC(testkit.Listen(w), func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, p) })
	return w.start(append([]string{
		"BACKEND_TYPE=memory", "USE_STATSD=false", "LOG_LEVEL=info", "DRAIN_DELAY=0s", "ADMIN=true", "CONFIG_TYPE=GRPC_XDS_SOTW",
		"CONFIG_GRPC_XDS_NODE_ID=envoy-ratelimit", "CONFIG_GRPC_XDS_SERVER_URL=" + at, "RUNTIME_ROOT=" + w.TempDir(),
	}, env...))
}

// serveGRPC serves until the case ends, and returns the address.
func (w *world) serveGRPC(l net.Listener, register func(*grpc.Server), options ...grpc.ServerOption) string {
	s := grpc.NewServer(options...)
	register(s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) }) // it ends with the server
	w.Cleanup(func() { s.Stop(); serving.Wait() })
	return l.Addr().String()
}

// ledger passes calls on to a rate-limit service, and takes them down.
type ledger struct {
	rlsv3.UnimplementedRateLimitServiceServer

	to    rlsv3.RateLimitServiceClient
	mu    sync.Mutex
	calls []rlsCall
}

// rlsCall is one descriptor of a call, and whether it was within its limit.
type rlsCall struct {
	entries map[string]string
	hits    string // empty if the call has none
	over    bool
}

// ShouldRateLimit implements the service.
func (y *ledger) ShouldRateLimit(ctx context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	answer, err := y.to.ShouldRateLimit(ctx, r)
	y.mu.Lock()
	defer y.mu.Unlock()
	for i, d := range r.GetDescriptors() {
		c := rlsCall{entries: map[string]string{}}
		for _, e := range d.GetEntries() {
			c.entries[e.GetKey()] = e.GetValue()
		}
		if d.GetHitsAddend() != nil {
			c.hits = strconv.FormatUint(d.GetHitsAddend().GetValue(), 10)
		}
		if err == nil {
			c.over = answer.GetStatuses()[i].GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT
		}
		y.calls = append(y.calls, c)
	}
	return answer, err
}

// of returns the calls with an entry, in their order.
func (y *ledger) of(key, value string) (calls []rlsCall) {
	y.mu.Lock()
	defer y.mu.Unlock()
	for _, c := range y.calls {
		if c.entries[key] == value {
			calls = append(calls, c)
		}
	}
	return calls
}
