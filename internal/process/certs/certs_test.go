package certs_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/process/certs"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// paths returns the files of a server in a directory of the test.
func paths(t *testing.T) certs.Config {
	t.Helper()
	dir := t.TempDir()
	return certs.Config{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), Tried: func(error) {}}
}

// handshake performs a handshake with a server of s, and returns the server's certificate. The error is the server's.
func handshake(t *testing.T, s *certs.Server, config *tls.Config) (*x509.Certificate, error) {
	t.Helper()
	ln := testkit.Listen(t)
	var wg sync.WaitGroup
	var shown *x509.Certificate
	wg.Go(func() {
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		client := tls.Client(conn, config)
		defer client.Close()
		if client.HandshakeContext(t.Context()) == nil {
			_, _ = client.Read(make([]byte, 1)) // the server sends last
			shown = client.ConnectionState().PeerCertificates[0]
		}
	})
	conn, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	err = tls.Server(conn, s.TLS()).HandshakeContext(t.Context())
	_ = conn.Close()
	wg.Wait()
	return shown, err
}

// trusting is a client that presents pair and accepts any certificate.
func trusting(t *testing.T, pair *certstest.Pair) *tls.Config {
	t.Helper()
	c := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // it is the server that is tested
	if pair != nil {
		c.Certificates = []tls.Certificate{pair.TLS(t)}
	}
	return c
}

func TestWhatCannotBeLoaded(t *testing.T) {
	t.Parallel()
	ca := certstest.NewCA(t, "ca")
	good, other := ca.Issue(t, x509.Certificate{}), ca.Issue(t, x509.Certificate{})
	for name, tt := range map[string]struct {
		spoil func(*certs.Config)
		want  []string // parts of the error
	}{
		"no certificate":       {func(c *certs.Config) { _ = os.Remove(c.Cert) }, []string{"the server's TLS certificate", "tls.crt", "no such file"}},
		"no key":               {func(c *certs.Config) { _ = os.Remove(c.Key) }, []string{"the key", "tls.key", "no such file"}},
		"another key":          {func(c *certs.Config) { certstest.Write(t, c.Key, other.Key) }, []string{"tls.crt", "tls.key", "does not match"}},
		"the key twice":        {func(c *certs.Config) { c.Cert = c.Key }, []string{"tls.key", "PEM"}},
		"no PEM":               {func(c *certs.Config) { certstest.Write(t, c.Cert, []byte("secret")) }, []string{"tls.crt", "PEM"}},
		"an empty file":        {func(c *certs.Config) { certstest.Write(t, c.Cert, nil) }, []string{"tls.crt", "PEM"}},
		"a directory":          {func(c *certs.Config) { c.Key = filepath.Dir(c.Key) }, []string{"is not a file"}},
		"a device":             {func(c *certs.Config) { c.Cert = "/dev/zero" }, []string{"/dev/zero", "is not a file"}},
		"a huge file":          {func(c *certs.Config) { certstest.Write(t, c.Cert, make([]byte, 1<<20+1)) }, []string{"tls.crt", "more than"}},
		"no CA":                {func(c *certs.Config) { c.ClientCA = c.Cert + ".ca" }, []string{"the client CA", "tls.crt.ca", "no such file"}},
		"a key as CA":          {func(c *certs.Config) { c.ClientCA = c.Key }, []string{"the client CA", "tls.key", "no certificate"}},
		"names, but no CA":     {func(c *certs.Config) { c.ClientNames = []string{"envoy"} }, []string{"without the CA"}},
		"a life that is over":  {func(c *certs.Config) { expired(t, ca).Write(t, c.Cert, c.Key) }, nil}, // clients reject it
		"all that is required": {func(*certs.Config) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := paths(t)
			good.Write(t, c.Cert, c.Key)
			tt.spoil(&c)
			_, err := certs.New(slog.New(slog.DiscardHandler), c)
			if (err != nil) != (tt.want != nil) {
				t.Fatalf("New: %v", err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "secret") {
					t.Errorf("New: %v; want %q in it, and nothing of what the file holds", err, part)
				}
			}
		})
	}
}

func expired(t *testing.T, ca *certstest.CA) certstest.Pair {
	t.Helper()
	return ca.Issue(t, x509.Certificate{NotAfter: time.Now().Add(-time.Minute)})
}

