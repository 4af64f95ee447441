package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/process/adminsocket"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// client is a lazy connection to a running server. Its errors contain advice.
type client struct {
	addr      string
	addrs     []string // all values of --addr
	timeout   time.Duration
	ca        string
	cert, key string
	tls       bool
	tokenFile string

	home      string             // address of a server with the same environment on this machine
	port      string             // its port; empty if wrong is set
	wrong     error              // error in the variables of the server's address
	named     bool               // home comes from RATELIMITD_ADDR
	given     func() bool        // reports whether a flag gives an address or a way to connect
	token     string             // content of tokenFile
	homeToken string             // ADMIN_TOKEN_FILE
	socket    adminsocket.Server // the server's admin socket, the default address
	conn      *grpc.ClientConn   // nil before the first call
}

// add adds the flags that all commands share.
func (c *client) add(p *program, flags *pflag.FlagSet) {
	c.findHome(p)
	c.addr, c.timeout = c.home, 5*time.Second
	c.given = func() bool { return c.named || c.secure() || flags.Changed("addr") }
	another := func(text string) error { // connect rejects several addresses; only top accepts them
		c.addr, c.addrs = text, append(c.addrs, text)
		return nil
	}
	addr := &flagValue{"string", func() string { return c.addr }, another}
	flags.Var(addr, "addr", "gRPC address of the server: host, host:port, URL or unix:PATH ($RATELIMITD_ADDR)")
	spanVar(flags, &c.timeout, "timeout", "time to wait for an answer")
	flags.BoolVar(&c.tls, "tls", false, "use TLS")
	flags.StringVar(&c.ca, "ca", "", "CA certificate file (PEM) to verify the server with; implies --tls")
	flags.StringVar(&c.cert, "cert", "", "client certificate file (PEM); implies --tls")
	flags.StringVar(&c.key, "key", "", "client key file (PEM)")
	flags.StringVar(&c.tokenFile, "token-file", c.tokenFile, "file with the admin API token ($ADMIN_TOKEN_FILE)")
}

// addrVariable names the default of --addr. Only commands read it, so it may name a server elsewhere.
const addrVariable = "RATELIMITD_ADDR"

// findHome reads the variables for the address of a server with the same environment, and for its token file.
func (c *client) findHome(p *program) {
	port, err := settings.Only(p.Environ, "GRPC_PORT")
	c.port, c.wrong = port.GRPC.Port, err
	c.home = net.JoinHostPort("127.0.0.1", c.port)
	if err == nil && !isPort(c.port) {
		c.wrong = fmt.Errorf("GRPC_PORT=%q lets the server choose a port, so set --addr to its address", c.port)
	}
	if c.wrong != nil {
		c.port = ""
	}
	s, _ := settings.Only(p.Environ, "GRPC_UDS", "ADMIN_TOKEN_FILE", "ADMIN_SOCKET") // any text is valid
	c.tokenFile, c.homeToken = s.Admin.TokenFile, s.Admin.TokenFile
	if s.GRPC.UDS != "" {
		c.home = "unix:" + s.GRPC.UDS
	}
	c.socket = adminsocket.Server{Configured: s.Admin.Socket, UDS: s.GRPC.UDS, Port: port.GRPC.Port}
	if there := p.Env(addrVariable); there != "" {
		c.home, c.named = there, true
	}
}

// Invoke implements [grpc.ClientConnInterface]. The call must end within --timeout.
func (c *client) Invoke(ctx context.Context, method string, q, a any, opts ...grpc.CallOption) error {
	if err := c.connect(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.authorized(ctx, method), c.timeout)
	defer cancel()
	return c.explain(c.conn.Invoke(ctx, method, q, a, opts...))
}

// NewStream implements [grpc.ClientConnInterface].
func (c *client) NewStream( //nolint:ireturn // grpc has no other type for it
	ctx context.Context, d *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := c.connect(); err != nil {
		return nil, err
	}
	return c.conn.NewStream(c.authorized(ctx, method), d, method, opts...)
}

// close closes the connection, if any.
func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // no calls are in flight
	}
}

