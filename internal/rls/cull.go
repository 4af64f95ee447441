package rls

import (
	"cmp"
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// cull takes calls for which there is no time out of what has been read, and answers them: for grpc to do that takes several times as long,
// and where most of what is asked for is too much, it would take the time of all else. It returns how much is left.
func (c peekedConn) cull(b []byte) (left int) {
	gate, p := c.service.config.Gate, &c.of.peek
	if pongs := c.service.culling.pongs(b, p.taken); pongs != nil {
		c.answers.send(pongs)
	}
	if len(p.calls) == 0 || !gate.Limited() {
		return remove(b, p.taken)
	}
	r := c.service.culling.replies.Get().(*replies)
	defer c.service.culling.drop(r)
	r.service, r.window, r.room = c.service, &p.window, c.answers.room()
	behind := gate.Behind(c.of.behind())
	r.calls = p.pick(r.calls, r.room/leastRoom, func(seen *overload.Seen, coming int) bool {
		return behind && gate.Drop(seen) || gate.Full(&c.of.client, seen, coming)
	})
	if len(r.calls) == 0 {
		return remove(b, p.taken)
	}
	if p.culled = min(p.culled+len(r.calls), mostPeeked); !behind && p.window.open() {
		r.spare = gate.Spare(work(r.calls))
	}
	c.answers.send(r.to(b))
	r.frames = append(r.frames, p.taken...)
	for i := range r.calls {
		r.frames = append(r.frames, r.calls[i].head, r.calls[i].message)
	}
	return remove(b, r.frames)
}

// pick takes calls that must be refused, as full says, out of what was peeked at, and appends them to out: at most so many in all, of those of
// which grpc need not know.
func (p *peek) pick(out []peeked, most int, full func(seen *overload.Seen, coming int) bool) []peeked {
	kept := p.calls[:0]
	coming := 0
	for i := range p.calls {
		x := &p.calls[i]
		switch {
		case p.tables || !x.cuttable() || len(out) >= most:
		case full(&x.seen.Seen, coming):
			out = append(out, *x)
			continue
		default:
			coming++
		}
		kept = append(kept, *x)
	}
	if p.calls = kept; len(kept) == 0 {
		p.forget()
	}
	return out
}

// remove removes parts of b, and returns how much is left.
func remove(b []byte, parts []span) (left int) {
	if len(parts) == 0 {
		return len(b)
	}
	slices.SortFunc(parts, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	left = parts[0].from
	for i, part := range parts {
		end := len(b)
		if i+1 < len(parts) {
			end = parts[i+1].from
		}
		left += copy(b[left:], b[part.to:end])
	}
	return left
}

// replies makes answers to the calls of a read that are culled. Neither a handler of grpc's statistics, as for tracing, nor what it checks of
// headers knows of them. It is reused.
type replies struct {
	service *Service
	window  *window
	calls   []peeked
	frames  []span         // that grpc must not have
	room    int            // bytes that may wait to be written
	spare   overload.Spare // of the gate, for policies
	asked   int            // what they have been asked about counts for
	took    time.Duration  // and how long that took
	size    int            // of the last answer of a policy, and of another one most likely
	answer  *answer        // that one
	out     *[]byte
}

// drop keeps the memory of r for other calls.
func (c *culling) drop(r *replies) {
	*r = replies{calls: r.calls[:0], frames: r.frames[:0], answer: r.answer}
	if cap(r.answer.SliceBuffer) <= pooledAnswers {
		c.replies.Put(r)
	}
}

// work is what calls count for that policies may be asked about.
func work(calls []peeked) (sum int) {
	for i := range calls {
		if x := &calls[i].seen; !x.fails {
			sum += overload.Work(x.Size)
		}
	}
	return sum
}

// to returns the answers to the calls, which were read in b: those of policies as far as there is time and room for that, and their client
// lets them be sent.
func (r *replies) to(b []byte) *[]byte {
	s, credit := r.service, 0
	for i := range r.calls {
		credit += messageHeaderSize + len(r.calls[i].text(b))
	}
	r.out = s.culling.begin(credit)
	for i := range r.calls {
		x := &r.calls[i]
		work := overload.Work(x.seen.Size)
		if x.seen.fails || r.asked+work > r.spare.Work || !r.fits() {
			s.config.Hooks.Shed()
		} else if r.asked += work; r.byPolicy(x.stream, x.text(b)) {
			continue
		}
		*r.out = s.culling.appendRefusal(*r.out, x.stream)
	}
	if r.spare.Work > 0 {
		s.config.Gate.Spent(r.spare, r.asked, r.took)
	}
	return r.out
}

// fits reports whether another answer may be sent like the last one, with its frames. Half of the room is for refusals.
func (r *replies) fits() bool {
	return r.size <= maxFrame && len(*r.out)+r.size+r.service.culling.around <= r.room/2 && r.window.open()
}

// byPolicy has policies answer a message, and reports whether they do and it fits. Where they fail it, or it is no message, that is counted as
// it is with any other call; what does not fit counts twice, as decided by policies and as shed, but no more than once for a read.
func (r *replies) byPolicy(stream uint32, message []byte) bool {
	s, start := r.service, time.Now()
	defer func() { r.took += time.Since(start) }()
	c := s.calls.Get().(*call)
	c.hold(mem.SliceBuffer(message))
	c.request.Late = true
	if s.answer(context.Background(), c, r.answer, start) != nil {
		s.config.Hooks.Call(Method, time.Since(start).Seconds())
		return false
	}
	if r.size = messageHeaderSize + r.answer.Len(); !r.fits() {
		s.config.Hooks.Shed()
		return false
	}
	r.window.send(r.size)
	*r.out = s.culling.appendAnswer(*r.out, stream, r.answer.ReadOnlyData())
	s.config.Hooks.Call(Method, time.Since(start).Seconds())
	return true
}
