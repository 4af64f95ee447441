package shares

import (
	"slices"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Micros is a time on the caller's clock, or a duration, in microseconds.
type Micros = engine.Micros

const second Micros = 1_000_000

// seconds converts m to seconds.
func seconds(m Micros) float64 { return float64(m) / float64(second) }

// Client is the holder of a share: one stream.
type Client struct { // unchanged after a reconnect if the client can be recognized
	ID     string  // of its claim; usually 1
	Weight float64 // of its claim; 1 is usual
	Tag    any     // the caller's reference to the client
}

// state is a holder's state.
type state uint8

const (
	waiting     state = iota // has reported, and has no assignment in force
	assigned                 // has a token bucket
	denied                   // rejects everything until the end of the window
	streamEnded              // its stream has ended; its assignments are in force until they expire
)

// String returns the name of s.
func (s state) String() string {
	return [...]string{"waiting", "assigned", "denied", "disconnected"}[s]
}

// use is the usage that an assignment permits until a time: burst hits, and rate hits per second.
type use struct {
	rate  float64
	burst float64
	until Micros
	since Micros // strict: time at which it replaced a higher rate; never if the message may have been lost
}

// holder is a client and its assignments.
type holder struct {
	Client
	state      state
	demand     demand
	interval   Micros // average time between its reports
	ticking    bool   // has reported an interval since its stream opened
	lastReport Micros // time of the last report
	active     Micros // time of the last report with requests
	moved      Micros // time of the last change of its rate
	assignedAt Micros // time of the last assignment
	round      uint64 // round of the last action
	queued     int    // index of the last action in that round

	// sent lists the assignments that may be in force, oldest first. A client may use a higher rate until the message with a lower one
	// arrives, so rates decrease and times increase. The last element is the latest assignment.
	sent []use

	// tokens bounds the hits that the client can admit beyond its rates since its last report: its tokens at that time, those added by
	// raises of its burst (Envoy keeps the fill ratio), and those assigned while the report was in transit.
	tokens float64
	raised float64 // tokens added by raises since then
	fell   bool    // the burst was lowered since then, so a raise may do more than restore lost tokens

	target   float64 // hits per second in the last division
	used     float64 // hits per second that it used at the replica it came from
	arriving Micros  // time until which it keeps that rate
	accrued  Micros  // fast: its share is paid for up to this time
	escrow   float64 // paid hits that have not been reported yet
	unpaid   bool    // its next report counts only up to the hits that were paid for
	released bool    // fast: its stream has ended, and nothing is reserved for it
}

// share returns the rate of the latest assignment, or 0 if it is not in force.
func (h *holder) share(now Micros) float64 {
	if n := len(h.sent); n > 0 && h.sent[n-1].until > now {
		return h.sent[n-1].rate
	}
	return 0
}

// held returns the rate that h may use now under any assignment in force; 0 if its share was released.
func (h *holder) held(now Micros) float64 {
	if h.released {
		return 0
	}
	for _, u := range h.sent {
		if u.until > now {
			return u.rate
		}
	}
	return 0
}

// burst returns the number of tokens that h may hold.
func (h *holder) burst(now Micros) (most float64) {
	for _, u := range h.sent {
		if u.until > now {
			most = max(most, u.burst)
		}
	}
	return most
}

// hits returns the hits that h may admit between two times at the rates sent to it.
func (h *holder) hits(from, to Micros) (sum float64) {
	for _, u := range h.sent {
		if end := min(u.until, to); end > from {
			sum += u.rate * seconds(end-from)
			from = end
		}
	}
	return sum
}

// until returns the time at which all assignments have expired.
func (h *holder) until() Micros {
	if n := len(h.sent); n > 0 {
		return h.sent[n-1].until
	}
	return 0
}

// send makes u the latest assignment. The one that it replaces remains in force at most until old.
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

// replace drops assignments that were replaced by one sent at or before a time.
func (h *holder) replace(at Micros) {
	for i := len(h.sent) - 1; i > 0; i-- {
		if h.sent[i].since <= at {
			h.sent = slices.Delete(h.sent, 0, i)
			return
		}
	}
}

// lose records that sent assignments may not have arrived.
func (h *holder) lose() {
	for i := range h.sent {
		h.sent[i].since = never
	}
}

// forget drops expired assignments.
func (h *holder) forget(now Micros) {
	n := 0
	for n < len(h.sent) && h.sent[n].until <= now {
		n++
	}
	h.sent = slices.Delete(h.sent, 0, n)
}

// reachable reports whether a message to h takes effect soon: its stream is open and its last report is recent.
func (h *holder) reachable(now Micros) bool {
	return h.state != streamEnded && now-h.lastReport <= h.interval+h.interval/2
}

// end limits all assignments to the given time.
func (h *holder) end(at Micros) {
	if n := len(h.sent); n > 0 {
		h.sent[n-1].until = min(h.sent[n-1].until, at)
	}
}
