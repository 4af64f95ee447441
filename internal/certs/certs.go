// Package certs keeps the TLS configuration of a server as its files have it.
//
// Certificates are renewed under a running server: cert-manager replaces a Secret, the kubelet swaps the link that leads to
// its files, a script writes one file after the other. So the files are read again and again, a few kilobytes a second, and
// what they hold decides: no event can be missed, whatever is mounted where. What is read counts once it has stayed the
// same for two looks, because a certificate and its key, or the halves of a bundle, need not arrive together. What is wrong
// leaves the last good configuration in force. A configuration is never changed but replaced, and each handshake takes the
// one of its moment, so connections that are open, and handshakes under way, do not notice.
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

// Config says where the parts are and whom they let in. Its fields are required unless they state a default.
type Config struct {
	Cert, Key string // PEM files of the certificate, with its chain, and of the key that the server shows

	// ClientCA is a PEM file of the CAs that clients' certificates must come from; no others are trusted, those of the
	// system neither. Empty asks clients for none.
	ClientCA string

	// ClientNames are DNS names and URIs, such as spiffe://cluster/ns/edge/sa/envoy, one of which a client's certificate
	// must hold. None is any. They need a ClientCA.
	ClientNames []string

	MinVersion uint16        // of TLS; 0 stands for 1.2, which is the least
	Every      time.Duration // how often the files are looked at; 0 stands for 1 s
	Tried      func(error)   // called each time what the files hold was tried, with why it is not in force; may be nil
}

// Server is the TLS configuration of a server. It is a task, which follows the files.
type Server struct {
	log     *slog.Logger
	config  Config
	current atomic.Pointer[loaded]

	seen, tried digest // of the look before, and of what was tried last; of New and Run alone
}

// digest tells what the files held.
type digest [sha256.Size]byte

// loaded is what the files held at a time.
type loaded struct {
	tls   *tls.Config
	until time.Time // the end of the certificate's life
}

// New reads the files. The error names the file, and says what is wrong with it.
func New(log *slog.Logger, c Config) (*Server, error) {
	if len(c.ClientNames) > 0 && c.ClientCA == "" {
		return nil, errors.New("names of clients without the CA that vouches for them")
	}
	c.MinVersion = max(c.MinVersion, tls.VersionTLS12)
	if c.Every == 0 {
		c.Every = time.Second
	}
	if c.Tried == nil {
		c.Tried = func(error) {}
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

// TLS is a configuration for a listener. Whatever it is used for, each handshake finds what is in force then.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:         s.config.MinVersion,
		NextProtos:         []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().tls, nil },
	}
}

// NotAfter is the end of the life of the certificate that is shown now.
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

// look tries what the files hold, unless they held something else a moment ago, or it has been tried.
func (s *Server) look() {
	f := s.read()
	d := f.digest()
	before := s.seen
	s.seen = d
	if d != before || d == s.tried {
		return
	}
	if err := s.try(f); err != nil {
		s.log.Error("new TLS certificates refused, the last good ones stay", "error", err)
		return
	}
	s.log.Info("new TLS certificates", "cert", s.config.Cert, "not_after", s.NotAfter())
}

// try puts in force what f holds.
func (s *Server) try(f files) error {
	s.tried = f.digest()
	l, err := s.load(f)
	if err == nil {
		s.current.Store(l)
		if time.Now().After(l.until) {
			s.log.Warn("the TLS certificate has expired, clients will refuse it", "cert", s.config.Cert, "not_after", l.until)
		}
	}
	s.config.Tried(err)
	return err
}

// load makes a configuration of what f holds.
func (s *Server) load(f files) (*loaded, error) {
	if f.err != nil {
		return nil, f.err
	}
	pair, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("loading the server's TLS certificate %q and key %q: %w", s.config.Cert, s.config.Key, err)
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   s.config.MinVersion,
		NextProtos:   []string{"h2"},

		// A session that is taken up again would be judged by what was in force when it began. Connections of gRPC last
		// for hours, so nothing is lost.
		SessionTicketsDisabled: true,
	}
	if s.config.ClientCA != "" {
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(f.ca) {
			return nil, fmt.Errorf("loading the CA of clients: %q holds no certificate in PEM form", s.config.ClientCA)
		}
	}
	if len(s.config.ClientNames) > 0 {
		c.VerifyConnection = s.checkName
	}
	return &loaded{tls: c, until: pair.Leaf.NotAfter}, nil
}

// checkName lets in clients whose certificate, which has been verified, holds one of the names.
func (s *Server) checkName(state tls.ConnectionState) error {
	if len(state.VerifiedChains) == 0 {
		return errors.New("the client's certificate has not been verified")
	}
	leaf := state.VerifiedChains[0][0]
	if slices.ContainsFunc(s.config.ClientNames, func(name string) bool { return holds(leaf, name) }) {
		return nil
	}
	return fmt.Errorf("the client's certificate holds none of the names that are let in: its DNS names are %q, its URIs %q", leaf.DNSNames, leaf.URIs)
}

// holds reports whether a certificate is good for a name: a URI as it stands there, anything else as TLS clients do.
func holds(cert *x509.Certificate, name string) bool {
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

// isURI reports whether a name is a URI, and no DNS name or IP address.
func isURI(name string) bool {
	return strings.Contains(name, ":") && net.ParseIP(strings.Trim(name, "[]")) == nil
}
