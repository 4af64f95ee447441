package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// greeting is what a server does with a connection that is made by hand, because grpc passes on only a text.
type greeting struct {
	handshake error  // why the TLS handshake fails
	broke     error  // why nothing can be read or written, after the handshake
	first     string // what the server says first, cut short
}

// isForeign reports whether the server certainly does not speak HTTP/2 with this client. A busy server that says nothing in time, or
// closes the connection, is no proof.
func (g *greeting) isForeign() bool {
	speaks := g.first == "" || strings.Contains(g.first, "\x00") && !strings.HasPrefix(g.first, "\x15\x03") // each frame has a zero byte
	return g.handshake != nil || remote.Alert(g.broke) != "" || !speaks
}

// greet connects as grpc does, begins to speak HTTP/2, and returns what comes of it.
func (c *client) greet(ctx context.Context) *greeting {
	g := new(greeting)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	creds, err := c.credentials()
	if err != nil {
		return &greeting{handshake: err}
	}
	conn, err := new(net.Dialer).DialContext(ctx, c.network(), strings.TrimPrefix(c.addr, "unix:"))
	if err != nil {
		return &greeting{broke: err}
	}
	defer func() { _ = conn.Close() }() // it has served its purpose
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	spoken, _, err := creds.ClientHandshake(ctx, c.addr, conn)
	if err != nil {
		return &greeting{handshake: err}
	}
	_, g.broke = spoken.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // with settings that change nothing
	var first [32]byte
	n, err := spoken.Read(first[:])
	g.first, g.broke = string(first[:n]), cmp.Or(g.broke, err)
	return g
}

// network is that of the address.
func (c *client) network() string {
	if strings.HasPrefix(c.addr, "unix:") {
		return "unix"
	}
	return "tcp"
}

// secure reports whether the client speaks TLS.
func (c *client) secure() bool { return c.tls || c.ca != "" || c.cert != "" || c.key != "" }

// unconnected says why a server is not one that the client can talk to, and what to do. text is what grpc says.
func (c *client) unconnected(ctx context.Context, text string) string {
	if _, cause, ok := strings.Cut(text, "Error while dialing: "); ok {
		return c.undialled(cause)
	}
	g := c.greet(ctx)
	op, _ := errors.AsType[*net.OpError](g.broke)
	switch first := g.first; {
	case op != nil && op.Op == "dial":
		return c.undialled(op.Error())
	case g.handshake != nil:
		return c.noHandshake(g.handshake)
	case c.secure() && g.broke != nil:
		return c.closedOnClient(g.broke)
	case strings.HasPrefix(first, "\x15\x03") || g.broke != nil && c.speaksTLS(ctx):
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

// noHandshake says what to do about a TLS handshake that failed.
func (c *client) noHandshake(err error) string {
	var plain tls.RecordHeaderError
	without := "leave out --tls"
	switch {
	case c.https:
		without = "write http:// instead of https://"
	case !c.tls:
		without = "leave out --ca, --cert and --key, which imply --tls"
	}
	switch {
	case errors.As(err, &plain) && string(plain.RecordHeader[:]) == "HTTP/":
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
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} //nolint:gosec // nothing is sent over this connection
	conn, err := d.DialContext(ctx, c.network(), strings.TrimPrefix(c.addr, "unix:"))
	if err != nil {
		return remote.Alert(err) != "" // such as for the certificate that this connection does not show
	}
	_ = conn.Close() // it has served its purpose
	return true
}
