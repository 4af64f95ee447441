package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inProcess returns a server in this process. Its ports are open, but nothing runs.
func inProcess(t *testing.T, env ...string) *Server {
	t.Helper()
	return newServer(t, io.Discard, env...)
}

// newServer is inProcess with a log.
func newServer(t *testing.T, log io.Writer, env ...string) *Server {
	t.Helper()
	s := parsed(t, append([]string{
		"BACKEND_TYPE=memory", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1", "DEBUG_HOST=127.0.0.1", "PORT=0", "GRPC_PORT=0", "DEBUG_PORT=0",
		"RUNTIME_ROOT=" + t.TempDir(), "DRAIN_DELAY=0s",
	}, env...)...)
	v, err := New(t.Context(), s, Config{Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// parsed returns the settings of environ.
func parsed(t *testing.T, env ...string) settings.Settings {
	t.Helper()
	s, _, err := settings.Parse(env)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestStopsWhileItStarts: a server stops immediately and without an error while it starts, or waits for rules or Redis.
func TestStopsWhileItStarts(t *testing.T) {
	absent := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=" + t.TempDir() + "/nobody.sock"}
	for name, env := range map[string][]string{"no rules": nil, "no rules, no Redis": absent} {
		t.Run(name, func(t *testing.T) {
			for i := range 50 {
				v := inProcess(t, env...)
				ctx, cancel := context.WithCancel(t.Context())
				stop := time.AfterFunc(time.Duration(i)*100*time.Microsecond, cancel)
				begin := time.Now()
				if err := v.Run(ctx); err != nil {
					t.Errorf("stopped after %d × 0.1 ms: %v", i, err)
				}
				if took := time.Since(begin); took > 10*time.Second {
					t.Errorf("stopping took %v", took)
				}
				stop.Stop()
				cancel()
			}
		})
	}
}

// TestFinishesWhatHasBegun: a running request to /json is answered after the server starts to stop.
func TestFinishesWhatHasBegun(t *testing.T) {
	v := inProcess(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- v.Run(ctx) }()
	c, err := net.Dial("tcp", v.listeners.http.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(testkit.Patience)); err != nil {
		t.Fatal(err)
	}
	const body = `{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`
	_, err = fmt.Fprintf(c, "POST /json HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	if line, err := in.ReadString('\n'); err != nil || line != "HTTP/1.1 100 Continue\r\n" { // the handler is running
		t.Fatalf("%q, %v", line, err)
	}
	cancel()
	testkit.Eventually(t, "the listener is closed", func() bool { return closed(v.listeners.http.Addr()) })
	if _, err := io.WriteString(c, body); err != nil {
		t.Fatal(err)
	}
	if _, err := in.ReadString('\n'); err != nil { // the end of 100 Continue
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest { // the answer without rules
		t.Errorf("status %d", resp.StatusCode)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// closed reports whether addr accepts no connections.
func closed(addr net.Addr) bool {
	c, err := net.Dial(addr.Network(), addr.String())
	if err == nil {
		_ = c.Close()
	}
	return err != nil
}

// TestAgeOfRules: loading a set that is not the newest one does not reset the age of the rules, nor the health of a server with
// too few rules.
func TestAgeOfRules(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{})
		h, c := health.NewTracker(), settings.Settings{}
		c.Rules.HealthyWithOne = true
		s := newRulesState(h, stats.New(), l, &c)
		load := func(newest bool, sources ...descriptors.Source) {
			t.Helper()
			set, _, err := descriptors.Load(sources, descriptors.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s.loaded(set, 0, newest)
		}
		shop := descriptors.Source{Name: "a.yaml", Data: []byte("domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 3}}]\n")}
		load(true, shop)
		for range 3 { // reloads with an invalid overlay
			load(false, shop)
			s.invalid(errors.New("the overlay is invalid"))
			time.Sleep(time.Minute)
		}
		if age := s.age(); age != 3*time.Minute || !h.OK() {
			t.Errorf("the age is %v, want 3m; healthy: %t", age, h.OK())
		}
		load(false)
		if s.invalid(errors.New("the overlay is invalid")); h.OK() {
			t.Error("healthy without rules")
		}
		if load(true, shop); s.age() != 0 || !h.OK() {
			t.Errorf("the age is %v; healthy: %t", s.age(), h.OK())
		}
	})
}
