// Package sharestest simulates an Envoy that holds shares, on virtual time. It reproduces the observed behavior of Envoy 1.40; its tests
// are traces of a real one. It sends no messages: a test passes assignments to it and reports from it, and decides which are late or
// lost.
package sharestest

import (
	"math"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
)

const second shares.Micros = 1_000_000

// ReportEvery is the interval of an Envoy's reports, regardless of its configuration.
const ReportEvery = 5 * second

// Kind is a rate-limit strategy of the protocol.
type Kind uint8

// The strategies of the protocol.
const (
	AllowAll Kind = iota
	DenyAll
	TokenBucket
	RequestsPerTimeUnit // ignored by Envoy 1.40
)

// Strategy determines which requests to admit.
type Strategy struct {
	Kind     Kind
	Max      uint32 // tokens
	Fill     uint32 // tokens per Interval
	Interval shares.Micros
}

// Assignment is an assignment with all fields of the protocol.
type Assignment struct {
	Strategy
	TTL shares.Micros
}

// Settings is the configuration of a bucket in an Envoy.
type Settings struct {
	NoAssignment Kind // AllowAll or DenyAll; a token bucket makes Envoy crash
	Expired      *Strategy
	ExpiredFor   shares.Micros // duration of Expired after an assignment
	Stepped      bool          // all tokens of an interval arrive together, as gRFC A77 allows; in Envoy, they arrive one by one
}

// Usage is a report about one bucket.
type Usage struct{ Allowed, Denied uint64 }

// Bucket is one bucket at one Envoy.
type Bucket struct {
	Settings
	now      Strategy // in force during the phases assigned and expired
	phase    phase
	ends     shares.Micros // end of the phase
	tokens   float64
	filled   shares.Micros // time of tokens
	usage    Usage
	Admitted uint64 // total
}

// phase is the phase of a bucket between two assignments.
type phase uint8

const (
	unassigned phase = iota
	assigned
	expired
)

// Receive applies a server's message.
func (b *Bucket) Receive(now shares.Micros, a shares.Assignment) {
	s := Strategy{TokenBucket, a.MaxTokens, a.TokensPerFill, shares.Micros(a.FillInterval) * second}
	switch a.Kind {
	case shares.Abandon:
		b.Abandon()
		return
	case shares.DenyAll:
		s = Strategy{Kind: DenyAll}
	case shares.AllowAll:
		s = Strategy{Kind: AllowAll}
	case shares.TokenBucket:
	}
	b.Assign(now, Assignment{s, shares.Micros(a.TTL) * second})
}

// Assign applies an assignment.
func (b *Bucket) Assign(now shares.Micros, a Assignment) {
	b.expire(now)
	if a.Kind == RequestsPerTimeUnit {
		return
	}
	ttl := a.TTL / second * second                                                                    // whole seconds
	same := b.phase == assigned && b.now.Kind == a.Kind && b.now.Max == a.Max && b.now.Fill == a.Fill // the interval is not compared
	switch {
	case same:
	case a.Kind != TokenBucket:
		b.now = a.Strategy
	case b.phase == assigned && b.now.Kind == TokenBucket:
		b.fill(now)
		b.tokens = math.Floor(b.tokens / float64(b.now.Max) * float64(a.Max))
		b.now = a.Strategy
	default:
		b.now, b.tokens, b.filled = a.Strategy, float64(a.Max), now
	}
	b.phase, b.ends = assigned, now+max(ttl, 0)
}

// Abandon removes the bucket.
func (b *Bucket) Abandon() { *b = Bucket{Settings: b.Settings, Admitted: b.Admitted} }

// expire ends phases whose time is over.
func (b *Bucket) expire(now shares.Micros) {
	if b.phase == assigned && now >= b.ends {
		b.phase = unassigned
		if b.Expired != nil && b.ExpiredFor >= second {
			b.phase, b.ends = expired, b.ends+b.ExpiredFor/second*second
			b.now, b.tokens, b.filled = *b.Expired, float64(b.Expired.Max), now
		}
	}
	if b.phase == expired && now >= b.ends {
		b.phase = unassigned
	}
}

// fill adds the tokens that have arrived until now.
func (b *Bucket) fill(now shares.Micros) {
	interval := b.now.Interval / second * second
	if interval == 0 {
		return
	}
	span := now - b.filled
	if b.Stepped {
		span = span / interval * interval
	}
	b.filled += span
	b.tokens = min(float64(b.now.Max), b.tokens+float64(b.now.Fill)*float64(span)/float64(interval))
}

// Request decides n requests at a time, and returns the number admitted.
func (b *Bucket) Request(now shares.Micros, n uint64) uint64 {
	b.expire(now)
	strategy := Strategy{Kind: b.NoAssignment}
	if b.phase != unassigned {
		strategy = b.now
	}
	admitted := n
	switch {
	case strategy.Kind == DenyAll:
		admitted = 0
	case strategy.Kind == TokenBucket && strategy.Interval >= second: // below a second, there is no limit
		b.fill(now)
		const errors = 1e-6 // floating-point error
		admitted = min(n, uint64(b.tokens+errors))
		b.tokens -= float64(admitted)
	}
	b.usage.Allowed += admitted
	b.usage.Denied += n - admitted
	b.Admitted += admitted
	return admitted
}

// Report returns the usage since the last report and resets it. It must be called at the first request, and then every ReportEvery. While
// the stream is down, reports are lost.
func (b *Bucket) Report() Usage {
	u := b.usage
	b.usage = Usage{}
	return u
}

// InForce reports whether an assignment is in force.
func (b *Bucket) InForce(now shares.Micros) bool {
	b.expire(now)
	return b.phase == assigned
}

// Limited reports whether an assignment is in force that does not admit everything.
func (b *Bucket) Limited(now shares.Micros) bool { return b.InForce(now) && b.now.Kind != AllowAll }

// Rate returns the requests per second that an assignment admits now; 0 if none is in force, or if it admits everything or nothing.
func (b *Bucket) Rate(now shares.Micros) float64 {
	if !b.InForce(now) || b.now.Kind != TokenBucket {
		return 0
	}
	return float64(b.now.Fill) * float64(second) / float64(b.now.Interval)
}

// Tokens returns the tokens in the bucket; 0 if none is in force.
func (b *Bucket) Tokens(now shares.Micros) float64 {
	if !b.InForce(now) || b.now.Kind != TokenBucket {
		return 0
	}
	b.fill(now)
	return b.tokens
}
