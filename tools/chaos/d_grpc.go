package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// odd is a call and how it has to end: with a verdict, a status of gRPC, or an error of the connection where there is none.
type odd struct {
	name    string
	want    string // any of these, separated by |
	headers []string
	data    []byte // with its prefix; nil ends the call with its headers
	user    bool   // an end user can cause it
}

const oddRulesText = `domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: none, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: all, rate_limit: {unit: year, requests_per_unit: 4294967295}}
  - {key: free, rate_limit: {unlimited: true}}
`

// message is a request with one descriptor of one entry.
func message(domain, key, value string) []byte {
	entry := append(fieldOf(1, []byte(key)), fieldOf(2, []byte(value))...)
	return append(fieldOf(1, []byte(domain)), fieldOf(2, fieldOf(1, entry))...)
}

// with returns an encoded request that f has changed.
func with(descriptor string, f func(*rlsv3.RateLimitRequest)) []byte {
	q := ask("shop", descriptor)
	f(q)
	b, err := proto.Marshal(q)
	if err != nil {
		return nil // strings of this program are UTF-8
	}
	return framedAs(0, b)
}

// plainOdd is a call with that message.
func plainOdd(name, want string, message []byte) odd {
	return odd{name: name, want: want, data: framedAs(0, message)}
}

// userOdd is a call that an end user can cause.
func userOdd(name, want string, data []byte) odd {
	return odd{name: name, want: want, data: data, user: true}
}

// headerOdd is a call with changed headers.
func headerOdd(name, want string, changed ...string) odd {
	return odd{name: name, want: want, headers: changed, data: request("shop", "user=header")}
}

func oddCases() []odd {
	return slices.Concat(oddMessages(), oddNumbers(), oddTransports(), oddTexts(), oddHits())
}

func oddMessages() []odd {
	return []odd{
		userOdd("G0 plain", "OK", request("shop", "user=plain")),
		plainOdd("G1 no domain", "InvalidArgument", fieldOf(2, nil)),
		plainOdd("G2 no descriptors", "InvalidArgument", fieldOf(1, []byte("shop"))),
		plainOdd("G3 zero bytes", "InvalidArgument", nil),
		plainOdd("G3 garbage", "InvalidArgument|Internal", bytes.Repeat([]byte{0xde, 0xad, 0xbe, 0xef}, 1000)),
		plainOdd("G3 truncated varint", "InvalidArgument|Internal", []byte{0x18, 0xff}),
		plainOdd("G3 wrong wire type", "InvalidArgument|Internal", []byte{0x08, 1}),
		plainOdd("G3 100,000 unknown fields", "InvalidArgument|Internal", bytes.Repeat([]byte{0x78, 1}, 100_000)),
		plainOdd("G3 groups 20,000 deep", "InvalidArgument|Internal", append(bytes.Repeat([]byte{0x7b}, 20_000), bytes.Repeat([]byte{0x7c}, 20_000)...)),
		plainOdd("G3 unknown fields after a request", "OK", append(message("shop", "user", "unknown"), 0x78, 1)),
		userOdd("G4 unknown domain", "OK", request("nowhere", "user=a")),
		userOdd("G5 no entries", "OK", with("user=a", func(q *rlsv3.RateLimitRequest) { q.Descriptors[0].Entries = nil })),
		userOdd("G6 empty key", "OK", framedAs(0, message("shop", "", "v"))),
		userOdd("G6 empty value", "OK", framedAs(0, message("shop", "user", ""))),
		userOdd("G7 a key twice", "OK", request("shop", "user=a,user=a")),
		userOdd("G7 a descriptor four times", "OVER_LIMIT", request("shop", "user=four", "user=four", "user=four", "user=four")),
		userOdd("G10 value of no UTF-8", "OK", framedAs(0, message("shop", "user", "\xff\xfe"))),
		userOdd("G10 key of no UTF-8", "OK", framedAs(0, message("shop", "us\xffer", "v"))),
		userOdd("G10 domain of no UTF-8", "OK", framedAs(0, message("sh\xffop", "user", "v"))),
		userOdd("G12 256 entries", "OK", request("shop", strings.TrimSuffix(strings.Repeat("user=v,", 256), ","))),
		plainOdd("G12 257 entries", "InvalidArgument", request("shop", strings.TrimSuffix(strings.Repeat("user=v,", 257), ","))[5:]),
		plainOdd("G12 1,000 entries", "InvalidArgument", request("shop", strings.TrimSuffix(strings.Repeat("user=v,", 1000), ","))[5:]),
		userOdd("G13 1,024 descriptors", "OK", request("shop", slices.Repeat([]string{"other=a"}, 1024)...)),
		plainOdd("G13 1,025 descriptors", "InvalidArgument", request("shop", slices.Repeat([]string{"other=a"}, 1025)...)[5:]),
		plainOdd("G13 10,000 descriptors", "InvalidArgument", request("shop", slices.Repeat([]string{"other=a"}, 10_000)...)[5:]),
		plainOdd("G14 4 MiB and a byte", "ResourceExhausted", make([]byte, 4<<20+1)),
	}
}

