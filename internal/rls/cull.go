package rls

import (
	"cmp"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// cull takes calls for which there is no time out of what has been read, and answers them: for grpc to do that takes ten times as long, and
// where most of what is asked for is too much, it would take the time of all else. It returns how much is left.
func (c peekedConn) cull(b []byte) (left int) {
	gate, room := c.service.config.Gate, c.answers.room()
	out := c.of.peek.pick(room, func(seen *overload.Seen, coming int) bool { return gate.Full(&c.of.client, seen, coming) })
	if len(out.streams) == 0 {
		return len(b)
	}
	for range out.streams {
		c.service.config.Hooks.Shed()
	}
	c.answers.refuse(out)
	return remove(b, out.frames)
}

// picked is calls that grpc is not to know of.
type picked struct {
	streams []uint32
	frames  []span
	credit  int // bytes of their messages, which their client may send again
}

// pick takes calls that must be refused, as full says, out of what was peeked at: at most so many, of those of which grpc need not know.
func (p *peek) pick(most int, full func(seen *overload.Seen, coming int) bool) (out picked) {
	kept := p.calls[:0]
	coming := 0
	for _, x := range p.calls {
		switch {
		case p.tables || !x.known || x.head.to == 0 || x.message.to == 0 || x.stream&1 == 0 || len(out.streams) >= most:
		case full(&x.seen, coming):
			out.streams = append(out.streams, x.stream)
			out.frames = append(out.frames, x.head, x.message)
			out.credit += x.message.to - x.message.from - frameHeaderSize
			continue
		default:
			coming++
		}
		kept = append(kept, x)
	}
	if p.calls = kept; len(kept) == 0 {
		p.calls = nil
	}
	return out
}

// remove removes parts of b, and returns how much is left.
func remove(b []byte, parts []span) (left int) {
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
