package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// secured is a server that verifies its clients.
type secured struct {
	*server

	ca, clients     authority
	cert, key, file string // the last is of the CA of clients
}

// clientName is whom the server lets in.
const clientName = "envoy.edge"

// secure starts a server that trusts what a CA of clients signs; public is a CA that the machine trusts.
func (e *env) secure(ctx context.Context, public authority) (*secured, error) {
	x := &secured{
		ca: newAuthority("servers"), clients: newAuthority("clients"),
		cert: filepath.Join(e.dir, "tls.crt"), key: filepath.Join(e.dir, "tls.key"), file: filepath.Join(e.dir, "clients.crt"),
	}
	if err := x.show(x.ca.issue(x509.Certificate{}), x.clients.PEM); err != nil {
		return nil, err
	}
	system, err := e.writeFile("public.pem", public.PEM)
	if err != nil {
		return nil, err
	}
	vars := []string{
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + x.cert, "GRPC_SERVER_TLS_KEY=" + x.key,
		"GRPC_CLIENT_TLS_CACERT=" + x.file, "GRPC_CLIENT_TLS_SAN=" + clientName, "SSL_CERT_FILE=" + system, "SSL_CERT_DIR=" + e.dir,
	}
	if e.other { // which knows no store of its own
		r, err := e.redis(ctx)
		if err != nil {
			return nil, err
		}
		vars = append(vars, "REDIS_URL="+r.addr)
	} else {
		vars = append(vars, "BACKEND_TYPE=memory")
	}
	x.server, err = e.startServer(ctx, endless, vars...)
	return x, err
}

// show puts other files in the place of those that the server has, each at once.
func (x *secured) show(pair certstest.Pair, clients []byte) error {
	var all error
	for path, text := range map[string][]byte{x.cert: pair.Cert, x.key: pair.Key, x.file: clients} {
		all = errors.Join(all, os.WriteFile(path+".tmp", text, 0o600), os.Rename(path+".tmp", path))
	}
	return all
}

// trusting is a client's configuration, which shows pair if it is not nil: also to a server that asks for one of another
// CA, which crypto/tls would not do by itself.
func (x *secured) trusting(pair *certstest.Pair, roots ...authority) *tls.Config {
	pool := x509.NewCertPool()
	for _, a := range append(roots, x.ca) {
		pool.AppendCertsFromPEM(a.PEM)
	}
	c := &tls.Config{RootCAs: pool} //nolint:gosec // it is for the server to say which versions
	if pair != nil {
		shown := pair.TLS(issuer{})
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
	}
	return c
}

// call makes a few calls on a connection of its own.
func (x *secured) call(ctx context.Context, creds credentials.TransportCredentials, n int) (calls int, err error) {
	conn, err := grpc.NewClient(x.grpc, grpc.WithTransportCredentials(creds))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for calls = 0; calls < n && err == nil; calls++ {
		_, err = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, ask("shop", "user=a"))
	}
	return calls, err
}

// tlsMatrix is E28.
func tlsMatrix(ctx context.Context, e *env) error {
	public := newAuthority("a public CA")
	x, err := e.secure(ctx, public)
	if err != nil {
		return err
	}
	named := x509.Certificate{DNSNames: []string{clientName}}
	by := func(a authority, change func(*x509.Certificate)) *tls.Config {
		template := named
		change(&template)
		return x.trusting(new(a.issue(template)))
	}
	same := func(*x509.Certificate) {}
	old := by(x.clients, same)
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	denied := map[string]credentials.TransportCredentials{
		"plain text":         insecure.NewCredentials(),
		"none":               credentials.NewTLS(x.trusting(nil)),
		"wrong CA":           credentials.NewTLS(by(newAuthority("clients"), same)),
		"public-CA root":     credentials.NewTLS(by(public, same)),
		"CA of the server":   credentials.NewTLS(by(x.ca, same)),
		"expired":            credentials.NewTLS(by(x.clients, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })),
		"not yet valid":      credentials.NewTLS(by(x.clients, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour / 2) })),
		"wrong SAN":          credentials.NewTLS(by(x.clients, func(c *x509.Certificate) { c.DNSNames = []string{"envoy.core"} })),
		"name in CN, no SAN": credentials.NewTLS(by(x.clients, func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, clientName })),
		"wrong EKU":          credentials.NewTLS(by(x.clients, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })),
		"TLS 1.1":            credentials.NewTLS(old),
	}
	good := 0
	for name, creds := range denied {
		_, err := x.call(ctx, creds, 1)
		e.note("%s: %v", name, err)
		if good += boolInt(err != nil); err == nil {
			e.measured(false, "let in: %s", name)
		}
	}
	_, err = x.call(ctx, credentials.NewTLS(by(x.clients, same)), 1)
	e.note("good: %v", err)
	good += boolInt(err == nil)
	e.measured(good == len(denied)+1, "%d of %d", good, len(denied)+1)
	return x.rotate(ctx, e)
}

