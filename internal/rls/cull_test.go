package rls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// fakeConn is a connection over which a client has sent all that it will, and to which writes are remembered.
type fakeConn struct {
	net.Conn

	sent  *bytes.Buffer
	sizes *rand.Rand
	most  int

	mu    sync.Mutex
	wrote bytes.Buffer
}

func (c *fakeConn) Read(b []byte) (int, error) {
	return c.sent.Read(b[:min(len(b), 1+c.sizes.IntN(c.most))])
}

func (c *fakeConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrote.Write(b)
}

// culled is what a client sends, and what becomes of it.
type culled struct {
	*sender

	coder   *coder
	may     map[uint32]bool // calls that may be culled
	frames  []string        // that are not of those calls
	credit  int             // bytes of all messages
	streams uint32
}

// call sends one.
func (c *culled) call(domain string, extra ...string) {
	c.streams += 2
	id := c.streams
	head, data := c.coder.head(method, append(extra, "x-domain", domain)...), c.message(domain)
	c.may[id] = domain == "loud" && stateless(head)
	c.head(id, head)
	c.do(c.fr.WriteData(id, true, data))
	c.credit += len(data)
	if !c.may[id] {
		c.passes(id, domain, len(data))
	}
}

// passes notes that grpc is to get the frames of a call.
func (c *culled) passes(id uint32, domain string, size int) {
	c.frames = append(c.frames, fmt.Sprint("head ", id, " ", domain), fmt.Sprint("data ", id, " ", size))
}

// other sends something else than a call that may be culled.
func (c *culled) other(kind int) {
	c.streams += 2
	id, data := c.streams, c.message("loud")
	switch kind {
	case 0:
		c.do(c.fr.WritePing(false, [8]byte{byte(id)}))
		c.frames = append(c.frames, fmt.Sprint("ping ", byte(id)))
		return
	case 1: // what asks for health is never refused
		c.head(id, c.coder.head("/grpc.health.v1.Health/Check", "x-domain", "health"))
		c.do(c.fr.WriteData(id, true, data))
		c.passes(id, "health", len(data))
	case 2: // its message goes on
		c.head(id, c.coder.head(method, "x-domain", "loud"))
		c.do(c.fr.WriteData(id, false, data))
		c.do(c.fr.WriteData(id, true, nil))
		c.passes(id, "loud", len(data))
		c.frames = append(c.frames, fmt.Sprint("data ", id, " 0"))
	case 3: // in two frames
		block := c.coder.head(method, "x-domain", "loud")
		c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:5]}))
		c.do(c.fr.WriteContinuation(id, true, block[5:]))
		c.do(c.fr.WriteData(id, true, data))
		c.passes(id, "loud", len(data))
	case 4: // with a priority
		c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: c.coder.head(method, "x-domain", "loud"), EndHeaders: true, Priority: http2.PriorityParam{Weight: 3},
		}))
		c.do(c.fr.WriteData(id, true, data))
		c.passes(id, "loud", len(data))
	default: // a call that is mixed with two that may be culled
		head, between := c.coder.head(method, "x-domain", "quiet"), c.coder.head(method, "x-domain", "loud")
		c.streams += 4
		c.may[id+2], c.may[id+4] = stateless(between), stateless(between)
		c.head(id, head)
		c.head(id+2, between)
		c.head(id+4, between)
		c.do(c.fr.WriteData(id+4, true, data))
		c.do(c.fr.WriteData(id+2, true, data))
		c.credit += 2 * len(data)
		data = c.message("quiet")
		c.do(c.fr.WriteData(id, true, data))
		c.passes(id, "quiet", len(data))
	}
	c.credit += len(data)
}

// readAll returns the frames that grpc gets, and how many bytes of messages.
func readAll(t *testing.T, from io.Reader) (frames []string, size int) {
	t.Helper()
	fr := grpcFramer(t, from)
	for {
		f, err := fr.ReadFrame()
		switch f := f.(type) {
		case nil:
			if err != io.EOF { //nolint:errorlint // as it is returned
				t.Fatal(err)
			}
			return frames, size
		case *http2.MetaHeadersFrame:
			domain := f.Fields[slices.IndexFunc(f.Fields, func(f hpack.HeaderField) bool { return f.Name == "x-domain" })].Value
			frames = append(frames, fmt.Sprint("head ", f.StreamID, " ", domain))
		case *http2.DataFrame:
			frames = append(frames, fmt.Sprint("data ", f.StreamID, " ", len(f.Data())))
			size += len(f.Data())
		case *http2.PingFrame:
			frames = append(frames, fmt.Sprint("ping ", f.Data[0]))
		}
	}
}

