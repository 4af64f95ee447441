package remote

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// TestDialFollowsFiles checks that each connection uses the current contents of the files. After both sides change their CAs and
// certificates, the next connection succeeds. With unusable files, it fails.
func TestDialFollowsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := TLSFiles{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	d := &Dialer{TLS: files.Load, Timeout: time.Minute, Permits: NewPermits()}
	for _, name := range []string{"first", "second"} {
		ca := certstest.NewCA(t, name)
		certstest.Write(t, files.CA, ca.PEM)
		ca.Issue(t, x509.Certificate{DNSNames: []string{name}}).Write(t, files.Cert, files.Key)
		addr, shown := acceptOne(t, ca)
		conn, err := d.Dial(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatalf("with the %s certificates: %v", name, err)
		}
		if got := <-shown; got != name {
			t.Errorf("the server was shown %q, want the certificate of %s", got, name)
		}
		_ = conn.Close() // the server may have closed it first
	}
	certstest.Write(t, files.Key, []byte("half of a k"))
	if _, err := d.Dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil || !strings.Contains(err.Error(), "the client certificate for the backend") {
		t.Errorf("with half a key: %v", err)
	}
}

// acceptOne accepts one TLS connection from a client with a certificate of ca, and sends the name in the certificate, or the error, to
// shown.
func acceptOne(t *testing.T, ca *certstest.CA) (addr string, shown <-chan string) {
	t.Helper()
	l := testkit.Listen(t)
	config := &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, x509.Certificate{}).TLS(t)},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS13,
	}
	names := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err = errors.Join(err, l.Close()); err != nil {
			names <- err.Error()
			return
		}
		server := tls.Server(conn, config)
		if err := server.HandshakeContext(t.Context()); err != nil {
			names <- err.Error()
			return
		}
		names <- server.ConnectionState().PeerCertificates[0].DNSNames[0]
		_ = server.Close() // the client has closed it
	}()
	return l.Addr().String(), names
}