func TestNames(t *testing.T) {
	t.Parallel()
	ca := certstest.NewCA(t, "ca")
	const spiffe = "spiffe://cluster.local/ns/edge/sa/envoy"
	dns := ca.Issue(t, x509.Certificate{DNSNames: []string{"other", "Envoy.Edge"}})
	wild := ca.Issue(t, x509.Certificate{DNSNames: []string{"*.edge"}})
	uri := ca.Issue(t, x509.Certificate{URIs: []*url.URL{parsed(t, "spiffe://a/b"), parsed(t, spiffe)}})
	none := ca.Issue(t, x509.Certificate{})
	for name, tt := range map[string]struct {
		names []string
		pair  certstest.Pair
		ok    bool
	}{
		"a DNS name":                 {[]string{"envoy.edge"}, dns, true},
		"one of several":             {[]string{"first", "envoy.edge", spiffe}, dns, true},
		"another DNS name":           {[]string{"envoy.core"}, dns, false},
		"a part of it":               {[]string{"envoy"}, dns, false},
		"a wildcard of the issuer":   {[]string{"envoy.edge"}, wild, true},
		"two levels of a wildcard":   {[]string{"a.envoy.edge"}, wild, false},
		"a wildcard of ours":         {[]string{"*.edge"}, dns, false},
		"a URI":                      {[]string{spiffe}, uri, true},
		"another URI":                {[]string{"spiffe://cluster.local/ns/edge/sa/other"}, uri, false},
		"the beginning of a URI":     {[]string{"spiffe://cluster.local/ns/edge"}, uri, false},
		"a URI, against DNS names":   {[]string{"spiffe://other"}, dns, false},
		"a DNS name, against URIs":   {[]string{"cluster.local"}, uri, false},
		"an address":                 {[]string{"127.0.0.1"}, none, true},
		"an address in its brackets": {[]string{"[::1]"}, ca.Issue(t, x509.Certificate{IPAddresses: []net.IP{net.IPv6loopback}}), true},
		"no name of its own":         {[]string{"envoy.edge", spiffe}, none, false},
		"any":                        {nil, none, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := paths(t)
			ca.Issue(t, x509.Certificate{}).Write(t, c.Cert, c.Key)
			c.ClientCA, c.ClientNames = c.Cert+".ca", tt.names
			certstest.Write(t, c.ClientCA, ca.PEM)
			s, err := certs.New(slog.New(slog.DiscardHandler), c)
			if err != nil {
				t.Fatal(err)
			}
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				config := trusting(t, &tt.pair)
				config.MaxVersion = version
				_, err := handshake(t, s, config)
				if (err == nil) != tt.ok {
					t.Errorf("%s: %v; want it to be let in: %t", tls.VersionName(version), err, tt.ok)
				}
				if !tt.ok && !strings.Contains(err.Error(), "has none of the accepted names") {
					t.Errorf("%s: denied for another reason: %v", tls.VersionName(version), err)
				}
			}
		})
	}
}

func parsed(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestNoSessionIsTakenUpAgain: each connection is checked against the current files, even with an old TLS session.
func TestNoSessionIsTakenUpAgain(t *testing.T) {
	t.Parallel()
	ca := certstest.NewCA(t, "ca")
	client := ca.Issue(t, x509.Certificate{})
	c := paths(t)
	ca.Issue(t, x509.Certificate{}).Write(t, c.Cert, c.Key)
	c.ClientCA = c.Cert + ".ca"
	certstest.Write(t, c.ClientCA, ca.PEM)
	s, err := certs.New(slog.New(slog.DiscardHandler), c)
	if err != nil {
		t.Fatal(err)
	}
	config := trusting(t, &client)
	stored := &countingCache{ClientSessionCache: tls.NewLRUClientSessionCache(8)}
	config.ClientSessionCache, config.ServerName = stored, "ratelimit"
	for range 2 {
		if _, err := handshake(t, s, config); err != nil {
			t.Fatal(err)
		}
	}
	if stored.tickets > 0 {
		t.Errorf("the server gave %d tickets for sessions", stored.tickets)
	}
}

// countingCache counts resumable sessions.
type countingCache struct {
	tls.ClientSessionCache

	tickets int
}

// Put implements [tls.ClientSessionCache].
func (c *countingCache) Put(key string, state *tls.ClientSessionState) {
	if state != nil {
		c.tickets++
	}
	c.ClientSessionCache.Put(key, state)
}

// following is a server that reloads its files in virtual time.
type following struct {
	*certs.Server

	t *testing.T

	log testkit.Buffer

	mu    sync.Mutex
	tried []error
}

// tries returns the number of attempts to load, and the last error.
func (f *following) tries() (n int, last error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.tried), f.tried[len(f.tried)-1]
}

func follow(t *testing.T, c certs.Config) *following {
	t.Helper()
	f := &following{t: t}
	c.Tried = func(err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.tried = append(f.tried, err)
	}
	s, err := certs.New(slog.New(slog.NewTextHandler(&f.log, nil)), c)
	if err != nil {
		t.Fatal(err)
	}
	f.Server = s
	testkit.Run(t, s.Run)
	return f
}

// settle waits for enough polls.
func (f *following) settle() {
	time.Sleep(2*time.Second + time.Millisecond)
	synctest.Wait()
}

