package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/process/adminsocket"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// client says how commands that talk to a running server reach it.
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
}

// add adds the flags, which all commands share.
func (c *client) add(p *program, flags *pflag.FlagSet) {
	c.findHome(p)
	c.addr, c.timeout = c.home, 5*time.Second
	c.given = func() bool { return c.named || c.secure() || flags.Changed("addr") }
	flags.Var((*addrFlag)(c), "addr", "gRPC address of the server: host, host:port, URL or unix:PATH ($RATELIMITD_ADDR)")
	flags.Var((*spanFlag)(&c.timeout), "timeout", "time to wait for an answer")
	flags.BoolVar(&c.tls, "tls", false, "use TLS")
	flags.StringVar(&c.ca, "ca", "", "CA certificate file (PEM) to verify the server with; implies --tls")
	flags.StringVar(&c.cert, "cert", "", "client certificate file (PEM); implies --tls")
	flags.StringVar(&c.key, "key", "", "client key file (PEM)")
	flags.StringVar(&c.tokenFile, "token-file", c.tokenFile, "file with the admin API token ($ADMIN_TOKEN_FILE)")
}

// addrFlag is the flag --addr. [client.connect] rejects several addresses; top takes them.
type addrFlag client

// String implements [pflag.Value].
func (f *addrFlag) String() string { return f.addr }

// Set implements [pflag.Value].
func (f *addrFlag) Set(text string) error {
	f.addr, f.addrs = text, append(f.addrs, text)
	return nil
}

// Type implements [pflag.Value].
func (*addrFlag) Type() string { return "string" }

// asksServer marks a command that queries a server.
func asksServer(cmd *cobra.Command) {
	cmd.Annotations = map[string]string{"server": "true"}
}

// onlyOfServers rejects global flags for a command that queries no server.
func onlyOfServers(cmd *cobra.Command, _ []string) (err error) {
	cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && cmd.Annotations["server"] == "" && err == nil {
			err = fmt.Errorf("--%s: %s does not query a server: see %[2]s --help", f.Name, cmd.CommandPath())
		}
	})
	return err
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

// connect reads --addr, and connects lazily; an error means that the flags are wrong.
func (c *client) connect() (*grpc.ClientConn, error) {
	if len(c.addrs) > 1 {
		return nil, fmt.Errorf("--addr %s: only top takes several servers", c.addrs[1])
	}
	if c.timeout <= 0 {
		return nil, fmt.Errorf("--timeout %s: must be a duration above 0, such as 500ms or 5s", descriptors.SpanText(c.timeout))
	}
	if !c.given() {
		if path, ok := c.socket.Find(); ok {
			c.addr = "unix:" + path
		}
	}
	if c.wrong != nil && c.addr == c.home && !c.named && !strings.HasPrefix(c.home, "unix:") {
		return nil, c.wrong
	}
	at, err := parseAddress(c.addr, c.port)
	if errors.Is(err, errNoPort) {
		return nil, c.wrong // which says why there is no port for it
	}
	if err != nil && c.named && c.addr == c.home {
		return nil, fmt.Errorf("%s: %w", addrVariable, err)
	}
	if err != nil {
		return nil, err
	}
	if c.token, err = readToken(c.tokenFile); err != nil {
		return nil, err
	}
	c.addr, c.tls = at.target, c.tls || at.tls
	if strings.HasPrefix(c.addr, "unix:") {
		return c.dial(c.addr)
	}
	return c.dial("passthrough:///" + url.PathEscape(c.addr)) // so that it is looked up by what dials, which says what is wrong with it
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
	conn, err := grpc.NewClient(target, append(more, grpc.WithTransportCredentials(creds), grpc.WithUnaryInterceptor(c.inTime))...)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", c.addr, err)
	}
	return conn, nil
}

