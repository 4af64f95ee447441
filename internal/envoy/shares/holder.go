package shares

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Micros is a time in microseconds by a clock of the caller, or a span of them.
type Micros = engine.Micros

const second Micros = 1_000_000

func seconds(m Micros) float64 { return float64(m) / float64(second) }

// Client is the holder of a share: one stream.
type Client struct {
	ID     string  // the same after a reconnect, if the client can be recognized
	Weight float64 // of its claim; 1 is usual
	Tag    any     // what the caller knows it by
}

// state says what the holder knows of the bucket.
type state uint8

const (
	waiting  state = iota // it has reported, and has no assignment in force
	assigned              // it has a token bucket
	denied                // it rejects everything, until the end of the window
	gone                  // its stream has ended; what it was assigned is in force until it runs out
)

// String returns the name of s.
func (s state) String() string {
	return [...]string{"waiting", "assigned", "denied", "disconnected"}[s]
}

// use is what an assignment lets a client admit: burst hits, and rate hits a second, until a time.
type use struct {
	rate  float64
	burst float64
	until Micros
	since Micros // strict: when it was sent instead of a higher rate; never if that may have been lost
}

// holder is a client and what it may use.
type holder struct {
	Client
	state    state
	demand   demand
	interval Micros // between its reports, as observed
	ticking  bool   // it has reported an interval since its stream opened
	heard    Micros // the last report
	active   Micros // the last report of a request
	moved    Micros // the last change of its rate
	told     Micros // the last assignment
	round    uint64 // of the last action, and
	queued   int    // its index in that round

	// sent is what may be in force, oldest first. A client that has been sent less may use the old rate until the message
	// arrives, so rates fall and times rise along it. The last element is the latest assignment.
	sent []use

	// tokens bounds what it can admit beyond its rates since its last report: the tokens that it had then, those that raises
	// of its burst have added, as Envoy keeps the ratio, and what it was given while that report was under way.
	tokens float64
	raised float64 // tokens that raises have added since then
	fell   bool    // its burst was lowered since then, so that a raise may not only undo what was lost

	target   float64 // hits per second, of the last division
	used     float64 // hits per second that it was using when it came from another replica,
	arriving Micros  // which it keeps until then
	accrued  Micros  // fast: its share is paid for up to this time,
	escrow   float64 // and so much of that is not reported yet
	unpaid   bool    // its next report counts for no more than was paid for
}

// share returns the rate of the latest assignment, or 0 if none is in force.
func (h *holder) share(now Micros) float64 {
	if n := len(h.sent); n > 0 && h.sent[n-1].until > now {
		return h.sent[n-1].rate
	}
	return 0
}

// held returns the rate that h may use now, by any assignment that may be in force.
func (h *holder) held(now Micros) float64 {
	for _, u := range h.sent {
		if u.until > now {
			return u.rate
		}
	}
	return 0
}

// burst returns the tokens that h may hold.
func (h *holder) burst(now Micros) (most float64) {
	for _, u := range h.sent {
		if u.until > now {
			most = max(most, u.burst)
		}
	}
	return most
}

// hits returns what h may admit from a time to another one at the rates that it was sent.
func (h *holder) hits(from, to Micros) (sum float64) {
	for _, u := range h.sent {
		if end := min(u.until, to); end > from {
			sum += u.rate * seconds(end-from)
			from = end
		}
	}
	return sum
}

// until returns the time at which everything that was sent has run out.
func (h *holder) until() Micros {
	if n := len(h.sent); n > 0 {
		return h.sent[n-1].until
	}
	return 0
}

// send makes u the latest assignment. What it replaces is in force until old at the latest; by itself it may end earlier.
func (h *holder) send(u use, old Micros) {
	if n := len(h.sent); n > 0 {
		h.sent[n-1].until = min(h.sent[n-1].until, old)
	}
	for n := len(h.sent); n > 0 && h.sent[n-1].rate <= u.rate; n = len(h.sent) { // the burst follows from the rate
		u.until, u.since = max(u.until, h.sent[n-1].until), min(u.since, h.sent[n-1].since)
		h.sent = h.sent[:n-1]
	}
	h.sent = append(h.sent, u)
}

// replace drops what has been replaced by an assignment that was sent at a time or before.
func (h *holder) replace(at Micros) {
	for i := len(h.sent) - 1; i > 0; i-- {
		if h.sent[i].since <= at {
			h.sent = slices.Delete(h.sent, 0, i)
			return
		}
	}
}

// lose says that what was sent may not have arrived.
func (h *holder) lose() {
	for i := range h.sent {
		h.sent[i].since = never
	}
}

// forget drops what has run out.
func (h *holder) forget(now Micros) {
	n := 0
	for n < len(h.sent) && h.sent[n].until <= now {
		n++
	}
	h.sent = slices.Delete(h.sent, 0, n)
}

// reachable reports whether a message to h takes effect soon: its stream is open, and it was heard lately.
func (h *holder) reachable(now Micros) bool {
	return h.state != gone && now-h.heard <= h.interval+h.interval/2
}

// end makes everything that was sent end at a time at the latest.
func (h *holder) end(at Micros) {
	if n := len(h.sent); n > 0 {
		h.sent[n-1].until = min(h.sent[n-1].until, at)
	}
}