// want checks the server's certificate, the number of attempts, and whether the last one succeeded.
func (f *following) want(shown certstest.Pair, tried int, ok bool) {
	f.t.Helper()
	if n, last := f.tries(); n != tried || (last == nil) != ok {
		f.t.Errorf("tried %d times, the last time: %v; want %d, and it to succeed: %t", n, last, tried, ok)
	}
	got, err := handshake(f.t, f.Server, trusting(f.t, nil))
	if err != nil {
		f.t.Fatal(err)
	}
	if leaf := shown.TLS(f.t).Leaf; !got.Equal(leaf) {
		f.t.Errorf("the server shows %v, want %v", got.SerialNumber, leaf.SerialNumber)
	} else if !f.NotAfter().Equal(leaf.NotAfter) {
		f.t.Errorf("NotAfter() = %v, want %v", f.NotAfter(), leaf.NotAfter)
	}
}

func TestFollowsItsFiles(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	first, second, third := ca.Issue(t, x509.Certificate{}), ca.Issue(t, x509.Certificate{}), ca.Issue(t, x509.Certificate{})
	c := paths(t)
	synctest.Test(t, func(t *testing.T) {
		first.Write(t, c.Cert, c.Key)
		f := follow(t, c)
		f.settle()
		f.want(first, 1, true)

		// The files change one after the other: nothing is tried in between.
		certstest.Write(t, c.Cert, second.Cert)
		time.Sleep(time.Second)
		certstest.Write(t, c.Key, second.Key)
		f.settle()
		f.want(second, 2, true)

		// A pair that does not match for long is reported once, and the last good one stays.
		certstest.Write(t, c.Key, third.Key)
		for range 5 {
			f.settle()
		}
		f.want(second, 3, false)
		if n := strings.Count(f.log.String(), "new TLS certificates are invalid"); n != 1 || strings.Contains(f.log.String(), "PRIVATE") {
			t.Errorf("said %d times that they are denied, want once:\n%s", n, f.log.String())
		}

		// Missing for a while, half written, and then valid.
		if err := errors.Join(os.Remove(c.Cert), os.Remove(c.Key)); err != nil {
			t.Fatal(err)
		}
		f.settle()
		f.want(second, 4, false)
		certstest.Write(t, c.Cert, third.Cert[:100])
		certstest.Write(t, c.Key, third.Key)
		f.settle()
		f.want(second, 5, false)
		certstest.Write(t, c.Cert, third.Cert)
		f.settle()
		f.want(third, 6, true)

		// Touched and rewritten without changes: nothing is tried.
		third.Write(t, c.Cert, c.Key)
		f.settle()
		f.want(third, 6, true)
	})
}

// TestFollowsASwappedLink: a Kubernetes Secret is replaced by its link ..data, like when cert-manager renews it.
func TestFollowsASwappedLink(t *testing.T) {
	ca := certstest.NewCA(t, "ca")
	first, second := ca.Issue(t, x509.Certificate{}), ca.Issue(t, x509.Certificate{})
	c := paths(t)
	dir := filepath.Dir(c.Cert)
	version := func(name string, pair certstest.Pair) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		pair.Write(t, filepath.Join(dir, name, "tls.crt"), filepath.Join(dir, name, "tls.key"))
		if err := errors.Join(os.Symlink(name, filepath.Join(dir, "..tmp")), os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	version("..2026_01", first)
	for _, path := range []string{c.Cert, c.Key} {
		if err := os.Symlink(filepath.Join("..data", filepath.Base(path)), path); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, c)
		f.want(first, 1, true)
		version("..2026_02", second)
		if err := os.RemoveAll(filepath.Join(dir, "..2026_01")); err != nil {
			t.Fatal(err)
		}
		f.settle()
		f.want(second, 2, true)
	})
}

// TestFollowsTheCAOfClients: the client CA is reloaded like other files. Clients of the old CA are then denied, and
// clients of the new one accepted.
func TestFollowsTheCAOfClients(t *testing.T) {
	c := paths(t)
	c.ClientCA = c.Cert + ".ca"
	synctest.Test(t, func(t *testing.T) {
		old, next := certstest.NewCA(t, "old"), certstest.NewCA(t, "new") // during the handshake
		ofOld, ofNext := old.Issue(t, x509.Certificate{}), next.Issue(t, x509.Certificate{})
		ofOld.Write(t, c.Cert, c.Key)
		certstest.Write(t, c.ClientCA, old.PEM)
		f := follow(t, c)
		for i, step := range []struct {
			bundle   []byte
			old, new bool
		}{
			{old.PEM, true, false},
			{append(bytes.Clone(old.PEM), next.PEM...), true, true},
			{next.PEM, false, true},
			{[]byte("nothing"), false, true},
			{old.PEM, true, false},
		} {
			certstest.Write(t, c.ClientCA, step.bundle)
			f.settle()
			for name, client := range map[string]struct {
				pair certstest.Pair
				ok   bool
			}{"old": {ofOld, step.old}, "new": {ofNext, step.new}} {
				if _, err := handshake(t, f.Server, trusting(t, &client.pair)); (err == nil) != client.ok {
					t.Errorf("step %d: a client of the %s CA: %v; want it to be let in: %t", i, name, err, client.ok)
				}
			}
		}
		if n, _ := f.tries(); n != 5 {
			t.Errorf("tried %d times, want 5", n)
		}
	})
}