// inTime makes a call, whose answer has to come within --timeout.
func (c *client) inTime(ctx context.Context, method string, q, a any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error { //nolint:revive // as grpc calls it
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	return call(ctx, method, q, a, conn, opts...)
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

// admin returns ctx with the token of the admin API, if there is one.
func (c *client) admin(ctx context.Context) context.Context {
	if c.token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.token)
}

// readToken reads a token of the admin API, the first one of the file; there is none without a file.
func readToken(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	all, err := admin.ReadTokens(file)
	if err != nil {
		return "", fmt.Errorf("reading --token-file ($ADMIN_TOKEN_FILE): %w", err)
	}
	return all[0].Text, nil
}

// explain returns an error that says in words why a call to the server failed, and what to do.
func (c *client) explain(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err // it already says what to do
	}
	switch code, text := s.Code(), s.Message(); { // the texts are grpc's
	case code == codes.Unavailable && (strings.HasPrefix(text, "error reading from server") || strings.HasPrefix(text, "write ")):
		hint := ""
		if c.secure() {
			hint = ": if it requires a client certificate, set --cert and --key" + accepted
		}
		return fmt.Errorf("asking %s: the server closed the connection before answering%s", c.addr, hint)
	case code == codes.Unavailable && strings.HasPrefix(text, "connection error"):
		return fmt.Errorf("asking %s: %s", c.addr, unconnected(text))
	case code == codes.DeadlineExceeded:
		return fmt.Errorf("asking %s: no answer within %s (--timeout)", c.addr, descriptors.SpanText(c.timeout))
	case code == codes.Unauthenticated && c.token == "":
		return errors.New("the server requires a token: set --token-file ($ADMIN_TOKEN_FILE) to a file with a token from its ADMIN_TOKEN_FILE")
	case code == codes.Unimplemented && strings.Contains(text, adminv1.AdminService_ServiceDesc.ServiceName):
		return errors.New("the server has no admin API: start it without ADMIN=false")
	case code == codes.Unimplemented:
		return fmt.Errorf("asking %s: the server there is not a rate limit service: set --addr to another address", c.addr)
	default:
		return fmt.Errorf("asking %s: %s: %s", c.addr, code, text)
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

// messages returns the entries of d for the admin API.
func (d *descriptor) messages() []*adminv1.Entry {
	all := make([]*adminv1.Entry, 0, len(d.entries))
	for _, e := range d.entries {
		all = append(all, &adminv1.Entry{Key: strings.ToValidUTF8(e.key, "\uFFFD"), RawValue: []byte(e.value)})
	}
	return all
}

// counterAt names a counter.
type counterAt struct {
	domain     string
	descriptor *descriptor
}

// asked connects, and calls f, which asks the server. What f returns may come from the server.
func (c *client) asked(ctx context.Context, f func(context.Context, adminv1.AdminServiceClient) error) error {
	conn, err := c.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	if err := f(c.admin(ctx), adminv1.NewAdminServiceClient(conn)); err != nil {
		return c.explain(err)
	}
	return nil
}

// query is the flags of a command that asks a running server, and prints what it answers.
type query struct {
	*client
	output

	p *program
}

// add adds the flags to a command, and returns it.
func (q *query) add(p *program, cmd *cobra.Command) *cobra.Command {
	q.p, q.client = p, &p.client
	asksServer(cmd)
	if strings.Contains(cmd.Use, "DOMAIN") {
		cmd.ValidArgsFunction = q.complete()
	}
	return q.output.add(cmd)
}

// method is one of the admin API.
type method[Q, A proto.Message] func(a adminv1.AdminServiceClient, ctx context.Context, request Q, opts ...grpc.CallOption) (A, error)

// fetch calls the server.
func fetch[Q, A proto.Message](ctx context.Context, c *client, call method[Q, A], request Q) (answer A, err error) {
	err = c.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) (err error) {
		answer, err = call(a, ctx, request)
		return err
	})
	return answer, err
}

// paged is an answer that may have a next page.
type paged interface {
	proto.Message
	GetNextPageToken() string
}

// fetchPages calls the server for each page, whose page_token it sets in request, until take returns false.
func fetchPages[Q proto.Message, A paged](ctx context.Context, c *client, call method[Q, A], request Q, take func(A) bool) error {
	m := request.ProtoReflect()
	token := m.Descriptor().Fields().ByName("page_token")
	return c.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		for {
			page, err := call(a, ctx, request)
			if err != nil {
				return err
			}
			if !take(page) || page.GetNextPageToken() == "" {
				return nil
			}
			m.Set(token, protoreflect.ValueOfString(page.GetNextPageToken()))
		}
	})
}

// ask calls the server, and prints its answer: as JSON if that is wanted, or else with text.
func ask[Q, A proto.Message](ctx context.Context, q *query, call method[Q, A], request Q, text func(A)) error {
	answer, err := fetch(ctx, q.client, call, request)
	if err != nil {
		return err
	}
	return q.show(answer, func() { text(answer) })
}

// askEach calls the server for the descriptor in each argument after the domain, or for the domain if that is the only argument, and prints
// each answer: as JSON if that is wanted, or else with text.
func askEach[A proto.Message](
	ctx context.Context, q *query, args []string,
	call func(context.Context, adminv1.AdminServiceClient, counterAt) (A, error), text func(counterAt, A),
) error {
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		wanted = make([]descriptor, 1)
	}
	return q.asked(ctx, func(ctx context.Context, a adminv1.AdminServiceClient) error {
		for i := range wanted {
			if wanted[i].options {
				return fmt.Errorf("descriptor %q: options after a semicolon have no effect on a counter", args[1+i])
			}
			at := counterAt{args[0], &wanted[i]}
			answer, err := call(ctx, a, at)
			if err != nil {
				return err
			}
			if err := q.show(answer, func() { text(at, answer) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// show prints an answer of the server: as JSON if that is wanted, or else by calling text.
func (q *query) show(answer proto.Message, text func()) error {
	if q.json() {
		return q.p.printObject(answer)
	}
	text()
	return nil
}

// rulePlace returns where a rule is defined: a file and line, or a resource.
func rulePlace(r *adminv1.Rule) string {
	place := r.GetFile()
	if r.GetLine() != 0 {
		place = fmt.Sprintf("%s:%d", place, r.GetLine())
	}
	if r.GetOverlay() != "" {
		place += ", changed by " + r.GetOverlay()
	}
	return place
}
