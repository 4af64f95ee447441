package rls

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rl.sock")
	l, err := netlimit.ListenUnix(t.Context(), path, netlimit.GroupMode)
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, newServer(New(decideFunc(allow), Config{}), grpcserver.Config{}), l)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket's mode is %v, %v, want 0660", info.Mode(), err)
	}
	c := ratelimitv3.NewRateLimitServiceClient(dial(t, "unix://"+path))
	if _, err := c.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
		t.Fatal(err)
	}
	t.Run("in use", func(t *testing.T) {
		if l, err := netlimit.ListenUnix(t.Context(), path, netlimit.GroupMode); err == nil || !strings.Contains(err.Error(), "another server is listening") {
			t.Errorf("ListenUnix = %v, %v", l, err)
		}
		if _, err := c.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
			t.Errorf("the first server is gone: %v", err)
		}
	})
	t.Run("left behind", func(t *testing.T) {
		stale := filepath.Join(t.TempDir(), "stale.sock")
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		if err := dead.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := netlimit.ListenUnix(t.Context(), stale, netlimit.GroupMode)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("something else", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "precious")
		testkit.WriteFile(t, file, "data")
		if l, err := netlimit.ListenUnix(t.Context(), file, netlimit.GroupMode); err == nil || !strings.Contains(err.Error(), "something else") {
			t.Errorf("ListenUnix = %v, %v", l, err)
		}
		if _, err := os.Stat(file); err != nil {
			t.Errorf("the file is gone: %v", err)
		}
	})
}

func TestListenTCPIsAlone(t *testing.T) {
	l, err := netlimit.ListenTCP(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if second, err := netlimit.ListenTCP(t.Context(), l.Addr().String()); err == nil {
		t.Errorf("a second server listens on %v too", second.Addr())
	}
}

// serverTLS is a configuration for 127.0.0.1, and who trusts it.
func serverTLS(t *testing.T) (*tls.Config, *x509.CertPool) {
	t.Helper()
	ca := certstest.NewCA(t, "ca")
	pair := ca.Issue(t, x509.Certificate{})
	return &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}, MinVersion: tls.VersionTLS12}, ca.Pool()
}

// A failed handshake is reported with the client's address, and does not affect others.
func TestHandshakesThatFail(t *testing.T) {
	config, pool := serverTLS(t)
	var mu sync.Mutex
	var told []string
	server := newServer(New(decideFunc(allow), Config{}), grpcserver.Config{TLS: config, Handshake: func(peer net.Addr, err error) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, peer.String()+": "+err.Error())
	}})
	address := serve(t, server)
	good := ratelimitv3.NewRateLimitServiceClient(dial(t, address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))) //nolint:gosec // the server says which version
	if _, err := good.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
		t.Fatal(err)
	}
	_, err := ratelimitv3.NewRateLimitServiceClient(dial(t, address)).ShouldRateLimit(t.Context(), request("d", "k=v"))
	wantCode(t, err, codes.Unavailable)
	if _, err := good.ShouldRateLimit(t.Context(), request("d", "k=v")); err != nil {
		t.Error(err)
	}
	server.Stop() // after which no handshake is under way
	mu.Lock()
	defer mu.Unlock()
	if len(told) == 0 || !strings.HasPrefix(told[0], "127.0.0.1:") || !strings.Contains(told[0], "TLS handshake") {
		t.Errorf("told %q", told)
	}
}
