package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

const (
	maxCallers = 64             // callers with their own counts; others are counted together
	forgetFor  = 24 * time.Hour // a caller without failed calls for this long may be replaced
	logEach    = time.Minute    // interval of logging a caller's failed calls
	maxMethod  = 64             // bytes of the names of a method and of a caller
)

// others is the name for counts of callers beyond maxCallers.
const others = "others"

// Failed counts the failed calls of one caller.
type Failed struct {
	By     string // the name of its token or certificate; empty if unknown
	From   string // the address of the last call without its port; for IPv6, its network
	Method string // of the last call
	Code   string // of the last failure
	Count  uint64
	First  time.Time
	Last   time.Time

	logged  time.Time
	omitted uint64 // calls not logged since then
}

// failures are counts by caller.
type failures struct {
	callers map[string]*Failed
	others  Failed
}

// Fail counts a failed call. It reports whether to log it, and how many calls of this caller were not logged since the last
// log line.
func (l *Log) Fail(by, from, method, code string) (omitted uint64, logs bool) {
	from = throttle.Network(from)
	by, from, method = by[:min(len(by), maxMethod)], from[:min(len(from), maxMethod)], method[:min(len(method), maxMethod)]
	now := time.Now().UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.failed.of(cmp.Or(by, from), now)
	if r == &l.failed.others {
		by = others
	}
	if r.Count == 0 {
		r.First = now
	}
	r.By, r.From, r.Method, r.Code, r.Last = by, from, method, code, now
	r.Count++
	if now.Sub(r.logged) < logEach {
		r.omitted++
		return 0, false
	}
	omitted, r.logged, r.omitted = r.omitted, now, 0
	return omitted, true
}

// of returns the counts of a caller, creating them if necessary.
func (r *failures) of(caller string, now time.Time) *Failed {
	if known := r.callers[caller]; known != nil {
		return known
	}
	if len(r.callers) >= maxCallers {
		for name, c := range r.callers {
			if now.Sub(c.Last) > forgetFor {
				delete(r.callers, name)
			}
		}
	}
	if len(r.callers) >= maxCallers {
		return &r.others
	}
	r.callers[caller] = new(Failed)
	return r.callers[caller]
}

// Failures returns the callers with failed calls in this process, latest first.
func (l *Log) Failures() (all []Failed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.failed.callers {
		all = append(all, *c)
	}
	if l.failed.others.Count > 0 {
		all = append(all, l.failed.others)
	}
	slices.SortFunc(all, func(a, b Failed) int { return b.Last.Compare(a.Last) })
	return all
}
