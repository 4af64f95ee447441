package rls

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/decide/admission"
	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// outcome is the result of a call made with HTTP/2 frames.
type outcome struct {
	http, grpc string        // :status and grpc-status
	reset      http2.ErrCode // of RST_STREAM
	closed     bool          // the connection was closed
}

// rejected reports whether the call got no answer.
func (o outcome) rejected() bool {
	return o.closed || o.reset != 0 || o.grpc != "0" && o.grpc != ""
}

// framed adds gRPC's prefix to a message.
func framed(compressed byte, message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(len(message))), message...)
}

// headers returns the headers of a call of ShouldRateLimit, with the given changes. An empty value removes a header; unknown ones are
// added.
func headers(changed ...string) [][2]string {
	all := [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", method},
		{":authority", "ratelimit"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	}
next:
	for i := 0; i < len(changed); i += 2 {
		for j := range all {
			if all[j][0] == changed[i] {
				all[j][1] = changed[i+1]
				continue next
			}
		}
		all = append(all, [2]string{changed[i], changed[i+1]})
	}
	return all
}

// bare makes one call on its own connection. Nil data ends the stream with its headers.
func (w *world) bare(headers [][2]string, data []byte) (o outcome) {
	w.t.Helper()
	stream := encodeCall(headers, data)
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		w.t.Fatal(err)
	}
	go func() { _, _ = c.Write(stream) }() // data that the server does not read are lost
	fr := http2.NewFramer(c, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		f, err := fr.ReadFrame()
		if isTimeout(err) {
			w.t.Fatalf("no end in sight: %+v", o)
		}
		if err != nil {
			o.closed = true
			return o
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			for _, h := range f.Fields {
				switch h.Name {
				case ":status":
					o.http = h.Value
				case "grpc-status":
					o.grpc = h.Value
				}
			}
			if f.StreamEnded() {
				return o
			}
		case *http2.RSTStreamFrame:
			o.reset = f.ErrCode
			return o
		case *http2.GoAwayFrame:
			o.closed = true
			return o
		}
	}
}

// encodeCall encodes everything that a client sends for a call.
func encodeCall(headers [][2]string, data []byte) []byte {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0)
	for _, h := range headers {
		if h[1] != "" {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // writes to a buffer
		}
	}
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	w := http2.NewFramer(&out, nil)
	_ = w.WriteSettings()
	const most = 16 << 10
	first := block.Next(most)
	_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: first, EndHeaders: block.Len() == 0, EndStream: data == nil})
	for block.Len() > 0 {
		next := block.Next(most)
		_ = w.WriteContinuation(1, block.Len() == 0, next)
	}
	if data != nil {
		_ = w.WriteData(1, true, data)
	}
	return out.Bytes()
}

func TestBareCallsWork(t *testing.T) {
	w := start(t, threePerHour, Config{})
	if o := w.bare(headers(), framed(0, marshal(t, request("shop", "user=a")))); o.rejected() || o.grpc != "0" {
		t.Errorf("outcome %+v", o)
	}
}

// late is a context whose deadline has passed without its timer firing.
type late struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

// Deadline implements context.Context.
func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

func TestG28_DeadlinePassed(t *testing.T) {
	w := start(t, threePerHour, Config{})
	body := framed(0, marshal(t, request("shop", "user=a")))
	for _, timeout := range []string{"0n", "1n", "1u"} {
		for range 50 {
			o := w.bare(headers("grpc-timeout", timeout), body)
			if o.grpc != "4" && o.reset != http2.ErrCodeCancel {
				t.Fatalf("timeout %s: %+v, want DEADLINE_EXCEEDED", timeout, o)
			}
		}
	}
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	_, err := w.ShouldRateLimit(ctx, request("shop", "user=a"))
	wantCode(t, err, codes.DeadlineExceeded)
	for _, ctx := range []context.Context{late{t.Context(), time.Now()}, ctx} {
		c := new(call)
		c.message = marshal(t, request("shop", "user=a"))
		wantCode(t, w.service.status(ctx, w.service.answer(ctx, c, new(answer), time.Now())), codes.DeadlineExceeded)
		x := &exchange{message: mem.SliceBuffer(marshal(t, request("shop", "user=a")))}
		wantCode(t, w.service.respond(ctx, new(admission.Source), x, time.Second, time.Now()), codes.DeadlineExceeded) // it could not be read earlier
	}
	if ops, _ := w.store.asked(); ops != 0 {
		t.Errorf("the store was asked %d times", ops)
	}
}

func TestG29_NoDeadline(t *testing.T) {
	w := start(t, threePerHour, Config{})
	w.store.hook = func(ctx context.Context) {
		if _, ok := ctx.Deadline(); ok {
			t.Error("the call has a deadline after all")
		}
	}
	begin := time.Now()
	if o := w.bare(headers(), framed(0, marshal(t, request("shop", "user=a")))); o.grpc != "0" {
		t.Errorf("outcome %+v", o)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("took %v", took)
	}
}

func TestG30_CancelledMidCall(t *testing.T) {
	w := start(t, "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 4294967295}}]", Config{})
	entered := make(chan struct{})
	w.store.hook = func(ctx context.Context) {
		entered <- struct{}{}
		<-ctx.Done()
	}
	const calls = 2000
	for range calls {
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error, 1)
		go func() {
			_, err := w.ShouldRateLimit(ctx, request("shop", "user=a"))
			answered <- err
		}()
		select {
		case <-entered:
		case err := <-answered:
			t.Fatalf("a call ended before it was cancelled: %v", err)
		}
		cancel()
		wantCode(t, <-answered, codes.Canceled)
	}
	testkit.Eventually(t, "the last handlers have ended", func() bool { return w.calls() >= calls })
	w.store.hook = nil
	look := request("shop", "user=a")
	look.Descriptors[0].HitsAddend = hits(0)
	if counted := math.MaxUint32 - w.ask(look).GetStatuses()[0].GetLimitRemaining(); counted > calls {
		t.Errorf("%d calls counted %d times", calls, counted)
	}
}

