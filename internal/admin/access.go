package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// maxToken is the length in bytes of the longest token that is accepted.
const maxToken = 4096

// Access decides who may do what is not for everybody who reaches a listener: call the admin API, take profiles.
//
// With TokenFile everybody needs the token, wherever they call from. Without it, only callers on this machine are let in: on a
// unix socket, whose file mode says who they are, or from 127.0.0.1 or ::1 exactly, for a proxy beside this process calls from
// another loopback address on behalf of others, as Istio's does from 127.0.0.6. What changes something is then served
// only if, besides, no other machine can reach the listener. What counts is the address of the connection, never what
// callers say about themselves.
type Access struct {
	TokenFile string       // ADMIN_TOKEN_FILE; it is read for each call with a token, so it may change
	Listener  net.Addr     // that callers connect to; nil counts as one that everybody can reach
	Host      string       // the variable that says where it is, for errors: GRPC_HOST if empty
	Log       *slog.Logger // gets a TokenFile that cannot be used; nil discards
}

// Allow returns nil if a caller at an address, with these authorizations, may look, or with change, change something. Otherwise
// the error is the status to answer with: UNAUTHENTICATED where a token would help, or else PERMISSION_DENIED.
func (a *Access) Allow(from net.Addr, authorization []string, change bool) error {
	switch {
	case a.TokenFile != "":
		return a.allowToken(authorization)
	case !exactlyLocal(from):
		return status.Error(codes.PermissionDenied,
			"without ADMIN_TOKEN_FILE this is for callers from 127.0.0.1, from ::1 or on a unix socket: set ADMIN_TOKEN_FILE to let others in with a token")
	case change && !private(a.Listener):
		return status.Errorf(codes.PermissionDenied,
			"without ADMIN_TOKEN_FILE this is served only where no other machine can connect: set ADMIN_TOKEN_FILE, or %s to 127.0.0.1", cmp.Or(a.Host, "GRPC_HOST"))
	}
	return nil
}

func (a *Access) allowToken(authorization []string) error {
	token, ok := bearer(authorization)
	if !ok {
		return status.Error(codes.Unauthenticated, `this needs the token of ADMIN_TOKEN_FILE: send "authorization: Bearer TOKEN"`)
	}
	want, err := readToken(a.TokenFile)
	if err != nil {
		a.log().Warn("no admin token is accepted: its file cannot be used", "error", err)
		return status.Error(codes.Unauthenticated, "the token is refused")
	}
	if !equal(token, want) {
		return status.Error(codes.Unauthenticated, "the token is refused")
	}
	return nil
}

func (a *Access) log() *slog.Logger {
	if a.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return a.Log
}

// AllowHTTP returns 200 if the sender of a request may see what only callers who may change something do, or else the
// status to answer with, and why.
func (a *Access) AllowHTTP(r *http.Request) (code int, why string) {
	var from net.Addr
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		from = net.TCPAddrFromAddrPort(at)
	}
	err := a.Allow(from, r.Header.Values("Authorization"), true)
	if err == nil {
		return http.StatusOK, ""
	}
	if code = http.StatusForbidden; status.Code(err) == codes.Unauthenticated {
		code = http.StatusUnauthorized
	}
	return code, status.Convert(err).Message()
}

// allow is Allow for the caller of a method.
func (a *Access) allow(ctx context.Context, change bool) error {
	var from net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return a.Allow(from, md.Get("authorization"), change)
}

// caller returns what let the caller of ctx in, which allow has done, and the address that it calls from.
func (a *Access) caller(ctx context.Context) (by, from string) {
	by, from = "this machine", "unknown"
	if a.TokenFile != "" {
		by = "token"
	}
	if p, ok := peer.FromContext(ctx); ok {
		if from = p.Addr.String(); p.Addr.Network() == "unix" {
			from = "unix socket"
		}
	}
	return by, from
}

// exactlyLocal reports whether a connection is made by this machine itself, as far as its address tells.
func exactlyLocal(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.Equal(net.IPv4(127, 0, 0, 1)) || a.IP.Equal(net.IPv6loopback)
	case *net.UnixAddr:
		return true
	default:
		return false
	}
}

// private reports whether no other machine can connect to a listener.
func private(a net.Addr) bool {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	default:
		return false
	}
}

// bearer returns the token that came with the call.
func bearer(authorization []string) (token string, ok bool) {
	if len(authorization) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(authorization[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}

// readToken reads the token file. That is done for each call with a token, so that a rotated secret takes effect at
// once. White space around the token, such as an editor's final newline, is not part of it. An empty file is an error.
func readToken(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("reading ADMIN_TOKEN_FILE: %w", err)
	}
	defer func() { _ = f.Close() }() // nothing was written
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("reading ADMIN_TOKEN_FILE: %w", err)
	}
	token := strings.TrimSpace(string(b))
	switch {
	case len(b) > maxToken:
		return "", fmt.Errorf("reading ADMIN_TOKEN_FILE: %s holds more than %d bytes", file, maxToken)
	case token == "":
		return "", fmt.Errorf("reading ADMIN_TOKEN_FILE: %s: the file is empty; write a token into it", file)
	}
	return token, nil
}

// equal compares in a time that reveals nothing about either text, not even its length.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}
