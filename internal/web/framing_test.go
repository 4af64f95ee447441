package web

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// FuzzFraming has net/http read requests from the bytes of a connection, and checks that framing, which saw the same
// bytes in pieces, has found every head that contradicts itself, up to where the connection would be closed.
func FuzzFraming(f *testing.F) {
	for _, seed := range []string{
		"GET / HTTP/1.1\nHost: x\n\n",
		"POST / HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}GET / HTTP/1.1\nHost: x\n\n",
		"POST / HTTP/1.1\nHost: x\nContent-Length: 2\n\n{}POST / HTTP/1.1\nHost: x\nContent-Length: 1\nTransfer-Encoding: chunked\n\n0\n\n",
		"POST / HTTP/1.1\nHost: x\nContent-Length: 2\nContent-Length: 2\n\n{}",
		"POST / HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n2\n{}\n0\n\nPOST / HTTP/1.1\nContent-Length: 1\nContent-Length: 1\n\nx",
		"POST / HTTP/1.1\nHost: x\nX: a\n Content-Length: 7\nContent-Length: 1\n\nxGET / HTTP/1.1\nHost: x\n\n",
		"POST / HTTP/1.1\nHost: x\nContent-Length:" + strings.Repeat(" ", 70) + "5\n\n12345",
		"POST / HTTP/1.1\nHost: x\nContent-Length: " + strings.Repeat("0", 70) + "5\nContent-Length: 5\n\n12345",
		"POST / HTTP/1.0\nContent-Length: 2\nTransfer-Encoding: chunked\n\n{}",
	} {
		f.Add([]byte(strings.ReplaceAll(seed, "\n", "\r\n")), uint8(7))
		f.Add([]byte(seed), uint8(1))
	}
	f.Fuzz(func(t *testing.T, stream []byte, piece uint8) {
		var watched framing
		for rest := stream; len(rest) > 0; {
			n := min(len(rest), int(piece)+1)
			watched.scan(rest[:n])
			rest = rest[n:]
		}
		if len(watched.line) > maxField {
			t.Fatalf("%d bytes of a line are kept; want at most %d", len(watched.line), maxField)
		}
		if contradicts(t, stream) && !watched.ambiguous.Load() {
			t.Errorf("net/http takes a head that contradicts itself, and it was not seen: %q", stream)
		}
	})
}

// contradicts reads requests as a server does, until one cannot be read or the connection has to be closed after it,
// and reports whether one stated its length twice, or together with a transfer coding.
func contradicts(t *testing.T, stream []byte) bool {
	t.Helper()
	source := bytes.NewReader(stream)
	r := bufio.NewReader(source)
	for {
		begin := len(stream) - source.Len() - r.Buffered()
		req, err := http.ReadRequest(r)
		if err != nil {
			return false
		}
		head := stream[begin : len(stream)-source.Len()-r.Buffered()]
		lengths, codings, cut := 0, 0, false
		for line := range strings.Lines(string(head)) {
			name, _, _ := strings.Cut(line, ":")
			switch {
			case strings.EqualFold(name, "Content-Length"):
				lengths++
				cut = len(strings.TrimRight(line, "\r\n")) >= maxField
			case strings.EqualFold(name, "Transfer-Encoding"):
				codings++
			}
		}
		if lengths > 1 || lengths > 0 && codings > 0 {
			return true
		}
		if codings > 0 || cut { // closed, because framing demands it
			return false
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil || req.Close {
			return false
		}
	}
}
