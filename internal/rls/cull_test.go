package rls

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
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

// coder encodes headers as Envoy does: it never puts paths into the table, and other fields always.
type coder struct {
	block bytes.Buffer
	enc   *hpack.Encoder
	fresh string // a value for the table
}

func newCoder() *coder {
	c := new(coder)
	c.enc = hpack.NewEncoder(&c.block)
	return c
}

// head returns the headers of a call; extra ones are written out.
func (c *coder) head(path string, extra ...string) []byte {
	c.block.Reset()
	for _, h := range headers() {
		f := hpack.HeaderField{Name: h[0], Value: h[1]}
		if f.Name == ":path" {
			f.Value, f.Sensitive = path, true
		}
		_ = c.enc.WriteField(f) // a buffer takes everything
	}
	if c.fresh != "" {
		_ = c.enc.WriteField(hpack.HeaderField{Name: "x-fresh", Value: c.fresh})
	}
	for i := 0; i < len(extra); i += 2 {
		_ = c.enc.WriteField(hpack.HeaderField{Name: extra[i], Value: extra[i+1], Sensitive: true})
	}
	return bytes.Clone(c.block.Bytes())
}

// TestStateless: only headers of our method that leave the table as it is are stateless, and whatever is cut off is not.
func TestStateless(t *testing.T) {
	t.Parallel()
	c := newCoder()
	first, second := c.head(method), c.head(method, "x-id", "1")
	c.enc.SetMaxDynamicTableSize(100)
	resized := c.head(method)
	raw := append([]byte{0x83, 4, byte(len(method))}, method...)
	far := append([]byte{0xff, 0x80, 0x01}, raw...) // the field with the number 255
	for name, x := range map[string]struct {
		block []byte
		want  bool
	}{
		"the first of a connection":  {first, false},
		"the second":                 {second, true},
		"after a change of the size": {resized, false},
		"another method":             {newCoder().head("/grpc.health.v1.Health/Check"), false},
		"another one later":          {bytes.Replace(raw, []byte("ShouldRateLimit"), []byte("ShouldRateLimix"), 1), false},
		"without Huffman's code":     {raw, true},
		"a number of two bytes":      {far, true},
		"a number without an end":    {[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, false},
		"no path":                    {[]byte{0x83}, false},
		"two paths":                  {append(bytes.Clone(raw), raw[1:]...), false},
		"nothing":                    {nil, false},
		"in Huffman's code":          {append([]byte{4, huffman | byte(len(codedMethod))}, hpack.AppendHuffmanString(nil, fullMethod)...), true},
	} {
		if got := stateless(x.block); got != x.want {
			t.Errorf("%s: %t, want %t", name, got, x.want)
		}
	}
	for i := range raw {
		if stateless(raw[:i]) {
			t.Errorf("the first %d bytes of %d are", i, len(raw))
		}
	}
}

// TestSetsTable: a client that has another table than grpc has by itself is known by it.
func TestSetsTable(t *testing.T) {
	t.Parallel()
	for want, settings := range map[bool][]http2.Setting{
		false: {{ID: http2.SettingInitialWindowSize, Val: 100}, {ID: http2.SettingHeaderTableSize, Val: 4096}},
		true:  {{ID: http2.SettingInitialWindowSize, Val: 4096}, {ID: http2.SettingHeaderTableSize, Val: 0}},
	} {
		for _, most := range []int{1, 1 << 10} {
			var out bytes.Buffer
			if err := errors.Join(http2.NewFramer(&out, nil).WriteSettings(settings...), http2.NewFramer(&out, nil).WriteSettingsAck()); err != nil {
				t.Fatal(err)
			}
			var p peek
			for b := range slices.Chunk(out.Bytes(), most) {
				p.scan(b, nil)
			}
			if divided := most == 1; p.tables != (want || divided) {
				t.Errorf("%v in parts of %d: %t", settings, most, p.tables)
			}
		}
	}
}

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
		c.frames = append(c.frames, fmt.Sprint("head ", id, " ", domain), fmt.Sprint("data ", id, " ", len(data)))
	}
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
		c.frames = append(c.frames, fmt.Sprint("head ", id, " health"), fmt.Sprint("data ", id, " ", len(data)))
	case 2: // its message goes on
		c.head(id, c.coder.head(method, "x-domain", "loud"))
		c.do(c.fr.WriteData(id, false, data))
		c.do(c.fr.WriteData(id, true, nil))
		c.frames = append(c.frames, fmt.Sprint("head ", id, " loud"), fmt.Sprint("data ", id, " ", len(data)), fmt.Sprint("data ", id, " 0"))
	case 3: // in two frames
		block := c.coder.head(method, "x-domain", "loud")
		c.do(c.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:5]}))
		c.do(c.fr.WriteContinuation(id, true, block[5:]))
		c.do(c.fr.WriteData(id, true, data))
		c.frames = append(c.frames, fmt.Sprint("head ", id, " loud"), fmt.Sprint("data ", id, " ", len(data)))
	default: // a call that is mixed with one that may be culled
		head, between := c.coder.head(method, "x-domain", "quiet"), c.coder.head(method, "x-domain", "loud")
		c.streams += 2
		c.may[id+2] = stateless(between)
		c.head(id, head)
		c.head(id+2, between)
		c.do(c.fr.WriteData(id+2, true, data))
		c.credit += len(data)
		data = c.message("quiet")
		c.do(c.fr.WriteData(id, true, data))
		c.frames = append(c.frames, fmt.Sprint("head ", id, " quiet"), fmt.Sprint("data ", id, " ", len(data)))
	}
	c.credit += len(data)
}

