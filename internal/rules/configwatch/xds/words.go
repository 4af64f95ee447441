package xds

import (
	"regexp"
	"strconv"
	"strings"

	"google.golang.org/grpc/status"
)

// words explains why there is no stream. It recognizes texts of grpc, which passes on no other information, and returns
// unknown ones unchanged.
func words(err error) string {
	const (
		cut       = `(?:EOF|connection reset by peer|broken pipe)$` // end of the text if the peer closed the connection
		handshake = `^transport: authentication handshake failed: `
		dialing   = `^transport: Error while dialing: (?:.*: )?`
	)
	text := status.Convert(err).Message()
	if said := inWords(text, [][2]string{
		{`^name resolver error: produced zero addresses`, "the host does not exist, or has no address"},
		{`error reading from server|` + cut, "the server closed the connection"},
	}); said != "" {
		return said
	}
	cause, err := strconv.Unquote(strings.TrimPrefix(text, "connection error: desc = "))
	if err != nil {
		return text
	}
	return inWords(cause, [][2]string{
		{dialing + `(?:i/o timeout|context deadline exceeded|operation was canceled)$`, "no answer in time"},
		{dialing + `(.*)$`, "$1"},
		{handshake + `.*first record does not look like a TLS handshake`, "TLS is turned on, but the server there does not speak it"},
		{handshake + `.*` + cut, "the server closed the connection during the TLS handshake: does it speak TLS?"},
		{handshake + `.*(?:context deadline exceeded|i/o timeout)$`, "the TLS handshake got no answer in time: does the server there speak TLS?"},
		{handshake + `remote error: tls: (.*)$`, "the server ended the TLS handshake: $1"},
		{handshake + `tls: failed to verify certificate: x509: (.*)$`, "the server's certificate is not accepted: $1"},
		{handshake + `(?:tls: )?(.*)$`, "the TLS handshake failed: $1"},
		{`^error reading server preface|` + cut, "the server there is not a gRPC server, or requires TLS (CONFIG_GRPC_XDS_SERVER_USE_TLS=true)"},
		{`^(?:transport: )?(.*)$`, "$1"},
	})
}

// inWords returns the explanation of the first matching expression, with $1 replaced by its group.
func inWords(text string, rows [][2]string) string {
	for _, row := range rows {
		e := regexp.MustCompile("(?s)" + row[0])
		if m := e.FindStringSubmatchIndex(text); m != nil {
			return string(e.ExpandString(nil, row[1], text, m))
		}
	}
	return ""
}
