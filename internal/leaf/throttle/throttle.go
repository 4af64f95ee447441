// Package throttle bounds the effects of repeated actions of clients. [Log] logs a repeated message once per interval, with the number of
// omitted lines. [Outage] logs repeated failures once. [Turns] bounds the processor time of expensive operations, [Running] the
// operations in progress per client, and [Pool] the use of a shared resource. [Network] identifies clients of the same network.
//
// This package is part of the core.
package throttle

import (
	"log/slog"
	"sync"
	"time"
)

// maxSubjects bounds the size of a Log. If it is exceeded, the Log forgets all subjects, so a few lines are logged too early.
const maxSubjects = 1000

// Log limits log lines. It is safe for concurrent use. Create it with [Every].
type Log struct {
	interval time.Duration

	mu   sync.Mutex
	last map[string]line // by subject
}

// line is the time of the last line about a subject, and the number of lines omitted since.
type line struct {
	at      time.Time
	omitted int
}

// Every returns a Log that allows one line per subject and interval.
func Every(interval time.Duration) *Log {
	return &Log{interval: interval, last: make(map[string]line)}
}

// Allow reports whether to log a line about subject. omitted is the number of lines omitted since the last one.
func (l *Log) Allow(subject string) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, ok := l.last[subject]
	now := time.Now()
	if ok && now.Sub(before.at) < l.interval {
		before.omitted++
		l.last[subject] = before
		return 0, false
	}
	if len(l.last) >= maxSubjects {
		clear(l.last)
	}
	l.last[subject] = line{at: now}
	return before.omitted, true
}

// Through returns log for a line about subject, with the number of lines omitted since the last one. If the line is to be omitted, it
// returns a logger that discards.
func (l *Log) Through(log *slog.Logger, subject string) *slog.Logger {
	omitted, ok := l.Allow(subject)
	if !ok {
		return slog.New(slog.DiscardHandler)
	}
	return log.With("omitted", omitted)
}
