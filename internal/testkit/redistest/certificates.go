package redistest

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"path/filepath"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// Certificates are PEM files: a CA, and a certificate issued by it with its key, which is valid for servers and
// clients.
type Certificates struct{ CA, Cert, Key string }

// NewCertificates makes certificates for the given host name.
func NewCertificates(tb testing.TB, host string) Certificates {
	tb.Helper()
	dir := tb.TempDir()
	c := Certificates{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	ca := certstest.NewCA(tb, "test CA")
	certstest.Write(tb, c.CA, ca.PEM)
	leaf := x509.Certificate{Subject: pkix.Name{CommonName: host}, DNSNames: []string{host}, IPAddresses: []net.IP{}} // not this machine's
	ca.Issue(tb, leaf).Write(tb, c.Cert, c.Key)
	return c
}

// Config returns the configuration for a server that accepts only TLS on its port, and asks clients for a certificate.
func (c Certificates) Config() []string {
	return []string{
		"port 0", "tls-port {port}", "tls-cert-file " + c.Cert, "tls-key-file " + c.Key, "tls-ca-cert-file " + c.CA, "tls-auth-clients yes",
	}
}
