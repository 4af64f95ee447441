package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// certificate makes a CA and a pair for a script.
func certificate(t *testing.T, ts *testscript.TestScript, args []string) {
	t.Helper()
	var template x509.Certificate
	if len(args) > 0 && args[0] == "-expired" {
		template.NotAfter, args = time.Now().Add(-time.Minute), args[1:]
	}
	if len(args) < 3 {
		ts.Fatalf("certificate takes the files of the CA, the certificate and the key, and names")
	}
	template.DNSNames = args[3:]
	ca := certstest.NewCA(t, args[0])
	certstest.Write(t, ts.MkAbs(args[0]), ca.PEM)
	ca.Issue(t, template).Write(t, ts.MkAbs(args[1]), ts.MkAbs(args[2]))
}

// secured is a server that verifies its clients, in a process of its own.
type secured struct {
	*daemon

	ca       *certstest.CA // of the server
	clients  *certstest.CA
	pair     certstest.Pair // that it began with
	versions int

	cert, key, clientCA string // files, which lead through a link ..data as in a Secret of Kubernetes
}

// The names of the clients that are let in.
const (
	dnsName    = "envoy.edge"
	spiffeName = "spiffe://cluster.local/ns/edge/sa/envoy"
)

func startSecured(t *testing.T, env ...string) *secured {
	t.Helper()
	dir := t.TempDir()
	s := &secured{
		ca: certstest.NewCA(t, "servers"), clients: certstest.NewCA(t, "clients"),
		cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key"), clientCA: filepath.Join(dir, "ca.crt"),
	}
	for _, path := range []string{s.cert, s.key, s.clientCA} {
		testkit.Check(t, os.Symlink(filepath.Join("..data", filepath.Base(path)), path))
	}
	s.pair = s.ca.Issue(t, x509.Certificate{})
	s.swap(t, s.pair, s.clients.PEM)
	s.daemon = startProcess(t, endlessRules, append([]string{
		"BACKEND_TYPE=memory", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + s.cert, "GRPC_SERVER_TLS_KEY=" + s.key,
		"GRPC_CLIENT_TLS_CACERT=" + s.clientCA, "GRPC_CLIENT_TLS_SAN=first, " + dnsName + "," + spiffeName,
	}, env...)...)
	return s
}

