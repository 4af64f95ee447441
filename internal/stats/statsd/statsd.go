// Package statsd sends what a registry counts to statsd or to DogStatsD.
//
// Counting never waits for sending: a [Sink] reads the registry's atomics at each flush and sends what came on top since
// the last one, so that it costs a request nothing. What cannot be sent stays in the registry and goes with a later flush;
// there is no queue that could fill. The same names, tags and kinds go out as from envoyproxy/ratelimit, but for the
// response times: that one sends a line per request, in whole milliseconds, and this one at most a thousand per flush and
// method, each with how many requests it stands for (@rate), in microseconds.
//
// DogStatsD is the same protocol with tags of its own, so that one writer does for both. Datadog's client was not taken:
// it wants to be told each event when it happens, or sums up in a way of its own, and here sums are there already.
package statsd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/stats"
)

// How long things may take. What hangs holds up nothing but the flush that it is part of.
const (
	dialTimeout  = 3 * time.Second
	writeTimeout = 3 * time.Second
	lastTimeout  = 2 * time.Second // of the flush at the end, all of it
	lookAgain    = time.Minute     // until the address of a UDP server is looked up again
	sayAgain     = time.Minute     // until the log speaks of the same thing again
)

// The most bytes that are handed over at once. A datagram of 1432 bytes passes every usual network in one packet.
const (
	mostTCP = 16 << 10
	mostUDP = 1432
)

// Config says where statistics go, and in which form.
type Config struct {
	Network    string        // tcp or udp
	Address    string        // host:port; the host is looked up with each connection
	Interval   time.Duration // between flushes; 0 is 10 s
	Retry      time.Duration // between attempts while there is no connection; 0 is 3 s
	Dog        bool          // speak DogStatsD: tags beside the name instead of in it, and mogrifiers
	Tags       []stats.Label // on everything
	DogTags    []stats.Label // with Dog, more of them, with values as they are
	Mogrifiers []Mogrifier   // with Dog: the first that matches a name rewrites it
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
	proven bool          // that conn can send: statsd took it, or over UDP there was no refusal after the first datagrams
	buffer []byte        // whole lines that are to be sent next
	most   int           // bytes that are sent at once

	told   bool // that statistics do not arrive
	toldAt time.Time
}

// New makes a Sink that sends nothing yet.
func New(r *stats.Registry, log *slog.Logger, c Config) *Sink {
	if c.Interval <= 0 {
		c.Interval = 10 * time.Second
	}
	if c.Retry <= 0 {
		c.Retry = 3 * time.Second
	}
	s := &Sink{config: c, log: log, reader: r.NewReader(), form: newForm(&c), most: mostTCP}
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

// Run sends at once and then at each interval until ctx ends, and then once more, so that what was counted last is not
// lost. It returns within 5 s from then, whatever the other side does, and never with an error.
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

// flush sends all that is new, and reports whether it could.
func (s *Sink) flush(ctx context.Context) (ok bool) {
	err := s.send(ctx)
	if err == nil {
		if s.told && s.proven {
			s.told = false
			s.log.Warn("statistics are sent again", "sink", s.String(), "address", s.config.Address)
		}
		s.proven = true
		return true
	}
	now := time.Now()
	if !s.told && ctx.Err() == nil && (s.toldAt.IsZero() || now.Sub(s.toldAt) >= sayAgain) {
		s.told, s.toldAt = true, now
		s.log.Warn("statistics cannot be sent; this goes on trying, and says no more until they can", "sink", s.String(),
			"network", s.config.Network, "address", s.config.Address, "error", err, "hint", s.hint())
	}
	s.hangUp()
	return false
}

// hint is for those who never asked for statsd, which is on unless told otherwise.
func (s *Sink) hint() string {
	if s.config.Dog {
		return "STATSD_HOST and STATSD_PORT say where DogStatsD is"
	}
	return "STATSD_HOST, STATSD_PORT and STATSD_PROTOCOL say where statsd is; USE_STATSD=false if there is none"
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

// connect sees to it that there is a connection.
func (s *Sink) connect(ctx context.Context) error {
	if s.conn != nil && !s.stale() {
		return nil
	}
	s.hangUp()
	d := net.Dialer{Timeout: dialTimeout, Control: control}
	var conn net.Conn
	err := errors.ErrUnsupported
	if s.config.Network == "udp" { // where no address refuses: localhost has two, and statsd usually listens on this one
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
		s.gone = make(chan struct{})
		go s.listen(conn, s.gone)
	}
	return nil
}

// stale reports whether a new connection is better: the other side has closed this one, or may have moved.
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

// listen reads what nobody sends, to see at once when the other side closes the connection.
func (s *Sink) listen(conn net.Conn, gone chan<- struct{}) {
	defer close(gone)
	var b [512]byte
	for {
		if _, err := conn.Read(b[:]); err != nil {
			return
		}
	}
}

// hangUp closes the connection if there is one.
func (s *Sink) hangUp() {
	if s.conn == nil {
		return
	}
	_ = s.conn.Close() // what was written was sent, or is lost
	if s.gone != nil {
		<-s.gone
	}
	s.conn, s.gone = nil, nil
}

// write sends as many whole lines at a time as may be, until no more than left bytes wait. What certainly did not arrive
// stays for the next time; of a line that was cut nobody knows, and it is not sent twice.
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
		lines := wholeLines(s.buffer, s.most)
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

// wholeLines is what b begins with: as many of its lines as have at most most bytes. Every line has.
func wholeLines(b []byte, most int) []byte {
	if len(b) <= most {
		return b
	}
	n := most
	for b[n-1] != '\n' {
		n--
	}
	return b[:n]
}
