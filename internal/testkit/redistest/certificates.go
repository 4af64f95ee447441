package redistest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// Certificates names PEM files: a CA, and a certificate of that CA with its key, valid for servers and clients.
type Certificates struct{ CA, Cert, Key string }

// NewCertificates makes certificates for the given host name.
func NewCertificates(tb testing.TB, host string) Certificates {
	tb.Helper()
	dir := tb.TempDir()
	c := Certificates{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	ca := certstest.NewCA(tb, "test CA")
	certstest.Write(tb, c.CA, ca.PEM)
	leaf := x509.Certificate{Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, IPAddresses: []net.IP{}} // without this machine's addresses
	ca.Issue(tb, leaf).Write(tb, c.Cert, c.Key)
	return c
}

// Config returns the configuration of a server that accepts only TLS and requires client certificates.
func (c Certificates) Config() []string {
	return []string{
		"port 0", "tls-port {port}", "tls-cert-file " + c.Cert, "tls-key-file " + c.Key, "tls-ca-cert-file " + c.CA, "tls-auth-clients yes",
	}
}
