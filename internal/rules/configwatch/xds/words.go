package xds

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
)

// words says why there is no stream, for people. The texts that it looks for are grpc's, which passes on nothing else;
// one that is not known stays as it is.
func words(err error) string {
	text := status.Convert(err).Message()
	switch {
	case strings.HasPrefix(text, "name resolver error: produced zero addresses"):
		return "the host does not exist, or has no address"
	case strings.Contains(text, "error reading from server"), cutOff(text):
		return "the server closed the connection"
	}
	cause, err := strconv.Unquote(strings.TrimPrefix(text, "connection error: desc = "))
	if err != nil {
		return text
	}
	if dialling, ok := strings.CutPrefix(cause, "transport: Error while dialing: "); ok {
		return undialled(dialling)
	}
	if handshake, ok := strings.CutPrefix(cause, "transport: authentication handshake failed: "); ok {
		return noHandshake(handshake)
	}
	if strings.HasPrefix(cause, "error reading server preface") || cutOff(cause) {
		return "the server there is not a gRPC server, or requires TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS=true)"
	}
	return strings.TrimPrefix(cause, "transport: ")
}

// cutOff reports whether text says that the other side has closed the connection.
func cutOff(text string) bool {
	return strings.HasSuffix(text, "EOF") || strings.HasSuffix(text, "connection reset by peer") || strings.HasSuffix(text, "broken pipe")
}

// undialled says why there is no connection; text ends with what the system says.
func undialled(text string) string {
	reason := text[strings.LastIndex(text, ": ")+1:]
	switch reason = strings.TrimSpace(reason); reason {
	case "i/o timeout", "context deadline exceeded", "operation was canceled":
		return "no answer in time"
	}
	return reason
}

// noHandshake says why a TLS handshake failed.
func noHandshake(text string) string {
	switch {
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "TLS is turned on, but the server there does not speak it"
	case cutOff(text):
		return "the server closed the connection during the TLS handshake: does it speak TLS?"
	case strings.HasSuffix(text, "context deadline exceeded"), strings.HasSuffix(text, "i/o timeout"):
		return "the TLS handshake got no answer in time: does the server there speak TLS?"
	}
	if alert, ok := strings.CutPrefix(text, "remote error: tls: "); ok {
		return "the server ended the TLS handshake: " + alert
	}
	if why, ok := strings.CutPrefix(text, "tls: failed to verify certificate: x509: "); ok {
		return "the server's certificate is not accepted: " + why
	}
	return "the TLS handshake failed: " + strings.TrimPrefix(text, "tls: ")
}
