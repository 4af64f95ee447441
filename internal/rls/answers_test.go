package rls

import (
	"net"
	"testing"

	"golang.org/x/net/http2"

	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestUnreadAnswers: of a client that reads no answers as many wait as are bounded, and who reads its calls waits for nobody; grpc has its
// further ones.
func TestUnreadAnswers(t *testing.T) {
	t.Parallel()
	ours, theirs := net.Pipe() // on which a write waits until it is read
	defer theirs.Close()
	a := &answers{culling: newCulling(), conn: ours}
	call := peeked{stream: 1, known: true, head: span{0, 10}, message: span{10, 30}}
	culled, credit := 0, 0
	for range mostAnswers {
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
	if culled != mostAnswers || a.room() != 0 {
		t.Errorf("%d calls are culled though nobody reads their answers, and there is room for %d; want %d and none", culled, a.room(), mostAnswers)
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
	testkit.Eventually(t, "there is room again", func() bool { return a.room() == mostAnswers })
	a.culling.waiting.Add(mostAllAnswers - 1)
	if n := a.room(); n != 1 {
		t.Errorf("there is room for %d though others have nearly all, want 1", n)
	}
}

// TestClosedAnswers: nothing waits to be written to a connection that is closed in the middle of a frame.
func TestClosedAnswers(t *testing.T) {
	t.Parallel()
	conn := &fakeConn{}
	a := &answers{culling: newCulling(), conn: conn}
	if _, err := a.write([]byte{0, 0, 1}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		a.refuse(picked{streams: []uint32{1}, credit: 1})
		a.flush()
		if n := conn.wrote.Len(); n != 3 {
			t.Errorf("%d bytes are written within a frame", n-3)
		}
		a.close()
		if n := a.culling.waiting.Load(); n != 0 {
			t.Errorf("%d answers wait for a connection that is closed", n)
		}
	}
}