// rotate renews the certificate, the key and the CA of clients while connections are used, and opened.
func (x *secured) rotate(ctx context.Context, e *env) error {
	nextCA, nextClients := newAuthority("servers, new"), newAuthority("clients, new")
	named := x509.Certificate{DNSNames: []string{clientName}}
	var shows atomic.Pointer[tls.Config] // what new connections show
	shows.Store(x.trusting(new(x.clients.issue(named)), nextCA))
	var calls, dropped, opened atomic.Int64
	run, end := context.WithCancel(ctx)
	defer end()
	var wg sync.WaitGroup
	took := func(n int, err error) {
		calls.Add(int64(n))
		if err != nil {
			e.note("rotation: %v", err)
			dropped.Add(1)
		}
	}
	wg.Go(func() { // one connection that stays
		conn, err := x.dial(grpc.WithTransportCredentials(credentials.NewTLS(shows.Load())))
		for run.Err() == nil && err == nil {
			_, err = rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, ask("shop", "user=a"))
			took(1, err)
			_ = sleep(run, 2*time.Millisecond)
		}
	})
	for range 2 {
		wg.Go(func() {
			for run.Err() == nil {
				took(x.call(ctx, credentials.NewTLS(shows.Load()), 3))
				opened.Add(1)
				_ = sleep(run, 10*time.Millisecond)
			}
		})
	}
	both := append(bytes.Clone(x.clients.PEM), nextClients.PEM...)
	var slowest time.Duration
	for i, step := range []struct {
		ca      authority
		clients []byte
		swap    authority // what clients show from then on
	}{
		{ca: x.ca, clients: x.clients.PEM},
		{ca: nextCA, clients: x.clients.PEM},
		{ca: nextCA, clients: both, swap: nextClients},
		{ca: nextCA, clients: nextClients.PEM},
	} {
		pair := step.ca.issue(x509.Certificate{})
		if err := x.show(pair, step.clients); err != nil {
			return err
		}
		want := pair.TLS(issuer{}).Leaf
		d, ok := poll(ctx, 5*time.Second, func() bool { return x.presents(ctx, shows.Load(), want) })
		if !ok {
			e.measured(false, "step %d of the rotation is not in effect after 5 s", i)
		}
		slowest = max(slowest, d)
		if step.swap.CA != nil {
			shows.Store(x.trusting(new(step.swap.issue(named)), nextCA))
		}
		if err := sleep(ctx, 300*time.Millisecond); err != nil {
			return err
		}
	}
	end()
	wg.Wait()
	_, err := x.call(ctx, credentials.NewTLS(x.trusting(new(x.clients.issue(named)), nextCA)), 1)
	e.note("rotation: a client of the removed CA: %v", err)
	if err == nil || ctx.Err() != nil {
		e.measured(false, "let in: a client of the removed CA")
	}
	e.measured(dropped.Load() == 0, "rotation: %d of %d calls dropped, on %d connections; in effect within %s", dropped.Load(), calls.Load(), opened.Load(), ms(slowest))
	return nil
}

// presents says whether the server shows a certificate to new connections.
func (x *secured) presents(ctx context.Context, config *tls.Config, want *x509.Certificate) bool {
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", x.grpc)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].Equal(want)
}
