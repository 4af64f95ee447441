package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

// TLSFiles names the files of a client's TLS configuration. The zero value trusts the system's roots and has no client certificate.
type TLSFiles struct {
	CA           string // a PEM file of roots trusted in addition to the system's
	Cert, Key    string // PEM files of the certificate presented to the store and its key; both or none
	SkipHostname bool   // do not compare the server's name with its certificate; the chain is still verified
}

// Load reads the files and returns a configuration. Callers call it for each connection, to follow renewed files.
func (f TLSFiles) Load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		pem, err := smallfile.Read(f.CA, smallfile.MaxSize)
		if err != nil {
			return nil, fmt.Errorf("reading the backend's CA: %w", err)
		}
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading the backend's CA: %s has no certificate in PEM", f.CA)
		}
		c.RootCAs = roots
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("the client certificate for the backend and its key must both be set; one of them is missing")
	}
	if f.Cert != "" {
		pair, err := smallfile.KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate for the backend: %s", strings.TrimPrefix(err.Error(), "tls: "))
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.SkipHostname {
		c.InsecureSkipVerify = true //nolint:gosec // VerifyConnection below verifies the chain
		c.VerifyConnection = verifyChain(c.RootCAs)
	}
	return c, nil
}

// verifyChain returns a function that verifies a server's chain but not its name.
func verifyChain(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the server presents no certificate")
		}
		options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range s.PeerCertificates[1:] {
			options.Intermediates.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(options)
		return err
	}
}