func oddNumbers() []odd {
	override := func(n uint32, unit int32) func(*rlsv3.RateLimitRequest) {
		return func(q *rlsv3.RateLimitRequest) {
			q.Descriptors[0].Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: n, Unit: typev3.RateLimitUnit(unit)}
		}
	}
	return []odd{
		userOdd("G15 hits_addend 0", "OK", with("user=zero", func(q *rlsv3.RateLimitRequest) { q.HitsAddend = 0 })),
		userOdd("G16 hits_addend 2^32-1", "OVER_LIMIT", with("user=many", func(q *rlsv3.RateLimitRequest) { q.HitsAddend = math.MaxUint32 })),
		userOdd("G16 again", "OVER_LIMIT", with("user=many", func(q *rlsv3.RateLimitRequest) { q.HitsAddend = math.MaxUint32 })),
		userOdd("G16 the whole largest limit", "OK", with("all=many", func(q *rlsv3.RateLimitRequest) { q.HitsAddend = math.MaxUint32 })),
		userOdd("G16 one more", "OVER_LIMIT", request("shop", "all=many")),
		userOdd("G20 override without unit", "OK", with("user=o20", override(0, 0))),
		userOdd("G21 override of unit 8", "OK", with("user=o21a", override(0, 8))),
		userOdd("G21 override of unit 99", "OK", with("user=o21b", override(0, 99))),
		userOdd("G21 override of unit -1", "OK", with("user=o21c", override(0, -1))),
		userOdd("G22 override of 0", "OVER_LIMIT", with("user=o22", override(0, 3))),
		userOdd("G23 override of 2^32-1", "OK", with("user=o23", override(math.MaxUint32, 3))),
		userOdd("G24 override per second", "OK", with("user=o24", override(5, 1))),
		userOdd("G24 the same per hour", "OK", with("user=o24", override(5, 3))),
		userOdd("G27 unlimited", "OK", request("shop", "free=a")),
		userOdd("G27 limit 0", "OVER_LIMIT", request("shop", "none=a")),
		userOdd("G27 limit 2^32-1", "OK", request("shop", "all=a")),
	}
}

