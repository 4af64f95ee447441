package audit

import (
	"cmp"
	"slices"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

const (
	maxCallers = 64             // that have counts of their own; other callers are counted together
	forgetFor  = 24 * time.Hour // without a failed call, after which a caller makes room for another one
	logEach    = time.Minute    // a caller's failed calls
	maxMethod  = 64             // bytes of a method's name, and of a caller's
)

// others is the name under which callers beyond maxCallers are counted.
const others = "others"

// Failed counts the calls of one caller that failed.
type Failed struct {
	By     string // the name of its token or certificate; empty if it is not known
	From   string // the address of the last call, without its port; of IPv6 its network
	Method string // of the last call
	Code   string // of the last failure
	Count  uint64
	First  time.Time
	Last   time.Time

	logged  time.Time
	omitted uint64 // since then
}

// failures are counts by caller.
type failures struct {
	callers map[string]*Failed
	others  Failed
}

// Fail counts a call that failed. It reports whether to log it, and how many calls of the same caller were not logged before.
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

// of returns the counts of a caller.
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

// Failures returns how often calls failed in this process, the latest first.
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
