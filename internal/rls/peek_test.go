package rls

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// sender writes what clients send.
type sender struct {
	t   *testing.T
	out bytes.Buffer
	fr  *http2.Framer
}

func newSender(t *testing.T) *sender {
	t.Helper()
	s := &sender{t: t}
	s.out.WriteString(http2.ClientPreface)
	s.fr = http2.NewFramer(&s.out, nil)
	s.do(s.fr.WriteSettings())
	return s
}

func (s *sender) do(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// headers writes those of a call, which say its domain, so that a reader can tell.
func (s *sender) headers(stream uint32, domain string, parts int) {
	var block bytes.Buffer
	s.do(hpack.NewEncoder(&block).WriteField(hpack.HeaderField{Name: "domain", Value: domain}))
	b := block.Bytes()
	s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b[:len(b)/parts], EndHeaders: parts == 1}))
	if parts > 1 {
		s.do(s.fr.WriteContinuation(stream, true, b[len(b)/parts:]))
	}
}

// head writes headers that are encoded.
func (s *sender) head(stream uint32, block []byte) {
	s.t.Helper()
	s.do(s.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block, EndHeaders: true}))
}

// message returns a message as gRPC sends it.
func (s *sender) message(domain string) []byte {
	return framed(0, marshal(s.t, request(domain, "user=a", "path=/b")))
}

// peeking reads what was sent in chunks of random sizes, with a peek at each.
type peeking struct {
	peek  peek
	from  *bytes.Buffer
	sizes *rand.Rand
	most  int
}

// domainHint is a look that knows of domains alone.
func domainHint(message []byte) (h hint) {
	h.Domain, h.Size = hashOf(domainOf(message)), len(message)
	return h
}

func (p *peeking) Read(b []byte) (int, error) {
	n, err := p.from.Read(b[:min(len(b), 1+p.sizes.IntN(p.most))])
	p.peek.scan(b[:n], domainHint)
	return n, err
}

// headFramer returns a framer that decodes headers.
func headFramer(from io.Reader) *http2.Framer {
	fr := http2.NewFramer(nil, from)
	fr.ReadMetaHeaders = hpack.NewDecoder(tableSize, nil)
	return fr
}

// grpcFramer returns a framer that reads as grpc does.
func grpcFramer(t *testing.T, from io.Reader) *http2.Framer {
	t.Helper()
	in := bufio.NewReaderSize(from, readBuffer)
	if _, err := io.CopyN(io.Discard, in, prefaceSize); err != nil {
		t.Fatal(err)
	}
	return headFramer(in)
}

// read reads all frames as grpc does, and returns how many calls of the domains that are told were known. What is known must be so.
func (p *peeking) read(t *testing.T, told string) (known, calls int) {
	t.Helper()
	fr := grpcFramer(t, p)
	for {
		f, err := fr.ReadFrame()
		if err == io.EOF { //nolint:errorlint // as it is returned
			return known, calls
		} else if err != nil {
			t.Fatal(err)
		}
		head, ok := f.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		domain := head.Fields[0].Value
		seen, found := p.peek.take()
		if found && (seen.Domain != hashOf([]byte(domain)) || !strings.HasPrefix(domain, told)) {
			t.Fatalf("of a call of %s %+v is told", domain, seen)
		}
		if strings.HasPrefix(domain, told) {
			calls++
			if found {
				known++
			}
		}
	}
}

