// Package tracingtest implements a collector of traces for tests. It receives OTLP over gRPC or HTTP and stores the spans.
package tracingtest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// Collector stores received spans. It is safe for concurrent use.
type Collector struct {
	collector.UnimplementedTraceServiceServer

	// URL is its endpoint, in the format of OTEL_EXPORTER_OTLP_ENDPOINT.
	URL string

	stop func()
	done chan struct{} // closed when the collector has stopped

	mu       sync.Mutex // guards the following fields
	requests []*collector.ExportTraceServiceRequest
	bytes    []byte
}

// Start starts a collector on a free local port. The protocol is http or grpc. Close ends it.
func Start(protocol string) (*Collector, error) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for traces: %w", err)
	}
	c := &Collector{URL: "http://" + ln.Addr().String(), done: make(chan struct{})}
	switch protocol {
	case "http":
		s := &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
		c.stop = func() { _ = s.Close() } // open connections do not matter
		go c.serve(s.Serve, ln)
	case "grpc":
		s := grpc.NewServer()
		collector.RegisterTraceServiceServer(s, c)
		c.stop = s.Stop
		go c.serve(s.Serve, ln)
	default:
		return nil, errors.Join(fmt.Errorf("protocol %q: must be http or grpc", protocol), ln.Close())
	}
	return c, nil
}

// serve serves until Close. On error, the sender fails.
func (c *Collector) serve(serve func(net.Listener) error, ln net.Listener) {
	defer close(c.done)
	_ = serve(ln)
}

// Close ends the collector. The received spans remain available.
func (c *Collector) Close() {
	c.stop()
	<-c.done
}

// Export implements collector.TraceServiceServer.
func (c *Collector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	raw, err := proto.Marshal(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests, c.bytes = append(c.requests, r), append(c.bytes, raw...)
	return &collector.ExportTraceServiceResponse{}, err
}

// ServeHTTP implements Export over HTTP.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request, err := read(r)
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprintf("%s: no traces: %v", r.URL.Path, err), http.StatusBadRequest)
		return
	}
	answer, err := c.Export(r.Context(), request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	raw, err := proto.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(raw) // fails only if the client is gone
}

func read(r *http.Request) (*collector.ExportTraceServiceRequest, error) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			return nil, err
		}
		body = unzipped
	}
	raw, err := io.ReadAll(body)
	if err != nil {
		return nil, err
	}
	request := new(collector.ExportTraceServiceRequest)
	return request, proto.Unmarshal(raw, request)
}

// Span is a span in the form used by tests.
type Span struct {
	*otlp.Span

	Attributes map[string]string // values as text
}

// Spans returns the spans so far, by start time.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Span
	for _, r := range c.requests {
		for _, rs := range r.GetResourceSpans() {
			for _, ss := range rs.GetScopeSpans() {
				for _, s := range ss.GetSpans() {
					all = append(all, Span{s, attributes(s.GetAttributes())})
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Span) int { return cmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()) })
	return all
}

// Resource returns the attributes of the sender of the first spans, or nil if there are none.
func (c *Collector) Resource() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.requests {
		for _, rs := range r.GetResourceSpans() {
			return attributes(rs.GetResource().GetAttributes())
		}
	}
	return nil
}

// Holds reports whether the received data contain text.
func (c *Collector) Holds(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.bytes, []byte(text))
}

func attributes(list []*common.KeyValue) map[string]string {
	all := make(map[string]string, len(list))
	for _, a := range list {
		all[a.GetKey()] = text(a.GetValue())
	}
	return all
}

func text(v *common.AnyValue) string {
	if list := v.GetArrayValue(); list != nil {
		var parts []string
		for _, e := range list.GetValues() {
			parts = append(parts, text(e))
		}
		return strings.Join(parts, " ")
	}
	switch x := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return x.StringValue
	case *common.AnyValue_BoolValue:
		return fmt.Sprint(x.BoolValue)
	case *common.AnyValue_IntValue:
		return fmt.Sprint(x.IntValue)
	default:
		return fmt.Sprint(v)
	}
}

// Tree prints the names of the spans, each below its parent. A parent that was not received is printed as its number and that of its
// trace.
func (c *Collector) Tree() string {
	var b strings.Builder
	spans, known := c.Spans(), map[string]bool{"": true}
	for _, s := range spans {
		known[string(s.GetSpanId())] = true
	}
	below := make(map[string][]Span)
	for _, s := range spans {
		below[string(s.GetParentSpanId())] = append(below[string(s.GetParentSpanId())], s)
	}
	var branch func(parent, indent string)
	branch = func(parent, indent string) {
		for _, s := range below[parent] {
			fmt.Fprintf(&b, "%s%s\n", indent, s.GetName())
			branch(string(s.GetSpanId()), indent+"  ")
		}
	}
	branch("", "")
	for _, parent := range slices.Sorted(maps.Keys(below)) {
		if !known[parent] {
			fmt.Fprintf(&b, "%s of %s\n", hex.EncodeToString([]byte(parent)), hex.EncodeToString(below[parent][0].GetTraceId()))
			branch(parent, "  ")
		}
	}
	return b.String()
}
