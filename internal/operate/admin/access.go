package admin

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/process/certs"
)

// Access decides who may do what is not for everyone who reaches a listener: call the admin API, take profiles.
//
// Callers on the admin socket are the user of this process, and may do everything. With tokens or names of certificates all
// others need one, wherever they call from. Without any, only callers on this machine may look, and nothing can be changed: on
// a unix socket, whose file mode says who they are, or from 127.0.0.1 or ::1 exactly, for a proxy beside this process calls from
// another loopback address on behalf of others, as Istio's does from 127.0.0.6. What counts is the address of the connection,
// never what callers say about themselves.
type Access struct {
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

// Who is a caller that Access has let in.
type Who struct {
	Name   string // of the token or the certificate
	From   string // the address
	Full   bool   // it may change something
	Masked bool   // values of end users have to be hidden

	Domains []string // of which it is one that a call must be about; nil if it may be about all, and about the process

	mask *[32]byte // see [Who.Entries]
}

// debugHost is the variable of the debug listener's address.
const debugHost = "DEBUG_HOST"

// overheard returns the error for a token, or for a session, that comes over a network without TLS; nil if c's does not.
func (a *Access) overheard(c Caller) error {
	if a.InClear || c.TLS != nil || private(c.From) {
		return nil
	}
	do := "connect over TLS"
	if a.Host == debugHost {
		do = "set DEBUG_TLS=true, with GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY, and connect with https://"
	}
	return status.Error(codes.PermissionDenied, "tokens are accepted only over TLS or from this machine, because they could be read in transit: "+
		do+", or set ADMIN_TOKENS_IN_CLEAR=true where the network is trusted")
}

// errNoToken is the text for a call that shows nothing.
const errNoToken = `this requires a token from ADMIN_TOKEN_FILE: send "authorization: Bearer TOKEN"`

// Guarded reports whether callers have to show who they are.
func (a *Access) Guarded() bool {
	return a.TokenFile != "" || a.ReadTokenFile != "" || len(a.Names)+len(a.ReadNames) > 0
}

// Allow returns who calls, if they may look, or with change, change something. Otherwise the error is the status to answer
// with, after a while if it is for a wrong token: UNAUTHENTICATED where a token would help, RESOURCE_EXHAUSTED where too many wrong
// ones came from the same address, or else PERMISSION_DENIED.
func (a *Access) Allow(c Caller, change bool) (Who, error) {
	who, err := a.who(c, change)
	who.From = AddressText(c.From)
	if err != nil {
		a.Guard.denied()
	}
	return who, err
}

func (a *Access) who(c Caller, change bool) (Who, error) {
	switch {
	case c.OnSocket && (len(c.Authorization) == 0 || !a.Guarded()):
		return Who{Name: local, Full: true}, nil
	case a.Guarded():
		return a.identified(c, change)
	case !exactlyLocal(c.From):
		set := "ADMIN_TOKEN_FILE"
		if a.Host == debugHost && c.TLS == nil {
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
func (a *Access) identified(c Caller, change bool) (Who, error) {
	token, hasToken := bearer(c.Authorization)
	name, full, isNamed := a.certificate(c.TLS)
	var shown Token
	switch {
	case hasToken: // and a certificate, if there is one too, does not count
		if err := a.overheard(c); err != nil {
			return Who{}, err
		}
		shown, full, _ = a.token(token)
		if err := a.Guard.judge(c.From, shown.Text); err != nil {
			return Who{}, err
		}
		name = shown.Name
	case !isNamed && a.TokenFile == "" && a.ReadTokenFile == "":
		return Who{}, status.Error(codes.PermissionDenied, "this requires a client certificate with a name in ADMIN_TLS_SAN")
	case !isNamed:
		return Who{}, status.Error(codes.Unauthenticated, errNoToken)
	}
	who := Who{Name: name, Full: full, Masked: !full && !a.ReadSeesValues, Domains: shown.Domains}
	if change && !full {
		return who, status.Error(codes.PermissionDenied, "your access is read-only: a change requires a token from ADMIN_TOKEN_FILE or a certificate with a name in ADMIN_TLS_SAN")
	}
	return who, nil
}

// token returns the token that text is, which has a name, and whether it is good for changes.
func (a *Access) token(text string) (found Token, full, ok bool) {
	t, full := match(a.tokens(true), text)
	r, reads := match(a.tokens(false), text)
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
func (a *Access) tokens(full bool) []Token {
	variable, file := "ADMIN_READ_TOKEN_FILE", a.ReadTokenFile
	if full {
		variable, file = "ADMIN_TOKEN_FILE", a.TokenFile
	}
	if file == "" {
		return nil
	}
	all, err := a.Guard.tokens(file)
	if err == nil {
		return all
	}
	if omitted, ok := a.Guard.logs(variable); ok {
		a.log().Warn("no admin token is accepted: the token file cannot be used", "error", fmt.Errorf("reading %s: %w", variable, err), "omitted", omitted)
	}
	return nil
}

// certificate returns the name for which a client's certificate is let in, and whether it is good for everything.
func (a *Access) certificate(state *tls.ConnectionState) (name string, full, ok bool) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return "", false, false
	}
	leaf := state.VerifiedChains[0][0]
	for i, names := range [][]string{a.Names, a.ReadNames} {
		for _, name := range names {
			if certs.Holds(leaf, name) {
				return name, i == 0, true
			}
		}
	}
	return "", false, false
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
	who, err := a.Allow(Caller{From: remote(r), Authorization: r.Header.Values("Authorization"), TLS: r.TLS}, a.Guarded())
	if err == nil && !a.Guarded() && !private(a.Listener) {
		a.Guard.denied()
		err = status.Errorf(codes.PermissionDenied,
			"without ADMIN_TOKEN_FILE this is served only where no other machine can connect: set ADMIN_TOKEN_FILE, or %s to 127.0.0.1", cmp.Or(a.Host, "GRPC_HOST"))
	}
	switch {
	case err == nil && who.Limited():
		a.Guard.denied()
		return http.StatusForbidden, "your token is limited to " + who.domainText() + ", but this shows the whole server: use a token without domains"
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

// allow is Allow for the caller of a method.
func (a *Access) allow(ctx context.Context, change bool) (Who, error) {
	var c Caller
	if p, ok := peer.FromContext(ctx); ok {
		c.From = p.Addr
		c.OnSocket = a.Socket != "" && p.LocalAddr != nil && p.LocalAddr.Network() == "unix" && p.LocalAddr.String() == a.Socket
		if err, ok := ctx.Value(deniedKey{}).(error); ok {
			return Who{From: AddressText(c.From)}, err
		}
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok {
			c.TLS = &info.State
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	c.Authorization = md.Get("authorization")
	return a.Allow(c, change)
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
