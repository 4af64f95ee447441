package throttle

import "time"

// Outage says when to log that something fails again and again, and that it no longer does: once each, and only if it has failed for
// longer than need not be logged. Make it with [After]. It is not safe for concurrent use.
type Outage struct {
	silent time.Duration
	since  time.Time // zero while nothing fails
	logged bool
}

// After returns an Outage that says nothing of what fails for less than silent.
func After(silent time.Duration) Outage { return Outage{silent: silent} }

// Failed reports whether to log that an attempt which began at a time has failed.
func (o *Outage) Failed(began time.Time) bool {
	if o.since.IsZero() {
		o.since = began
	}
	if o.logged || time.Since(o.since) < o.silent {
		return false
	}
	o.logged = true
	return true
}

// Over reports whether to log that attempts succeed again.
func (o *Outage) Over() bool {
	logged := o.logged
	o.since, o.logged = time.Time{}, false
	return logged
}

// Unfinished forgets since when attempts fail, since one of them got on without an end.
func (o *Outage) Unfinished() { o.since = time.Time{} }
