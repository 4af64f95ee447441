package rls

import (
	"bytes"
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
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

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

func (c *fakeConn) Close() error { return nil }

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
	pings   []string
	credit  int // bytes of all messages
	given   int // bytes that may be sent
	streams uint32
}

// give lets so many bytes be sent.
func (c *culled) give(n int) {
	c.do(c.fr.WriteWindowUpdate(0, uint32(n))) //nolint:gosec // few
	c.given += n
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
		c.pings = append(c.pings, fmt.Sprint("ping ", byte(id)))
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

// received is what grpc gets.
type received struct {
	frames []string
	size   int // bytes of messages
	window int // that may be sent
}

// readAll returns it.
func readAll(t *testing.T, from io.Reader) (r received) {
	t.Helper()
	fr := grpcFramer(t, from)
	for {
		f, err := fr.ReadFrame()
		switch f := f.(type) {
		case nil:
			if err != io.EOF { //nolint:errorlint // as it is returned
				t.Fatal(err)
			}
			return r
		case *http2.MetaHeadersFrame:
			domain := f.Fields[slices.IndexFunc(f.Fields, func(f hpack.HeaderField) bool { return f.Name == "x-domain" })].Value
			r.frames = append(r.frames, fmt.Sprint("head ", f.StreamID, " ", domain))
		case *http2.DataFrame:
			r.frames = append(r.frames, fmt.Sprint("data ", f.StreamID, " ", len(f.Data())))
			r.size += len(f.Data())
		case *http2.PingFrame:
			r.frames = append(r.frames, fmt.Sprint("ping ", f.Data[0]))
		case *http2.WindowUpdateFrame:
			r.window += int(f.Increment)
		}
	}
}

// culledAnswers is what a client gets.
type culledAnswers struct {
	statuses map[uint32]string // of calls that were culled
	texts    map[uint32][]byte // the answers of those that policies decided
	credit   int               // bytes that may be sent again
	size     int               // bytes of these answers
	others   int               // answers that grpc wrote
	pongs    []string          // pings that were not given to grpc
}

// ours is below the streams to which grpc answers.
const ours = 1 << 20

// answersTo reads it.
func answersTo(t *testing.T, from io.Reader) culledAnswers {
	t.Helper()
	fr := headFramer(from)
	a := culledAnswers{statuses: map[uint32]string{}, texts: map[uint32][]byte{}}
	for {
		f, err := fr.ReadFrame()
		switch f := f.(type) {
		case nil:
			if err != io.EOF { //nolint:errorlint // as it is returned
				t.Fatal(err)
			}
			return a
		case *http2.WindowUpdateFrame:
			a.credit += int(f.Increment)
		case *http2.PingFrame:
			if !f.IsAck() {
				t.Fatal("the client is sent a ping")
			}
			a.pongs = append(a.pongs, fmt.Sprint("ping ", f.Data[0]))
		case *http2.DataFrame:
			if f.StreamID < ours {
				a.texts[f.StreamID] = append(a.texts[f.StreamID], f.Data()...)
				a.size += len(f.Data())
			}
		case *http2.MetaHeadersFrame:
			a.head(t, f)
		}
	}
}

// head reads headers, or a trailer.
func (a *culledAnswers) head(t *testing.T, f *http2.MetaHeadersFrame) {
	t.Helper()
	got := fmt.Sprint(f.Fields)
	value := func(name string) string {
		i := slices.IndexFunc(f.Fields, func(f hpack.HeaderField) bool { return f.Name == name })
		if i < 0 {
			return ""
		}
		return f.Fields[i].Value
	}
	switch before, found := a.statuses[f.StreamID]; {
	case f.StreamID >= ours:
		if want := fmt.Sprint("x-other", f.StreamID-ours); !strings.Contains(got, want) {
			t.Fatalf("grpc's headers are %s, want %s", got, want)
		}
		a.others++
		return
	case !f.StreamEnded():
		if found || value(":status") != "200" || value("content-type") != "application/grpc" {
			t.Fatalf("call %d, which has status %q, is answered with %s", f.StreamID, before, got)
		}
		a.statuses[f.StreamID] = "none"
	default:
		if (before == "none") != (value(":status") == "") || before != "none" && found || (value("grpc-message") == "") != (before == "none") {
			t.Fatalf("call %d, which has status %q, ends with %s", f.StreamID, before, got)
		}
		a.statuses[f.StreamID] = value("grpc-status")
	}
}

// TestCull: whatever is read and written at the same time and in whatever parts, calls of who asks for too much are answered or given to
// grpc, and all else is: in order, and so that what refers to headers before is understood. Where a client says how much may be sent to it,
// grpc and those answers have a part of it each.
func TestCull(t *testing.T) {
	gate := overload.New(overload.Config{MaxCalls: 10_000, Patience: time.Minute})
	client := new(boundedConn)
	for range 200 {
		gate.Enter(&client.client)
	}
	limit(t, gate, "loud")
	service := New(decideFunc(allow), Config{Gate: gate})
	want := framed(0, marshal(t, inProcess(t, service, request("loud", "user=a", "path=/b"))))
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test's
		c := sendCalls(t, r, seed%2 > 0)
		for _, most := range []int{1, 50, 1000, 1 << 20} {
			conn := &fakeConn{sent: bytes.NewBuffer(bytes.Clone(c.out.Bytes())), sizes: r, most: most}
			client.peek = newPeek()
			p := peekedConn{conn, client, service, newAnswers(service.culling, conn)}
			got, answers := throughGRPC(t, p, conn, rand.New(rand.NewPCG(seed, 3))) //nolint:gosec // a test's
			c.check(t, got, answers, want)
			if left := c.given - got.window - answers.size; left != int(client.peek.window.left) {
				t.Errorf("in parts of %d: %d bytes may be sent, of which grpc has %d and %d have been sent, but %d are left", most, c.given, got.window, answers.size, client.peek.window.left)
			}
			if n := len(answers.pongs); most == 1 && n > 0 || most >= 1000 && n == 0 {
				t.Errorf("in parts of %d: %d pings are answered for grpc", most, len(answers.pongs))
			}
			if least := map[int]int{1000: 50, 1 << 20: 130}[most]; len(answers.statuses) < least {
				t.Errorf("in parts of %d: %d calls were culled, want %d", most, len(answers.statuses), least)
			}
			if byPolicy := len(answers.texts); most >= 1000 && (byPolicy > 0) != (c.given > 0) {
				t.Errorf("in parts of %d: %d calls were answered by policy, though %d bytes may be sent", most, byPolicy, c.given)
			}
		}
	}
}

