package main

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestG45_HalfMessages: 480 calls send 4 MiB minus a few bytes and then stop; to reflection, after a complete message.
func TestG45_HalfMessages(t *testing.T) {
	for method, first := range map[string]string{
		rlsv3.RateLimitService_ShouldRateLimit_FullMethodName:             "",
		healthpb.Health_Check_FullMethodName:                              "",
		reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: "\x00\x00\x00\x00\x02\x3a\x00", // a request for the list of services
	} {
		t.Run(path.Base(method), func(t *testing.T) {
			d := startProcess(t, hostileRules, "BACKEND_TYPE=memory", "GRPC_REFLECTION=true")
			d.ready()
			before := d.Resident(t)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var ended atomic.Int64
			defer wg.Wait()
			defer cancel()
			var plain http.Protocols
			plain.SetUnencryptedHTTP2(true)
			for range 8 {
				transport := &http.Transport{Protocols: &plain, MaxConnsPerHost: 1}
				defer transport.CloseIdleConnections()
				for range 60 {
					wg.Go(func() {
						d.sendHalf(ctx, transport, method, first)
						ended.Add(1)
					})
				}
			}
			// The server ends most calls because of their size. The rest is below the limit: an incomplete first message times out,
			// but a stream may wait for its next one.
			testkit.Eventually(t, "at most 6 calls are left", func() bool { return ended.Load() >= 474 })
			if d.shed() == 0 {
				t.Error("none was ended for what it takes")
			}
			d.answers("127.0.0.2")
			grown := (d.Peak(t) - before) / 1e6
			t.Logf("%d MB more", grown)
			if grown > 100 {
				t.Errorf("%d MB more, want at most 100", grown)
			}
		})
	}
}

// sendHalf makes a call with an incomplete message, and waits until it ends.
func (d *daemon) sendHalf(ctx context.Context, transport *http.Transport, method, first string) {
	const size = 4 << 20
	body, message := io.Pipe()
	defer body.Close()
	defer context.AfterFunc(ctx, func() { _ = body.Close() })() // otherwise, the transport would keep waiting
	go func() {
		head := binary.BigEndian.AppendUint32([]byte(first+"\x00"), size)
		_, _ = message.Write(head) // errors if the call has ended
		_, _ = io.WriteString(message, strings.Repeat("x", size-100))
	}()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+d.At["GRPC"]+method, body)
	if err != nil {
		d.t.Error(err)
		return
	}
	q.Header.Set("Content-Type", "application/grpc")
	q.Header.Set("TE", "trailers")
	resp, err := transport.RoundTrip(q)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close() // it has ended
	}
}

// TestG48_HealthWatched: 500 streams of one connection watch the health of services with names of 900 KiB, and 500 have metadata of
// 60 KiB. These streams have no end, so the memory would stay in use.
func TestG48_HealthWatched(t *testing.T) {
	d := startProcess(t, hostileRules, "BACKEND_TYPE=memory")
	d.ready()
	before := d.live()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	health := healthpb.NewHealthClient(d.dial())
	for _, tt := range []struct {
		name, metadata string
		want           codes.Code
		open           int
	}{
		{name: strings.Repeat("n", 900<<10), want: codes.InvalidArgument},
		{metadata: strings.Repeat("m", 60<<10), want: codes.ResourceExhausted, open: 16},
	} {
		open := 0
		for range 500 {
			watch, err := health.Watch(metadata.AppendToOutgoingContext(ctx, "m", tt.metadata), &healthpb.HealthCheckRequest{Service: tt.name})
			if err == nil {
				_, err = watch.Recv()
			}
			if err == nil {
				open++
			} else if status.Code(err) != tt.want {
				t.Fatalf("%v, want %v", err, tt.want)
			}
		}
		if open != tt.open {
			t.Errorf("%d streams with names of %d bytes and metadata of %d are open, want %d", open, len(tt.name), len(tt.metadata), tt.open)
		}
	}
	if held := d.live() - before; held > 20 {
		t.Errorf("%.0f MB are held, want at most 20", held)
	}
	cancel()
	testkit.Eventually(t, "a place is free again", func() bool {
		watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = watch.Recv()
		}
		return err == nil
	})
}

