package rls

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// mostOnWay is how many bytes may be on their way, of messages that do not come whole and of the metadata of their calls. A message
// may have 4 MiB, and what has come of it stays until the rest has, so thousands of calls could take any memory.
const (
	mostOnWay = 24 << 20
	mostOfOne = MaxMessage + 64<<10   // of one call: grpc reads no further
	onWayTick = 10 * time.Millisecond // how often that is looked at while it is too much
)

// origin is where a call began: on a connection of which so many bytes had been read.
type origin struct {
	conn *boundedConn // nil if the listener is not a [Bounded]
	read int64
}

// originOf returns where the call of ctx begins.
func originOf(ctx context.Context) origin {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.LocalAddr.(localAddr); ok {
			return origin{a.conn, a.conn.read.Load()}
		}
	}
	return origin{}
}

// onWay says how many bytes at most have come of messages that are not whole. grpc does not tell, but those of a call were read
// from its connection since it has begun.
type onWay map[*boundedConn]come

// come is what has come over one connection.
type come struct {
	since int64 // the first of its calls that wait has begun
	calls int64 // for each of these, as far as it can be theirs
	heads int64 // what came before they began: their metadata
}

func (c come) size() int64 { return min(c.since, c.calls) + c.heads }

// add adds a call that waits for its message, and has so many bytes of metadata.
func (w onWay) add(from origin, head uint32) {
	if from.conn != nil {
		since, c := from.conn.read.Load()-from.read, w[from.conn]
		w[from.conn] = come{max(c.since, since), c.calls + min(since, mostOfOne), c.heads + int64(head)}
	}
}

// headOf returns about how many bytes the metadata of a call takes.
func headOf(ctx context.Context) (size uint32) {
	md, _ := metadata.FromIncomingContext(ctx)
	for key, values := range md {
		for _, value := range values {
			size += uint32(len(key) + len(value) + 32) //nolint:gosec // at most maxHeaderList, about
		}
	}
	return size
}

// guilty returns the connections that have to give way, those with the most first; nil if there is no need for that.
func (w onWay) guilty() map[*boundedConn]bool {
	total := int64(0)
	for _, c := range w {
		total += c.size()
	}
	if total <= mostOnWay {
		return nil
	}
	found := map[*boundedConn]bool{}
	for _, c := range slices.SortedFunc(maps.Keys(w), func(a, b *boundedConn) int { return cmp.Compare(w[b].size(), w[a].size()) }) {
		if total <= mostOnWay/2 {
			break
		}
		found[c] = true
		total -= w[c].size()
	}
	return found
}
