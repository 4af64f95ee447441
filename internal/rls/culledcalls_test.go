package rls

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

// TestCulledCalls: a client whose calls are culled gets the answers of policies, or the error of those that are refused, as many as it sends,
// and health, over plain text and TLS. Policies answer where it lets enough be sent.
func TestCulledCalls(t *testing.T) {
	config, pool := serverTLS(t)
	for name, c := range map[string]struct {
		server ServerConfig
		window uint32
	}{
		"plain": {}, "TLS": {ServerConfig{TLS: config}, 0}, "plain, policies": {window: 1 << 20}, "TLS, policies": {ServerConfig{TLS: config}, 1 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			crowded := crowdConn(t, c.server)
			conn := dialRaw(t, crowded.address, c.server.TLS != nil, pool)
			s, coder := newSender(t), newCoder()
			if c.window > 0 {
				s.do(s.fr.WriteWindowUpdate(0, c.window))
			}
			send := func(stream uint32, path string, message []byte) {
				s.head(stream, coder.head(path))
				s.do(s.fr.WriteData(stream, true, framed(0, message)))
				_, err := conn.Write(s.out.Bytes())
				s.do(err)
				s.out.Reset()
			}
			send(1, method, marshal(t, request("first", "k=v")))
			results, again := readResults(conn)
			if r := <-results; r.status != "0" {
				t.Fatalf("the first call: %+v", r)
			}
			crowded.busy(t)
			const calls, pad = 6000, 1000
			loud := marshal(t, request("loud", "k="+strings.Repeat("v", pad))) // in all more than the window of a connection
			health := marshal(t, &healthpb.HealthCheckRequest{})
			var sent sync.WaitGroup
			sent.Go(func() {
				for i := range uint32(calls) {
					if i%100 == 0 { // the last ones are culled
						send(3+2*i, "/grpc.health.v1.Health/Check", health)
					} else {
						send(3+2*i, method, loud)
					}
				}
			})
			got := countResults(t, results, calls)
			sent.Wait()
			shed, late := int(crowded.shed.Load()), int(crowded.late.Load())
			if shed+late != calls-calls/100 || got["error"] != shed || got["over"] != late || crowded.of("loud") > 0 {
				t.Errorf("%v; %d are counted as shed, and policies were asked about %d; %d were decided; want %d in all", got, shed, late, crowded.of("loud"), calls-calls/100)
			}
			if got["health"] != calls/100 || got["culled"] == 0 || (got["over"] > 0) != (c.window > 0) {
				t.Errorf("%v: want %d times health, some culled, and some over if more than 64 KiB may be sent", got, calls/100)
			}
			if n := again.Load(); n < calls*pad-connWindow/2 {
				t.Errorf("%d bytes of %d may be sent again", n, calls*pad)
			}
			for range 10 { // which grpc would take for too many, as it does not know of what was sent since the last
				s.do(s.fr.WritePing(false, [8]byte{}))
			}
			send(3+2*calls, "/grpc.health.v1.Health/Check", health)
			if countResults(t, results, 1)["health"] == 0 {
				t.Error("health is not told after pings")
			}
		})
	}
}

// countResults counts how so many calls end: in an error, over a limit, or as those that ask for health; and which grpc knows nothing of.
func countResults(t *testing.T, results <-chan result, calls int) map[string]int {
	t.Helper()
	got := map[string]int{}
	for range calls {
		r := <-results
		var m ratelimitv3.RateLimitResponse
		switch message := strings.TrimPrefix(errOverload.Error(), "rpc error: code = Unavailable desc = "); {
		case r.status == "14" && r.message == message:
			got["error"]++
		case r.status != "0" || proto.Unmarshal(r.text, &m) != nil || m.GetOverallCode() != ratelimitv3.RateLimitResponse_OVER_LIMIT:
			t.Fatalf("%+v", r)
		case len(m.GetStatuses()) == 1:
			got["over"]++
		default: // in an answer about health the same means that it does not serve
			got["health"]++
		}
		if r.culled {
			got["culled"]++
		}
	}
	return got
}

// dialRaw opens a connection over which no library speaks.
func dialRaw(t *testing.T, address string, secure bool, pool *x509.CertPool) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if secure {
		c = tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}}) //nolint:gosec // the server says which version
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// result is how a call ended.
type result struct {
	status, message string
	text            []byte // the answer, without gRPC's header
	culled          bool   // nobody else says that headers are not to be put into a table
}

// readResults reads how calls end, in any order, and adds up how many bytes may be sent again.
func readResults(c net.Conn) (<-chan result, *atomic.Int64) {
	results, again := make(chan result, 1<<14), new(atomic.Int64)
	fr := headFramer(c)
	go func() {
		defer close(results)
		texts := map[uint32][]byte{}
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			switch f := f.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID == 0 {
					again.Add(int64(f.Increment))
				}
			case *http2.DataFrame:
				texts[f.StreamID] = append(texts[f.StreamID], f.Data()...)
			case *http2.MetaHeadersFrame:
				if !f.StreamEnded() {
					continue
				}
				r := result{text: texts[f.StreamID]}
				if len(r.text) >= messageHeaderSize {
					r.text = r.text[messageHeaderSize:]
				}
				for _, f := range f.Fields {
					switch f.Name {
					case "grpc-status":
						r.status, r.culled = f.Value, f.Sensitive
					case "grpc-message":
						r.message = f.Value
					}
				}
				results <- r
			}
		}
	}()
	return results, again
}
