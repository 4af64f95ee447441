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

// client is the connection to a running server. The first call makes it. Errors of calls say what to do.
type client struct {
	addr      string
	addrs     []string // as often as --addr was given
	timeout   time.Duration
	ca        string
	cert, key string
	tls       bool
	tokenFile string

	home   string             // where a server with the same environment serves gRPC to this machine
	port   string             // its port; empty if wrong says why that is not known
	wrong  error              // with the variables that say where it serves
	named  bool               // home is that of RATELIMITD_ADDR
	given  func() bool        // an address is given, or how to reach one
	token  string             // of tokenFile
	socket adminsocket.Server // which is asked unless an address is given
	conn   *grpc.ClientConn   // nil before the first call
}

// add adds the flags, which all commands share.
func (c *client) add(p *program, flags *pflag.FlagSet) {
	c.findHome(p)
	c.addr, c.timeout = c.home, 5*time.Second
	c.given = func() bool { return c.named || c.secure() || flags.Changed("addr") }
	another := func(text string) error { // connect rejects several addresses; top takes them
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

// addrVariable is the default of --addr. It is read by commands alone, so that it may name a server elsewhere.
const addrVariable = "RATELIMITD_ADDR"

// findHome reads the variables that say where a server with the same environment is, and the file of its token.
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
	s, _ := settings.Only(p.Environ, "GRPC_UDS", "ADMIN_TOKEN_FILE", "ADMIN_SOCKET") // which take any text
	c.tokenFile = s.Admin.TokenFile
	if s.GRPC.UDS != "" {
		c.home = "unix:" + s.GRPC.UDS
	}
	c.socket = adminsocket.Server{Configured: s.Admin.Socket, UDS: s.GRPC.UDS, Port: port.GRPC.Port}
	if there := p.Env(addrVariable); there != "" {
		c.home, c.named = there, true
	}
}

// Invoke implements [grpc.ClientConnInterface]: a call, whose answer has to come within --timeout.
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

// close ends the connection, if there is one.
func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close() // nothing is under way any more
	}
}

// connect reads --addr and the token, and connects lazily, unless it is connected; an error means that the flags are wrong.
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
		return c.wrong // which says why there is no port for it
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
		target = "passthrough:///" + url.PathEscape(target) // so that it is looked up by what dials, which says what is wrong with it
	}
	c.conn, err = c.dial(target)
	return err
}

// defaultPort is the default of GRPC_PORT.
const defaultPort = "8081"

// command returns the text of a ratelimitd command that reaches the same server.
func (c *client) command(text string) string {
	text = "ratelimitd " + text
	switch {
	case len(c.addrs) > 0:
		return text + " --addr " + shellWord(c.addrs[0])
	case c.port != "" && c.port != defaultPort && !c.named:
		return "GRPC_PORT=" + c.port + " " + text
	}
	return text
}

// dial connects lazily; an error means that the flags are wrong.
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
		pem, err := smallfile.Read(c.ca, smallfile.Most)
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

// authorized returns ctx with the token, if there is one and the method is one of the admin API.
func (c *client) authorized(ctx context.Context, method string) context.Context {
	if c.token == "" || !strings.HasPrefix(method, "/"+adminv1.AdminService_ServiceDesc.ServiceName) {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

// callError is the error of a call: its status, and in words what to do.
type callError struct {
	*status.Status

	text string
}

// Error implements error.
func (e *callError) Error() string { return e.text }

// GRPCStatus returns the status to [status.FromError].
func (e *callError) GRPCStatus() *status.Status { return e.Status }

// explain returns an error that says in words why a call to the server failed, and what to do.
func (c *client) explain(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err // it already says what to do
	}
	return &callError{s, c.explanation(s.Code(), s.Message())}
}

// explanation returns in words what an answer of grpc means.
func (c *client) explanation(code codes.Code, text string) string {
	switch asking := "asking " + c.addr + ": "; { // the texts are grpc's
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

// unconnected returns why grpc could not connect, by its text, and what to do about the common causes.
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
		{"application protocol", port}, // as TLS calls it
		{"ALPN", port},                 // as grpc calls it
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

// address is where --addr says that a server is.
type address struct {
	target string // host:port, or unix:PATH
	tls    bool   // it is a URL that asks for TLS
}

var errNoPort = errors.New("the port is missing")

// parseAddress reads the value of --addr. A host without a port has the given one, which is that of GRPC_PORT, or empty.
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
		rest, isURL = strings.TrimPrefix(rest, "/"), false // as gRPC spells it, dns:///host:port
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

// isIP reports whether text is an IP address, which may have a zone, as in fe80::1%eth0.
func isIP(text string) bool {
	_, err := netip.ParseAddr(text)
	return err == nil
}

func isPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}
