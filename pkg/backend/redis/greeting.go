package redis

import (
	"errors"
	"net"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// unreached rewords the error of an addr without an IP address of the configured family. It returns other errors unchanged.
func (p *pool) unreached(addr string, err error) error {
	kind := map[string]string{"tcp4": "IPv4", "tcp6": "IPv6"}[p.target.network]
	if _, ok := errors.AsType[*net.AddrError](err); !ok || kind == "" {
		return err
	}
	host, _, _ := net.SplitHostPort(addr)
	return remote.Reworded(err, host+" has no "+kind+" address, which the socket type "+p.target.network+" requires: tcp accepts both kinds")
}

// withoutHello is a connection that answers go-redis's initial HELLO like a server that does not know the command. go-redis sends HELLO
// even for RESP2, and proxies such as Twemproxy then close the connection. After this answer, go-redis authenticates with AUTH.
type withoutHello struct {
	net.Conn

	reply []byte // rest of the reply; nil before HELLO
}

// Write implements [net.Conn].
func (w *withoutHello) Write(b []byte) (int, error) {
	if w.reply == nil {
		w.reply = []byte("-ERR unknown command 'hello'\r\n")
		return len(b), nil
	}
	return w.Conn.Write(b)
}

// Read implements [net.Conn].
func (w *withoutHello) Read(b []byte) (int, error) {
	if len(w.reply) == 0 {
		return w.Conn.Read(b)
	}
	n := copy(b, w.reply)
	w.reply = w.reply[n:]
	return n, nil
}

// greeted rewords the error of a new connection without a valid first answer. It returns other errors unchanged.
func (p *pool) greeted(err error) error {
	const speaks = "does it speak TLS (rediss:// or a variable …_TLS=true)?"
	closed := remote.ClassOf(err) == remote.Reset
	switch {
	case errorReply(err):
		return err
	case strings.HasPrefix(err.Error(), "redis: can't parse "): // go-redis's prefix for an invalid reply
		return remote.Reworded(err, "the server there does not answer as Redis does: is it another server, or "+speaks)
	case remote.ClassOf(err) == remote.Timeout:
		return remote.Reworded(err, "no answer in time: is it Redis that is listening there?")
	case p.dialer.TLS != nil && (closed || remote.Alert(err) != ""):
		return remote.Reworded(err, "the server closed the connection after the TLS handshake: does it require a client certificate, or a different one?")
	case closed:
		return remote.Reworded(err, "the server closed the connection instead of answering: "+speaks+
			" A proxy may do so on AUTH with a user, and on SELECT: leave out the user, or the database")
	}
	return err
}
