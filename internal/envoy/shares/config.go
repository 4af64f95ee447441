package shares

// Mode is what a bucket guarantees; see the package comment.
type Mode uint8

// Modes.
const (
	Fast   Mode = iota // follows demand within two intervals; for token buckets and sliding windows
	Strict             // never exceeds the limit; for windows of a minute or more, and for bursts of 30 s or more of the rate
)

// Limit is what is divided.
type Limit struct {
	Hits      uint64 // in a window
	Window    Micros
	Burst     uint64 // of a token bucket; 0 for a fixed window
	Overdraft bool   // the store can debit up to Burst hits more than are left
}

// rate returns the hits per second of l.
func (l *Limit) rate() float64 { return float64(l.Hits) / max(seconds(l.Window), rounding) }

// Keepable reports whether l can be divided in strict mode: an assignment lasts 15 s, and must not use up what there is.
func (l *Limit) Keepable() bool {
	if l.Burst > 0 {
		return float64(l.Burst) >= 30*l.rate()
	}
	return l.Window >= 60*second
}

// Config describes a [Bucket].
type Config struct {
	Limit    Limit
	Mode     Mode
	Replica  string // the name of this replica in [Row]; empty if there are no others
	Delivery Micros // what an assignment and a report may take to arrive, together; 0 means 5 s
	Spread   uint32 // seconds to add to every TTL, so that not all buckets of a lost stream run out together
}

// Usage is what a client reports of a bucket.
type Usage struct {
	Elapsed Micros // as the client says, in whole seconds, rounded down; it counts only where this package missed the last report
	Allowed uint64
	Denied  uint64
}

// Busy reports whether there were requests.
func (u *Usage) Busy() bool { return u.Allowed+u.Denied > 0 }

// span returns the seconds that u covers, or 0 if it is the first report of the client's bucket.
func (u *Usage) span() float64 {
	switch e := seconds(u.Elapsed); {
	case e < 1:
		return 0
	case e == 4 || e == 5: // an interval of Envoy is 4.995 to 5.005 s
		return seconds(usualInterval)
	default:
		return e + 0.5
	}
}

// Action is what to tell a client.
type Action struct {
	Client string
	Tag    any // of the client
	Assignment
}

// Fallback says what clients are to do when the store does not answer, once what was paid for is used.
type Fallback uint8

// Fallbacks.
const (
	Lapse Fallback = iota // what their own configuration says, once their assignments have run out
	Deny
	Allow
	Keep // what they were assigned, in fast mode; in strict mode it denies
)
