package calls

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Get returns an HTTP/1.1 request for each key number, with a header such as "x-user: u%d".
func Get(header string, keys int) [][]byte {
	all := make([][]byte, keys)
	for k := range all {
		all[k] = []byte("GET / HTTP/1.1\r\nhost: bench\r\n" + strings.ReplaceAll(header, "%d", strconv.Itoa(k)) + "\r\n\r\n")
	}
	return all
}

// caller makes calls, one at a time, on an HTTP/1.1 connection, which it replaces when it breaks.
type caller struct {
	load *Running
	n    int
	conn net.Conn
	r    *bufio.Reader
}

// run makes calls until ctx is done. A call in progress may take another second.
func (c *caller) run(ctx context.Context) {
	defer c.hangUp()
	for next := 0; ctx.Err() == nil && (c.load.Total == 0 || c.n+next*c.load.Conns < c.load.Total); next++ {
		what := c.load.what(c.n, next)
		due := c.load.now()
		kind := c.call(ctx, c.load.Requests[what])
		c.load.Each(c.n, Outcome{Due: due, What: int32(what), Took: c.load.now() - due, Kind: kind})
		if kind == Lost {
			c.hangUp()
			time.Sleep(Pace) // avoids a busy loop
		}
	}
}

// call sends a request and reads the answer.
func (c *caller) call(ctx context.Context, request []byte) Kind {
	if c.conn == nil {
		conn, err := net.DialTimeout(c.load.Network, c.load.Addr, dialTime) //nolint:noctx // has its own time-out
		if err != nil {
			return Lost
		}
		c.conn, c.r = conn, bufio.NewReader(conn)
		context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(time.Second)) })
	}
	if _, err := c.conn.Write(request); err != nil {
		return Lost
	}
	answer, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return Lost
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if _ = answer.Body.Close(); err != nil {
		return Lost
	}
	switch answer.StatusCode {
	case http.StatusOK:
		return OK
	case http.StatusTooManyRequests:
		return OverLimit
	default:
		return Failed
	}
}

// hangUp closes the connection, if any.
func (c *caller) hangUp() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}