func oddTransports() []odd {
	one := request("shop", "user=plain")
	health := func(name, want, service string) odd { // whose SERVING has the number of OK
		return odd{name: name, want: want, headers: []string{":path", "/grpc.health.v1.Health/Check"}, data: framedAs(0, fieldOf(1, []byte(service)))}
	}
	return []odd{
		headerOdd("G28 deadline of 0", "DeadlineExceeded|refused", "grpc-timeout", "0n"),
		headerOdd("G28 deadline of 1 µs", "DeadlineExceeded|refused", "grpc-timeout", "1u"),
		headerOdd("G28 deadline that is none", "InvalidArgument|Internal|refused|Unknown", "grpc-timeout", "soon"),
		{name: "G31 gzip", want: "InvalidArgument", headers: []string{"grpc-encoding", "gzip"}, data: framedAs(1, bomb())},
		headerOdd("G32 no slash", "Unimplemented", ":path", "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
		headerOdd("G32 v2", "Unimplemented", ":path", "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit"),
		headerOdd("G32 unknown method", "Unimplemented", ":path", "/envoy.service.ratelimit.v3.RateLimitService/Other"),
		headerOdd("G32 reflection", "Unimplemented", ":path", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
		headerOdd("G32 channelz", "Unimplemented", ":path", "/grpc.channelz.v1.Channelz/GetServers"),
		headerOdd("G32 slashes", "Unimplemented", ":path", "//"),
		{name: "G33 no message", want: "Internal"},
		{name: "G33 two messages", want: "Internal", data: append(bytes.Clone(one), one...)},
		{name: "G33 a message and a half", want: "Internal", data: append(bytes.Clone(one), one[:7]...)},
		headerOdd("G34 no authority", "refused|Internal|InvalidArgument", ":authority", ""),
		headerOdd("G36 8 KiB of metadata", "OK", "x", strings.Repeat("v", 8<<10)),
		headerOdd("G36 64 KiB of metadata", "refused", "x", strings.Repeat("v", 64<<10)),
		headerOdd("G36 16 MiB of metadata", "refused", "x", strings.Repeat("v", 16<<20)),
		health("G38 health", "OK", ""),
		health("G38 health of the service", "OK", "ratelimit"),
		health("G38 health of another service", "NotFound", "other"),
		headerOdd("GET", "refused|Internal", ":method", "GET"),
		headerOdd("another content type", "refused|Internal|Unknown|InvalidArgument", "content-type", "text/plain"),
	}
}

func oddTexts() (cases []odd) {
	for _, v := range []string{"_", "|", ":", ".", "/", `\`, ";", "*", "%", `"`, "'", " ", "\x00", "\r\n", "\x1b", "\u2028", "\u202e", "{x}", "}{"} {
		cases = append(cases, userOdd(fmt.Sprintf("G8 G9 value %q", v), "OK", framedAs(0, message("shop", "user", "a"+v+"b"))))
	}
	for _, n := range []int{1, 8 << 10, 60 << 10, 1 << 20} {
		cases = append(cases, userOdd(fmt.Sprintf("G11 value of %d bytes", n), "OK", framedAs(0, message("shop", "user", strings.Repeat("x", n)))))
	}
	return cases
}

func oddHits() (cases []odd) {
	for _, n := range []uint64{0, 1 << 53, 1<<53 + 1, 1<<63 - 1, 1 << 63, math.MaxUint64} {
		want := "OVER_LIMIT"
		if n == 0 {
			want = "OK"
		}
		for _, again := range []string{"", " again"} { // which is when the counter may overflow
			cases = append(cases, userOdd(fmt.Sprintf("G17 G18 G19 %d hits%s", n, again), want,
				with(fmt.Sprintf("user=huge%d", n), func(q *rlsv3.RateLimitRequest) { q.Descriptors[0].HitsAddend = wrapperspb.UInt64(n) })))
		}
	}
	return cases
}

func bomb() []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(make([]byte, 1<<20)) // a buffer takes everything
	_ = z.Close()
	return b.Bytes()
}

func oddRequests(ctx context.Context, e *env) error {
	r, err := e.redis(ctx)
	if err != nil {
		return err
	}
	s, err := e.startServer(ctx, oddRulesText, "REDIS_URL="+r.addr, patient)
	if err != nil {
		return err
	}
	cases := oddCases()
	exact, crashes, users, errors := 0, 0, 0, 0
	for _, c := range cases {
		got := s.odd(ctx, c)
		if slices.Contains(strings.Split(c.want, "|"), got) {
			exact++
		} else {
			e.note("%s: %s, want %s", c.name, got, c.want)
		}
		if c.user {
			users++
			if got != "OK" && got != "OVER_LIMIT" {
				errors++
			}
		}
		if s.diedOf(ctx, got) {
			crashes++
			e.note("%s ends the server", c.name)
			if err := s.Start(ctx); err != nil {
				return err
			}
		}
	}
	e.measured(len(cases) >= 60 && exact == len(cases) && crashes == 0, "%d of %d with the right code, %d crashes", exact, len(cases), crashes)
	e.measured(errors == 0, "%d of %d that a user can shape end in a gRPC error", errors, users)
	return nil
}

// diedOf says whether the process has ended without our doing. What it answered last tells whether that may be so.
func (s *server) diedOf(ctx context.Context, answer string) bool {
	if answer != "refused" && answer != codes.Unavailable.String() {
		return s.Died()
	}
	if proc.Listens(s.grpc)(ctx) != nil { // it is about to
		_, _ = poll(ctx, patience, s.Died)
	}
	_, died := poll(ctx, 30*time.Millisecond, s.Died)
	return died
}

// odd makes a call. One that is larger than HTTP/2 lets a client send unasked is left to grpc-go.
func (s *server) odd(ctx context.Context, c odd) string {
	const unasked, prefix = 60_000, 5
	if len(c.data) < unasked || len(c.headers) > 0 {
		return bare(s.grpc, c.headers, c.data)
	}
	conn, err := s.dial(grpc.WithDefaultCallOptions(grpc.ForceCodec(asIs{}), grpc.MaxCallSendMsgSize(1<<30)))
	if err != nil {
		return err.Error()
	}
	var answer []byte
	err = conn.Invoke(ctx, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", c.data[prefix:], &answer)
	if err != nil {
		return grpcstatus.Code(err).String()
	}
	var m rlsv3.RateLimitResponse
	if proto.Unmarshal(answer, &m) != nil {
		return "an answer that cannot be read"
	}
	return m.GetOverallCode().String()
}

// asIs passes bytes through.
type asIs struct{}

// Marshal implements encoding.Codec.
func (asIs) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

// Unmarshal implements encoding.Codec.
func (asIs) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = bytes.Clone(b)
	return nil
}

// Name implements encoding.Codec.
func (asIs) Name() string { return "proto" }

// bare makes one call on a connection of its own, with changed headers, and returns how it ended. An empty value takes a
// header out.
func bare(addr string, changed []string, data []byte) string {
	const most = 5 * time.Second
	conn, err := net.DialTimeout("tcp", addr, dialTime) //nolint:noctx // has its own time-out
	if err != nil {
		return "refused"
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(most)); err != nil {
		return err.Error()
	}
	go func() { _, _ = conn.Write(encodeCall(changed, data)) }() // what the server no longer wants to read is lost
	fr := http2.NewFramer(io.Discard, conn)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var body []byte
	for {
		f, err := fr.ReadFrame()
		if err != nil {
			return ended(err)
		}
		switch f := f.(type) {
		case *http2.DataFrame:
			body = append(body, f.Data()...)
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "refused"
		case *http2.MetaHeadersFrame:
			if f.StreamEnded() {
				return verdict(f, body)
			}
		}
	}
}

func ended(err error) string {
	if t, ok := err.(net.Error); ok && t.Timeout() { //nolint:errorlint // of ReadFrame, which wraps nothing
		return "no answer"
	}
	return "refused"
}

// verdict reads the trailers of a call, and its answer.
func verdict(f *http2.MetaHeadersFrame, body []byte) string {
	for _, h := range f.Fields {
		if h.Name != "grpc-status" {
			continue
		}
		n, _ := strconv.ParseUint(h.Value, 10, 8)
		if n != 0 {
			return codes.Code(n).String()
		}
		var m rlsv3.RateLimitResponse
		const prefix = 5
		if len(body) < prefix || proto.Unmarshal(body[prefix:], &m) != nil {
			return "an answer that cannot be read"
		}
		return m.GetOverallCode().String()
	}
	return "refused" // by HTTP
}

// encodeCall is all that a client sends for a call.
func encodeCall(changed []string, data []byte) []byte {
	all := [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
		{":authority", "ratelimit"},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	}
	for c := range slices.Chunk(changed, 2) {
		i := slices.IndexFunc(all, func(h [2]string) bool { return h[0] == c[0] })
		if i < 0 {
			all, i = append(all, [2]string{c[0]}), len(all)
		}
		all[i][1] = c[1]
	}
	var block, out bytes.Buffer
	enc := hpack.NewEncoder(&block)
	enc.SetMaxDynamicTableSize(0)
	for _, h := range all {
		if h[1] != "" {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}) // a buffer takes everything
		}
	}
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
	for first := true; data != nil && (first || len(data) > 0); first = false {
		n := min(len(data), most)
		_ = w.WriteData(1, n == len(data), data[:n])
		data = data[n:]
	}
	return out.Bytes()
}
