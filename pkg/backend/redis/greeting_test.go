package redis

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// TestGreeting connects to servers that do not match the configuration, and checks that the error says so.
func TestGreeting(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t, "localhost")
	plain := redistest.Start(t).Addr()
	secure := strings.Replace(redistest.Start(t, certificates.Config()...).Addr(), "127.0.0.1", "localhost", 1)
	address := strings.Replace(secure, "localhost", "127.0.0.1", 1)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	full := redistest.Start(t, "maxclients 1")
	if err := full.Client().Ping(t.Context()).Err(); err != nil { // keeps this connection open
		t.Fatal(err)
	}
	trusting := func() (*tls.Config, error) { return &tls.Config{InsecureSkipVerify: true}, nil } //nolint:gosec // it is this test's server
	for _, c := range []struct {
		name, addr string
		tls        func() (*tls.Config, error)
		want       string
	}{
		{"HTTP", web.Listener.Addr().String(), nil, "other: the server there does not answer as Redis does: is it another server, or does it speak TLS"},
		{"memcached", memcachedtest.Start(t).Addr(), nil, "other: the server there does not answer as Redis does"},
		{"another server", says(t, "220 mail.example.org ESMTP\r\n"), nil, "other: the server there does not answer as Redis does"},
		{"a server with too many clients", full.Addr(), nil, "refused: ERR max number of clients reached"},
		{"a server that says nothing", says(t, ""), nil, "timeout: no answer in time: is it Redis that is listening there?"},
		{
			"a TLS server that complains", says(t, "\x15\x03\x01\x00\x02\x02\x46\r\n"), nil,
			"other: the server there does not answer as Redis does: is it another server, or does it speak TLS",
		},
		{"plaintext to TLS", secure, nil, "TLS"}, // OpenSSL may complain, or just hang up
		{"TLS to plaintext", plain, trusting, "timeout: the TLS handshake got no answer in time: does the server there speak TLS?"},
		{"TLS to HTTP", web.Listener.Addr().String(), trusting, "other: TLS is turned on, but the server there does not speak it"},
		{"a CA that is not trusted", secure, remote.TLSFiles{}.Load, "other: the server's certificate was issued by test CA, a CA that is not trusted here"},
		{"another name", address, remote.TLSFiles{CA: certificates.CA}.Load, "other: the server's certificate is for localhost, and not for 127.0.0.1"},
		{"no certificate", secure, trusting, "the server closed the connection after the TLS handshake: does it require a client certificate, or a different one?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := opened(t, Config{URL: c.addr, TLS: c.tls, DialTimeout: 4 * time.Second})
			defer b.Close()
			err := reached(t, b)
			if e, ok := errors.AsType[*remote.Error](err); !ok || !strings.Contains(e.Error(), c.want) || e.Node != c.addr {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// says starts a server that sends a text to each client, and then nothing.
func says(t *testing.T, text string) (addr string) {
	t.Helper()
	ln := testkit.Listen(t)
	testkit.Serve(t, ln, func(conn net.Conn) {
		_, _ = conn.Write([]byte(text))  // the client may have left,
		_, _ = io.Copy(io.Discard, conn) // and will leave eventually
	})
	return ln.Addr().String()
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	const scheme, escapes = "a user or a password is in front of its host, but no scheme: write redis://user:password@host:port", "an @ is where a URL has none"
	for _, c := range []struct {
		config Config
		want   string // the network and address, or a part of the error
	}{
		{Config{URL: "redis.example:6379"}, "tcp redis.example:6379"},
		{Config{URL: "redis.example:6379", Network: "unix"}, "tcp redis.example:6379"},
		{Config{URL: "redis://redis.example", Network: "unix"}, "tcp redis.example:6379"},
		{Config{URL: "/run/redis", Network: "unix"}, "unix /run/redis"},
		{Config{URL: "./redis", Network: "unix"}, "unix ./redis"},
		{Config{URL: "redis.sock", Network: "unix"}, "unix redis.sock"},
		{Config{URL: "@redis", Network: "unix"}, "unix @redis"},
		{Config{URL: "localhost"}, "redis: address 1 of 1: it has no port: add :6379; it must be host:port, "},
		{Config{URL: "localhost", Network: "unix"}, "it has no port: add :6379; it must be "},
		{Config{URL: "localhost:", Network: "unix"}, "it has no port: add :6379; it must be "},
		{Config{URL: "::1", Network: "unix"}, "it has no port, and an IPv6 address goes into brackets: make it [::1]:6379; it must be "},
		{Config{URL: "a:6379,b", Type: Cluster}, "address 2 of 2: it has no port: add :6379; it must be "},
		{Config{URL: "main,a:26379,b", Type: Sentinel}, "address 2 of 2: it has no port: add :26379; it must be "},
		{Config{URL: "localhost:redis"}, "its port is not a number from 1 to 65535; it must be "},
		{Config{URL: "localhost:65536", Network: "unix"}, "its port is not a number from 1 to 65535; it must be "},
		{Config{URL: "redis://localhost:65536"}, "its port is not a number from 1 to 65535; it must be "},
		{Config{URL: "http://localhost"}, "its scheme is not known; it must be "},

		// No part of a password may be dialed or resolved.
		{Config{URL: "planted@a:1"}, scheme},
		{Config{URL: "user:planted@a:1"}, scheme},
		{Config{URL: ":planted@a:1", Network: "unix"}, scheme},
		{Config{URL: "user:pla/nted@a:1", Network: "unix"}, scheme},
		{Config{URL: "//user:planted@a:1", Network: "unix"}, scheme},
		{Config{URL: "redis:planted@a:1", Network: "unix"}, scheme},
		{Config{URL: "a:1,user:planted@b:1", Type: Cluster}, "address 2 of 2: " + scheme},
		{Config{URL: "redis://user:12,planted@b:1", Type: Cluster}, "address 2 of 2: " + scheme},
		{Config{URL: "main,a:1,planted@b:1", Type: Sentinel}, "address 2 of 2: " + scheme},
		{Config{URL: "planted@main,a:1", Type: Sentinel}, "the master's name has an @ in it"},
		{Config{URL: "redis://user:pla?nted@a:1"}, "it is not a URL; " + escapes},
		{Config{URL: "redis://user:12#planted@a:1"}, escapes},
		{Config{URL: "redis://planted#x@a:1"}, escapes},
		{Config{URL: "rediss://planted?x@a:1"}, escapes},
		{Config{URL: "redis://planted?x=1&y=z@a:1"}, escapes},
		{Config{URL: "redis://planted/x@a:1"}, escapes},
		{Config{URL: "redis://user:plan%ted@a:1"}, escapes},
		{Config{URL: "redis://user:planted@a:planted"}, "it is not a URL; "},
		{Config{URL: "redis://user:planted@a/planted"}, "its database is not a number; "},
		{Config{URL: "redis://planted@a:1"}, "tcp a:1"},
		{Config{URL: "redis://user:pl@nted@a:1/2"}, "tcp a:1"},
		{Config{URL: "redis://a:1?db=2&password=pl@nted"}, "tcp a:1"},
		{Config{URL: "redis://user:planted@a:1,b:2", Type: Cluster}, "tcp a:1,b:2"},
		{Config{URL: "unix://user:planted@/run/redis@1.sock"}, "unix /run/redis@1.sock"},
		{Config{URL: "/run/redis@1.sock", Network: "unix"}, "unix /run/redis@1.sock"},
		{Config{URL: "@redis@1", Network: "unix"}, "unix @redis@1"},
	} {
		c.config.defaults()
		target, err := c.config.parse()
		got := target.network + " " + strings.Join(target.addrs, ",")
		if err != nil {
			got = err.Error()
		}
		if err == nil && got != c.want || err != nil && !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", c.config.URL, got, c.want)
		}
		if strings.Contains(got, "planted") || strings.Contains(got, "nted@") {
			t.Errorf("%s: a password is in %s", c.config.URL, got)
		}
	}
}