// connect reads --addr and the token, and creates the connection lazily if there is none. Errors are errors in the flags.
func (c *client) connect() (err error) {
	if c.conn != nil {
		return nil
	}
	if len(c.addrs) > 1 {
		return fmt.Errorf("--addr %s: only top takes several servers", c.addrs[1])
	}
	if c.timeout <= 0 {
		return fmt.Errorf("--timeout %s: must be a duration above 0, such as 500ms or 5s", descriptors.SpanText(c.timeout))
	}
	if !c.given() {
		if path, ok := c.socket.Find(); ok {
			c.addr = "unix:" + path
		}
	}
	if c.wrong != nil && c.addr == c.home && !c.named && !strings.HasPrefix(c.home, "unix:") {
		return c.wrong
	}
	at, err := parseAddress(c.addr, c.port)
	if errors.Is(err, errNoPort) {
		return c.wrong // explains why there is no default port
	}
	if err != nil && c.named && c.addr == c.home {
		return fmt.Errorf("%s: %w", addrVariable, err)
	}
	if err != nil {
		return err
	}
	if c.tokenFile != "" {
		all, err := access.ReadTokens(c.tokenFile)
		if err != nil {
			return fmt.Errorf("reading --token-file ($ADMIN_TOKEN_FILE): %w", err)
		}
		c.token = all[0].Text
	}
	c.addr, c.tls = at.target, c.tls || at.tls
	target := c.addr
	if !strings.HasPrefix(target, "unix:") {
		target = "passthrough:///" + url.PathEscape(target) // the dialer resolves the name, and its errors explain more
	}
	c.conn, err = c.dial(target)
	return err
}

// defaultPort is the default of GRPC_PORT.
const defaultPort = "8081"

// command returns the text of a ratelimitd command that reaches the same server with the same credentials.
func (c *client) command(text string) string {
	text = "ratelimitd " + text
	switch {
	case len(c.addrs) > 0:
		text += " --addr " + shellWord(c.addrs[0])
	case c.port != "" && c.port != defaultPort && !c.named:
		text = "GRPC_PORT=" + c.port + " " + text
	}
	for _, flag := range [][2]string{{"ca", c.ca}, {"cert", c.cert}, {"key", c.key}, {"token-file", c.tokenFile}} {
		if flag[1] != "" && flag[1] != c.homeToken {
			text += " --" + flag[0] + " " + shellWord(flag[1])
		}
	}
	return text
}