// TestPeek: whose calls are is known before grpc takes them up, if their messages have been read with their headers, however frames are
// mixed and divided; and if not, nothing wrong is said.
func TestPeek(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's
		s := newSender(t)
		for i := uint32(1); i < 400; {
			a, b, domain := i, i+2, fmt.Sprintf("told-%d", r.IntN(20))
			i += 4
			switch r.IntN(10) {
			case 0: // one after the other
				s.headers(a, domain, 1)
				s.do(s.fr.WriteData(a, true, s.message(domain)))
			case 1: // two at once
				s.headers(a, domain, 1)
				s.headers(b, domain+"b", 1)
				s.do(s.fr.WriteData(b, true, s.message(domain+"b")))
				s.do(s.fr.WriteData(a, false, s.message(domain)))
				s.do(s.fr.WriteData(a, true, nil))
			case 2: // headers in two frames
				s.headers(a, domain, 2)
				s.do(s.fr.WriteData(a, true, s.message(domain)))
			case 3: // the message in two
				s.headers(a, "divided", 1)
				m := s.message("divided")
				s.do(s.fr.WriteData(a, false, m[:len(m)/2]))
				s.do(s.fr.WriteData(a, true, m[len(m)/2:]))
			case 4: // padded
				s.headers(a, "padded", 1)
				s.do(s.fr.WriteDataPadded(a, true, s.message("padded"), make([]byte, r.IntN(5))))
			case 5: // compressed
				s.headers(a, "compressed", 1)
				m := s.message("compressed")
				m[0] = 1
				s.do(s.fr.WriteData(a, true, m))
			case 6: // what looks like a message in the second part of one
				s.headers(a, "inside", 1)
				m := s.message("another")
				s.do(s.fr.WriteData(a, false, append([]byte{0, 0, 0, 0, byte(len(m))}, 'x')))
				s.do(s.fr.WriteData(a, true, m))
			case 7: // none, and short ones
				s.headers(a, "nothing", 1)
				s.do(s.fr.WriteData(a, true, s.message("nothing")[:r.IntN(messageHeaderSize)]))
				s.headers(b, "cancelled", 1)
				s.do(s.fr.WriteRSTStream(b, http2.ErrCodeCancel))
			case 8: // other frames
				s.do(s.fr.WritePing(false, [8]byte{1, 2, 3}))
				s.do(s.fr.WriteWindowUpdate(0, 1000))
			default: // two messages, of which the first one counts
				s.headers(a, domain, 1)
				s.do(s.fr.WriteData(a, false, s.message(domain)))
				s.do(s.fr.WriteData(a, true, s.message("another")))
			}
		}
		for _, most := range []int{1, 7, 100, 1000, 1 << 20} {
			p := &peeking{peek: newPeek(), from: bytes.NewBuffer(bytes.Clone(s.out.Bytes())), sizes: r, most: most}
			known, calls := p.read(t, "told")
			if least := map[int]int{1000: calls / 2, 1 << 20: calls * 9 / 10}[most]; known < least {
				t.Fatalf("seed %d: in chunks of up to %d bytes %d of %d calls are known, want %d", seed, most, known, calls, least)
			}
		}
	}
}

// TestPeekIsBounded: what a client sends in one read takes a bounded amount of memory, and none is kept when nobody wants to know.
func TestPeekIsBounded(t *testing.T) {
	t.Parallel()
	s := newSender(t)
	for i := range uint32(1000) {
		s.headers(2*i+1, "d", 1)
	}
	p := newPeek()
	p.scan(s.out.Bytes(), func([]byte) hint { return hint{} })
	if len(p.calls) != mostPeeked {
		t.Errorf("%d calls are kept, want %d", len(p.calls), mostPeeked)
	}
	for range mostPeeked {
		p.take()
	}
	if p.memory != nil {
		t.Error("memory is kept for calls that grpc has asked about")
	}
	p.scan(s.out.Bytes(), func([]byte) hint { return hint{} })
	if p.scan([]byte{0}, nil); p.memory != nil || len(p.calls) > 0 {
		t.Error("calls are kept although nobody wants to know")
	}
}

// TestPingsKept: as many pings are kept from grpc as calls were culled, whole ones alone.
func TestPingsKept(t *testing.T) {
	t.Parallel()
	s := newSender(t)
	begin := s.out.Len()
	for i := range byte(6) {
		s.do(s.fr.WritePing(i == 0, [8]byte{i})) // the first answers one of grpc's
	}
	p := newPeek()
	p.culled = 4
	b := s.out.Bytes()
	const size = frameHeaderSize + pingSize
	half := begin + 2*size + size/2 // amid the third
	for _, part := range [][]byte{b[:half], b[half:]} {
		p.scan(part, nil)
		pongs := newCulling().pongs(part, p.taken)
		var got []byte
		if pongs != nil {
			for fr := http2.NewFramer(nil, bytes.NewReader(*pongs)); ; {
				f, err := fr.ReadFrame()
				if err != nil {
					break
				}
				if ping := f.(*http2.PingFrame); ping.IsAck() {
					got = append(got, ping.Data[0])
				}
			}
		}
		if want := map[bool][]byte{true: {1}, false: {3, 4, 5}}[&part[0] == &b[0]]; !bytes.Equal(got, want) {
			t.Errorf("%v are answered, want %v", got, want)
		}
	}
	if p.scan(b[begin:], nil); p.culled != 0 || len(p.taken) > 0 {
		t.Errorf("%d pings are kept from grpc without a call that was culled", len(p.taken))
	}
}

