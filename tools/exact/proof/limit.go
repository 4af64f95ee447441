package proof

import (
	"fmt"
	"time"
)

// Algorithm is the algorithm of a limit, as in rules.
type Algorithm string

// The algorithms.
const (
	FixedWindow   Algorithm = "fixed_window"
	SlidingWindow Algorithm = "sliding_window"
	SlidingLog    Algorithm = "sliding_log"
	TokenBucket   Algorithm = "token_bucket"
	LeakyBucket   Algorithm = "leaky_bucket"
	Concurrency   Algorithm = "concurrency"
)

// Limit is a limit. Fields that its algorithm does not use are zero.
type Limit struct {
	Algorithm    Algorithm
	Hits         int64 // per Window
	Window       Micros
	Calendar     Calendar // calendar of the windows
	First        bool     // a window begins with its first hit
	CountRefused bool     // rejected hits count too
	Precision    int      // number of sub-windows of a sliding window
	Burst        int64    // capacity of a token bucket, or queue length of a leaky bucket
	Debt         int64    // maximum tokens below zero
	Initial      int64    // tokens in a new bucket
	Fill         Micros   // fill interval; 0 means continuous
	Lease        int64    // maximum lease of a replica; 0 means none
	Listed       bool     // one of several limits of a descriptor
}

// Setting is the limits in effect for a call: one, or several that must all admit it.
type Setting struct {
	Name   string
	Limits []Limit
}

// Calendar is the calendar that windows follow; the zero value means none.
type Calendar struct {
	Unit string // day, week, month, or year
	Zone string
}

// Counter identifies a counter of a descriptor: two limits share one if their identities are equal (docs/design.md, section 6).
type Counter struct {
	Algorithm Algorithm
	Listed    bool
	Window    Micros
	Calendar  Calendar
	Precision int
}

// Counter returns the counter of l.
func (l *Limit) Counter() Counter {
	c := Counter{Algorithm: l.Algorithm}
	switch {
	case l.Calendar != Calendar{}:
		c.Calendar = l.Calendar
	case l.Algorithm == FixedWindow, l.Algorithm == SlidingWindow:
		c.Window, c.Precision = l.Window, l.Precision
	case l.Listed:
		c.Window, c.Listed = l.Window, true
	}
	return c
}

// String describes the counter.
func (c Counter) String() string {
	s := string(c.Algorithm)
	if c.Window > 0 {
		s += fmt.Sprintf(" of %v", time.Duration(c.Window)*time.Microsecond)
	}
	if c.Calendar != (Calendar{}) {
		s += fmt.Sprintf(" of the %s in %s", c.Calendar.Unit, c.Calendar.Zone)
	}
	if c.Listed {
		s += " in a list"
	}
	return s
}

// rate returns hits per microsecond.
func (l *Limit) rate() float64 { return float64(l.Hits) / float64(l.Window) }

// window returns the fixed window that contains t; end is exclusive.
func (l *Limit) window(t Micros) (start, end Micros) {
	if l.Calendar == (Calendar{}) {
		start = t - t%l.Window
		return start, start + l.Window
	}
	zone, err := time.LoadLocation(l.Calendar.Zone)
	if err != nil {
		return t, t // an empty window proves nothing
	}
	at := time.UnixMicro(int64(t)).In(zone)
	year, month, day := at.Date()
	var years, months, days int
	switch l.Calendar.Unit {
	case "day":
		days = 1
	case "week":
		day, days = day-(int(at.Weekday())+6)%7, 7
	case "month":
		day, months = 1, 1
	case "year":
		month, day, years = time.January, 1, 1
	}
	from := time.Date(year, month, day, 0, 0, 0, 0, zone)
	to := time.Date(year+years, month+time.Month(months), day+days, 0, 0, 0, 0, zone)
	return Micros(from.UnixMicro()), Micros(to.UnixMicro())
}
