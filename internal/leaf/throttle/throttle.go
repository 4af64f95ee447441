// Package throttle bounds what any client can cause again and again. [Log] keeps the log from repeating itself: what happens again and again
// is logged once in an interval, with how many lines were omitted in between. [Turns] keep what many ask for from taking all of a
// processor, [Running] keeps one client from having too much in progress, and a [Pool] from keeping what others need. [Network] says which
// clients are one.
//
// This package is part of the core.
package throttle

import (
	"sync"
	"time"
)

// maxSubjects bounds what a Log remembers. Beyond it everything is forgotten, so that a few lines come too early.
const maxSubjects = 1000

// Log says which lines to log. It is safe for concurrent use; make it with [Every].
type Log struct {
	interval time.Duration

	mu   sync.Mutex
	last map[string]line // by subject
}

// line is when something was last logged, and how often it has been omitted since.
type line struct {
	at      time.Time
	omitted int
}

// Every returns a Log that allows one line about each subject in an interval.
func Every(interval time.Duration) *Log {
	return &Log{interval: interval, last: make(map[string]line)}
}

// Allow reports whether to log a line about subject, and how many about it were omitted since the last one.
func (l *Log) Allow(subject string) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before, known := l.last[subject]
	now := time.Now()
	if known && now.Sub(before.at) < l.interval {
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