// TestG49_LargeMetadata: 4,000 calls with metadata of 60 KiB and without a message.
func TestG49_LargeMetadata(t *testing.T) {
	for _, method := range []string{rlsv3.RateLimitService_ShouldRateLimit_FullMethodName, healthpb.Health_Check_FullMethodName} {
		t.Run(path.Base(method), func(t *testing.T) {
			d := startProcess(t, hostileRules, "BACKEND_TYPE=memory")
			d.ready()
			before := d.live()
			ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "m", strings.Repeat("m", 60<<10)))
			defer cancel()
			for range 16 {
				conn := d.dial()
				for range 250 {
					if _, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method); err != nil {
						t.Fatal(err)
					}
				}
			}
			// 400 calls take 24 MiB, the maximum.
			testkit.Eventually(t, "connections are closed for what they take", func() bool { return d.shed() >= 400 }, d.Log.String)
			d.answers("127.0.0.2")
			testkit.Eventually(t, "at most 60 MB are held", func() bool { return d.live()-before <= 60 })
		})
	}
}

// asBytes is a codec for messages as bytes. It ignores answers.
type asBytes struct{ encoding.CodecV2 }

// Marshal implements [encoding.CodecV2].
func (asBytes) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

// Unmarshal implements [encoding.CodecV2].
func (asBytes) Unmarshal(mem.BufferSlice, any) error { return nil }

// TestG46_OtherMessages: messages with millions of empty values, and of 4 MiB, to health and the admin API, which decode them before
// authentication.
func TestG46_OtherMessages(t *testing.T) {
	d := startProcess(t, hostileRules, "BACKEND_TYPE=memory", "ADMIN=true")
	d.ready()
	conn, codec := d.dial(), grpc.ForceCodecV2(asBytes{encoding.GetCodecV2("proto")})
	empty := func(n int) []byte { return []byte("\x0a\x04shop" + strings.Repeat("\x12\x00", n)) }
	for _, tt := range []struct {
		name, method, want string
		message            []byte
	}{
		{"4 MiB of entries", adminv1.AdminService_Peek_FullMethodName, "at most 1 MiB", empty(2<<20 - 100)},
		{"1 MiB of entries", adminv1.AdminService_Peek_FullMethodName, "at most 32768 values", empty(512<<10 - 100)},
		{"1 MiB of levels", adminv1.AdminService_Watch_FullMethodName, "at most 32768 values", []byte(strings.Repeat("\x1a\x00", 512<<10-100))},
		{"4 MiB for health", healthpb.Health_Check_FullMethodName, "at most 1 MiB", empty(2<<20 - 100)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := d.Resident(t)
			d.ResetPeak(t)
			var wg sync.WaitGroup
			for range 12 {
				wg.Go(func() {
					err := conn.Invoke(t.Context(), tt.method, tt.message, nil, codec, grpc.UseCompressor(gzip.Name))
					if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), tt.want) { // INTERNAL is from gRPC itself
						t.Errorf("%.200v, want %s", err, tt.want)
					}
				})
			}
			wg.Wait()
			grown := (d.Peak(t) - before) / 1e6
			t.Logf("%d MB more", grown)
			if grown > 100 {
				t.Errorf("%d MB more, want at most 100", grown)
			}
		})
	}
	descriptor := &adminv1.PeekRequest{Domain: "shop", Entries: []*adminv1.Entry{{Key: "user", Value: strings.Repeat("v", 900<<10)}}}
	if _, err := adminv1.NewAdminServiceClient(conn).Peek(t.Context(), descriptor); err != nil {
		t.Errorf("900 KiB in one value: %v", err)
	}
}
