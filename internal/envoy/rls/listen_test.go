package rls

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/ratelimitd/ratelimitd/internal/process/grpcserver"
	"github.com/ratelimitd/ratelimitd/internal/process/netlimit"
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
		if err := os.WriteFile(file, []byte("data"), 0o600); err != nil {
			t.Fatal(err)
		}
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
