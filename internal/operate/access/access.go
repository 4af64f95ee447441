// Package access authenticates and authorizes callers of the admin API, the console, and profiles. A [Policy] checks a caller and
// returns its identity and permissions as [Who]. A [Guard] slows down clients that guess tokens.
//
// This package is optional: the core works without it.
package access

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/process/certs"
)

// Policy authorizes callers on a listener.
//
// Callers on the admin socket are the user of this process and have all permissions. If tokens or certificate names are
// configured, all other callers need one, from any address. Otherwise callers on this machine may read, and no caller may change
// anything. A caller is on this machine if it connects through a unix socket, whose file mode controls access, or from exactly
// 127.0.0.1 or ::1: a proxy beside this process connects from another loopback address on behalf of remote clients, as Istio's
// does from 127.0.0.6. Only the address of the connection counts, never a header.
type Policy struct {
	TokenFile      string       // ADMIN_TOKEN_FILE: tokens with all permissions; read again for each call, so it may change
	ReadTokenFile  string       // ADMIN_READ_TOKEN_FILE: read-only tokens; read again likewise
	Names          []string     // ADMIN_TLS_SAN: certificate names with all permissions
	ReadNames      []string     // ADMIN_READ_TLS_SAN: read-only certificate names
	ReadSeesValues bool         // read-only callers see values of end users
	InClear        bool         // accept tokens without TLS from other machines
	Socket         string       // path of the admin socket; empty without one
	Listener       net.Addr     // listener of profiles; nil means reachable by other machines
	Host           string       // variable with the listener's address, for errors; GRPC_HOST if empty
	Guard          *Guard       // slows down guesses; nil means no guard
	Log            *slog.Logger // receives errors of token files; nil discards
}

// Caller describes the sender of a call.
type Caller struct {
	From          net.Addr
	Authorization []string             // values of the header
	TLS           *tls.ConnectionState // nil without TLS
	OnSocket      bool                 // connected to the admin socket
}

// Who is an authorized caller.
type Who struct {
	Name   string // of the token or certificate
	From   string // address
	Full   bool   // may make changes
	Masked bool   // must not see values of end users

	Domains []string // domains that calls may name; nil means all, and the whole process

	Mask *[32]byte // key that hides values; see [Who.Hide]
}

// Limited reports whether w is restricted to some domains.
func (w *Who) Limited() bool { return w.Domains != nil }

// Narrow reports whether w is read-only or limited to domains. Such callers may use only a part of shared resources.
func (w *Who) Narrow() bool { return !w.Full || w.Limited() }

// Sees reports whether w may see a domain. Only unlimited callers see what belongs to no domain, "".
func (w *Who) Sees(domain string) bool {
	return w.Domains == nil || slices.Contains(w.Domains, domain)
}

// DomainText lists the domains of w for messages.
func (w *Who) DomainText() string {
	text := strings.Join(w.Domains[:min(len(w.Domains), 10)], ", ")
	if len(w.Domains) > 10 {
		text += ", …"
	}
	if len(w.Domains) == 1 {
		return "the domain " + text
	}
	return "the domains " + text
}

// Hide returns a pseudonym for a value of an end user, for callers that are Masked. The same value and Mask give the same
// pseudonym. Without the Mask, the value cannot be found by trying candidates.
func (w *Who) Hide(value string) string {
	h := hmac.New(sha256.New, w.Mask[:])
	_, _ = h.Write([]byte(value)) // writing to a hash never fails
	return "#" + hex.EncodeToString(h.Sum(nil)[:6])
}

// debugHost is the variable with the debug listener's address.
const debugHost = "DEBUG_HOST"

// overheard returns an error if c sends a token or a session over a network without TLS.
func (p *Policy) overheard(c Caller) error {
	if p.InClear || c.TLS != nil || private(c.From) {
		return nil
	}
	do := "connect over TLS"
	if p.Host == debugHost {
		do = "set DEBUG_TLS=true, with GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, and connect with https://"
	}
	return status.Error(codes.PermissionDenied, "tokens are accepted only over TLS or from this machine, because they could be read in transit: "+
		do+", or set ADMIN_TOKENS_IN_CLEAR=true where the network is trusted")
}

// errNoToken is the error text for a call without credentials.
const errNoToken = `this requires a token from ADMIN_TOKEN_FILE: send "authorization: Bearer TOKEN"`

// Guarded reports whether callers must authenticate.
func (p *Policy) Guarded() bool {
	return p.TokenFile != "" || p.ReadTokenFile != "" || len(p.Names)+len(p.ReadNames) > 0
}

// Allow authorizes a caller to read or, with change, to make changes. Its error is the status for the answer: UNAUTHENTICATED if
// a token would help, RESOURCE_EXHAUSTED after too many wrong tokens from the same address, and PERMISSION_DENIED otherwise. A
// wrong token delays the error.
func (p *Policy) Allow(c Caller, change bool) (Who, error) {
	who, err := p.who(c, change)
	who.From = AddressText(c.From)
	if err != nil {
		p.Guard.Denied()
	}
	return who, err
}

func (p *Policy) who(c Caller, change bool) (Who, error) {
	switch {
	case c.OnSocket && (len(c.Authorization) == 0 || !p.Guarded()):
		return Who{Name: local, Full: true}, nil
	case p.Guarded():
		return p.identified(c, change)
	case !exactlyLocal(c.From):
		set := "ADMIN_TOKEN_FILE"
		if p.Host == debugHost && c.TLS == nil {
			set += ", and DEBUG_TLS=true,"
		}
		return Who{}, status.Errorf(codes.PermissionDenied,
			"without ADMIN_TOKEN_FILE only callers from 127.0.0.1, from ::1 or on a unix socket are allowed: set %s to admit other callers with a token", set)
	case change:
		return Who{Name: local}, status.Error(codes.PermissionDenied,
			"without ADMIN_TOKEN_FILE this is read-only, because any program on this machine could call it: "+
				"run the command as the server's user, with the server's GRPC_PORT and without --addr, or set ADMIN_TOKEN_FILE")
	}
	return Who{Name: local}, nil
}

