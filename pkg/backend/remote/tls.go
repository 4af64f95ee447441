package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles says where the parts of a TLS configuration are. The zero value trusts the system's roots and shows no certificate.
type TLSFiles struct {
	CA           string // a PEM file of roots trusted besides the system's
	Cert, Key    string // PEM files of the certificate shown to the store and its key; both or none
	SkipHostname bool   // do not compare the server's name with its certificate, whose chain is verified all the same
}

// Load reads the files and makes a configuration of them. Whoever calls it for each connection follows files that are renewed.
func (f TLSFiles) Load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("reading the CA of the store: %w", err)
		}
		roots, err := x509.SystemCertPool()
		if err != nil {
			roots = x509.NewCertPool()
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("reading the CA of the store: %s holds no certificate in PEM", f.CA)
		}
		c.RootCAs = roots
	}
	if (f.Cert == "") != (f.Key == "") {
		return nil, errors.New("the client certificate for the store and its key go together; one of them is missing")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("reading the client certificate for the store: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if f.SkipHostname {
		c.InsecureSkipVerify = true //nolint:gosec // VerifyConnection below verifies the chain
		c.VerifyConnection = verifyChain(c.RootCAs)
	}
	return c, nil
}

// verifyChain verifies a server's chain, and not its name.
func verifyChain(roots *x509.CertPool) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return errors.New("the server shows no certificate")
		}
		options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range s.PeerCertificates[1:] {
			options.Intermediates.AddCert(cert)
		}
		_, err := s.PeerCertificates[0].Verify(options)
		return err
	}
}