// sendCalls has a client send calls that may be culled, and all else; and say how much may be sent, if it says so at all.
func sendCalls(t *testing.T, r *rand.Rand, windows bool) *culled {
	t.Helper()
	c := &culled{sender: newSender(t), coder: newCoder(), may: map[uint32]bool{}, streams: 1<<32 - 1}
	if windows {
		c.give(1 << 16)
		c.give(1 << 16)
	}
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
		case 9:
			if windows {
				c.give(1 + r.IntN(1000))
			}
		default:
			c.call("loud")
		}
	}
	return c
}

// throughGRPC has a connection read and written as grpc does, and returns what it gets, and what its client gets.
func throughGRPC(t *testing.T, p peekedConn, conn *fakeConn, parts *rand.Rand) (received, culledAnswers) {
	t.Helper()
	var wg sync.WaitGroup
	others := writeOthers(t)
	wg.Go(func() { // what grpc writes meanwhile, in parts that are not frames
		for b := others; len(b) > 0; {
			n := min(1+parts.IntN(100), len(b))
			if _, err := p.Write(b[:n]); err != nil {
				t.Error(err)
			}
			b = b[n:]
			runtime.Gosched()
		}
	})
	got := readAll(t, p)
	wg.Wait()
	testkit.Eventually(t, "all answers are written", func() bool {
		p.answers.mu.Lock()
		defer p.answers.mu.Unlock()
		return p.answers.waiting == nil
	})
	p.answers.writing.Lock() // whoever writes has
	defer p.answers.writing.Unlock()
	return got, answersTo(t, &conn.wrote)
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
		err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: i + ours, BlockFragment: first, EndHeaders: !cut})
		if cut {
			err = errors.Join(err, fr.WriteContinuation(i+ours, true, rest))
		}
		if err = errors.Join(err, fr.WriteSettingsAck(), fr.WriteData(i+ours, false, make([]byte, i%100))); err != nil {
			t.Fatal(err)
		}
	}
	return out.Bytes()
}

