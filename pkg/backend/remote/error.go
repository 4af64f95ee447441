package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

// Class is a kind of error. There are few, so it can be a label of metrics.
type Class string

// Classes common to all stores. A store adds those of its replies.
const (
	Timeout Class = "timeout" // no answer in time; hits may have been counted
	Refused Class = "refused" // no connection, or no known server; nothing was counted
	Reset   Class = "reset"   // the connection broke; hits may have been counted
	OOM     Class = "oom"     // the store has no memory left
	// Overload: the expected wait exceeds the caller's time; nothing was counted.
	Overload Class = "overload"
	Other    Class = "other"
)

// ClassOf returns the class of an error of a connection, of an attempt to connect, or of a context.
func ClassOf(err error) Class {
	var timeout net.Error
	var name *net.DNSError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded),
		errors.As(err, &timeout) && timeout.Timeout():
		return Timeout
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EHOSTUNREACH),
		errors.Is(err, syscall.ENETUNREACH), errors.As(err, &name):
		return Refused
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET),
		errors.Is(err, syscall.EPIPE), errors.Is(err, net.ErrClosed):
		return Reset
	}
	return Other
}

// Error is the reason why an operation has no decision. Its text contains no key, value or password.
type Error struct {
	Store  Store
	Class  Class
	Node   string // the store's name for the server; empty if the operation reached none
	Unsent bool   // the operation was not sent, so nothing was counted
	Text   string
	Code   string // first word of an error reply, if the store has such words
}

// Error describes the failure and its server.
func (e *Error) Error() string {
	where := string(e.Store)
	if e.Node != "" {
		where += " " + e.Node
	}
	return where + ": " + string(e.Class) + ": " + e.Text
}

// Is reports whether e matches [backend.ErrUnsent] or [backend.ErrShed].
func (e *Error) Is(target error) bool {
	return target == backend.ErrUnsent && e.Unsent || target == backend.ErrShed && e.Class == Overload
}

// NotSent returns a copy of e for an operation that was not sent because of it.
func (e *Error) NotSent() *Error {
	other := *e
	other.Unsent = true
	return &other
}

// KeptAway returns the error of calls that a breaker blocks because of e.
func (e *Error) KeptAway() *Error {
	other := e.NotSent()
	other.Text = "the breaker is open because of: " + e.Text
	return other
}

// Store is the name of a kind of store. The texts of its errors begin with it.
type Store string

// Failed returns an error of an operation that may have been sent.
func (s Store) Failed(class Class, node, text string) *Error {
	return &Error{Store: s, Class: class, Node: node, Text: text}
}

// Unsent returns an error of an operation that was not sent.
func (s Store) Unsent(class Class, node, text string) *Error {
	return s.Failed(class, node, text).NotSent()
}

// Wrap returns err if it is an [Error], and otherwise an Error with the class and the text of err.
func (s Store) Wrap(node string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return s.Failed(ClassOf(err), node, Text(err))
}

// Late returns the error of a call with too little time; see [Budget].
func (s Store) Late() *Error {
	return s.Unsent(Timeout, "", "less than 1 ms is left before the deadline")
}

// Shed returns the error of a call whose expected wait is too long; see [Pace].
func (s Store) Shed() *Error {
	return s.Unsent(Overload, "", "more is waiting than can be answered in time")
}

// Stopped returns the error of a call during or after Close.
func (s Store) Stopped() *Error { return s.Unsent(Other, "", "this server is stopping") }

// Unanswered returns the error of an operation whose caller gave up.
func (s Store) Unanswered(node string) *Error { return s.Failed(Timeout, node, "no answer in time") }

// Slow returns the error that counts against a server whose answers arrive after callers have given up; see [TooSlow].
func (s Store) Slow(node string) *Error {
	return s.Failed(Timeout, node, "answers come later than callers can wait")
}
