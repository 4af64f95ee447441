package rls

import (
	"encoding/binary"
	"iter"
	"math"
)

// What is known of flow control (RFC 9113, 5.2 and 6.5).
const (
	firstWindow   = 64<<10 - 1 // bytes that may be sent at first
	windowSize    = 4          // bytes that say how much more may be sent
	settingSize   = 6
	settingStream = 4 // how much may be sent on a stream at first
)

// window is the part of what a client has said may be sent to it that answers to culled calls take. grpc counts what it sends, so what it
// does not send it must not be told of: three eighths of what its client lets be sent before its first call are kept from it, and later, what
// has been sent of that is kept again of what may be sent anew. Most clients say that more may be sent when half of it has been, as nghttp2 and
// Netty do, and grpc has more than that. Others do so later, as nginx does after three quarters: so that grpc can go on, it is told of the rest
// when a sixteenth of all is left of what it has been told. A client that leaves it at 64 KiB is answered by grpc alone, or refused.
//
// A client that takes less on a stream from some moment on may get an answer more that was on its way.
type window struct {
	share int64  // all that is kept from grpc
	left  int64  // what of it has not been sent
	told  int64  // all that grpc has been told of, beyond firstWindow
	small bool   // a stream takes less than an answer may have
	split []byte // what has been read of a frame that was not read at once, if one is open: grpc has it as it is
}

// opens takes the window's part of how much more may be sent, out of the payload of the frame that says so. first says that nothing has been
// sent yet, and that there may be such answers; all reports that nothing is left for grpc.
func (w *window) opens(payload []byte, first bool) (all bool) {
	more := int64(binary.BigEndian.Uint32(payload) & streamBits)
	if first {
		w.share = min(w.share+more*3/8, math.MaxInt32)
	}
	keep := max(min(more, w.share-w.left), 0)
	w.told += more - keep
	if keep == 0 {
		return false
	}
	w.left += keep
	binary.BigEndian.PutUint32(payload, uint32(more-keep)) //nolint:gosec // less than it was
	return keep == more
}

// splits begins the payload of a frame that was not read at once.
func (w *window) splits() { w.split = make([]byte, 0, windowSize) }

// gather takes what b has of it.
func (w *window) gather(b []byte) {
	if w.split == nil {
		return
	}
	w.split = append(w.split, b[:min(windowSize-len(w.split), len(b))]...)
	if len(w.split) == windowSize {
		w.told += int64(binary.BigEndian.Uint32(w.split) & streamBits)
		w.split = nil
	}
}

// due returns how much grpc will have sent when it is to be told of what is left, since its client seems to wait for that; math.MaxInt64 if
// nothing is.
func (w *window) due() int64 {
	if w.left == 0 {
		return math.MaxInt64
	}
	return firstWindow + w.told - w.share/6 // a sixteenth of all, of which share is three eighths
}

// handBack returns how much more grpc is to be told of that it can send, which is no longer left for others then; 0 if it has sent less than
// is due.
func (w *window) handBack(sent int64) (more int) {
	if sent < w.due() {
		return 0
	}
	more = int(w.left)
	w.told, w.left = w.told+w.left, 0
	return more
}

// open reports whether any answer may be sent.
func (w *window) open() bool { return !w.small && w.left >= maxFrame }

// send notes that so many bytes are sent.
func (w *window) send(n int) { w.left -= int64(n) }

// set heeds settings.
func (w *window) set(payload []byte) {
	for number, value := range settings(payload) {
		if number == settingStream {
			w.small = value < maxFrame
		}
	}
}

// settings returns what the payload of a frame of them sets, in order.
func settings(payload []byte) iter.Seq2[uint16, uint32] {
	return func(yield func(number uint16, value uint32) bool) {
		for b := payload; len(b) >= settingSize; b = b[settingSize:] {
			if !yield(binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:])) {
				return
			}
		}
	}
}
