// Package remote is what backends whose store is behind a network have in common: connections that notice when the other
// side is gone, a breaker for each of the store's servers, and the few classes of what goes wrong on the way.
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

// Class is what kind of thing went wrong. There are few, so that it makes a label of metrics.
type Class string

// The classes of what goes wrong on the way. Stores add those of what they reply.
const (
	Timeout Class = "timeout" // no answer in time; whether hits were counted is not known
	Refused Class = "refused" // no connection; nothing was counted
	Reset   Class = "reset"   // the connection broke; whether hits were counted is not known
	Other   Class = "other"
)

// ClassOf is the class of an error of a connection, of opening one or of waiting for it.
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

// Clean cuts off a text what may have come from a client: what follows a quotation mark.
func Clean(text string) string {
	if i := strings.IndexAny(text, "'\"`"); i >= 0 {
		text = text[:i] + "…"
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
