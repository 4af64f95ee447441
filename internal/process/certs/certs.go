// Package certs reloads a server's TLS configuration when its files change.
//
// Certificates are renewed while the server runs: cert-manager replaces a Secret, the kubelet swaps the symbolic link to its files,
// or a script writes one file after the other. Therefore the files are polled, at the cost of a few kilobytes a second, and only
// their contents matter, so no change is missed on any kind of mount. New contents are used once two consecutive polls have found
// them, because a certificate and its key, or the halves of a bundle, need not arrive together. If the contents are invalid, the
// last good configuration stays.
//
// A configuration is immutable. Each handshake uses the current one. Open connections and handshakes in progress are not affected.
//
// This package is part of the process.
package certs

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Config names the files and the accepted clients. Fields are required unless they state a default.
type Config struct {
	Cert, Key string // PEM files of the server's certificate, with its chain, and of its key

	// ClientCA is a PEM file of the CAs that must have issued clients' certificates; no others are trusted, not even
	// the system's. If empty, clients are not asked for certificates.
	ClientCA string

	// ClientNames are DNS names and URIs, such as spiffe://cluster/ns/edge/sa/envoy, of which a client's certificate
	// must contain at least one. If empty, any certificate will do. They need a ClientCA.
	ClientNames []string

	MinVersion uint16        // of TLS; 0 means 1.2, the lowest supported version
	Every      time.Duration // polling interval; 0 means 1 s
	Tried      func(error)   // called after each attempt to load new contents, with the error if they were invalid; required
}

// Server is the TLS configuration of a server, and the task that reloads it.
type Server struct {
	log     *slog.Logger
	config  Config
	current atomic.Pointer[loaded]

	seen, tried digest // at the previous poll, and at the last attempt to load; used only by New and Run
}

// digest identifies the contents of the files.
type digest [sha256.Size]byte

// loaded is a configuration from the files.
type loaded struct {
	tls   *tls.Config // for gRPC
	web   *tls.Config // for HTTP/1.1
	until time.Time   // expiry of the certificate
}

// New loads the files. Errors name the file and the reason.
func New(log *slog.Logger, c Config) (*Server, error) {
	if len(c.ClientNames) > 0 && c.ClientCA == "" {
		return nil, errors.New("client names are set without the CA that issues the client certificates")
	}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12)
	if c.Every == 0 {
		c.Every = time.Second
	}
	s := &Server{log: log, config: c}
	f := s.read()
	s.seen = f.digest()
	if err := s.try(f); err != nil {
		return nil, err
	}
	return s, nil
}

// String returns the name of the task.
func (s *Server) String() string { return "TLS certificates in " + s.config.Cert }

// TLS returns a configuration for a gRPC listener. Each handshake uses the current certificates. A client that offers protocols
// must offer HTTP/2.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: s.config.MinVersion,
		NextProtos: []string{http2},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if len(hello.SupportedProtos) > 0 && !slices.Contains(hello.SupportedProtos, http2) { // crypto/tls accepts HTTP/1.1
				return nil, fmt.Errorf("the client offers %.100q by ALPN instead of h2", hello.SupportedProtos)
			}
			return s.current.Load().tls, nil
		},
	}
}

// WebTLS returns a configuration for an HTTP/1.1 listener. Client certificates are optional, because browsers and scripts usually
// have none. A certificate that a client presents must be valid and signed by the client CA. The caller checks the names in it.
func (s *Server) WebTLS() *tls.Config {
	return &tls.Config{
		MinVersion:         s.config.MinVersion,
		NextProtos:         []string{http1},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().web, nil },
	}
}

// Protocol names in ALPN.
const (
	http1 = "http/1.1"
	http2 = "h2"
)

// NotAfter returns the expiry of the current certificate.
func (s *Server) NotAfter() time.Time { return s.current.Load().until }

// Run reloads the files until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	again := time.NewTicker(s.config.Every)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			s.look()
		}
	}
}

// look loads the contents of the files if they equal those of the previous poll and have not been tried yet.
func (s *Server) look() {
	f := s.read()
	d := f.digest()
	before := s.seen
	s.seen = d
	if d != before || d == s.tried {
		return
	}
	if err := s.try(f); err != nil {
		s.log.Error("new TLS certificates are invalid; the last good ones stay in use", "error", err)
		return
	}
	s.log.Info("new TLS certificates", "cert", s.config.Cert, "not_after", s.NotAfter())
}

// try activates the contents of f if they are valid.
func (s *Server) try(f files) error {
	s.tried = f.digest()
	l, err := s.load(f)
	if err == nil {
		s.current.Store(l)
		if time.Now().After(l.until) {
			s.log.Warn("the TLS certificate has expired; clients will not accept it", "cert", s.config.Cert, "not_after", l.until)
		}
	}
	s.config.Tried(err)
	return err
}

// load returns the configuration for the contents of f.
func (s *Server) load(f files) (*loaded, error) {
	if f.err != nil {
		return nil, f.err
	}
	pair, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("loading the server's TLS certificate %q and key %q: %s", s.config.Cert, s.config.Key, strings.TrimPrefix(err.Error(), "tls: "))
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   s.config.MinVersion,
		NextProtos:   []string{http2},

		// A resumed session would keep the client checks of its first handshake. gRPC connections last for hours, so resumption
		// would save little.
		SessionTicketsDisabled: true,
	}
	if s.config.ClientCA != "" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(f.ca) {
			return nil, fmt.Errorf("loading the client CA: %q has no certificate in PEM form", s.config.ClientCA)
		}
	}
	web := c.Clone()
	web.NextProtos = []string{http1}
	if s.config.ClientCA != "" {
		web.ClientAuth = tls.VerifyClientCertIfGiven
	}
	if len(s.config.ClientNames) > 0 {
		c.VerifyConnection = s.checkName
	}
	return &loaded{tls: c, web: web, until: pair.Leaf.NotAfter}, nil
}

// checkName accepts clients whose verified certificate contains one of the names.
func (s *Server) checkName(state tls.ConnectionState) error {
	if len(state.VerifiedChains) == 0 {
		return errors.New("the client's certificate has not been verified")
	}
	leaf := state.VerifiedChains[0][0]
	if slices.ContainsFunc(s.config.ClientNames, func(name string) bool { return Holds(leaf, name) }) {
		return nil
	}
	return fmt.Errorf("the client's certificate has none of the accepted names: its DNS names are %q, its URIs %q", leaf.DNSNames, leaf.URIs)
}

// Holds reports whether a certificate is valid for a name. URIs must match literally; other names match as for TLS
// clients.
func Holds(cert *x509.Certificate, name string) bool {
	if !isURI(name) {
		return cert.VerifyHostname(name) == nil
	}
	for _, uri := range cert.URIs {
		if uri.String() == name {
			return true
		}
	}
	return false
}

// isURI reports whether a name is a URI rather than a DNS name or IP address.
func isURI(name string) bool {
	return strings.Contains(name, ":") && net.ParseIP(strings.Trim(name, "[]")) == nil
}
