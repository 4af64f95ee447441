package memcached

import (
	"errors"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Class is what kind of thing went wrong. There are few, so that it makes a label of metrics.
type Class = remote.Class

// The classes of errors.
const (
	ClassTimeout = remote.Timeout // no answer in time; whether hits were counted is not known
	ClassRefused = remote.Refused // no connection, or no server is known; nothing was counted
	ClassReset   = remote.Reset   // the connection broke; whether hits were counted is not known
	ClassOOM     = Class("oom")   // no memory left for a new counter
	ClassOther   = remote.Other
)

// Error is why an operation has no decision. Its text holds no key and no value.
type Error struct {
	Class  Class
	Node   string // the server, as [Config.Servers] has it; empty where the operation met none
	Unsent bool   // the operation was not sent, so that it is certain that nothing was counted
	text   string
}

// Error tells what happened, and where.
func (e *Error) Error() string {
	if e.Node == "" {
		return "memcached: " + string(e.Class) + ": " + e.text
	}
	return "memcached " + e.Node + ": " + string(e.Class) + ": " + e.text
}

// Errors of ops that are not sent, whatever the servers do.
var (
	errFixedOnly = &Error{Class: ClassOther, Unsent: true, text: "memcached keeps one fixed_window per descriptor, which begins with the clock and " +
		"counts refused hits; other algorithms, rate_limits and penalties are there with Redis"}
	errWhole   = &Error{Class: ClassOther, Unsent: true, text: "the reference's keys are there for windows of whole seconds only"}
	errNoName  = &Error{Class: ClassOther, Unsent: true, text: "the reference's keys take the name of the counter, and there is none"}
	errLate    = &Error{Class: ClassTimeout, Unsent: true, text: "less than 1 ms is left to ask"}
	errFull    = &Error{Class: ClassTimeout, Unsent: true, text: "1024 calls wait already"}
	errStopped = &Error{Class: ClassOther, Unsent: true, text: "this server is stopping"}
	errUnknown = &Error{Class: ClassRefused, Unsent: true, text: "DNS has not told the servers yet"}
)

// errBroken is that of a command after the one that broke the connection.
var errBroken = errors.New("the connection is of no use any more")

// classify makes an Error of what gomemcache reports.
func classify(node string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	text := err.Error()
	switch {
	case strings.Contains(text, "SERVER_ERROR out of memory"):
		return &Error{Class: ClassOOM, Node: node, text: "there is no memory left for a new counter"}
	case strings.Contains(text, "Too many open connections"):
		return &Error{Class: ClassRefused, Node: node, Unsent: true, text: "the server takes no more connections (its -c)"}
	case strings.Contains(text, "non-numeric"), errors.Is(err, errNumber):
		return &Error{Class: ClassOther, Node: node, text: "a counter is no number"}
	}
	class := remote.ClassOf(err)
	if class == ClassTimeout {
		return &Error{Class: ClassTimeout, Node: node, text: "no answer in time"}
	}
	if e, ok := errors.AsType[*strconv.NumError](err); ok { // gomemcache looked for a number in what was no reply to incr or decr
		text = strings.TrimSpace(e.Num)
		if rest, found := strings.CutPrefix(text, "SERVER_ERROR "); !found {
			text = "the server answers what is no memcached's reply"
		} else {
			text = rest
		}
	}
	return &Error{Class: class, Node: node, text: remote.Clean(text)}
}

// trips reports whether e counts against a server: it, and not one operation, cannot go on.
func (e *Error) trips() bool { return e.Class != ClassOther }
