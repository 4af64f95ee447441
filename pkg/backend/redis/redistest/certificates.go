package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Certificates are PEM files: a CA, and a certificate issued by it with its key, which is valid for servers and
// clients.
type Certificates struct{ CA, Cert, Key string }

// NewCertificates makes certificates for the given host name.
func NewCertificates(tb testing.TB, host string) Certificates {
	tb.Helper()
	dir := tb.TempDir()
	c := Certificates{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	caKey, leafKey := newKey(tb), newKey(tb)
	write := func(file, kind string, der []byte, err error) {
		tb.Helper()
		if err == nil {
			err = os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
		}
		if err != nil {
			tb.Fatalf("redistest: %v", err)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	write(c.CA, "CERTIFICATE", der, err)
	der, err = x509.CreateCertificate(rand.Reader, leaf, ca, &leafKey.PublicKey, caKey)
	write(c.Cert, "CERTIFICATE", der, err)
	der, err = x509.MarshalECPrivateKey(leafKey)
	write(c.Key, "EC PRIVATE KEY", der, err)
	return c
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	return key
}

// Config returns the configuration for a server that accepts only TLS on its port, and asks clients for a certificate.
func (c Certificates) Config() []string {
	return []string{
		"port 0", "tls-port {port}", "tls-cert-file " + c.Cert, "tls-key-file " + c.Key, "tls-ca-cert-file " + c.CA, "tls-auth-clients yes",
	}
}