// endlessRules never deny.
const endlessRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1000000000}
`

// swap puts other files in the place of those that are there, at once.
func (s *secured) swap(t *testing.T, pair certstest.Pair, clientCA []byte) {
	t.Helper()
	dir := filepath.Dir(s.cert)
	s.versions++
	version := "..v" + string(rune('a'+s.versions))
	testkit.Check(t, os.Mkdir(filepath.Join(dir, version), 0o700))
	pair.Write(t, filepath.Join(dir, version, "tls.crt"), filepath.Join(dir, version, "tls.key"))
	certstest.Write(t, filepath.Join(dir, version, "ca.crt"), clientCA)
	tmp := filepath.Join(dir, "..tmp")
	testkit.Check(t, errors.Join(os.Symlink(version, tmp), os.Rename(tmp, filepath.Join(dir, "..data"))))
}

// config is a client's that trusts the server and shows pair.
func (s *secured) config(t *testing.T, pair *certstest.Pair) *tls.Config {
	t.Helper()
	c := &tls.Config{RootCAs: s.ca.Pool()} //nolint:gosec // it is for the server to say which versions
	if pair != nil {
		c.Certificates = []tls.Certificate{pair.TLS(t)}
	}
	return c
}

// call makes one call on a connection of its own.
func (s *secured) call(ctx context.Context, creds credentials.TransportCredentials) error {
	conn, err := grpc.NewClient(s.At["GRPC"], grpc.WithTransportCredentials(creds))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("user", "ann"))
	return err
}

// TestTLS is the matrix of clients that are let in or not. Each denied client differs in one respect from one that is
// let in.
func TestTLS(t *testing.T) {
	t.Parallel()
	public := filepath.Join(t.TempDir(), "public.pem")
	publicCA := certstest.NewCA(t, "a public CA")
	certstest.Write(t, public, publicCA.PEM)
	s := startSecured(t, "SSL_CERT_FILE="+public, "SSL_CERT_DIR="+filepath.Dir(public)) // what the system trusts
	dns := x509.Certificate{DNSNames: []string{dnsName}}
	spiffe, err := url.Parse(spiffeName)
	testkit.Check(t, err)
	with := func(change func(*x509.Certificate)) *certstest.Pair {
		template := dns
		change(&template)
		return new(s.clients.Issue(t, template))
	}
	good := with(func(*x509.Certificate) {})
	denied := map[string]*tls.Config{
		"no certificate":       s.config(t, nil),
		"wrong CA":             s.config(t, new(certstest.NewCA(t, "clients").Issue(t, dns))),
		"the CA of the server": s.config(t, new(s.ca.Issue(t, dns))),
		"a public CA":          s.config(t, new(publicCA.Issue(t, dns))),
		"expired":              s.config(t, with(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })),
		"not yet valid":        s.config(t, with(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour / 2) })),
		"wrong SAN":            s.config(t, with(func(c *x509.Certificate) { c.DNSNames = []string{"envoy.core"} })),
		"no SAN":               s.config(t, with(func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, dnsName })),
		"wrong usage":          s.config(t, with(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })),
		"TLS 1.1":              versions(s.config(t, good), tls.VersionTLS10, tls.VersionTLS11),
	}
	admitted := map[string]*tls.Config{
		"a good DNS name": s.config(t, good),
		"a good URI":      s.config(t, with(func(c *x509.Certificate) { c.DNSNames, c.URIs = nil, []*url.URL{spiffe} })),
		"TLS 1.2":         versions(s.config(t, good), tls.VersionTLS12, tls.VersionTLS12),
		"TLS 1.3":         versions(s.config(t, good), tls.VersionTLS13, tls.VersionTLS13),
	}
	for name, config := range admitted {
		t.Run(name, func(t *testing.T) {
			if err := s.call(t.Context(), credentials.NewTLS(config)); err != nil {
				t.Error(err)
			}
		})
	}
	const failures = "ratelimitd_tls_handshake_errors_total"
	deny := func(name string, creds credentials.TransportCredentials) {
		t.Run(name, func(t *testing.T) {
			before := s.metric(failures)
			if err := s.call(t.Context(), creds); status.Code(err) != codes.Unavailable {
				t.Errorf("%v; want it to be denied", err)
			}
			s.until("the server has noticed", func() bool { return s.metric(failures) > before })
		})
	}
	for name, config := range denied {
		deny(name, credentials.NewTLS(config))
	}
	deny("plain text", insecure.NewCredentials())
}

func versions(c *tls.Config, least, most uint16) *tls.Config {
	c.MinVersion, c.MaxVersion = least, most
	return c
}

// GRPC_SERVER_TLS_MIN_VERSION raises the floor; without GRPC_CLIENT_TLS_SAN any name of the CA's will do.
func TestTLSFloor(t *testing.T) {
	t.Parallel()
	s := startSecured(t, "GRPC_SERVER_TLS_MIN_VERSION=1.3", "GRPC_CLIENT_TLS_SAN=")
	nameless := s.clients.Issue(t, x509.Certificate{})
	if err := s.call(t.Context(), credentials.NewTLS(s.config(t, &nameless))); err != nil {
		t.Error(err)
	}
	if err := s.call(t.Context(), credentials.NewTLS(versions(s.config(t, &nameless), tls.VersionTLS12, tls.VersionTLS12))); err == nil {
		t.Error("TLS 1.2 is spoken")
	}
}

// TestTLSRotation renews the certificate, the key and the CA of clients under load. No call fails, neither on existing
// connections nor on new ones.
func TestTLSRotation(t *testing.T) {
	t.Parallel()
	s := startSecured(t)
	nextCA, nextClients := certstest.NewCA(t, "servers, new"), certstest.NewCA(t, "clients, new")
	roots := s.ca.Pool()
	roots.AppendCertsFromPEM(nextCA.PEM)
	dns := x509.Certificate{DNSNames: []string{dnsName}}
	config := func(ca *certstest.CA) *tls.Config {
		c := s.config(t, new(ca.Issue(t, dns)))
		c.RootCAs = roots
		return c
	}
	var client atomic.Pointer[tls.Config] // what new connections show
	client.Store(config(s.clients))

	load := s.load(t, &client)
	shows := func(what string, pair certstest.Pair) {
		t.Helper()
		want := pair.TLS(t).Leaf
		testkit.Eventually(t, "the server shows "+what, func() bool { return s.shown(t, client.Load()).Equal(want) }, s.Log.String)
		load.report(t, what)
	}

	renewed := nextCA.Renew(t, s.pair)
	s.swap(t, renewed, s.clients.PEM)
	shows("another certificate", renewed)

	rekeyed := s.ca.Issue(t, x509.Certificate{})
	s.swap(t, rekeyed, s.clients.PEM)
	shows("another key", rekeyed)

	byHand := nextCA.Issue(t, x509.Certificate{})
	certstest.Write(t, s.cert, byHand.Cert) // and the key much later
	s.until("a pair that does not match is counted", func() bool { return s.metric("certs_load_failures") == 1 })
	shows("a pair that does not match", rekeyed)
	certstest.Write(t, s.key, byHand.Key)
	shows("one file after the other", byHand)

	both := nextCA.Issue(t, x509.Certificate{})
	s.swap(t, both, append(bytes.Clone(s.clients.PEM), nextClients.PEM...))
	shows("both CAs of clients", both)
	old := client.Swap(config(nextClients))
	load.renew()
	last := nextCA.Issue(t, x509.Certificate{})
	s.swap(t, last, nextClients.PEM)
	shows("the new CA of clients alone", last)
	load.stop(t)

	if err := s.call(t.Context(), credentials.NewTLS(old)); err == nil {
		t.Error("a client of the CA that is gone is let in")
	}
	if tries, vain := s.metric("certs_load_attempts"), s.metric("certs_load_failures"); tries != 7 || vain != 1 {
		t.Errorf("%v attempts to load, %v in vain; want 7 and 1", tries, vain)
	}
}

// shown is the certificate that a new connection is shown.
func (s *secured) shown(t *testing.T, config *tls.Config) *x509.Certificate {
	t.Helper()
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", s.At["GRPC"])
	testkit.Check(t, err)
	defer conn.Close()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
}

// tlsLoad is calls on connections that stay, and on connections that are opened for a few calls.
type tlsLoad struct {
	cancel        context.CancelFunc
	wg            sync.WaitGroup
	calls, opened atomic.Int64
	failed        atomic.Pointer[error] // the first failure
	rounds        sync.RWMutex          // held to read while connections with one configuration are opened and used
}

func (s *secured) load(t *testing.T, config *atomic.Pointer[tls.Config]) *tlsLoad {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &tlsLoad{cancel: cancel}
	stay, err := grpc.NewClient(s.At["GRPC"], grpc.WithTransportCredentials(credentials.NewTLS(config.Load())))
	testkit.Check(t, err)
	t.Cleanup(func() { cancel(); l.wg.Wait(); _ = stay.Close() })
	l.wg.Go(func() {
		for ctx.Err() == nil {
			l.ask(ctx, stay)
			time.Sleep(2 * time.Millisecond)
		}
	})
	for range 2 {
		l.wg.Go(func() {
			for ctx.Err() == nil {
				l.round(ctx, t, s.At["GRPC"], config)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	return l
}

// round opens a connection, and makes a few calls on it.
func (l *tlsLoad) round(ctx context.Context, t *testing.T, address string, config *atomic.Pointer[tls.Config]) {
	t.Helper()
	l.rounds.RLock()
	defer l.rounds.RUnlock()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config.Load())))
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	l.opened.Add(1)
	for range 3 {
		l.ask(ctx, conn)
	}
}

// ask makes one call, which is not repeated if it fails, and is completed even if the load ends.
func (l *tlsLoad) ask(ctx context.Context, conn *grpc.ClientConn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if _, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request("user", "ann")); err != nil {
		l.failed.CompareAndSwap(nil, &err)
	}
	l.calls.Add(1)
}

// renew waits until new connections use the latest configuration.
func (l *tlsLoad) renew() {
	l.rounds.Lock()
	defer l.rounds.Unlock()
}

// report waits for a few connections more, and fails where a call has failed.
func (l *tlsLoad) report(t *testing.T, when string) {
	t.Helper()
	opened := l.opened.Load()
	testkit.Eventually(t, when+": connections are opened", func() bool { return l.opened.Load() > opened+4 })
	if err := l.failed.Swap(nil); err != nil {
		t.Errorf("%s: a call failed: %v", when, *err)
	}
	t.Logf("%s: %d calls so far, on %d connections", when, l.calls.Load(), l.opened.Load())
}

func (l *tlsLoad) stop(t *testing.T) {
	t.Helper()
	l.cancel()
	l.wg.Wait()
	if err := l.failed.Load(); err != nil {
		t.Errorf("a call failed: %v", *err)
	}
}

// TestCallToHTTPS asks a server that speaks TLS and HTTP/1.1, as a proxy in front of the right one may.
func TestCallToHTTPS(t *testing.T) {
	t.Parallel()
	other := httptest.NewTLSServer(http.NotFoundHandler())
	defer other.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	certstest.Write(t, ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw}))
	code, says := inProcess(t, "call", "--addr", other.URL, "--ca", ca, "shop", "user=ann")
	if code != 1 || !strings.HasSuffix(says, ": the server there is not a gRPC server: set --addr to the gRPC port, 8081 by default\n") {
		t.Errorf("%d: %s", code, says)
	}
}