// local is the name of unauthenticated callers on this machine.
const local = "this machine"

// identified authorizes a caller that must authenticate.
func (p *Policy) identified(c Caller, change bool) (Who, error) {
	token, hasToken := bearer(c.Authorization)
	name, full, isNamed := p.certificate(c.TLS)
	var shown Token
	switch {
	case hasToken: // a certificate is then ignored
		if err := p.overheard(c); err != nil {
			return Who{}, err
		}
		shown, full, _ = p.token(token)
		if err := p.Guard.checkGuess(c.From, shown.Text); err != nil {
			return Who{}, err
		}
		name = shown.Name
	case !isNamed && p.TokenFile == "" && p.ReadTokenFile == "":
		return Who{}, status.Error(codes.PermissionDenied, "this requires a client certificate with a name in ADMIN_TLS_SAN")
	case !isNamed:
		return Who{}, status.Error(codes.Unauthenticated, errNoToken)
	}
	who := Who{Name: name, Full: full, Masked: !full && !p.ReadSeesValues, Domains: shown.Domains}
	if change && !full {
		return who, status.Error(codes.PermissionDenied, "your access is read-only: a change requires a token from ADMIN_TOKEN_FILE or a certificate with a name in ADMIN_TLS_SAN")
	}
	return who, nil
}

// token finds a token by its text and fills in its caller name. full reports whether it has all permissions.
func (p *Policy) token(text string) (found Token, full, ok bool) {
	t, full := match(p.tokens(true), text)
	r, reads := match(p.tokens(false), text)
	switch {
	case full:
		t.Name = callerName(t, true)
		return t, true, true
	case reads:
		r.Name = callerName(r, false)
		return r, false, true
	}
	return Token{}, false, false
}

// tokens returns the tokens with all permissions or the read-only ones. It returns nil if their file cannot be used.
func (p *Policy) tokens(full bool) []Token {
	variable, file := "ADMIN_READ_TOKEN_FILE", p.ReadTokenFile
	if full {
		variable, file = "ADMIN_TOKEN_FILE", p.TokenFile
	}
	if file == "" {
		return nil
	}
	all, err := p.Guard.tokens(file)
	if err == nil {
		return all
	}
	p.Guard.through(cmp.Or(p.Log, slog.New(slog.DiscardHandler)), variable).
		Warn("no admin token is accepted: the token file cannot be used", "error", fmt.Errorf("reading %s: %w", variable, err))
	return nil
}

// certificate returns the accepted name of a client certificate, and whether it has all permissions.
func (p *Policy) certificate(state *tls.ConnectionState) (name string, full, ok bool) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return "", false, false
	}
	leaf := state.VerifiedChains[0][0]
	for i, names := range [][]string{p.Names, p.ReadNames} {
		for _, name := range names {
			if certs.Holds(leaf, name) {
				return name, i == 0, true
			}
		}
	}
	return "", false, false
}

// Check logs token files that cannot be used.
func (p *Policy) Check() { _, _ = p.tokens(true), p.tokens(false) }

// AllowHTTP authorizes a request for data that requires all permissions. It returns 200, or the status of the answer and the
// reason.
func (p *Policy) AllowHTTP(r *http.Request) (code int, why string) {
	who, err := p.Allow(Caller{From: remote(r), Authorization: r.Header.Values("Authorization"), TLS: r.TLS}, p.Guarded())
	if err == nil && !p.Guarded() && !private(p.Listener) {
		p.Guard.Denied()
		err = status.Errorf(codes.PermissionDenied,
			"without ADMIN_TOKEN_FILE this is served only where no other machine can connect: set ADMIN_TOKEN_FILE, or %s to 127.0.0.1", cmp.Or(p.Host, "GRPC_HOST"))
	}
	switch {
	case err == nil && who.Limited():
		p.Guard.Denied()
		return http.StatusForbidden, "your token is limited to " + who.DomainText() + ", but this shows the whole server: use a token without domains"
	case err == nil:
		return http.StatusOK, ""
	}
	return runtime.HTTPStatusFromCode(status.Code(err)), status.Convert(err).Message()
}

// remote returns the client address of a request, or nil if it is unknown.
func remote(r *http.Request) net.Addr {
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return net.TCPAddrFromAddrPort(at)
	}
	return nil
}

// AllowCall is Allow for the caller of a gRPC method.
func (p *Policy) AllowCall(ctx context.Context, change bool) (Who, error) {
	var c Caller
	if from, ok := peer.FromContext(ctx); ok {
		c.From = from.Addr
		c.OnSocket = p.Socket != "" && from.LocalAddr != nil && from.LocalAddr.Network() == "unix" && from.LocalAddr.String() == p.Socket
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			c.TLS = &info.State
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	c.Authorization = md.Get("authorization")
	return p.Allow(c, change)
}

// PeerOf returns the client of a request as a gRPC peer.
func PeerOf(r *http.Request) *peer.Peer {
	p := &peer.Peer{Addr: remote(r)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	return p
}

// AddressText formats the address of a caller; nil means unknown.
func AddressText(a net.Addr) string {
	switch {
	case a == nil:
		return "unknown"
	case a.Network() == "unix":
		return "unix socket"
	default:
		return a.String()
	}
}

// exactlyLocal reports whether a connection comes from this machine by its address, and not from a proxy on another loopback
// address.
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

// private reports whether the address is unreachable from other machines.
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

// bearer returns the bearer token of an authorization header.
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
