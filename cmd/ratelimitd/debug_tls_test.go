package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// answer is what the debug port answers.
type answer struct {
	code    int
	text    string
	headers http.Header
}

// fetch asks the debug port over TLS, as a client with a configuration.
func (s *secured) fetch(t *testing.T, c *tls.Config, r *http.Request) (a answer, err error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	came, err := transport.RoundTrip(r)
	if err != nil {
		return a, err
	}
	defer came.Body.Close()
	body, err := io.ReadAll(came.Body)
	return answer{came.StatusCode, string(body), came.Header}, err
}

func (s *secured) ask(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://"+s.At["DEBUG"]+path, strings.NewReader(body))
	testkit.Check(t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

// With DEBUG_TLS=true the debug port has the certificate of the gRPC port, also where that one has no TLS, and follows its files.
// Clients need no certificate there; one with a name of ADMIN_TLS_SAN stands for a token, in the console too, and one that is not of
// the CA is denied. A session's cookie is sent over TLS alone. A client that speaks plain text, or gRPC, gets an answer that says what to do instead.
func TestDebugTLS(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	certstest.Write(t, file, []byte("ann: sesame-of-ann-0123456789abcdef\n"))
	s := startSecured(t, "GRPC_SERVER_USE_TLS=false", "DEBUG_TLS=true", "ADMIN=true", "ADMIN_TOKEN_FILE="+file, "ADMIN_TLS_SAN=ops.edge")
	ops := s.config(t, new(s.clients.Issue(t, x509.Certificate{DNSNames: []string{"ops.edge"}})))
	other := s.config(t, new(s.clients.Issue(t, x509.Certificate{DNSNames: []string{"other.edge"}})))
	bare := s.config(t, nil)

	for _, tt := range []struct {
		name, path string
		config     *tls.Config
		code       int
		wants      string
	}{
		{"open pages", "/metrics", bare, 200, "ratelimitd_build_info"},
		{"the API", "/admin/v1/status", bare, 401, "this requires a token from ADMIN_TOKEN_FILE"},
		{"the console", "/ui/login", bare, 200, "Log in"},
		{"the API for ops", "/admin/v1/status", ops, 200, `"healthy"`},
		{"the console for ops", "/ui/", ops, 200, "Overview"},
		{"the API for others", "/admin/v1/status", other, 401, "this requires a token"},
		{"profiles for ops", "/debug/pprof/", ops, 200, "heap"},
	} {
		a, err := s.fetch(t, tt.config, s.ask(t, http.MethodGet, tt.path, ""))
		if err != nil || a.code != tt.code || !strings.Contains(a.text, tt.wants) {
			t.Errorf("%s: %d, %v, want %d with %q:\n%.300s", tt.name, a.code, err, tt.code, tt.wants, a.text)
		}
	}
	failures := func() float64 {
		a, err := s.fetch(t, bare, s.ask(t, http.MethodGet, "/metrics", ""))
		testkit.Check(t, err)
		_, rest, _ := strings.Cut(a.text, "\nratelimitd_tls_handshake_errors_total ")
		line, _, _ := strings.Cut(rest, "\n")
		n, err := strconv.ParseFloat(line, 64)
		testkit.Check(t, err)
		return n
	}
	stranger := certstest.NewCA(t, "strangers").Issue(t, x509.Certificate{DNSNames: []string{"ops.edge"}}).TLS(t)
	insistent := s.config(t, nil)
	insistent.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &stranger, nil }
	before := failures()
	for name, config := range map[string]*tls.Config{
		"another CA": insistent,
		"TLS 1.1":    versions(s.config(t, nil), tls.VersionTLS10, tls.VersionTLS11),
	} {
		if a, err := s.fetch(t, config, s.ask(t, http.MethodGet, "/metrics", "")); err == nil {
			t.Errorf("%s: %d", name, a.code)
		}
	}
	testkit.Eventually(t, "failed handshakes are counted", func() bool { return failures() == before+2 }, s.Log.String)
	if strings.Contains(s.Log.String(), "handshake") {
		t.Errorf("the log tells of handshakes, which anyone can cause: %s", s.Log.String())
	}

	a, err := s.fetch(t, bare, s.ask(t, http.MethodPost, "/ui/login", url.Values{"token": {"sesame-of-ann-0123456789abcdef"}}.Encode()))
	if c := a.headers.Get("Set-Cookie"); err != nil || a.code != http.StatusSeeOther || !strings.Contains(c, "; Secure") || !strings.Contains(c, "; HttpOnly") || strings.Contains(c, "sesame") {
		t.Errorf("logging in: %d, %v, %q", a.code, err, c)
	}
	foreign := s.ask(t, http.MethodPost, "/ui/act", "do=block&confirmed=yes") // a browser would show the certificate
	foreign.Header.Set("Sec-Fetch-Site", "cross-site")
	if a, err := s.fetch(t, ops, foreign); err != nil || a.code != http.StatusForbidden {
		t.Errorf("a page of another site: %d, %v", a.code, err)
	}
	plainTold(t, s)

	renewed := s.ca.Renew(t, s.pair)
	s.swap(t, renewed, s.clients.PEM)
	want := renewed.TLS(t).Leaf
	testkit.Eventually(t, "the renewed certificate is shown", func() bool {
		c := bare.Clone()
		conn, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", s.At["DEBUG"])
		testkit.Check(t, err)
		defer conn.Close()
		return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Equal(want)
	}, s.Log.String)
}

// plainTold asks in ways that the port does not speak.
func plainTold(t *testing.T, s *secured) {
	t.Helper()
	conn, err := net.Dial("tcp", s.At["DEBUG"])
	testkit.Check(t, err)
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /ui/ HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	testkit.Check(t, err)
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "sent an HTTP request to an HTTPS server") {
		t.Errorf("plain text: %d %q, %v", answer.StatusCode, text, err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	certstest.Write(t, ca, s.ca.PEM)
	for addr, wants := range map[string]string{
		"http://":  "if it uses TLS, add --tls",
		"https://": "the server there is not a gRPC server: set --addr to the gRPC port, 8081 by default",
	} {
		args := []string{"status", "--addr", addr + s.At["DEBUG"]}
		if addr == "https://" {
			args = append(args, "--ca", ca)
		}
		if code, says := inProcess(t, args...); code != 1 || !strings.Contains(says, wants) {
			t.Errorf("status --addr %s: %d, %s, want %q", addr, code, says, wants)
		}
	}
	if err := s.call(t.Context(), insecure.NewCredentials()); err != nil {
		t.Errorf("gRPC without TLS: %v", err)
	}
}
