// Package statsd sends the statistics of a registry to statsd or DogStatsD.
//
// Counting never waits for sending. At each flush, a [Sink] reads the registry's atomics and sends their increase since
// the last flush, so requests bear no cost. Unsent counts stay in the registry for a later flush; there is no queue to
// overflow. Names, tags, and kinds are envoyproxy/ratelimit's. Response times differ: envoyproxy/ratelimit sends a line
// for each request, in whole milliseconds; this package sends at most a thousand for each flush and method, with a
// resolution of microseconds and the number of requests represented (@rate).
//
// DogStatsD is the same protocol with its own syntax for tags, so one writer serves both. Section 10 of docs/design.md
// explains why no library is used.
//
// This package is part of the process.
package statsd

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Timeouts and intervals. A slow peer delays only the current flush.
const (
	dialTimeout  = 3 * time.Second
	writeTimeout = 3 * time.Second
	lastTimeout  = 2 * time.Second  // for the last flush
	unanswered   = 20 * time.Second // after this long without an answer, sent packets may be lost
	resolveEvery = time.Minute      // interval of resolving the address of a UDP server
	logEvery     = time.Minute      // interval of logging the same message
)

// Maximum sizes of writes in bytes. A datagram of 1432 bytes fits into one packet in all common networks.
const (
	maxTCP = 16 << 10
	maxUDP = 1432
)

// Config configures the destination and the format of statistics.
type Config struct {
	Network    string        // tcp or udp
	Address    string        // host:port; the host is resolved for each connection
	Interval   time.Duration // between flushes; 0 means 10 s
	Retry      time.Duration // between connection attempts; 0 means 3 s
	Dog        bool          // DogStatsD: tags after the name instead of in it, and mogrifiers
	Tags       []stats.Label // on all samples
	DogTags    []stats.Label // further tags, used with Dog, whose values are sent unchanged
	Mogrifiers []Mogrifier   // used with Dog; the first one that matches a name rewrites it
}

// Sink sends a registry's counters, gauges, and response times. It is a task that runs once.
type Sink struct {
	config Config
	log    *slog.Logger
	reader *stats.Reader
	form   form

	conn   net.Conn      // nil without a connection
	gone   chan struct{} // closed when the peer has closed conn; nil for UDP
	dialed time.Time     // time of connecting
	proven bool          // whether conn is known to work: statsd accepted it or, over UDP, did not reject the first datagrams
	buffer []byte        // complete lines to send next
	most   int           // maximum size of a write in bytes

	loggedFailure bool // whether the last log line reported a failure
	throttle      *throttle.Log
}

// New returns a Sink, which sends nothing until Run.
func New(r *stats.Registry, log *slog.Logger, c Config) *Sink {
	c.Interval, c.Retry = cmp.Or(c.Interval, 10*time.Second), cmp.Or(c.Retry, 3*time.Second)
	s := &Sink{config: c, log: log, reader: r.NewReader(), form: newForm(&c), most: maxTCP, throttle: throttle.Every(logEvery)}
	if c.Network == "udp" {
		s.most = maxUDP
	}
	return s
}

// String returns the name of the sink for messages.
func (s *Sink) String() string {
	if s.config.Dog {
		return "DogStatsD"
	}
	return "statsd"
}

// Run sends immediately, at each interval until ctx ends, and then a last time so that no counts are lost. It returns
// within 5 s of the end of ctx, whatever the peer does, and never returns an error.
func (s *Sink) Run(ctx context.Context) error {
	defer s.hangUp()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
			defer cancel()
			if !s.flush(last) {
				s.flush(last) // on a new connection
			}
			return nil
		case <-timer.C:
		}
		begin, wait := time.Now(), s.config.Interval
		if !s.flush(ctx) {
			wait = s.config.Retry
		}
		timer.Reset(max(0, wait-time.Since(begin)))
	}
}

