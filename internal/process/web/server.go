package web

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// maxHead is the maximum size of a request's head in bytes; larger ones are answered 431.
const maxHead = 16 << 10

// headSlack is the size in bytes that net/http adds to MaxHeaderBytes for its own buffer.
const headSlack = 4096

// Limits are timeouts of a connection. A zero field means the default stated for it.
type Limits struct {
	ReadHeader time.Duration // from the first byte of a request to the end of its head: 5 s
	Read       time.Duration // from the first byte of a request to the end of its body: 10 s
	Write      time.Duration // from the end of the head to the end of the answer: 30 s
	Idle       time.Duration // between two requests: 60 s
	Grace      time.Duration // for requests in progress when the server stops: 5 s
}

func (l Limits) withDefaults() Limits {
	return Limits{
		ReadHeader: cmp.Or(l.ReadHeader, 5*time.Second),
		Read:       cmp.Or(l.Read, 10*time.Second),
		Write:      cmp.Or(l.Write, 30*time.Second),
		Idle:       cmp.Or(l.Idle, time.Minute),
		Grace:      cmp.Or(l.Grace, 5*time.Second),
	}
}

// Server serves HTTP/1.1 on one listener. It is a task that runs until its context ends.
type Server struct {
	name  string
	ln    net.Listener
	http  *http.Server
	grace time.Duration
}

// NewServer returns a Server that serves h on ln and owns ln. It serves nothing until Run. name is for messages. Web
// pages of other origins may only read. Errors of connections and panics of h are logged.
func NewServer(name string, ln net.Listener, h http.Handler, logger *slog.Logger, limits Limits) *Server {
	limits = limits.withDefaults()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &Server{
		name: name,
		ln:   ln,
		http: &http.Server{
			Handler:                      withoutSmuggling(withoutOtherOrigins(h)),
			DisableGeneralOptionsHandler: true,
			ReadHeaderTimeout:            limits.ReadHeader,
			ReadTimeout:                  limits.Read,
			WriteTimeout:                 limits.Write,
			IdleTimeout:                  limits.Idle,
			MaxHeaderBytes:               maxHead - headSlack,
			Protocols:                    protocols,
			ConnContext: func(ctx context.Context, c net.Conn) context.Context {
				if secured, ok := c.(*tls.Conn); ok {
					c = secured.NetConn()
				}
				return context.WithValue(ctx, callerKey{}, c)
			},
			ErrorLog: slog.NewLogLogger(logger.With("listener", name).Handler(), slog.LevelWarn),
		},
		grace: limits.Grace,
	}
}

// Secure makes s use TLS. s calls failed for each failed handshake, with the client's address and the reason. Secure must be
// called before Run.
func (s *Server) Secure(c *tls.Config, failed func(about string)) *Server {
	s.ln = tls.NewListener(s.ln, c)
	s.http.ErrorLog = log.New(handshakes{s.http.ErrorLog, failed}, "", 0)
	return s
}

// handshakes separates log lines of net/http about handshakes, which any client can cause, from others.
type handshakes struct {
	others *log.Logger
	failed func(about string)
}

// Write implements [io.Writer].
func (h handshakes) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if about, ok := strings.CutPrefix(text, "http: TLS handshake error from "); ok {
		h.failed(about)
	} else {
		h.others.Print(text)
	}
	return len(line), nil
}

type callerKey struct{}

// Caller returns the client's address of the request with ctx, or nil if ctx is not from a request to a [Server].
func Caller(ctx context.Context) net.Addr {
	if c, ok := ctx.Value(callerKey{}).(net.Conn); ok {
		return c.RemoteAddr()
	}
	return nil
}

// withoutSmuggling closes the connection after a request whose end a proxy may determine differently than net/http, so
// that its rest is never parsed as another request (request smuggling). net/http rejects conflicting lengths. But if
// there is also a transfer coding, it drops the length or, in HTTP/1.0, the coding before handlers see them.
// withoutSmuggling also marks the connection as active, if it supports that, because a complete head has arrived.
func withoutSmuggling(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(callerKey{}).(interface{ Active() }); ok {
			c.Active()
		}
		if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// String returns the server's name.
func (s *Server) String() string { return s.name }

// Addr returns the address of the listener.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Run serves until ctx ends. Then it accepts no more connections, waits for requests in progress for the time in
// Limits, closes the remaining ones, and returns nil. It returns an error earlier if the listener fails.
func (s *Server) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.ln) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serving %s on %s: %w", s.name, s.ln.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	err := s.http.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	if err != nil {
		return fmt.Errorf("closing %s on %s: %w", s.name, s.ln.Addr(), err)
	}
	return nil
}
