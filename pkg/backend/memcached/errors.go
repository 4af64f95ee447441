package memcached

import (
	"errors"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Class is a kind of error. There are few, so that it can be a label of metrics.
type Class = remote.Class

// The classes of errors.
const (
	ClassTimeout = remote.Timeout // no answer in time; hits may have been counted
	ClassRefused = remote.Refused // no connection, or no known server; nothing was counted
	ClassReset   = remote.Reset   // the connection broke; hits may have been counted
	ClassOOM     = Class("oom")   // no memory left for a new counter
	ClassOther   = remote.Other
)

// Error is why an operation has no decision. Its text contains no key and no value.
type Error struct {
	Class  Class
	Node   string // the server, as named in [Config.Servers]; empty if the operation reached none
	Unsent bool   // the operation was not sent, so nothing was counted
	text   string
}

// Error says what happened, and where.
func (e *Error) Error() string {
	if e.Node == "" {
		return "memcached: " + string(e.Class) + ": " + e.text
	}
	return "memcached " + e.Node + ": " + string(e.Class) + ": " + e.text
}

// Is reports that e matches [backend.ErrUnsent], if it does.
func (e *Error) Is(target error) bool { return target == backend.ErrUnsent && e.Unsent }

// Errors of ops that are not sent, regardless of the state of the servers.
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

// errBroken is the error of a command after the one that broke the connection.
var errBroken = errors.New("the connection is of no use any more")

// classify turns an error of gomemcache into an Error.
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
	if strings.HasPrefix(text, "memcache: unexpected response line") { // as gomemcache puts it
		return &Error{Class: ClassOther, Node: node, text: "what answers there is not memcached"}
	}
	class := remote.ClassOf(err)
	text = remote.Text(err)
	if e, ok := errors.AsType[*strconv.NumError](err); ok { // gomemcache tried to parse a number from something that is not a reply to incr or decr
		text = strings.TrimSpace(e.Num)
		if rest, found := strings.CutPrefix(text, "SERVER_ERROR "); !found {
			text = "the server answers what is no memcached's reply"
		} else {
			text = remote.Clean(rest)
		}
	}
	return &Error{Class: class, Node: node, text: text}
}

// trips reports whether e counts against a server: the server as a whole cannot serve, not just one operation.
func (e *Error) trips() bool { return e.Class != ClassOther }