func FuzzPeek(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x01\x04\x00\x00\x00\x01x\x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00"), 3)
	block := append([]byte{0x83, 4, byte(len(method))}, method...)
	call := append([]byte{0, 0, byte(len(block)), 1, 4, 0, 0, 0, 1}, block...)
	f.Add(append([]byte("\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\xff\xff\xff"), call...), 0)
	f.Add(append(call, "\x00\x00\x05\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00"...), 0)
	f.Fuzz(func(t *testing.T, b []byte, at int) {
		var p peek
		at = min(max(at, 0), len(b))
		p.scan(b[:at], domainHint)
		p.take()
		p.scan(b[at:], domainHint)
		rest := bytes.Clone(b[at:])
		if out := p.pick(nil, 10, func(*overload.Seen, int) bool { return true }); len(out) > 0 {
			frames, size := slices.Clone(p.taken), len(p.taken)*(frameHeaderSize+windowSize)
			for _, x := range out {
				frames = append(frames, x.head, x.message)
				size += 2*frameHeaderSize + len(codedMethod) + len(x.text(rest))
			}
			left := rest[:remove(rest, frames)]
			if len(rest)-len(left) < size {
				t.Errorf("of %d bytes %d are left, though what is removed has %d at least", len(rest), len(left), size)
			}
			p.scan(left, domainHint)
		}
		for range 3 {
			p.take()
		}
	})
}

// limit has so much wait at a gate, of one domain, that it lets in fewer calls, until the test ends.
func limit(t *testing.T, g *overload.Gate, domain string) {
	t.Helper()
	limitAfter(t, g, domain, time.Minute)
}

// limitAfter does so by calls that have waited for so long.
func limitAfter(t *testing.T, g *overload.Gate, domain string, waited time.Duration) {
	t.Helper()
	var over atomic.Bool
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { over.Store(true) })
	for range 300 * runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for !over.Load() {
				turn := g.Wait(overload.Call{
					Domain: hashOf([]byte(domain)), Size: 100, Waited: waited, Deadline: time.Now().Add(2 * time.Millisecond),
				})
				g.Done(turn, false)
			}
		})
	}
	testkit.Eventually(t, "fewer are let in", g.Limited)
}

// crowdedConn is a server, and a connection to it with so many calls that no more of a domain are let in that asks for too much.
type crowdedConn struct {
	address string
	gate    *overload.Gate
	conn    atomic.Pointer[boundedConn]
	shed    atomic.Int64
	late    atomic.Int64 // calls that policies were asked about, and refused

	mu      sync.Mutex
	decided map[string]int // calls of each domain
}

// crowdConn starts a server for which loud is such a domain, once the first call has come and busy is called.
func crowdConn(t *testing.T, config ServerConfig) *crowdedConn {
	t.Helper()
	c := &crowdedConn{gate: overload.New(overload.Config{MaxCalls: 10_000, Patience: time.Minute}), decided: map[string]int{}}
	decide := decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		if r.Late {
			c.late.Add(1)
			err := allow(ctx, r, v)
			v.Over = true
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.conn.Store(originOf(ctx).conn)
		c.decided[string(r.Domain)]++
		return allow(ctx, r, v)
	})
	l, err := ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c.address = l.Addr().String()
	serveOn(t, NewServer(New(decide, Config{Gate: c.gate, Hooks: Hooks{Shed: func() { c.shed.Add(1) }}}), config), Bound(l, Connections{}))
	return c
}

