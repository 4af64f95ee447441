// Package statsd sends the statistics of a registry to statsd or to DogStatsD.
//
// Counting never waits for sending: a [Sink] reads the registry's atomics at each flush and sends how much they grew
// since the last one, so requests pay nothing for it. What cannot be sent stays in the registry and is sent with a
// later flush; there is no queue that could fill up. Names, tags and kinds are those of envoyproxy/ratelimit. Response
// times are different: envoyproxy/ratelimit sends one line per request, in whole milliseconds, whereas this package
// sends at most a thousand per flush and method, with a resolution of microseconds, each with the number of requests
// that it represents (@rate).
//
// DogStatsD is the same protocol with its own syntax for tags, so there is one writer for both. Why it is no library's,
// docs/design.md says in section 10.
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

// How long things may take. Whatever hangs delays nothing but the flush that it is part of.
const (
	dialTimeout  = 3 * time.Second
	writeTimeout = 3 * time.Second
	lastTimeout  = 2 * time.Second  // for the whole of the last flush
	unanswered   = 20 * time.Second // packets: what is sent in the meantime is lost
	lookAgain    = time.Minute      // before the address of a UDP server is looked up again
	logEvery     = time.Minute      // how often the same thing is logged
)

// The maximum number of bytes per write. A datagram of 1432 bytes fits into one packet on all common networks.
const (
	mostTCP = 16 << 10
	mostUDP = 1432
)

// Config says where statistics are sent, and in what form.
type Config struct {
	Network    string        // tcp or udp
	Address    string        // host:port; the host is looked up for each connection
	Interval   time.Duration // between flushes; 0 means 10 s
	Retry      time.Duration // between attempts while there is no connection; 0 means 3 s
	Dog        bool          // use DogStatsD: tags after the name instead of in it, and mogrifiers
	Tags       []stats.Label // on all samples
	DogTags    []stats.Label // more tags, used with Dog, whose values are sent unchanged
	Mogrifiers []Mogrifier   // used with Dog: the first that matches a name rewrites it
}

// Sink sends a registry's counters, gauges and response times. It is a task: Run it once.
type Sink struct {
	config Config
	log    *slog.Logger
	reader *stats.Reader
	form   form

	conn   net.Conn      // nil while there is none
	gone   chan struct{} // closed once the other side has closed conn; nil for UDP
	dialed time.Time     // when conn was opened
	proven bool          // conn is known to work: statsd accepted it or, over UDP, the first datagrams were not rejected
	buffer []byte        // whole lines to be sent next
	most   int           // maximum number of bytes per write

	loggedFailure bool // the last line says that statistics cannot be sent
	throttle      *throttle.Log
}

// New returns a Sink that sends nothing until it is run.
func New(r *stats.Registry, log *slog.Logger, c Config) *Sink {
	c.Interval, c.Retry = cmp.Or(c.Interval, 10*time.Second), cmp.Or(c.Retry, 3*time.Second)
	s := &Sink{config: c, log: log, reader: r.NewReader(), form: newForm(&c), most: mostTCP, throttle: throttle.Every(logEvery)}
	if c.Network == "udp" {
		s.most = mostUDP
	}
	return s
}

// String names the sink for messages.
func (s *Sink) String() string {
	if s.config.Dog {
		return "DogStatsD"
	}
	return "statsd"
}

// Run sends at once, then at each interval until ctx ends, and then once more, so that the last counts are not lost. It
// returns within 5 s of the end of ctx, whatever the other side does, and never returns an error.
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
				s.flush(last) // over a new connection
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

// flush sends everything new, and reports whether that succeeded.
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

// hint is for users who never asked for statsd, which is on by default.
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

// connect makes sure that there is a connection.
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
		go func() { // nothing is ever sent on it; this notices at once when the other side closes it
			_, _ = io.Copy(io.Discard, conn)
			close(gone)
		}()
		s.gone = gone
	}
	return nil
}

// stale reports whether to reconnect, because the other side has closed this connection or may have moved.
func (s *Sink) stale() bool {
	if s.gone == nil {
		return time.Since(s.dialed) >= lookAgain
	}
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

// hangUp closes the connection if there is one.
func (s *Sink) hangUp() {
	if s.conn == nil {
		return
	}
	_ = s.conn.Close() // whatever was written has been sent, or is lost
	if s.gone != nil {
		<-s.gone
	}
	s.conn, s.gone = nil, nil
}

// write sends as many whole lines at a time as are allowed, until at most left bytes remain in the buffer. Lines that
// have certainly not arrived are kept for the next time. A line that was written in part may or may not have arrived,
// and is not sent again.
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
		lines := s.buffer[:bytes.LastIndexByte(s.buffer[:min(len(s.buffer), s.most)], '\n')+1] // every single line fits
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
