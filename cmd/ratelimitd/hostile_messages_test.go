package main

import (
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/gzip"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// TestG45_HalfMessages: 480 calls, each of which sends 4 MiB less a few bytes, and then nothing; to reflection after a message that
// came whole.
func TestG45_HalfMessages(t *testing.T) {
	for method, first := range map[string]string{
		rlsv3.RateLimitService_ShouldRateLimit_FullMethodName:             "",
		healthpb.Health_Check_FullMethodName:                              "",
		reflectionpb.ServerReflection_ServerReflectionInfo_FullMethodName: "\x00\x00\x00\x00\x02\x3a\x00", // which services are there?
	} {
		t.Run(path.Base(method), func(t *testing.T) {
			d := startProcess(t, hostileRules, "BACKEND_TYPE=memory", "GRPC_REFLECTION=true")
			d.ready()
			before := d.Resident(t)
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			var plain http.Protocols
			plain.SetUnencryptedHTTP2(true)
			for range 8 {
				transport := &http.Transport{Protocols: &plain, MaxConnsPerHost: 1}
				defer transport.CloseIdleConnections()
				for range 60 {
					wg.Go(func() { d.sendHalf(ctx, transport, method, first) })
				}
			}
			wg.Wait() // the server ends them: most for what they take, and what is left for the time that it takes
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

// sendHalf makes a call of which a message does not come whole, and waits until it ends.
func (d *daemon) sendHalf(ctx context.Context, transport *http.Transport, method, first string) {
	const size = 4 << 20
	body, message := io.Pipe()
	defer body.Close()
	defer context.AfterFunc(ctx, func() { _ = body.Close() })() // else the transport would go on waiting for it
	go func() {
		head := binary.BigEndian.AppendUint32([]byte(first+"\x00"), size)
		_, _ = message.Write(head) // errors where the call has ended
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

// TestG46_OtherMessages: messages of millions of empty values, and of 4 MiB of anything, to health and the admin API, which need to be
// decoded before anybody is asked for a token.
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
					if status.Code(err) != codes.Internal || !strings.Contains(err.Error(), tt.want) { // INTERNAL is gRPC's own
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