func TestG31_Compressed(t *testing.T) {
	if encoding.GetCompressor("gzip") != nil {
		t.Fatal("someone registers gzip")
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	w := start(t, threePerHour, Config{})
	if o := w.bare(headers("grpc-encoding", "gzip"), framed(1, bomb.Bytes())); o.grpc != "12" {
		t.Errorf("outcome %+v, want UNIMPLEMENTED", o)
	}
}

func TestG32_OtherMethods(t *testing.T) {
	w := start(t, threePerHour, Config{})
	for _, path := range []string{
		strings.TrimPrefix(method, "/"),
		"/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
		"/" + ServiceName + "/Other",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
		"/grpc.channelz.v1.Channelz/GetServers",
		"//",
	} {
		if o := w.bare(headers(":path", path), framed(0, nil)); o.grpc != "12" {
			t.Errorf("%s: %+v, want UNIMPLEMENTED", path, o)
		}
	}
}

func TestG33_NotOneMessage(t *testing.T) {
	w := start(t, threePerHour, Config{})
	one := framed(0, marshal(t, request("shop", "user=a")))
	for name, data := range map[string][]byte{
		"none": nil, "none, with a frame": {}, "two": append(bytes.Clone(one), one...), "one and a half": append(bytes.Clone(one), one[:7]...),
	} {
		if o := w.bare(headers(), data); o.grpc != "13" {
			t.Errorf("%s: %+v, want INTERNAL", name, o)
		}
	}
	if ops, _ := w.store.asked(); ops != 0 {
		t.Errorf("the store was asked %d times", ops)
	}
	w.want("OK 2", request("shop", "user=a"))
}

func TestG34_NoAuthority(t *testing.T) {
	w := start(t, threePerHour, Config{})
	if o := w.bare(headers(":authority", ""), framed(0, marshal(t, request("shop", "user=a")))); !o.rejected() {
		t.Errorf("outcome %+v, want it rejected", o)
	}
	w.want("OK 2", request("shop", "user=a"))
}

// wantClosed writes text to address and expects the server to close the connection.
func wantClosed(t *testing.T, address string, text []byte) {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(text); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, c); isTimeout(err) {
		t.Errorf("still open after %v", patience)
	}
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestG35_AnotherProtocol(t *testing.T) {
	w := start(t, threePerHour, Config{})
	http1 := []byte("POST /json HTTP/1.1\r\nHost: ratelimit\r\nContent-Length: 2\r\n\r\n{}")
	t.Run("HTTP/1", func(t *testing.T) { wantClosed(t, w.address, http1) })
	t.Run("TLS to plain text", func(t *testing.T) {
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // the handshake must fail
		if c, err := d.DialContext(t.Context(), "tcp", w.address); err == nil || isTimeout(err) {
			t.Errorf("dialling = %v, %v", c, err)
		}
	})
	config, _ := serverTLS(t)
	secure := serve(t, newServer(w.service, grpcserver.Config{TLS: config}))
	t.Run("plain text to TLS", func(t *testing.T) { wantClosed(t, secure, []byte(http2.ClientPreface)) })
	t.Run("HTTP/1 to TLS", func(t *testing.T) { wantClosed(t, secure, http1) })
	w.want("OK 2", request("shop", "user=a"))
}

func TestG36_Metadata(t *testing.T) {
	w := start(t, threePerHour, Config{})
	body := framed(0, marshal(t, request("shop", "user=a")))
	if o := w.bare(headers("x", strings.Repeat("v", 8<<10)), body); o.grpc != "0" {
		t.Errorf("8 KiB: %+v, want OK", o)
	}
	var many []string
	for i := range 10_000 {
		many = append(many, fmt.Sprintf("k%d", i), "v")
	}
	for name, h := range map[string][][2]string{
		"64 KiB":      headers("x", strings.Repeat("v", 64<<10)),
		"16 MiB":      headers("x", strings.Repeat("v", 16<<20)),
		"10,000 keys": headers(many...),
	} {
		if o := w.bare(h, body); !o.rejected() {
			t.Errorf("%s: %+v, want it rejected", name, o)
		}
	}
	w.want("OK 1", request("shop", "user=a"))
}

func TestG38_HealthIsNeverShed(t *testing.T) {
	w := start(t, threePerHour, Config{})
	w.server.SetServing(true)
	release := make(chan struct{})
	var inside atomic.Int64
	w.store.hook = func(context.Context) {
		inside.Add(1)
		<-release
	}
	const busy = 500 // more than the number of workers
	answered := make(chan error, busy)
	for range busy {
		go func() {
			_, err := w.ShouldRateLimit(t.Context(), request("shop", "user=a"))
			answered <- err
		}()
	}
	testkit.Eventually(t, "all calls are being decided", func() bool { return inside.Load() >= busy })
	c := healthpb.NewHealthClient(w.conn)
	for _, name := range []string{"", "ratelimit"} {
		response, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil || response.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("Check(%q) = %v, %v", name, response.GetStatus(), err)
		}
	}
	_, err := c.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "unknown"})
	wantCode(t, err, codes.NotFound)
	close(release)
	for range busy {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
}
