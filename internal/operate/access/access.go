// Package access decides who may do what is not for everyone who reaches a listener: call the admin API, look at the console, take profiles.
// A [Policy] says who is let in, and as [Who]. A [Guard] slows those down who guess tokens.
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

// Policy decides who is let in on a listener.
//
// Callers on the admin socket are the user of this process, and may do everything. With tokens or names of certificates all
// others need one, wherever they call from. Without any, only callers on this machine may look, and nothing can be changed: on
// a unix socket, whose file mode says who they are, or from 127.0.0.1 or ::1 exactly, for a proxy beside this process calls from
// another loopback address on behalf of others, as Istio's does from 127.0.0.6. What counts is the address of the connection,
// never what callers say about themselves.
type Policy struct {
	TokenFile      string       // ADMIN_TOKEN_FILE, for everything; it is read for each call with a token, so it may change
	ReadTokenFile  string       // ADMIN_READ_TOKEN_FILE, for looking; likewise
	Names          []string     // ADMIN_TLS_SAN: names of certificates, of which one is good for everything
	ReadNames      []string     // ADMIN_READ_TLS_SAN: the same, for looking
	ReadSeesValues bool         // whether those who may only look see values of end users
	InClear        bool         // whether tokens are good also over a network without TLS
	Socket         string       // the path of the admin socket; empty if there is none
	Listener       net.Addr     // that those connect to who take profiles; nil counts as one that everyone can reach
	Host           string       // the variable that says where it is, for errors: GRPC_HOST if empty
	Guard          *Guard       // against those who guess; nil is none
	Log            *slog.Logger // gets files that cannot be used; nil discards
}

// Caller is what is known of the sender of a call.
type Caller struct {
	From          net.Addr
	Authorization []string             // as sent
	TLS           *tls.ConnectionState // nil without TLS
	OnSocket      bool                 // on the admin socket
}

// Who is a caller that a Policy has let in.
type Who struct {
	Name   string // of the token or the certificate
	From   string // the address
	Full   bool   // it may change something
	Masked bool   // values of end users have to be hidden

	Domains []string // of which it is one that a call must be about; nil if it may be about all, and about the process

	Mask *[32]byte // key that hides values; see [Who.Hide]
}

// Limited reports whether w may see and change what belongs to some domains alone.
func (w *Who) Limited() bool { return w.Domains != nil }

// Narrow reports whether w may only look, or is limited to domains: of what all share there is always some for others.
func (w *Who) Narrow() bool { return !w.Full || w.Limited() }

// Sees reports whether w may see what belongs to a domain. What belongs to none, or to the whole process, is for those who are not
// limited.
func (w *Who) Sees(domain string) bool {
	return w.Domains == nil || slices.Contains(w.Domains, domain)
}

// DomainText names the domains of w, for messages.
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

// Hide returns a text that stands for a value of an end user, which w may not see if it is Masked. The text is the same for the same value
// and Mask, and without the Mask the value cannot be found by trying.
func (w *Who) Hide(value string) string {
	h := hmac.New(sha256.New, w.Mask[:])
	_, _ = h.Write([]byte(value)) // a hash takes everything
	return "#" + hex.EncodeToString(h.Sum(nil)[:6])
}

// debugHost is the variable of the debug listener's address.
const debugHost = "DEBUG_HOST"

// overheard returns the error for a token, or for a session, that comes over a network without TLS; nil if c's does not.
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

// errNoToken is the text for a call that shows nothing.
const errNoToken = `this requires a token from ADMIN_TOKEN_FILE: send "authorization: Bearer TOKEN"`

// Guarded reports whether callers have to show who they are.
func (p *Policy) Guarded() bool {
	return p.TokenFile != "" || p.ReadTokenFile != "" || len(p.Names)+len(p.ReadNames) > 0
}

// Allow returns who calls, if they may look, or with change, change something. Otherwise the error is the status to answer
// with, after a while if it is for a wrong token: UNAUTHENTICATED where a token would help, RESOURCE_EXHAUSTED where too many wrong
// ones came from the same address, or else PERMISSION_DENIED.
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

// local is the name of callers on this machine who need no other.
const local = "this machine"

// identified is who for callers who have to show who they are.
func (p *Policy) identified(c Caller, change bool) (Who, error) {
	token, hasToken := bearer(c.Authorization)
	name, full, isNamed := p.certificate(c.TLS)
	var shown Token
	switch {
	case hasToken: // and a certificate, if there is one too, does not count
		if err := p.overheard(c); err != nil {
			return Who{}, err
		}
		shown, full, _ = p.token(token)
		if err := p.Guard.judge(c.From, shown.Text); err != nil {
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

// token returns the token that text is, which has a name, and whether it is good for changes.
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

// tokens returns those that are good for changes, or those for looking; none if their file cannot be used.
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

// certificate returns the name for which a client's certificate is let in, and whether it is good for everything.
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

// Check logs which files cannot be used.
func (p *Policy) Check() { _, _ = p.tokens(true), p.tokens(false) }

// AllowHTTP returns 200 if the sender of a request may see what only callers who may change something do, or else the
// status to answer with, and why.
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

// remote returns the address that a request came from; nil if it is not known.
func remote(r *http.Request) net.Addr {
	if at, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		return net.TCPAddrFromAddrPort(at)
	}
	return nil
}

// AllowCall is Allow for the caller of a method.
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

// PeerOf returns who made a request, as gRPC has it.
func PeerOf(r *http.Request) *peer.Peer {
	p := &peer.Peer{Addr: remote(r)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *r.TLS}
	}
	return p
}

// AddressText returns the address of a caller in words; nil is one that is not known.
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

// private reports whether no other machine can connect to a listener, or whether a connection stays on this machine.
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
