package shares

// Mode is the guarantee of a bucket; see the package comment.
type Mode uint8

// The modes.
const (
	Fast   Mode = iota // follows demand within two intervals; for token buckets and sliding windows
	Strict             // never exceeds the limit; for windows of a minute or more, and for bursts of 30 s or more of the rate
)

// Limit is a limit to divide.
type Limit struct {
	Hits      uint64 // hits per window
	Window    Micros
	Burst     uint64 // of a token bucket; 0 for a fixed window
	Overdraft bool   // the store can debit up to Burst hits more than are left
}

// rate returns the hits per second of l.
func (l *Limit) rate() float64 { return float64(l.Hits) / max(seconds(l.Window), rounding) }

// Keepable reports whether strict mode can divide l: an assignment lasts 15 s and must not use up the limit.
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
	Replica  string // name of this replica in [Row]; empty if there are no others
	Delivery Micros // maximum total transit time of an assignment and a report; 0 means 5 s
	Spread   uint32 // seconds added to every TTL, so that the buckets of a lost stream do not expire together
}

// Usage is a client's report about a bucket.
type Usage struct {
	Elapsed Micros // whole seconds, rounded down, as reported by the client; used only if the previous report is missing
	Allowed uint64
	Denied  uint64
}

// Busy reports whether there were requests.
func (u *Usage) Busy() bool { return u.Allowed+u.Denied > 0 }

// span returns the number of seconds that u covers, or 0 for the first report of the client's bucket.
func (u *Usage) span() float64 {
	switch e := seconds(u.Elapsed); {
	case e < 1:
		return 0
	case e == 4 || e == 5: // Envoy's interval is 4.995 to 5.005 s
		return seconds(usualInterval)
	default:
		return e + 0.5
	}
}

// Action is a message to a client.
type Action struct {
	Client string
	Tag    any // tag of the client
	Assignment
}

// Fallback is the decision of clients while the store does not answer, after the paid hits are used.
type Fallback uint8

// The fallbacks.
const (
	Lapse Fallback = iota // the client's own configuration, after its assignments have expired
	Deny
	Allow
	Keep // keep the assignment in fast mode; deny in strict mode
)