// dial creates a lazy connection. Errors are errors in the flags.
func (c *client) dial(target string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	creds, err := c.credentials()
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(target, append(more, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", c.addr, err)
	}
	return conn, nil
}

func (c *client) credentials() (credentials.TransportCredentials, error) { //nolint:ireturn // grpc has no other type for it
	if !c.secure() {
		return insecure.NewCredentials(), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.ca != "" {
		pem, err := smallfile.Read(c.ca, smallfile.MaxSize)
		if err != nil {
			return nil, fmt.Errorf("reading --ca: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading --ca: %s has no certificate in PEM form", c.ca)
		}
	}
	if (c.cert == "") != (c.key == "") {
		return nil, errors.New("loading --cert and --key: set both, or neither")
	}
	if c.cert != "" {
		pair, err := smallfile.KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("loading --cert and --key, which take PEM files: %s", strings.TrimPrefix(err.Error(), "tls: "))
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(config), nil
}

// authorized adds the token, if any, to ctx for a method of the admin API.
func (c *client) authorized(ctx context.Context, method string) context.Context {
	if c.token == "" || !strings.HasPrefix(method, "/"+adminv1.AdminService_ServiceDesc.ServiceName) {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

// callError is the status of a failed call, with advice.
type callError struct {
	*status.Status

	text string
}

// Error implements [error].
func (e *callError) Error() string { return e.text }

// GRPCStatus implements the interface that [status.FromError] expects.
func (e *callError) GRPCStatus() *status.Status { return e.Status }

// explain adds the reason for a failed call, and advice.
func (c *client) explain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err // already has advice
	}
	return &callError{s, c.explanation(s.Code(), s.Message())}
}

// explanation describes an error of grpc.
func (c *client) explanation(code codes.Code, text string) string {
	switch asking := "asking " + c.addr + ": "; { // texts of grpc
	case code == codes.Unavailable && (strings.HasPrefix(text, "error reading from server") || strings.HasPrefix(text, "write ")):
		hint := ""
		if c.secure() {
			hint = ": if it requires a client certificate, set --cert and --key" + accepted
		}
		return asking + "the server closed the connection before answering" + hint
	case code == codes.Unavailable && strings.HasPrefix(text, "connection error"):
		return asking + unconnected(text)
	case code == codes.DeadlineExceeded:
		return asking + "no answer within " + descriptors.SpanText(c.timeout) + " (--timeout)"
	case code == codes.Unauthenticated && c.token == "":
		return "the server requires a token: set --token-file ($ADMIN_TOKEN_FILE) to a file with a token from its ADMIN_TOKEN_FILE"
	case code == codes.Unimplemented && strings.Contains(text, adminv1.AdminService_ServiceDesc.ServiceName):
		return "the server has no admin API: start it without ADMIN=false"
	case code == codes.Unimplemented:
		return asking + "the server there is not a rate limit service: set --addr to another address"
	default:
		return asking + code.String() + ": " + text
	}
}

// secure reports whether the client uses TLS.
func (c *client) secure() bool { return c.tls || c.ca != "" || c.cert != "" || c.key != "" }

// accepted ends the hint to use a client certificate.
const accepted = " to the files of a certificate that the server accepts"

// unconnected explains grpc's error text for a failed connection, and advises on common causes.
func unconnected(text string) string {
	text = strings.TrimSuffix(text, `"`)
	cause := text[strings.LastIndex(text, ": ")+1:]
	if _, certificate, ok := strings.Cut(text, "x509: "); ok {
		cause = certificate
	}
	const port = "the server there is not a gRPC server: set --addr to the gRPC port, 8081 by default"
	hint := "is the server running there? set --addr to another address"
	for _, known := range [...]struct{ text, hint string }{
		{"unknown authority", "set --ca to its CA file"},
		{"x509: ", "compare --addr and --ca with the server's certificate"},
		{"first record does not look like a TLS", "the server does not use TLS there: leave out --tls and https://, and --ca, --cert and --key, which imply TLS"},
		{"application protocol", port}, // TLS's term
		{"ALPN", port},                 // grpc's term
		{"remote error: tls: ", "set --cert and --key" + accepted},
		{"http2: ", port},
		{"server preface", "the server closed the connection: if it uses TLS, add --tls, and --ca FILE if this machine does not trust its CA"},
	} {
		if strings.Contains(text, known.text) {
			hint = known.hint
			break
		}
	}
	return strings.TrimSpace(cause) + ": " + hint
}

// address is a parsed --addr.
type address struct {
	target string // host:port, or unix:PATH
	tls    bool   // from an https URL
}

var errNoPort = errors.New("the port is missing")

// parseAddress parses a value of --addr. port is the default port, from GRPC_PORT; it may be empty.
func parseAddress(text, port string) (a address, err error) {
	wrong := fmt.Errorf("--addr %q: must be a host, host:port, http://host:port, https://host:port or unix:PATH", text)
	scheme, rest, isURL := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	switch {
	case strings.HasPrefix(text, "/"):
		return address{target: "unix:" + text}, nil
	case strings.HasPrefix(text, "unix:") && strings.Trim(text, "/") != "unix:":
		return address{target: text}, nil
	case isIP(text) && strings.Contains(text, ":"):
		rest = "[" + strings.ReplaceAll(text, "%", "%25") + "]"
	case scheme == "dns" && isURL:
		rest, isURL = strings.TrimPrefix(rest, "/"), false // gRPC's syntax, dns:///host:port
	case !isURL:
		rest = strings.ReplaceAll(text, "%", "%25")
	case !slices.Contains([]string{"http", "https", "grpc", "grpcs"}, scheme):
		return a, wrong
	}
	u, err := url.Parse("//" + rest)
	if err != nil || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return a, wrong
	}
	host, own := u.Hostname(), u.Port()
	switch bracketed := strings.HasPrefix(u.Host, "["); {
	case bracketed && !isIP(host), !bracketed && strings.ContainsAny(host, ":[], "), strings.HasSuffix(u.Host, ":"):
		return a, wrong
	case host == "" && (isURL || own == ""), own != "" && !isPort(own):
		return a, wrong
	case host == "":
		host = "127.0.0.1"
	case own == "" && port == "":
		return a, errNoPort
	case own == "":
		own = port
	}
	return address{target: net.JoinHostPort(host, own), tls: isURL && strings.HasSuffix(scheme, "s")}, nil
}

// isIP reports whether text is an IP address, with or without a zone, as in fe80::1%eth0.
func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
