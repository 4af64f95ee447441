package rls

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
)

// Bounds on the effect of an attack on a well-behaved client with 200 calls per second, and on the cost of the attack. The time is ten
// times the goal, and applies to half of the calls instead of 99 %, because attacker, server and client share the processors with
// everything else.
const (
	attackTime   = time.Second
	attackDelay  = 500 * time.Millisecond
	attackBytes  = 100 << 20
	attackRounds = 5 // the best one counts, because this process may be stalled for longer than an attack
)

// An attacker writes a number of frames, and pauses, so that the test does not measure the attacker's own use of processors.
const (
	burst = 50
	rest  = 20 * time.Millisecond
)

// flood writes with write until ctx ends, on its own connection, and reconnects when the server closes it.
func flood(ctx context.Context, address string, write func(fr *http2.Framer, i uint32) error) {
	for ctx.Err() == nil {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		read := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, c); close(read) }()
		out := bufio.NewWriter(c)
		_, _ = out.WriteString(http2.ClientPreface) // the frames return the errors
		fr := http2.NewFramer(out, nil)
		fr.AllowIllegalWrites = true
		err = fr.WriteSettings()
		for i := uint32(0); err == nil && i < 1<<30; i++ {
			err = write(fr, i)
			if i%burst == burst-1 {
				err = errors.Join(err, out.Flush())
				time.Sleep(rest)
			}
		}
		_ = c.Close()
		<-read
		stop()
	}
}

func TestAttacks(t *testing.T) {
	body := framed(0, marshal(t, request("shop", "user=a")))
	head, err := encodeHead()
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(fr *http2.Framer, i uint32) error{
		"rapid reset": func(fr *http2.Framer, i uint32) error {
			err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndHeaders: true})
			return errors.Join(err, fr.WriteData(2*i+1, true, body), fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		},
		"CONTINUATION flood": func(fr *http2.Framer, i uint32) error {
			if i == 0 {
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head})
			}
			return fr.WriteContinuation(1, false, literal)
		},
		"pings": func(fr *http2.Framer, _ uint32) error { return fr.WritePing(false, [8]byte{1}) },
		"SETTINGS": func(fr *http2.Framer, i uint32) error {
			return fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
		},
		"DATA of one byte": func(fr *http2.Framer, i uint32) error {
			if i == 0 {
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true})
			}
			return fr.WriteData(1, false, []byte{0})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, endless, Config{})
			survives(t, w.RateLimitServiceClient, func(ctx context.Context) {
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() { flood(ctx, w.address, write) })
				}
				wg.Wait()
			})
		})
	}
}

// endless contains rules that never reject.
const endless = `domain: shop
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 4294967295}}]
`

// literal is a header, k: v, that is not added to a table.
var literal = []byte{0, 1, 'k', 1, 'v'}

// TestIdleConnections checks that a thousand idle connections cost only their memory.
func TestIdleConnections(t *testing.T) {
	w := start(t, endless, Config{})
	survives(t, w.RateLimitServiceClient, func(ctx context.Context) {
		held(ctx, t, w.address, 1000, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")() // and SETTINGS
	})
}

// TestSlowTLSHandshakes checks that a thousand handshakes that never end do not keep other clients from connecting.
func TestSlowTLSHandshakes(t *testing.T) {
	config, pool := serverTLS(t)
	address := serve(t, newServer(start(t, endless, Config{}).service, grpcserver.Config{TLS: config}))
	creds := credentials.NewTLS(&tls.Config{RootCAs: pool}) //nolint:gosec // the server determines the version
	c := ratelimitv3.NewRateLimitServiceClient(dial(t, address, grpc.WithTransportCredentials(creds)))
	survives(t, c, func(ctx context.Context) {
		defer held(ctx, t, address, 1000, "\x16\x03\x01\x02")()
		other := ratelimitv3.NewRateLimitServiceClient(dial(t, address, grpc.WithTransportCredentials(creds)))
		if _, err := other.ShouldRateLimit(context.WithoutCancel(ctx), request("shop", "user=b")); err != nil {
			t.Errorf("a new client: %v", err)
		}
	})
}

// held opens connections that send say and nothing more, and waits until ctx ends. They stay open until closeAll is called.
func held(ctx context.Context, t *testing.T, address string, n int, say string) (closeAll func()) {
	t.Helper()
	var conns []net.Conn
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for range n {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return closeAll
		}
		conns = append(conns, c)
		if _, err := io.WriteString(c, say); err != nil {
			t.Error(err)
		}
	}
	<-ctx.Done()
	return closeAll
}

// survives runs an attack for a while, during which client c must get its answers as usual.
func survives(t *testing.T, c ratelimitv3.RateLimitServiceClient, attack func(ctx context.Context)) {
	t.Helper()
	if _, err := c.ShouldRateLimit(t.Context(), request("shop", "user=b")); err != nil {
		t.Fatal(err)
	}
	median := attackDelay + 1
	for round := 0; round < attackRounds && median > attackDelay; round++ {
		median = besieged(t, c, attack)
	}
	if median > attackDelay {
		t.Errorf("half of the calls took more than %v, want all but a few within %v", median, attackDelay/10)
	}
}

// besieged runs an attack once, and returns the time within which half of the client's calls were answered.
func besieged(t *testing.T, c ratelimitv3.RateLimitServiceClient, attack func(ctx context.Context)) (median time.Duration) {
	t.Helper()
	before := heap()
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), attackTime)
	defer cancel()
	wg.Go(func() { attack(ctx) })
	var took []time.Duration
	for len(took) == 0 || ctx.Err() == nil {
		begin := time.Now()
		if _, err := c.ShouldRateLimit(t.Context(), request("shop", "user=b")); err != nil {
			t.Fatalf("after %d calls: %v", len(took), err)
		}
		took = append(took, time.Since(begin))
		time.Sleep(5 * time.Millisecond)
	}
	most := heap()
	slices.Sort(took)
	median = took[len(took)/2]
	t.Logf("%d calls, median %v, p99 %v; %d MB more", len(took), median, took[len(took)*99/100], (most-before)>>20)
	if most > before+attackBytes {
		t.Errorf("%d MB more, want at most %d", (most-before)>>20, attackBytes>>20)
	}
	return median
}

// heap returns the size of live objects in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
