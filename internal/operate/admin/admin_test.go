package admin_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/admin"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is an admin API over counters in memory. Their clock advances only by sleep.
type server struct {
	adminv1.AdminServiceClient

	conn    *grpc.ClientConn
	limiter *limiter.Limiter
	service *admin.Service
	now     atomic.Int64 // µs
	log     testkit.Buffer
}

// begin is a time at the start of a minute, an hour, and a day.
const begin = engine.Micros(20_000 * 86_400 * 1_000_000)

func start(t *testing.T, rules string) *server {
	t.Helper()
	return startOn(t, rules, socket(t), admin.Config{})
}

// socket listens on the admin socket.
func socket(t *testing.T) net.Listener {
	t.Helper()
	return testkit.ListenOn(t, "unix", filepath.Join(t.TempDir(), "s"))
}

func startOn(t *testing.T, rules string, ln net.Listener, c admin.Config) *server {
	t.Helper()
	s := &server{}
	s.now.Store(int64(begin))
	store := memory.New(memory.Config{Now: func() engine.Micros { return engine.Micros(s.now.Load()) }})
	s.serve(t, store, ln, c)
	if rules != "" {
		s.load(t, rules)
	}
	return s
}

// serve serves the admin API for the counters in store until the test ends.
func (s *server) serve(t *testing.T, store backend.Backend, ln net.Listener, c admin.Config) {
	t.Helper()
	c.Observer, c.Process = observe.New(func(context.Context) string { return "10.0.0.7:51234" }), process{}
	s.limiter = limiter.New(store, stats.New(), limiter.Config{Observer: c.Observer})
	c.Access.InClear = true
	c.Log = slog.New(slog.NewTextHandler(&s.log, nil))
	c.Audit = c.Log
	if ln.Addr().Network() == "unix" && c.Access.Socket == "" {
		c.Access.Socket = ln.Addr().String()
	}
	g := grpc.NewServer()
	s.service = admin.New(s.limiter, c)
	s.service.Register(g)
	testkit.Run(t, func(context.Context) error { return g.Serve(ln) })
	target := ln.Addr().String()
	if ln.Addr().Network() == "unix" {
		target = "unix:" + target
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), store.Close()); err != nil {
			t.Error(err)
		}
		g.Stop()
	})
	s.conn, s.AdminServiceClient = conn, adminv1.NewAdminServiceClient(conn)
}

// process is a Process with empty answers.
type process struct{}

func (process) Status(*access.Who) *adminv1.StatusResponse {
	return &adminv1.StatusResponse{Store: &adminv1.StoreStatus{}}
}

func (process) Divided(*access.Who, func(string, []descriptors.Entry) bool) []*adminv1.DividedLimit {
	return nil
}

func (process) ReloadRules(context.Context, *access.Who, bool) (*adminv1.ReloadRulesResponse, error) {
	return &adminv1.ReloadRulesResponse{}, nil
}

func (process) Drain(bool, bool) (*adminv1.DrainResponse, error) {
	return &adminv1.DrainResponse{}, nil
}

func (s *server) load(t *testing.T, rules ...string) {
	t.Helper()
	s.limiter.SetRules(rulefiletest.Load(t, rules...))
}

// hit consumes hits of a descriptor and reports whether it is over its limit.
func (s *server) hit(t *testing.T, domain string, hits uint64, kvs ...string) (over bool) {
	t.Helper()
	d := limiter.Descriptor{Hits: hits, HasHits: true}
	for i := 0; i < len(kvs); i += 2 {
		d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(kvs[i]), Value: []byte(kvs[i+1])})
	}
	r := &limiter.Request{Domain: []byte(domain), Descriptors: []limiter.Descriptor{d}}
	var scratch limiter.Scratch
	v, err := s.limiter.Decide(t.Context(), r, &scratch)
	if err != nil {
		t.Fatal(err)
	}
	return v.Over
}

// sleep advances the clock of the counters.
func (s *server) sleep(d time.Duration) { s.now.Add(d.Microseconds()) }

// entries returns entries from alternating keys and values.
func entries(kvs ...string) (es []*adminv1.Entry) {
	for i := 0; i < len(kvs); i += 2 {
		es = append(es, &adminv1.Entry{Key: kvs[i], Value: kvs[i+1]})
	}
	return es
}

const shop = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
  - key: user
    value: vip
    rate_limit: {unlimited: true}
  - key: quiet
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: login
    rate_limit:
      unit: minute
      requests_per_unit: 2
      penalty: {for: 5m, on: exceeded}
  - key: both
    rate_limits:
      - {name: burst, unit: second, requests_per_unit: 2}
      - {unit: day, requests_per_unit: 5, algorithm: sliding_window, precision: 24}
  - key: boss
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: burst}]}
  - key: queue
    rate_limit: {unit: second, requests_per_unit: 1, algorithm: leaky_bucket, burst: 5}
  - key: nothing
`

// failing makes a call and returns its error.
func failing[Request, Answer any](t *testing.T, call func(context.Context, *Request, ...grpc.CallOption) (*Answer, error), q *Request) error {
	t.Helper()
	_, err := call(t.Context(), q)
	return err
}

func wantStatus(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if got := status.Convert(err); got.Code() != code || !strings.Contains(got.Message(), text) {
		t.Errorf("status %v %q; want %v with %q", got.Code(), got.Message(), code, text)
	}
}
