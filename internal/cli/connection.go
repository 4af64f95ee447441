package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/remote"
)

// sighting is what was seen of the last connection to a server, because grpc passes on only a text. It is safe for
// concurrent use.
type sighting struct {
	mu        sync.Mutex
	handshake error  // why the TLS handshake failed
	broke     error  // why reading or writing failed, after the handshake
	first     []byte // what the server said first, cut short, whether encrypted or not
}

// watched are credentials whose handshakes, and the connections that come of them, are seen.
type watched struct {
	credentials.TransportCredentials
	seen *sighting
}

// ClientHandshake implements [credentials.TransportCredentials].
func (w watched) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) { //nolint:ireturn // as the interface has it
	w.seen.set(func(s *sighting) { s.handshake, s.broke, s.first = nil, nil, nil })
	conn, info, err := w.TransportCredentials.ClientHandshake(ctx, authority, watchedConn{raw, w.seen.hear})
	if err != nil {
		w.seen.set(func(s *sighting) { s.handshake = err })
		return nil, nil, err
	}
	return watchedConn{conn, w.seen.used}, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (w watched) Clone() credentials.TransportCredentials { //nolint:ireturn // as the interface has it
	return watched{w.TransportCredentials.Clone(), w.seen}
}

// watchedConn calls a function with what each Read has read and with what each Read and Write has failed with.
type watchedConn struct {
	net.Conn
	done func([]byte, error)
}

// Read implements [net.Conn].
func (c watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.done(b[:n], err)
	return n, err
}

// Write implements [net.Conn].
func (c watchedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.done(nil, err)
	return n, err
}

func (s *sighting) set(f func(*sighting)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// longestFirst is how much is kept of what the server said first.
const longestFirst = 32

func (s *sighting) hear(b []byte, _ error) {
	s.set(func(s *sighting) {
		s.first = append(s.first, b[:min(len(b), longestFirst-len(s.first))]...)
	})
}

func (s *sighting) used(_ []byte, err error) {
	s.set(func(s *sighting) {
		if s.broke == nil {
			s.broke = err
		}
	})
}

// failed reports whether the connection broke, or never came to be.
func (s *sighting) failed() (failed bool) {
	s.set(func(s *sighting) { failed = s.handshake != nil || s.broke != nil })
	return failed
}

// secure reports whether the client speaks TLS.
func (c *client) secure() bool { return c.tls || c.ca != "" || c.cert != "" || c.key != "" }

// unconnected says why a server is not one that the client can talk to, and what to do. text is what grpc says.
func (c *client) unconnected(ctx context.Context, text string) string {
	if _, cause, ok := strings.Cut(text, "Error while dialing: "); ok {
		return c.undialled(cause)
	}
	c.seen.mu.Lock()
	handshake, broke, first := c.seen.handshake, c.seen.broke, string(c.seen.first)
	c.seen.mu.Unlock()
	switch {
	case handshake != nil:
		return c.noHandshake(handshake, first)
	case c.secure() && broke != nil:
		return c.closedOnClient(broke)
	case broke != nil && (strings.HasPrefix(first, "\x15\x03") || c.speaksTLS(ctx)):
		return "the server speaks TLS there: add --tls, and --ca FILE if its certificate was issued by a CA that this machine does not trust"
	case strings.HasPrefix(first, "HTTP/1"):
		return "the server there is an HTTP server: set --addr to the gRPC port, which is 8081 unless the server has GRPC_PORT"
	case first != "" && !strings.Contains(first, "\x00"): // which each of HTTP/2's frames has
		return fmt.Sprintf("the server there is not a gRPC server, it says %q: set --addr to another address", first)
	}
	return "the server there closes the connection: is it a gRPC server? set --addr to another address"
}

// undialled says what to do about a server to which there is no connection at all.
func (c *client) undialled(cause string) string {
	cause = strings.TrimSuffix(cause, `"`)
	cause = cause[strings.LastIndex(cause, ": ")+1:]
	cause = strings.TrimSpace(cause)
	if cause == "no such host" {
		return "there is no such host: set --addr to another address"
	}
	return cause + ": is the server running there? set --addr to another address"
}

// noHandshake says what to do about a TLS handshake that failed. first is what the server said first.
func (c *client) noHandshake(err error, first string) string {
	var plain tls.RecordHeaderError
	without := "leave out --tls"
	switch {
	case c.https:
		without = "write http:// instead of https://"
	case !c.tls:
		without = "leave out --ca, --cert and --key, which imply --tls"
	}
	switch {
	case errors.As(err, &plain) && strings.HasPrefix(first, "HTTP/1"):
		return "the server there is an HTTP server without TLS: set --addr to the gRPC port, which is 8081 unless the server has GRPC_PORT"
	case errors.As(err, &plain):
		return "the server does not speak TLS there: " + without
	case remote.Unproven(err) != "":
		return c.unproven(err)
	case strings.Contains(err.Error(), "ALPN"), strings.Contains(remote.Alert(err), "application protocol"): // as grpc says it, and the server
		return "the server there speaks TLS, but not HTTP/2, which gRPC needs: set --addr to the gRPC port, which is 8081 unless the server has GRPC_PORT"
	case remote.Alert(err) != "":
		return c.closedOnClient(err)
	case remote.ClassOf(err) == remote.Reset:
		return "the server there closes the connection when it is asked for TLS: if it is a plaintext server, " + without
	}
	return "the TLS handshake failed: " + strings.TrimPrefix(err.Error(), "tls: ")
}

// unproven says what is wrong with the server's certificate, and what to do.
func (c *client) unproven(err error) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
	)
	text := remote.Unproven(err)
	switch {
	case errors.As(err, &name):
		return text + ": --addr must be a name that it is for"
	case errors.As(err, &unknown) && c.ca != "":
		return text + ": --ca, which names " + c.ca + ", must name the file of its CA"
	case errors.As(err, &unknown):
		return text + ": set --ca to the file of its CA"
	}
	return text
}

// closedOnClient says what to do about a server that ends the connection for what it knows of the client.
func (c *client) closedOnClient(err error) string {
	if a := remote.Alert(err); strings.Contains(a, "protocol version") {
		return "the server takes other versions of TLS than 1.2 and 1.3"
	}
	if c.cert == "" {
		return "the server closes the connection to a client without a certificate: set --cert and --key to the files of one"
	}
	return fmt.Sprintf("the server does not accept the certificate in %s: it must be issued by a CA in the server's GRPC_CLIENT_TLS_CACERT, "+
		"and have one of the names in its GRPC_CLIENT_TLS_SAN, if that is set", c.cert)
}

// speaksTLS reports whether the server answers a TLS handshake.
func (c *client) speaksTLS(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	network, addr := "tcp", c.addr
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		network, addr = "unix", path
	}
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // nothing is sent over this connection
	conn, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return remote.Alert(err) != "" // such as for the certificate that this connection does not show
	}
	_ = conn.Close() // it has served its purpose
	return true
}
