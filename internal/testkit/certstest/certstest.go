// Package certstest creates certificates for tests: CAs, certificates that they sign, and some that no CA should sign.
package certstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"testing"
	"time"
)

// CA is a certificate authority.
type CA struct {
	PEM []byte // its certificate

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key, in PEM form.
type Pair struct{ Cert, Key []byte }

// NewCA returns a new authority.
func NewCA(tb testing.TB, name string) *CA {
	tb.Helper()
	template := &x509.Certificate{
		SerialNumber: serial(tb), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca := &CA{key: newKey(tb)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err != nil {
		tb.Fatal(err)
	}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		tb.Fatal(err)
	}
	ca.PEM = encode("CERTIFICATE", der)
	return ca
}

// Pool returns a pool with only this authority.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Issue signs a certificate from a template. Fields that the template omits are those of a valid server or client on this machine: the
// address 127.0.0.1, a period that includes now, and both usages.
func (ca *CA) Issue(tb testing.TB, template x509.Certificate) Pair {
	tb.Helper()
	template.SerialNumber, template.KeyUsage = serial(tb), x509.KeyUsageDigitalSignature
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if template.IPAddresses == nil {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	return ca.sign(tb, &template, newKey(tb))
}

// Renew signs another certificate like that of p, with the same key.
func (ca *CA) Renew(tb testing.TB, p Pair) Pair {
	tb.Helper()
	old := p.TLS(tb)
	template := *old.Leaf
	template.SerialNumber = serial(tb)
	return ca.sign(tb, &template, old.PrivateKey.(*ecdsa.PrivateKey))
}

func (ca *CA) sign(tb testing.TB, template *x509.Certificate, key *ecdsa.PrivateKey) Pair {
	tb.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		tb.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: encode("PRIVATE KEY", private)}
}

// Write writes the pair to two files.
func (p Pair) Write(tb testing.TB, certFile, keyFile string) {
	tb.Helper()
	Write(tb, certFile, p.Cert)
	Write(tb, keyFile, p.Key)
}

// TLS returns the pair as a tls.Certificate.
func (p Pair) TLS(tb testing.TB) tls.Certificate {
	tb.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// Write writes a file.
func Write(tb testing.TB, path string, text []byte) {
	tb.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

func serial(tb testing.TB) *big.Int {
	tb.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		tb.Fatal(err)
	}
	return n.Add(n, big.NewInt(1))
}