// flush sends all changes, and reports whether that succeeded.
func (s *Sink) flush(ctx context.Context) (ok bool) {
	err := s.send(ctx)
	if err == nil {
		if s.loggedFailure && s.proven {
			s.loggedFailure = false
			s.log.Info("statistics are sent again", "sink", s.String(), "address", s.config.Address)
		}
		s.proven = true
		return true
	}
	if !s.loggedFailure && ctx.Err() == nil {
		if _, s.loggedFailure = s.throttle.Allow("failure"); s.loggedFailure {
			s.log.Warn("statistics cannot be sent; the server keeps trying, and logs this only once", "sink", s.String(),
				"network", s.config.Network, "address", s.config.Address, "error", err, "hint", s.hint())
		}
	}
	s.hangUp()
	return false
}

// hint returns advice for users who did not configure statsd, which is on by default.
func (s *Sink) hint() string {
	if s.config.Dog {
		return "set STATSD_HOST and STATSD_PORT to the address of DogStatsD"
	}
	return "set STATSD_HOST, STATSD_PORT and STATSD_PROTOCOL to reach statsd, or USE_STATSD=false if there is none"
}

func (s *Sink) send(ctx context.Context) error {
	if err := s.connect(ctx); err != nil {
		return err
	}
	for sample := range s.reader.Read {
		before := len(s.buffer)
		s.buffer = s.form.append(s.buffer, &sample)
		if n := len(s.buffer) - before; n > s.most {
			s.buffer = s.buffer[:before]
			s.log.Debug("a name is too long to be sent", "bytes", n)
			continue
		}
		if err := s.write(ctx, s.most); err != nil {
			return err
		}
	}
	return s.write(ctx, 0)
}

// connect connects if there is no usable connection.
func (s *Sink) connect(ctx context.Context) error {
	if s.conn != nil && !s.stale() {
		return nil
	}
	s.hangUp()
	d := net.Dialer{Timeout: dialTimeout, Control: remote.UserTimeout(unanswered)}
	var conn net.Conn
	err := errors.ErrUnsupported
	if s.config.Network == "udp" { // no address rejects datagrams; localhost has two, and statsd usually listens on this one
		conn, err = d.DialContext(ctx, "udp4", s.config.Address)
	}
	if err != nil {
		conn, err = d.DialContext(ctx, s.config.Network, s.config.Address)
	}
	if err != nil {
		return err
	}
	s.conn, s.dialed, s.proven = conn, time.Now(), s.config.Network != "udp"
	if s.config.Network != "udp" {
		gone := make(chan struct{})
		go func() { // detects that the peer closes the connection; no data is expected
			_, _ = io.Copy(io.Discard, conn)
			close(gone)
		}()
		s.gone = gone
	}
	return nil
}

// stale reports whether to reconnect, because the peer has closed the connection or may have a new address.
func (s *Sink) stale() bool {
	if s.gone == nil {
		return time.Since(s.dialed) >= resolveEvery
	}
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// hangUp closes the connection, if any.
func (s *Sink) hangUp() {
	if s.conn == nil {
		return
	}
	_ = s.conn.Close() // written data has been sent, or is lost
	if s.gone != nil {
		<-s.gone
	}
	s.conn, s.gone = nil, nil
}

// write sends as many complete lines at a time as allowed, until at most left bytes remain in the buffer. Lines that
// certainly did not arrive are kept for the next time. A line that was written in part may have arrived, and is not
// sent again.
func (s *Sink) write(ctx context.Context, left int) error {
	for len(s.buffer) > left {
		if err := ctx.Err(); err != nil {
			return err
		}
		until := time.Now().Add(writeTimeout)
		if end, ok := ctx.Deadline(); ok && end.Before(until) {
			until = end
		}
		if err := s.conn.SetWriteDeadline(until); err != nil {
			return err
		}
		lines := s.buffer[:bytes.LastIndexByte(s.buffer[:min(len(s.buffer), s.most)], '\n')+1] // each line fits
		n, err := s.conn.Write(lines)
		if n > 0 && lines[n-1] != '\n' {
			n += slices.Index(lines[n:], '\n') + 1
		}
		s.buffer = slices.Delete(s.buffer, 0, n)
		if err != nil {
			return fmt.Errorf("sending: %w", err)
		}
	}
	return nil
}
