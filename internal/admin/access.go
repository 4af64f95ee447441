package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// maxToken is the length in bytes of the longest token that is accepted.
const maxToken = 4096

// access decides who may call.
type access struct {
	tokenFile string // if empty only callers on the same machine may call
	log       *slog.Logger
}

// allow returns nil for callers on the same machine and for those with the right token, or else the status to answer
// with. What counts is the address of the connection, never what callers say about themselves.
func (a access) allow(ctx context.Context) error {
	p, ok := peer.FromContext(ctx)
	if ok && local(p.Addr) {
		return nil
	}
	if a.tokenFile == "" {
		return status.Error(codes.PermissionDenied,
			"the admin API answers callers on the same machine only (loopback, unix socket); set ADMIN_TOKEN_FILE to let others in with a token")
	}
	token, ok := bearer(ctx)
	if !ok {
		return status.Error(codes.Unauthenticated,
			`from other machines the admin API needs the token of ADMIN_TOKEN_FILE, as metadata "authorization: Bearer TOKEN"`)
	}
	want, err := readToken(a.tokenFile)
	if err != nil {
		a.log.WarnContext(ctx, "no admin token is accepted: its file cannot be used", "error", err)
		return status.Error(codes.Unauthenticated, "the token is refused")
	}
	if !equal(token, want) {
		return status.Error(codes.Unauthenticated, "the token is refused")
	}
	return nil
}

// caller returns what let the caller of ctx in, which allow has done, and the address that it calls from.
func caller(ctx context.Context) (by, from string) {
	p, ok := peer.FromContext(ctx)
	switch {
	case !ok:
		return "unknown", "unknown"
	case !local(p.Addr):
		return "token", p.Addr.String()
	case p.Addr.Network() == "unix":
		return "this machine", "unix socket"
	}
	return "this machine", p.Addr.String()
}

// local reports whether a connection comes from the machine that this process runs on.
func local(a net.Addr) bool {
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
func bearer(ctx context.Context) (token string, ok bool) {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get("authorization")
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
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
