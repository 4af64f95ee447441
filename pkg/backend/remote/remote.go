// Package remote is what backends with a store behind a network have in common: connections that notice when the other
// side is gone, a circuit breaker for each of the store's servers, and a few classes of errors.
package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode"
)

// Class is a kind of error. There are few, so that it can be a label of metrics.
type Class string

// The classes of errors of the network. Stores add those of their replies.
const (
	Timeout Class = "timeout" // no answer in time; hits may have been counted
	Refused Class = "refused" // no connection; nothing was counted
	Reset   Class = "reset"   // the connection broke; hits may have been counted
	Other   Class = "other"
)

// ClassOf returns the class of an error of a connection, of opening one or of waiting for one.
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

// Clean removes from the text of an error what may have come from a client: everything after a quotation mark. It also
// removes control characters, and bounds the length.
func Clean(text string) string {
	if i := strings.IndexAny(text, "'\"`"); i >= 0 {
		text = text[:i] + "…"
	}
	text = oneLine(text)
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}

// oneLine returns text with blanks for control characters.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}
