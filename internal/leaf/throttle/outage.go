package throttle

import "time"

// Outage limits log lines about repeated failures: one line about the failures, and one about their end, both only if they lasted longer
// than a minimum. Create it with [After]. It is not safe for concurrent use.
type Outage struct {
	silent time.Duration
	since  time.Time // zero without failures
	logged bool
}

// After returns an Outage that ignores failures for less than silent.
func After(silent time.Duration) Outage { return Outage{silent: silent} }

// Failed reports whether to log the failure of an attempt that began at the given time.
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

// Unfinished resets the start of the failures, because an attempt made progress without finishing.
func (o *Outage) Unfinished() { o.since = time.Time{} }