// answersTo reads what a client got: the calls that were culled, the bytes that it may send again, and how many other answers.
func answersTo(t *testing.T, from io.Reader) (refused map[uint32]bool, credit, others int) {
	t.Helper()
	fr := headFramer(from)
	refused = map[uint32]bool{}
	for {
		f, err := fr.ReadFrame()
		switch f := f.(type) {
		case nil:
			if err != io.EOF { //nolint:errorlint // as it is returned
				t.Fatal(err)
			}
			return refused, credit, others
		case *http2.WindowUpdateFrame:
			credit += int(f.Increment)
		case *http2.MetaHeadersFrame:
			got := fmt.Sprint(f.Fields)
			switch {
			case !f.StreamEnded():
				if want := fmt.Sprint("x-other", f.StreamID-1<<20); !strings.Contains(got, want) {
					t.Fatalf("grpc's headers are %s, want %s", got, want)
				}
				others++
			case refused[f.StreamID]:
				t.Fatalf("call %d is answered twice", f.StreamID)
			default:
				refused[f.StreamID] = true
				if want := `":status" = "200"`; !strings.Contains(got, "grpc-status") || !strings.Contains(got, "14") {
					t.Fatalf("the answer has %s, want %s and grpc-status 14", got, want)
				}
			}
		}
	}
}

// TestCull: whatever is read and written at the same time and in whatever parts, calls of who asks for too much are answered or given to
// grpc, and all else is: in order, and so that what refers to headers before is understood.
func TestCull(t *testing.T) {
	gate := overload.New(overload.Config{MaxCalls: 10_000, Patience: time.Minute})
	client := new(boundedConn)
	for range 200 {
		gate.Enter(&client.client)
	}
	limit(t, gate, "loud")
	service := New(decideFunc(allow), Config{Gate: gate})
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test's
		c := &culled{sender: newSender(t), coder: newCoder(), may: map[uint32]bool{}, streams: 1<<32 - 1}
		c.call("loud") // whose headers are put into the table
		for range 300 {
			switch n := r.IntN(20); n {
			case 0, 1, 2, 3, 4, 5:
				c.other(n)
			case 6:
				c.coder.fresh = strconv.Itoa(r.IntN(1 << 30))
				c.call("loud")
			case 7, 8:
				c.call("quiet")
			default:
				c.call("loud")
			}
		}
		for _, most := range []int{1, 50, 1000, 1 << 20} {
			conn := &fakeConn{sent: bytes.NewBuffer(bytes.Clone(c.out.Bytes())), sizes: r, most: most}
			client.peek = newPeek()
			p := peekedConn{conn, client, service, &answers{culling: service.culling, conn: conn}}
			var wg sync.WaitGroup
			others := writeOthers(t)
			wg.Go(func() { // what grpc writes meanwhile, in parts that are not frames
				parts := rand.New(rand.NewPCG(seed, 3)) //nolint:gosec // a test's
				for b := others; len(b) > 0; {
					n := min(1+parts.IntN(100), len(b))
					if _, err := p.Write(b[:n]); err != nil {
						t.Error(err)
					}
					b = b[n:]
					runtime.Gosched()
				}
			})
			got, passed := readAll(t, p)
			wg.Wait()
			testkit.Eventually(t, "all answers are written", func() bool {
				p.answers.mu.Lock()
				defer p.answers.mu.Unlock()
				return p.answers.waiting == nil
			})
			p.answers.writing.Lock() // whoever writes has
			refused, credit, whole := answersTo(t, &conn.wrote)
			p.answers.writing.Unlock()
			c.check(t, got, refused)
			if passed+credit != c.credit || whole != 500 {
				t.Errorf("in parts of %d: grpc has %d bytes of messages and %d may be sent again, of %d; %d of 500 other answers", most, passed, credit, c.credit, whole)
			}
			if least := map[int]int{1000: 50, 1 << 20: 150}[most]; len(refused) < least {
				t.Errorf("in parts of %d: %d calls were culled, want %d", most, len(refused), least)
			}
		}
	}
}

// writeOthers returns what grpc writes: headers in one frame or two, with other frames between.
func writeOthers(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	fr, coder := http2.NewFramer(&out, nil), newCoder()
	for i := range uint32(500) {
		block, cut := coder.head("/", "x-other"+strconv.Itoa(int(i)), "1"), i%3 == 0
		first, rest := block, []byte(nil)
		if cut {
			first, rest = block[:len(block)/2], block[len(block)/2:]
		}
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: i + 1<<20, BlockFragment: first, EndHeaders: !cut})
		if cut {
			err = errors.Join(err, fr.WriteContinuation(i+1<<20, true, rest))
		}
		if err = errors.Join(err, fr.WriteSettingsAck(), fr.WriteData(i+1<<20, false, make([]byte, i%100))); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// check compares what grpc has got with what was sent.
