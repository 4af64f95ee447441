package remote

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// Reworded returns an error that wraps err but has its own text. The text must not contain data from clients.
func Reworded(err error, text string) error { return &reworded{err, text} }

type reworded struct {
	err  error
	text string
}

// Error implements error.
func (r *reworded) Error() string { return r.text }

// Unwrap returns the original error.
func (r *reworded) Unwrap() error { return r.err }

// Text returns the text of an error for people, on one line: that of [Reworded], or the text of err without parts that may come from a
// client.
func Text(err error) string {
	if _, ok := errors.AsType[*reworded](err); ok {
		return plain.Text(err.Error())
	}
	if ClassOf(err) == Timeout {
		return "no answer in time"
	}
	return Clean(err.Error())
}

// Unproven explains why a TLS client rejected a server's certificate. It returns "" for other errors.
func Unproven(err error) string {
	var (
		failed  *tls.CertificateVerificationError
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	if !errors.As(err, &failed) {
		return ""
	}
	switch cert := failed.UnverifiedCertificates[0]; {
	case errors.As(err, &name):
		return fmt.Sprintf("the server's certificate is for %s, and not for %s", cmp.Or(names(cert), "no name"), name.Host)
	case errors.As(err, &unknown):
		return fmt.Sprintf("the server's certificate was issued by %s, a CA that is not trusted here", cmp.Or(cert.Issuer.CommonName, cert.Issuer.String(), "nobody"))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().Before(cert.NotBefore):
		return fmt.Sprintf("the server's certificate is not valid before %s, unless the clock of this machine is wrong", cert.NotBefore.UTC().Format(time.RFC3339))
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the server's certificate expired at %s", cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return "the server's certificate is not accepted: " + strings.TrimPrefix(failed.Err.Error(), "x509: ")
}

// names returns the names and addresses of a certificate.
func names(cert *x509.Certificate) string {
	all := append([]string{}, cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		all = append(all, ip.String())
	}
	return strings.Join(all, ", ")
}

// Alert returns the alert sent by the peer of a TLS connection. It returns "" for other errors.
func Alert(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "remote error" {
		return op.Err.Error()
	}
	return ""
}

// handshakeError rewords the error of a TLS handshake.
func handshakeError(err error) error {
	var clear tls.RecordHeaderError
	switch text := Unproven(err); {
	case text != "":
		return Reworded(err, text)
	case errors.As(err, &clear):
		return Reworded(err, "TLS is turned on, but the server there does not speak it")
	case Alert(err) != "":
		return Reworded(err, "the server ended the TLS handshake: "+strings.TrimPrefix(Alert(err), "tls: "))
	case ClassOf(err) == Timeout:
		return Reworded(err, "the TLS handshake got no answer in time: does the server there speak TLS?")
	case ClassOf(err) == Reset:
		return Reworded(err, "the server closed the connection during the TLS handshake: does it speak TLS?")
	}
	return err
}

// Clean removes parts that may come from a client from the text of an error: everything after a quotation mark. It also escapes control
// characters like [plain.Text], and bounds the length.
func Clean(text string) string {
	if i := strings.IndexAny(text, "'\"`"); i >= 0 {
		text = text[:i] + "…"
	}
	text = plain.Text(text)
	if len(text) > 200 {
		text = strings.ToValidUTF8(text[:200], "") + "…"
	}
	return text
}
