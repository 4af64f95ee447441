package cli

import "strings"

// secure reports whether the client uses TLS.
func (c *client) secure() bool { return c.tls || c.ca != "" || c.cert != "" || c.key != "" }

// accepted ends the hint to use a client certificate.
const accepted = " to the files of a certificate that the server accepts"

// unconnected returns why grpc could not connect, by its text, and what to do about the common causes.
func unconnected(text string) string {
	text = strings.TrimSuffix(text, `"`)
	cause := text[strings.LastIndex(text, ": ")+1:]
	if _, certificate, ok := strings.Cut(text, "x509: "); ok {
		cause = certificate
	}
	const port = "the server there is not a gRPC server: set --addr to the gRPC port, 8081 by default"
	hint := "is the server running there? set --addr to another address"
	for _, known := range [...]struct{ text, hint string }{
		{"unknown authority", "set --ca to the file of its CA"},
		{"x509: ", "compare --addr and --ca with the certificate of the server"},
		{"first record does not look like a TLS", "the server does not use TLS there: leave out --tls and https://, and --ca, --cert and --key, which imply it"},
		{"application protocol", port}, // as TLS calls it
		{"ALPN", port},                 // as grpc calls it
		{"remote error: tls: ", "set --cert and --key" + accepted},
		{"http2: ", port},
		{"server preface", "the server closed the connection: if it uses TLS, add --tls, and --ca FILE if this machine does not trust its CA"},
	} {
		if strings.Contains(text, known.text) {
			hint = known.hint
			break
		}
	}
	return strings.TrimSpace(cause) + ": " + hint
}