func (c *culled) check(t *testing.T, got []string, refused map[uint32]bool) {
	t.Helper()
	for stream := range refused {
		if !c.may[stream] {
			t.Fatalf("call %d was culled", stream)
		}
	}
	var rest []string
	for _, f := range got {
		var kind string
		var stream uint32
		if _, err := fmt.Sscan(f, &kind, &stream); err != nil {
			t.Fatal(err)
		}
		switch {
		case kind != "ping" && refused[stream]:
			t.Fatalf("grpc has %s, which was culled", f)
		case kind == "ping" || !c.may[stream]:
			rest = append(rest, f)
		}
	}
	if !slices.Equal(rest, c.frames) {
		t.Fatalf("grpc has %d frames of what cannot be culled, want %d, the same:\n%v\n%v", len(rest), len(c.frames), rest, c.frames)
	}
}

// TestCulledCalls: a client whose calls are culled gets the error of those that are refused, as many as it sends, and health, over plain
// text and TLS.
func TestCulledCalls(t *testing.T) {
	config, pool := serverTLS(t)
	for name, server := range map[string]ServerConfig{"plain": {}, "TLS": {TLS: config}} {
		t.Run(name, func(t *testing.T) {
			crowded := crowdConn(t, server)
			c := dialRaw(t, crowded.address, server.TLS != nil, pool)
			s, coder := newSender(t), newCoder()
			send := func(stream uint32, path string, message []byte) {
				s.head(stream, coder.head(path))
				s.do(s.fr.WriteData(stream, true, framed(0, message)))
				_, err := c.Write(s.out.Bytes())
				s.do(err)
				s.out.Reset()
			}
			send(1, method, marshal(t, request("first", "k=v")))
			results, again := readResults(c)
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
			got := map[string]int{}
			for range calls {
				r := <-results
				got[r.status]++
				if r.status == "14" && r.message != strings.TrimPrefix(errOverload.Error(), "rpc error: code = Unavailable desc = ") {
					t.Fatalf("the message is %q", r.message)
				}
			}
			sent.Wait()
			if n := crowded.shed.Load(); n != calls-calls/100 {
				t.Errorf("%d calls are counted as shed, want %d", n, calls-calls/100)
			}
			if got["0"] != calls/100 || got["14"] != calls-calls/100 || crowded.of("loud") > 0 {
				t.Errorf("%v, and %d calls of the loud domain were decided; want %d times 0, which is health, and 14 else", got, crowded.of("loud"), calls/100)
			}
			if n := again.Load(); n < calls*pad-connWindow/2 {
				t.Errorf("%d bytes of %d may be sent again", n, calls*pad)
			}
		})
	}
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
type result struct{ status, message string }

// readResults reads how calls end, in any order, and adds up how many bytes may be sent again.
func readResults(c net.Conn) (<-chan result, *atomic.Int64) {
	results, again := make(chan result, 1<<14), new(atomic.Int64)
	fr := headFramer(c)
	go func() {
		defer close(results)
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if w, ok := f.(*http2.WindowUpdateFrame); ok && w.StreamID == 0 {
				again.Add(int64(w.Increment))
			}
			head, ok := f.(*http2.MetaHeadersFrame)
			if !ok || !head.StreamEnded() {
				continue
			}
			var r result
			for _, f := range head.Fields {
				switch f.Name {
				case "grpc-status":
					r.status = f.Value
				case "grpc-message":
					r.message = f.Value
				}
			}
			results <- r
		}
	}()
	return results, again
}

// TestPick: calls of which grpc need not know are asked about in turn, each with how many before it are let in; and grpc is told of those
// that are left.
func TestPick(t *testing.T) {
	t.Parallel()
	calls := func() []peeked {
		var all []peeked
		for i := range uint32(6) {
			x := peeked{stream: 2*i + 1, known: true, head: span{0, 10}, message: span{10, 30}, seen: overload.Seen{Domain: i}}
			switch i {
			case 2:
				x.known = false
			case 3:
				x.stream++ // which no client may use
			}
			all = append(all, x)
		}
		return all
	}
	var told []string
	full := func(seen *overload.Seen, coming int) bool {
		told = append(told, fmt.Sprint(seen.Domain, " after ", coming))
		return seen.Domain%4 == 1
	}
	p := peek{calls: calls()}
	out := p.pick(2, full)
	if want := []string{"0 after 0", "1 after 1", "4 after 1", "5 after 2"}; !slices.Equal(told, want) {
		t.Errorf("asked about %v, want %v", told, want)
	}
	if want := []uint32{3, 11}; !slices.Equal(out.streams, want) || len(out.frames) != 4 || out.credit != 2*11 {
		t.Errorf("%+v, want streams %v, four frames, and 22 bytes", out, want)
	}
	var left []uint32
	for range 4 {
		if seen := p.take(); seen != nil {
			left = append(left, seen.Domain)
		}
	}
	if want := []uint32{0, 3, 4}; !slices.Equal(left, want) {
		t.Errorf("grpc is told of %v, want %v", left, want)
	}
	for _, p := range []peek{{calls: calls(), tables: true}, {}} {
		before := len(p.calls)
		if out := p.pick(2, full); len(out.streams) > 0 || len(p.calls) != before {
			t.Errorf("%+v of %d calls", out, before)
		}
	}
}
