// Package certs keeps the TLS configuration of a server in step with its files.
//
// Certificates are renewed while the server runs: cert-manager replaces a Secret, the kubelet swaps the symbolic link to its files,
// a script writes one file after the other. So the files are polled, which costs a few kilobytes a second, and only their contents
// count. No event can be missed, whatever is mounted where. New contents are used once two polls in a row have found them, because
// a certificate and its key, or the halves of a bundle, need not arrive together. If they are invalid, the last good configuration
// stays in force.
//
// A configuration is replaced, never changed, and each handshake uses the current one. Open connections and handshakes under way
// are not affected.
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

// Config names the files and says which clients are let in. Its fields are required unless they state a default.
type Config struct {
	Cert, Key string // PEM files of the server's certificate, with its chain, and of its key

	// ClientCA is a PEM file of the CAs that must have issued clients' certificates; no others are trusted, not even
	// the system's. If empty, clients are not asked for certificates.
	ClientCA string

	// ClientNames are DNS names and URIs, such as spiffe://cluster/ns/edge/sa/envoy, of which a client's certificate
	// must contain at least one. If empty, any certificate will do. They need a ClientCA.
	ClientNames []string

	MinVersion uint16        // of TLS; 0 means 1.2, which is also the minimum
	Every      time.Duration // how often the files are read; 0 means 1 s
	Tried      func(error)   // called each time new contents were tried, with the error if they were invalid; required
}

// Server is the TLS configuration of a server. It is a task that follows the files.
type Server struct {
	log     *slog.Logger
	config  Config
	current atomic.Pointer[loaded]

	seen, tried digest // of the previous poll, and of the contents that were last tried; only New and Run use them
}

// digest identifies the contents of the files.
type digest [sha256.Size]byte

// loaded is a configuration made from the files.
type loaded struct {
	tls   *tls.Config // for gRPC
	web   *tls.Config // for HTTP/1.1
	until time.Time   // when the certificate expires
}

// New reads the files. The error names the file, and says why it is invalid.
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

// String names the task.
func (s *Server) String() string { return "TLS certificates in " + s.config.Cert }

// TLS returns a configuration for a gRPC listener. Each handshake uses the certificates in force at that time. A client that offers
// protocols has to offer HTTP/2.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion: s.config.MinVersion,
		NextProtos: []string{http2},
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if len(hello.SupportedProtos) > 0 && !slices.Contains(hello.SupportedProtos, http2) { // crypto/tls lets HTTP/1.1 pass
				return nil, fmt.Errorf("the client offers %.100q by ALPN instead of h2", hello.SupportedProtos)
			}
			return s.current.Load().tls, nil
		},
	}
}

// WebTLS returns a configuration for a listener of HTTP/1.1. Browsers and programs usually have no certificates there, so clients
// need none. A certificate that a client shows has to be valid and signed by the client CA. The caller decides which names are
// good for what.
func (s *Server) WebTLS() *tls.Config {
	return &tls.Config{
		MinVersion:         s.config.MinVersion,
		NextProtos:         []string{http1},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().web, nil },
	}
}

// How protocols are called in a handshake.
const (
	http1 = "http/1.1"
	http2 = "h2"
)

// NotAfter returns when the certificate in use expires.
func (s *Server) NotAfter() time.Time { return s.current.Load().until }

// Run follows the files until ctx ends.
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

// look tries the contents of the files, if the previous poll has found the same ones and they have not been tried yet.
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

// try puts the contents of f in force.
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

// load makes a configuration from the contents of f.
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

		// A resumed session would be subject to what was in force when it began. gRPC connections last for hours, so
		// nothing is lost.
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

// checkName lets in clients whose verified certificate contains one of the names.
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

// Holds reports whether a certificate is good for a name: a URI must be in it literally, anything else is matched as
// TLS clients do.
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