func (c *crowdedConn) busy(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "a first call is decided", func() bool { return c.conn.Load() != nil })
	for range 200 {
		c.gate.Enter(&c.conn.Load().client)
	}
	limit(t, c.gate, "loud")
}

func (c *crowdedConn) of(domain string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.decided[domain]
}

// TestQuietDomainIsHeard: when there is too much, calls of a domain that asks for little are let in on the very connection on which another
// one asks for too much, in plain text and over TLS.
func TestQuietDomainIsHeard(t *testing.T) {
	for name, c := range transports(t) {
		t.Run(name, func(t *testing.T) {
			crowded := crowdConn(t, c.server)
			conn := dial(t, crowded.address, c.dial...)
			client := ratelimitv3.NewRateLimitServiceClient(conn)
			ask := func(domain string) codes.Code {
				_, err := client.ShouldRateLimit(t.Context(), request(domain, "k=v"))
				return status.Code(err)
			}
			if code := ask("first"); code != codes.OK {
				t.Fatal(code)
			}
			crowded.busy(t)
			for range 50 {
				if code := ask("loud"); code != codes.Unavailable {
					t.Fatalf("a call of the domain that asks for too much: %v", code)
				}
			}
			testkit.Eventually(t, "a call of a quiet domain is let in", func() bool { return ask("quiet") == codes.OK })
			if n := crowded.of("loud"); n > 0 {
				t.Errorf("%d calls of the loud domain were decided", n)
			}
		})
	}
}

// TestNobodySeemsQuiet: a client whose domain asks for too much does not get in by seeming to be of another one.
func TestNobodySeemsQuiet(t *testing.T) {
	head, _ := encodeHead()
	loud, quiet := marshal(t, request("loud", "k=v")), framed(0, marshal(t, request("quiet", "k=v")))
	inside := protowire.AppendVarint(protowire.AppendTag(bytes.Clone(loud), 15, protowire.BytesType), uint64(len(quiet)))
	twice := append(protowire.AppendBytes(protowire.AppendTag(nil, requestDomain, protowire.BytesType), []byte("quiet")), loud...)
	for name, send := range map[string]func(s *sender, stream uint32){
		"a message in the second part of one": func(s *sender, stream uint32) {
			s.head(stream, head)
			s.do(s.fr.WriteData(stream, false, append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(inside)+len(quiet))), inside...))) //nolint:gosec // short
			s.do(s.fr.WriteData(stream, true, quiet))
		},
		"after a call that is turned away": func(s *sender, stream uint32) {
			s.head(stream, append(bytes.Clone(head), "\x00\x0cgrpc-timeout\x01x"...))
			s.do(s.fr.WriteData(stream, true, quiet))
			s.head(stream+2, head)
			s.do(s.fr.WriteData(stream+2, true, framed(0, loud)))
		},
		"two domains": func(s *sender, stream uint32) {
			s.head(stream, head)
			s.do(s.fr.WriteData(stream, true, framed(0, twice)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			crowded := crowdConn(t, ServerConfig{})
			c, err := net.Dial("tcp", crowded.address)
			if err != nil {
				t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, c) }()
			t.Cleanup(func() { _ = c.Close() })
			s := newSender(t)
			s.head(1, head)
			s.do(s.fr.WriteData(1, true, framed(0, marshal(t, request("first", "k=v")))))
			send := func(stream uint32) {
				send(s, stream)
				if _, err := c.Write(s.out.Bytes()); err != nil {
					t.Fatal(err)
				}
				s.out.Reset()
			}
			send(3) // while anybody is let in
			testkit.Eventually(t, "a call is decided", func() bool { return crowded.of("loud") > 0 })
			crowded.busy(t)
			before := crowded.of("loud")
			for i := range uint32(100) {
				send(7 + 4*i)
			}
			last := uint32(7 + 4*100)
			testkit.Eventually(t, "a call of a quiet domain is let in after them", func() bool {
				s.head(last, head)
				s.do(s.fr.WriteData(last, true, quiet))
				_, err := c.Write(s.out.Bytes())
				s.out.Reset()
				last += 2
				return err == nil && crowded.of("quiet") > 0
			})
			if n := crowded.of("loud") - before; n > 0 {
				t.Errorf("%d calls were decided", n)
			}
		})
	}
}
