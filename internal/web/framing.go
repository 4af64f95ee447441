package web

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
)

// net/http accepts a request that states its length twice, or both a length and a transfer coding, and removes the
// traces before a handler sees it. A proxy in front of us that used the other statement would then see different
// requests on the connection than we do (request smuggling). So each connection is inspected as it is read, and such
// requests are answered 400.

// framing follows the heads of the requests on one connection. To know where the next head begins, it has to follow
// bodies too: it does so for bodies of a stated length, and has the connection closed after any other.
type framing struct {
	line      []byte      // the current line, as much of it as is needed for the fields of interest
	cut       bool        // line has only the beginning of it
	started   bool        // a line of this head has been seen
	lengths   int         // how often this head states a length
	length    uint64      // the last of them
	unclear   bool        // a length is not understood here
	codings   int         // how often this head states a transfer coding
	body      uint64      // bytes of the body still to come
	last      atomic.Bool // no further head on this connection is inspected: it has to be closed after this request
	ambiguous atomic.Bool // a head contradicted itself
}

// maxField is how many bytes of a line are kept: enough for the two fields and their values.
const maxField = 64

// scan inspects the next bytes of the connection.
func (f *framing) scan(p []byte) {
	for len(p) > 0 && !f.last.Load() {
		if f.body > 0 {
			n := min(f.body, uint64(len(p)))
			f.body -= n
			p = p[n:]
			continue
		}
		line, rest, ended := bytes.Cut(p, []byte{'\n'})
		f.keep(line)
		if ended {
			f.endLine()
		}
		p = rest
	}
}

func (f *framing) keep(p []byte) {
	n := min(len(p), maxField-len(f.line))
	f.line = append(f.line, p[:n]...)
	f.cut = f.cut || n < len(p)
}

// endLine handles a complete line. An empty one ends the head, unless it precedes it.
func (f *framing) endLine() {
	line := bytes.TrimSuffix(f.line, []byte{'\r'})
	cut := f.cut
	f.line, f.cut = f.line[:0], false
	switch {
	case len(line) > 0 && f.started:
		f.field(line, cut)
	case len(line) > 0:
		f.started = true // the request line
	case f.started:
		f.endHead()
	}
}

func (f *framing) field(line []byte, cut bool) {
	name, value, _ := bytes.Cut(line, []byte{':'})
	switch {
	case bytes.EqualFold(name, []byte("Content-Length")):
		n, err := strconv.ParseUint(string(bytes.TrimSpace(value)), 10, 63)
		f.lengths++
		f.length = n
		f.unclear = f.unclear || err != nil || cut
	case bytes.EqualFold(name, []byte("Transfer-Encoding")):
		f.codings++
	}
}

func (f *framing) endHead() {
	switch {
	case f.lengths > 1, f.lengths > 0 && f.codings > 0:
		f.ambiguous.Store(true)
		f.last.Store(true)
	case f.codings > 0, f.unclear:
		f.last.Store(true)
	default:
		f.body = f.length
	}
	f.started, f.lengths, f.codings, f.length, f.unclear = false, 0, 0, 0, false
}

// framedListener inspects what is read from the connections that it accepts.
type framedListener struct{ net.Listener }

// Accept waits for the next connection.
func (l framedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &framedConn{Conn: c}, nil
}

// framedConn passes what is read to its framing. net/http reads from only one goroutine at a time.
type framedConn struct {
	net.Conn
	framing framing
}

// Read reads from the connection.
func (c *framedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.framing.scan(p[:n])
	return n, err
}

type framingKey struct{}

// withFraming puts the framing of c into the context, for unambiguous.
func withFraming(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*framedConn); ok {
		return context.WithValue(ctx, framingKey{}, &c.framing)
	}
	return ctx
}

// unambiguous answers 400 to a request whose head contradicts itself (or that came in the same packet as a later one
// whose head does), and closes connections whose further heads are not inspected.
func unambiguous(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := r.Context().Value(framingKey{}).(*framing)
		if ok && f.last.Load() {
			w.Header().Set("Connection", "close")
		}
		if ok && f.ambiguous.Load() {
			refuse(w, http.StatusBadRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}
