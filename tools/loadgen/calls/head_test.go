package calls

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestHead: the headers of a connection's second call refer to those of the first, but for the path, as far as the server keeps those;
// each block says the same.
func TestHead(t *testing.T) {
	t.Parallel()
	const path = 50 // bytes, written out
	h, dec := newHead(20*time.Millisecond), hpack.NewDecoder(tableSize, nil)
	read := func(dec *hpack.Decoder) (block []byte) {
		t.Helper()
		block = h.block()
		got, err := dec.DecodeFull(block)
		if err != nil || !slices.Equal(got, fields(20*time.Millisecond)) {
			t.Errorf("the headers are read as %v, %v", got, err)
		}
		return slices.Clone(block)
	}
	first, second, third := len(read(dec)), len(read(dec)), len(read(dec))
	if n := len(h.fields); first < path+30 || second > path+n || third != second {
		t.Errorf("blocks have %d, %d and %d bytes; want all headers first, and then the path and a byte for each of %d", first, second, third, n)
	}
	for _, size := range []uint32{0, 100, 1 << 16} {
		h.resize(size)
		if block := read(dec); block[0]>>5 != 1 {
			t.Errorf("after the server keeps %d bytes a block begins with %#x, not with the size of the table", size, block[0])
		}
		read(dec)
		read(dec)
		if size == 0 {
			read(hpack.NewDecoder(0, nil)) // which knows of no call before
		}
	}
}

// service fails calls with the code that their domain names, and refuses or admits the others.
type service struct {
	rlsv3.UnimplementedRateLimitServiceServer
}

func (service) ShouldRateLimit(_ context.Context, r *rlsv3.RateLimitRequest) (*rlsv3.RateLimitResponse, error) {
	switch r.GetDomain() {
	case "ok":
		return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OK}, nil
	case "over":
		return &rlsv3.RateLimitResponse{OverallCode: rlsv3.RateLimitResponse_OVER_LIMIT}, nil
	case "internal":
		return nil, status.Error(codes.Internal, "some bug")
	default:
		return nil, status.Error(codes.Unavailable, "too much")
	}
}

// TestOutcomes: each call has its own outcome, whichever headers the server keeps, and whatever those of its answers refer to.
func TestOutcomes(t *testing.T) {
	t.Parallel()
	want := []Outcome{{Kind: OK}, {Kind: OverLimit}, {Kind: Failed, Code: codes.Internal}, {Kind: Failed, Code: codes.Unavailable}}
	var requests [][]byte
	for _, domain := range []string{"ok", "over", "internal", "unavailable"} {
		requests = append(requests, Frame(Request(domain, "k=v")))
	}
	for _, kept := range []uint32{tableSize, 0, 1 << 16} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(grpc.HeaderTableSize(kept))
		rlsv3.RegisterRateLimitServiceServer(s, service{})
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		var mu sync.Mutex
		calls := 0
		Load{
			Addr: l.Addr().String(), Requests: requests, Conns: 2, Inflight: 3, Total: 400, Timeout: time.Minute,
			Each: func(_ int, o Outcome) {
				mu.Lock()
				defer mu.Unlock()
				if calls++; o.Kind != want[o.What].Kind || o.Code != want[o.What].Code {
					t.Errorf("a server that keeps %d bytes: request %d: %v, %v", kept, o.What, o.Kind, o.Code)
				}
			},
		}.Start(t.Context()).Wait()
		if calls != 400 {
			t.Errorf("a server that keeps %d bytes: %d outcomes of 400", kept, calls)
		}
	}
}