// check compares what grpc and the client have got with what was sent; want is what policies answer.
func (c *culled) check(t *testing.T, got received, answers culledAnswers, want []byte) {
	t.Helper()
	for stream, code := range answers.statuses {
		text, byPolicy := answers.texts[stream]
		switch {
		case !c.may[stream]:
			t.Fatalf("call %d was culled", stream)
		case byPolicy && (code != "0" || !bytes.Equal(text, want)), !byPolicy && code != "14":
			t.Fatalf("call %d has status %s and the answer %x, want 14, or 0 and %x", stream, code, text, want)
		}
	}
	var rest, pings []string
	for _, f := range got.frames {
		var kind string
		var stream uint32
		if _, err := fmt.Sscan(f, &kind, &stream); err != nil {
			t.Fatal(err)
		}
		_, gone := answers.statuses[stream]
		switch {
		case kind != "ping" && gone:
			t.Fatalf("grpc has %s, which was culled", f)
		case kind == "ping":
			pings = append(pings, f)
		case !c.may[stream]:
			rest = append(rest, f)
		}
	}
	if !slices.Equal(rest, c.frames) {
		t.Fatalf("grpc has %d frames of what cannot be culled, want %d, the same:\n%v\n%v", len(rest), len(c.frames), rest, c.frames)
	}
	if all := append(pings, answers.pongs...); !slices.Equal(slices.Sorted(slices.Values(all)), slices.Sorted(slices.Values(c.pings))) {
		t.Fatalf("grpc has the pings %v, and %v are answered for it, of %v", pings, answers.pongs, c.pings)
	}
	if got.size+answers.credit != c.credit || answers.others != 500 {
		t.Errorf("grpc has %d bytes of messages and %d may be sent again, of %d; %d of 500 other answers", got.size, answers.credit, c.credit, answers.others)
	}
}

// TestPick: calls of which grpc need not know are asked about in turn, each with how many before it are let in; and grpc is told of those
// that are left.
func TestPick(t *testing.T) {
	t.Parallel()
	calls := func() []peeked {
		var all []peeked
		for i := range uint32(6) {
			x := peeked{stream: 2*i + 1, known: true, head: span{0, 10}, message: span{10, 30}, seen: hint{Seen: overload.Seen{Domain: i}}}
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
	out := p.pick(nil, 2, full)
	if want := []string{"0 after 0", "1 after 1", "4 after 1", "5 after 2"}; !slices.Equal(told, want) {
		t.Errorf("asked about %v, want %v", told, want)
	}
	if len(out) != 2 || out[0].stream != 3 || out[1].stream != 11 {
		t.Errorf("%+v, want streams 3 and 11", out)
	}
	var left []uint32
	for range 4 {
		if seen, found := p.take(); found {
			left = append(left, seen.Domain)
		}
	}
	if want := []uint32{0, 3, 4}; !slices.Equal(left, want) {
		t.Errorf("grpc is told of %v, want %v", left, want)
	}
	for _, p := range []peek{{calls: calls(), tables: true}, {}} {
		before := len(p.calls)
		if out := p.pick(nil, 2, full); len(out) > 0 || len(p.calls) != before {
			t.Errorf("%+v of %d calls", out, before)
		}
	}
}
