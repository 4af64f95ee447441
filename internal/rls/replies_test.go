package rls

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/overload"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestReplies: policies are asked about calls for which there is time, and room for the answer, and others are refused without asking; each
// is counted once.
func TestReplies(t *testing.T) {
	t.Parallel()
	s, coder := newSender(t), newCoder()
	s.do(s.fr.WriteWindowUpdate(0, 1<<20))
	const calls = 20
	for i := range uint32(calls + 1) {
		s.head(2*i+1, coder.head(method))
		s.do(s.fr.WriteData(2*i+1, true, s.message("d")))
	}
	text := s.out.Bytes()
	wide := window{share: 1 << 20, left: 1 << 20}
	for name, x := range map[string]struct {
		fails        bool
		window       window
		room, spare  int
		statuses     int // of an answer
		err          error
		asked, least int // and how many are answered at least
	}{
		"all":               {window: wide, room: 1 << 16, spare: 1 << 20, asked: calls, least: calls},
		"no time":           {window: wide, room: 1 << 16},
		"time for three":    {window: wide, room: 1 << 16, spare: 3*overload.Work(40) + 100, asked: 3, least: 3},
		"they can but fail": {fails: true, window: wide, room: 1 << 16, spare: 1 << 20},
		"they fail":         {window: wide, room: 1 << 16, spare: 1 << 20, err: limiter.ErrOverload, asked: calls},
		"no window":         {window: window{share: maxFrame - 1, left: maxFrame - 1}, room: 1 << 16, spare: 1 << 20},
		"a small stream":    {window: window{share: 1 << 20, left: 1 << 20, small: true}, room: 1 << 16, spare: 1 << 20},
		"a little window":   {window: window{share: maxFrame, left: maxFrame}, room: 1 << 16, spare: 1 << 20, asked: 1, least: 1},
		"room for some":     {window: wide, room: calls * leastRoom, spare: 1 << 20, statuses: 100, asked: 5, least: 5},
		"too long":          {window: wide, room: 1 << 20, spare: 1 << 20, statuses: 10_000, asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked, shed, called := 0, 0, 0
			decide := decideFunc(func(_ context.Context, r *limiter.Request, v *limiter.Verdict) error {
				if asked++; !r.Late {
					t.Error("the store is asked")
				}
				*v = limiter.Verdict{Header: -1, Over: true, Statuses: make([]limiter.Status, x.statuses)}
				return x.err
			})
			service := New(decide, Config{Hooks: Hooks{Shed: func() { shed++ }, Call: func(string, float64) { called++ }}})
			p, text := newPeek(), bytes.Clone(text)
			p.scan(text, func(m []byte) hint {
				h := domainHint(m)
				h.fails = x.fails
				return h
			})
			picked := p.pick(nil, 1000, func(*overload.Seen, int) bool { return true })
			if len(picked) != calls {
				t.Fatalf("%d calls can be left out, want %d", len(picked), calls)
			}
			r := replies{service: service, window: &x.window, calls: picked, answer: new(answer), room: x.room, spare: overload.Spare{Work: x.spare}}
			out := r.to(text)
			got := answersTo(t, bytes.NewReader(*out))
			if len(got.statuses) != calls || asked != x.asked || len(got.texts) < x.least || len(got.texts) > asked || called != len(got.texts) && x.err == nil {
				t.Errorf("%d calls have answers, %d of policies, of which %d are counted, and these were asked %d times; want %d, at least %d, and %d",
					len(got.statuses), len(got.texts), called, asked, calls, x.least, x.asked)
			}
			if x.err == nil && shed+called != calls || x.err != nil && (shed > 0 || called != calls) {
				t.Errorf("%d calls are counted as shed, and %d as answered", shed, called)
			}
			if len(*out) > x.room {
				t.Errorf("%d bytes, though there is room for %d", len(*out), x.room)
			}
		})
	}
}

// TestCheap: who is refused unread loses nothing by it if policies can but fail the call, or its client lets their answer be sent.
func TestCheap(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ fails, windows, want bool }{{false, false, false}, {true, false, true}, {false, true, true}} {
		s, coder := newSender(t), newCoder()
		if x.windows {
			s.do(s.fr.WriteWindowUpdate(0, 1<<20))
		}
		for i := range uint32(2) {
			s.head(2*i+1, coder.head(method))
			s.do(s.fr.WriteData(2*i+1, true, s.message("d")))
		}
		p := newPeek()
		p.scan(s.out.Bytes(), func(m []byte) hint {
			h := domainHint(m)
			h.fails = x.fails
			return h
		})
		first, _ := p.take()
		if second, _ := p.take(); first.Cheap || second.Cheap != x.want {
			t.Errorf("%+v: the first call, which grpc has to know of, %t, and the second %t", x, first.Cheap, second.Cheap)
		}
	}
}

// TestBehind: calls of a connection that is read too late are refused without asking policies, but for those of a domain below its share.
func TestBehind(t *testing.T) {
	gate := overload.New(overload.Config{MaxCalls: 10_000, Patience: time.Minute})
	limitAfter(t, gate, "loud", 18*time.Millisecond)
	asked := 0
	service := New(decideFunc(func(ctx context.Context, r *limiter.Request, v *limiter.Verdict) error {
		asked++
		return allow(ctx, r, v)
	}), Config{Gate: gate})
	s, coder := newSender(t), newCoder()
	s.do(s.fr.WriteWindowUpdate(0, 1<<20))
	for i := range uint32(4) {
		s.head(2*i+1, coder.head(method))
		s.do(s.fr.WriteData(2*i+1, true, s.message([]string{"loud", "loud", "quiet", "loud"}[i])))
	}
	testkit.Eventually(t, "callers are known to have little patience", func() bool { return gate.Behind(15 * time.Millisecond) })
	client := &boundedConn{peek: newPeek(), full: true}
	client.last.Store(int64(time.Second))
	conn := &fakeConn{}
	p := peekedConn{conn, client, service, newAnswers(service.culling, conn)}
	b := bytes.Clone(s.out.Bytes())
	client.peek.scan(b, service.seen)
	left := p.cull(b)
	for i := 0; client.peek.next < len(client.peek.calls); i++ {
		if seen, _ := client.peek.take(); seen.Domain == hashOf([]byte("loud")) && i > 0 {
			t.Error("a call of the loud domain is left to grpc")
		}
	}
	if left == len(b) || asked > 0 {
		t.Errorf("%d of %d bytes are left, and policies were asked %d times", left, len(b), asked)
	}
}

// TestReadWaits: a connection to which much waits to be written is not read, for a moment, but others are.
func TestReadWaits(t *testing.T) {
	t.Parallel()
	service := New(decideFunc(allow), Config{})
	read := func() time.Duration {
		conn := &fakeConn{sent: bytes.NewBufferString("x"), sizes: rand.New(rand.NewPCG(1, 1)), most: 1} //nolint:gosec // a test's
		p := peekedConn{conn, &boundedConn{peek: newPeek()}, service, newAnswers(service.culling, conn)}
		if conn.sent.Len() > 0 && service.culling.waiting.Load() == 0 {
			p.answers.owe(mostAllAnswers)
		}
		begun := time.Now()
		if n, err := p.Read(make([]byte, 10)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		return time.Since(begun)
	}
	if took := read(); took < writingTime {
		t.Errorf("it is read after %v", took)
	}
	least := time.Hour
	for range 100 {
		least = min(least, read())
	}
	if least >= writingTime {
		t.Errorf("another one is read after %v", least)
	}
}
