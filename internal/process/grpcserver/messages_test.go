package grpcserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // registered by the trace exporter too
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a Service whose method returns its message.
type echo struct{}

const (
	echoMethod   = "/test.Echo/Call"
	streamMethod = reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName
)

// Name implements [Service].
func (echo) Name() string { return "test.Echo" }

// Method implements [Service].
func (echo) Method() string { return "Call" }

// LetIn implements [Service].
func (echo) LetIn(*netlimit.Conn) error { return nil }

// Register implements [Service].
func (echo) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Echo", Streams: []grpc.StreamDesc{{StreamName: "Call", Handler: call}}}, nil)
}

func call(_ any, stream grpc.ServerStream) error {
	m := new(emptypb.Empty)
	if err := stream.RecvMsg(m); err != nil {
		return err
	}
	ArrivalOf(stream.Context()).Received(0, nil)
	return stream.SendMsg(m)
}

// serve runs a server with reflection, whose calls are streams, and returns its address.
func serve(t *testing.T, log io.Writer) (address string) {
	t.Helper()
	l, err := netlimit.ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(echo{}, Config{Reflection: true, Log: slog.New(slog.NewTextHandler(log, nil))})
	testkit.Run(t, func(context.Context) error { return s.Serve(l) })
	t.Cleanup(s.Stop)
	return l.Addr().String()
}

// exchange sends a message on a stream and receives the answer.
func exchange(t *testing.T, s reflectionpb.ServerReflection_ServerReflectionInfoClient) {
	t.Helper()
	if err := s.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
}

// TestG56_IdleStream: a stream may wait for its next message while other calls on its connection send more than 24 MiB of metadata.
func TestG56_IdleStream(t *testing.T) {
	const (
		callers = 8
		calls   = 4 << 10
		padding = 8 << 10 // bytes of metadata of each call, 32 MiB in total
	)
	conn, err := grpc.NewClient(serve(t, io.Discard), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exchange(t, stream)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range calls / callers {
				// HPACK cannot compress it: the values differ, and the code of ~ has 13 bits.
				id := fmt.Sprintf("%s%d-%d", strings.Repeat("~", padding), i, j)
				ctx := metadata.AppendToOutgoingContext(t.Context(), "id", id)
				if err := conn.Invoke(ctx, echoMethod, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d calls failed", n, calls)
	}
	exchange(t, stream)
}

// framed returns an encoded message, whose length field may be wrong.
func framed(compressed byte, size int, message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{compressed}, uint32(size))) + message
}

const listServices = "\x3a\x00" // a message to reflection

// client makes calls on one connection.
type client struct {
	http.Client

	url string
	log *testkit.Buffer
}

func newClient(t *testing.T) *client {
	t.Helper()
	var plain http.Protocols
	plain.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &plain, MaxConnsPerHost: 1}
	t.Cleanup(transport.CloseIdleConnections)
	log := new(testkit.Buffer)
	return &client{http.Client{Transport: transport}, "http://" + serve(t, log), log}
}

// call makes a call with this body, and returns its status.
func (c *client) call(ctx context.Context, method, encoding string, body io.Reader) (code string, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+method, body)
	if err != nil {
		return "", err
	}
	q.Header.Set("Content-Type", "application/grpc")
	q.Header.Set("Te", "trailers")
	if encoding != "" {
		q.Header.Set("Grpc-Encoding", encoding)
	}
	resp, err := c.Do(q)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.Header.Get("Grpc-Status") + resp.Trailer.Get("Grpc-Status"), err // the header's, without an answer
}

// TestG56_HalfMessages: a connection with streams of more than 24 MiB of incomplete messages is closed, although other calls on it
// are complete.
func TestG56_HalfMessages(t *testing.T) {
	const (
		streams = 8
		part    = 64 << 10
	)
	c := newClient(t)
	var ended atomic.Int64
	var bodies []*io.PipeWriter
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range streams {
		body, send := io.Pipe()
		bodies = append(bodies, send)
		wg.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = body.Close() })() // otherwise, the transport would keep reading
			_, _ = c.call(ctx, streamMethod, "", body)
			ended.Add(1)
			_ = body.Close() // nothing is left to send
		})
		if _, err := io.WriteString(send, framed(0, len(listServices), listServices)+framed(0, MaxMessage, "")); err != nil {
			t.Fatal(err)
		}
	}
	sent := 0
	for range MaxMessage/part - 1 {
		for _, b := range bodies {
			n, _ := io.WriteString(b, strings.Repeat("x", part)) // fails after the end of the stream
			sent += n
		}
		_, _ = c.call(ctx, echoMethod, "", strings.NewReader(framed(0, 0, "")))
	}
	testkit.Eventually(t, "all streams have ended", func() bool { return ended.Load() == streams })
	if ctx.Err() != nil {
		t.Error("the streams have ended with the test")
	}
	t.Logf("%d MiB were sent", sent>>20)
}

// TestMessages: messages of a stream are read like grpc reads them.
func TestMessages(t *testing.T) {
	t.Parallel()
	zip := func(text string) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = io.WriteString(z, text) // a buffer never fails
		_ = z.Close()
		return b.String()
	}
	zipped, bomb := zip(listServices), zip(strings.Repeat("\x00", 8<<20))
	ok := framed(0, len(listServices), listServices)
	c := newClient(t)
	for _, tt := range []struct{ name, encoding, body, want string }{
		{"none", "", "", "0"},
		{"several", "", ok + ok + ok, "0"},
		{"an empty one", "", ok + framed(0, 0, ""), "3"}, // reflection's own error
		{"large", "", ok + framed(0, 1<<20, "\x1a\xfc\xff\x3f"+strings.Repeat("x", 1<<20-4)) + ok, "0"},
		{"too large for reflection", "", ok + framed(0, 2<<20, strings.Repeat("x", 2<<20)), "13"},
		{"too large", "", ok + framed(0, MaxMessage+1, ""), "8"},
		{"the largest length", "", framed(0, 1<<32-1, ""), "8"},
		{"half a prefix", "", ok + "\x00\x00", "13"},
		{"a prefix", "", ok + framed(0, 2, ""), "13"},
		{"half a message", "", ok + framed(0, 700, strings.Repeat("x", 512)), "13"},
		{"not protobuf", "", ok + framed(0, 1, "\xff"), "13"},
		{"gzip", "gzip", framed(1, len(zipped), zipped) + ok, "0"},
		{"a bomb", "gzip", framed(1, len(bomb), bomb), "13"},
		{"an empty gzip", "gzip", framed(1, 0, ""), "13"},
		{"not gzip", "gzip", framed(1, 2, "no"), "13"},
		{"compressed, without an encoding", "", framed(1, len(zipped), zipped), "13"},
		{"another prefix", "gzip", framed(2, len(zipped), zipped), "13"},
	} {
		if code, err := c.call(t.Context(), streamMethod, tt.encoding, strings.NewReader(tt.body)); code != tt.want || err != nil {
			t.Errorf("%s: status %q, %v, want %s", tt.name, code, err, tt.want)
		}
	}
	said := `msg="a message is too large, so its call failed, and a proxy may let the request pass: make the proxy send less" omitted=0 method=ServerReflectionInfo client=127.0.0.1:`
	if n := strings.Count(c.log.String(), "\n"); n != 1 || !strings.Contains(c.log.String(), said) {
		t.Errorf("%d lines, want one with %s:\n%s", n, said, c.log)
	}
}
