package remote

import (
	"sync"
	"sync/atomic"
	"time"
)

// SilentAfter is the age of the oldest command without an answer at which a server counts as silent, unless its round
// trips may take longer.
const SilentAfter = 50 * time.Millisecond

// lateFor is how much longer a server must not answer: if this process has stood still, its answers may be waiting here.
const lateFor = 5 * time.Millisecond

// Silence finds out that a server has stopped answering: by the age of the oldest command that it has not answered, not
// by how long callers are willing to wait. The first word from the server ends it. Its methods are safe for concurrent
// use.
type Silence struct {
	after   time.Duration
	changed func(silent bool)

	begun  time.Time    // the times below are measured from it, by the monotonic clock
	asked  atomic.Int64 // when the oldest command without an answer was sent; not after heard if there is none
	heard  atomic.Int64 // when the server last answered
	silent atomic.Bool

	timer   *time.Timer // calls look
	armed   atomic.Bool // timer runs
	suspect int64       // the command that was found old when look was last called; only look uses it

	mu sync.Mutex // held while silent changes
}

// none is before all times.
const none = -1

// NewSilence returns a Silence for a server that is silent if it has not answered a command for the given time. If
// changed is not nil it is called whenever silence begins or ends, one call at a time; it must not call the Silence.
func NewSilence(after time.Duration, changed func(silent bool)) *Silence {
	s := &Silence{after: after, changed: changed, begun: time.Now()}
	s.asked.Store(none)
	s.heard.Store(none)
	s.suspect = none
	s.timer = time.AfterFunc(after, s.look)
	s.timer.Stop()
	return s
}

// Silent reports whether the server is silent.
func (s *Silence) Silent() bool { return s.silent.Load() }

// Sent must be called before a command is sent.
func (s *Silence) Sent() {
	asked, heard := s.asked.Load(), s.heard.Load()
	if asked > heard {
		return // there is an older one
	}
	if s.asked.CompareAndSwap(asked, max(s.now(), heard+1)) {
		s.arm()
	}
}

// Received must be called when the server has answered, on any connection.
func (s *Silence) Received() {
	s.heard.Store(s.now())
	if !s.silent.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent.Swap(false) && s.changed != nil {
		s.changed(false)
	}
}

// Forget must be called when a connection breaks, because the commands sent over it will not be answered any more. It
// does not end a silence.
func (s *Silence) Forget() {
	if asked, heard := s.asked.Load(), s.heard.Load(); asked > heard {
		s.asked.CompareAndSwap(asked, heard)
	}
}

// Age returns how old the oldest command without an answer is, or 0 if there is none.
func (s *Silence) Age() time.Duration {
	asked := s.asked.Load()
	if asked <= s.heard.Load() {
		return 0
	}
	return time.Duration(s.now() - asked)
}

func (s *Silence) now() int64 { return int64(time.Since(s.begun)) }

// arm starts the timer, unless it runs. It runs only while there is a command without an answer, and is not set again for
// each.
func (s *Silence) arm() {
	if s.armed.CompareAndSwap(false, true) {
		s.timer.Reset(s.after)
	}
}

// look checks the age of the oldest command. It has to find the same one too old twice.
func (s *Silence) look() {
	asked, heard := s.asked.Load(), s.heard.Load()
	age := time.Duration(s.now() - asked)
	switch {
	case asked <= heard || s.silent.Load():
	case age < s.after:
		s.timer.Reset(s.after - age)
		return
	case s.suspect != asked:
		s.suspect = asked
		s.timer.Reset(lateFor)
		return
	default:
		s.begin(heard)
	}
	s.suspect = none
	s.armed.Store(false)
	if s.asked.Load() > s.heard.Load() && !s.silent.Load() { // asked meanwhile, by a caller that found the timer running
		s.arm()
	}
}

// begin makes the server silent, unless it has answered since it was last heard.
func (s *Silence) begin(heard int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent.Store(true)
	if s.heard.Load() != heard { // the caller that heard it may have found no silence to end
		s.silent.Store(false)
		return
	}
	if s.changed != nil {
		s.changed(true)
	}
}
