package rls

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/overload"
)

// peekedConn is a connection whose peek sees what is read, from which calls are culled, and which waits while others are worked on.
type peekedConn struct {
	net.Conn

	of      *boundedConn
	service *Service
	answers *answers
}

// Read implements net.Conn. It returns what has been read without the calls that were culled.
func (c peekedConn) Read(b []byte) (n int, err error) {
	defer func() {
		if p := recover(); p != nil { //nolint:forbidigo // a bug that one connection hits must not end the process
			n, err = 0, c.service.recovered(context.Background(), Method, p) // which closes the connection
		}
	}()
	for {
		if n = c.handBack(b); n > 0 {
			return n, nil
		}
		c.answers.await()
		n, err = c.Conn.Read(b[:c.service.waiting.takeTurn(c.of, len(b))])
		if err != nil && c.answers.woken(err) {
			err = nil
		}
		if n == 0 && err != nil {
			return n, err
		}
		gate, p := c.service.config.Gate, &c.of.peek
		if gate.Busy() {
			p.scan(b[:n], c.service.seen)
		} else {
			p.scan(b[:n], nil)
		}
		n = c.cull(b[:n])
		if n == 0 && err == nil { // all of it
			runtime.Gosched()
			continue
		}
		first := slices.ContainsFunc(p.calls, func(x peeked) bool { return x.known && gate.Under(x.seen.Domain) })
		gate.AwaitRead(&c.of.client, overload.Read{Size: n, Full: c.of.full, First: first})
		return n, err
	}
}

// handBack has grpc read that it may send what has been kept from it for others, if that is due; and if it is not, has reading end once it is.
// Amid a frame or headers nothing may be put in between, and reading may end for nothing.
func (c peekedConn) handBack(b []byte) int {
	p := &c.of.peek
	if !p.frames.free() || len(b) < frameHeaderSize+windowSize {
		return 0
	}
	c.answers.due.Store(p.window.due())
	more := p.window.handBack(c.answers.data.Load())
	if more == 0 {
		return 0
	}
	c.answers.due.Store(p.window.due()) // which is never, since nothing is left
	return len(appendWindow(b[:0], more))
}

// Write implements net.Conn.
func (c peekedConn) Write(b []byte) (int, error) { return c.answers.write(b) }

// Close implements net.Conn.
func (c peekedConn) Close() error {
	err := c.Conn.Close()
	c.answers.close()
	return err
}

// ErrNothingSent is why a handshake failed whose client has sent nothing, as a probe that only connects.
var ErrNothingSent = errors.New("the client sent nothing")

// handshakes are credentials that tell of each handshake that failed, and return connections with a peek.
type handshakes struct {
	credentials.TransportCredentials

	service *Service
}

// ServerHandshake implements credentials.TransportCredentials.
//
//nolint:ireturn // as grpc wants it
func (h handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(c)
	a, ok := c.LocalAddr().(localAddr)
	if err != nil {
		told := err
		if ok && a.conn.read.Load() == 0 {
			told = fmt.Errorf("%w: %w", ErrNothingSent, err)
		}
		h.service.config.Hooks.Handshake(c.RemoteAddr(), told)
		return secured, info, err
	}
	secured = &beginning{secured, h.service.config.Hooks.Began}
	if ok {
		a.conn.peek = newPeek()
		secured = peekedConn{secured, a.conn, h.service, newAnswers(h.service.culling, secured)}
	}
	return secured, info, nil
}