// readAll returns the frames that grpc gets, and how many bytes of messages.
func readAll(t *testing.T, from io.Reader) (frames []string, size int) {
	t.Helper()
	in := bufio.NewReaderSize(from, readBuffer)
	if _, err := io.CopyN(io.Discard, in, prefaceSize); err != nil {
		t.Fatal(err)
	}
	fr := http2.NewFramer(nil, in)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
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
	fr := http2.NewFramer(nil, from)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
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
			case 0, 1, 2, 3, 4:
				c.other(n)
			case 5:
				c.coder.fresh = strconv.Itoa(r.IntN(1 << 30))
				c.call("loud")
			case 6, 7:
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
			wg.Go(func() { // what grpc writes meanwhile, in parts that are not frames
				out := bufio.NewWriterSize(p, 61)
				fr, coder := http2.NewFramer(out, nil), newCoder()
				for i := range uint32(500) {
					block := coder.head("/", "x-other"+strconv.Itoa(int(i)), "1")
					if err := errors.Join(fr.WriteHeaders(http2.HeadersFrameParam{StreamID: i + 1<<20, BlockFragment: block, EndHeaders: true}), out.Flush()); err != nil {
						t.Error(err)
					}
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
			refused, credit, others := answersTo(t, &conn.wrote)
			p.answers.writing.Unlock()
			c.check(t, got, refused)
			if passed+credit != c.credit || others != 500 {
				t.Errorf("in parts of %d: grpc has %d bytes of messages and %d may be sent again, of %d; %d of 500 other answers", most, passed, credit, c.credit, others)
			}
			if least := map[int]int{1000: 50, 1 << 20: 150}[most]; len(refused) < least {
				t.Errorf("in parts of %d: %d calls were culled, want %d", most, len(refused), least)
			}
		}
	}
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
					if i%100 == 99 {
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
	fr := http2.NewFramer(c, c)
	fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
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

// TestUnreadAnswers: of a client that reads no answers as many wait as are bounded, and who reads its calls waits for nobody; grpc has its
// further ones.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe() // on which a write waits until it is read
	defer theirs.Close()
	a := &answers{culling: newCulling(), conn: ours}
	call := peeked{stream: 1, known: true, head: span{0, 10}, message: span{10, 30}}
	culled, credit := 0, 0
	for range 2 * mostAnswers { // of each of two, one is in the pipe
		p := peek{calls: []peeked{call, call, call}}
		out := p.pick(a.room(), func(*overload.Seen, int) bool { return true })
		if len(out.streams)+len(p.calls) != 3 {
			t.Fatalf("of 3 calls %d are culled and %d left", len(out.streams), len(p.calls))
		}
		if len(out.streams) > 0 {
			culled, credit = culled+len(out.streams), credit+out.credit
			a.refuse(out)
		}
	}
	if culled < mostAnswers*9/10 || culled > 2*mostAnswers+6 {
		t.Errorf("%d calls are culled though nobody reads their answers, want about %d, or twice that", culled, mostAnswers)
	}
	fr := http2.NewFramer(nil, theirs)
	for culled > 0 || credit > 0 {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			credit -= int(f.Increment)
		case *http2.HeadersFrame:
			culled--
		}
	}
	if culled != 0 || credit != 0 {
		t.Errorf("%d answers and %d bytes too many", -culled, -credit)
	}
}
