package main

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const stageRules = `
domain: shop
allow_limit_override: false
descriptors:
  - key: user
    rate_limit: {unit: second, requests_per_unit: 10}
  - key: visitor
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: hot
    rate_limit: {unit: year, requests_per_unit: 100000000, lease: 100}
  - key: shadow
    rate_limit: {unit: year, requests_per_unit: 1}
    shadow_mode: true
  - key: free
    rate_limit: {unlimited: true}
  - key: soft
    rate_limit: {unit: year, requests_per_unit: 100000000, on_failure: allow, lease: off}
  - key: alone
    rate_limit: {unit: year, requests_per_unit: 100000000, on_failure: local, lease: off}
  - key: pinned
    rate_limit: {unit: second, requests_per_unit: 1000}
  - key: customer
    plan_of: customer
    plans:
      default: {unit: hour, requests_per_unit: 1000000}
      gold: {unit: hour, requests_per_unit: 2000000}
`

// stage has servers to which everything happens that the dashboard shows.
type stage struct {
	t       *testing.T
	db      *redistest.Server
	rules   string  // the directory of the rules of shop
	shop    *daemon // with Redis, tenants, controls, leases and reservations
	secured *daemon // with TLS, tokens and SHADOW_MODE, and little memory
	distant *daemon // without its control plane
}

func openStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, db: redistest.Start(t), rules: t.TempDir()}
	metricsAt := []string{"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"}
	certstest.Write(t, filepath.Join(s.rules, "shop.yaml"), []byte(stageRules))
	certstest.Write(t, filepath.Join(s.rules, "llm.yaml"), []byte(`
domain: llm
descriptors:
  - key: tokens
    rate_limit: {unit: year, requests_per_unit: 1000000000, reserve: {estimate: {start: 100, percentile: 90, min: 10, max: 1000}, ttl: 1h}}
  - {key: dropped, rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: token_bucket}}
`))
	s.shop = startCommand(t, exec.Command(shipped.Path(t, "ratelimitd")), s.rules, append(metricsAt, //nolint:noctx // it ends by a signal
		"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+s.db.Addr(), "ADMIN=true", "TENANTS_REDIS=true", "NEAR_CACHE_KEYS=100")...)
	token := filepath.Join(t.TempDir(), "token")
	certstest.Write(t, token, []byte("sesame"))
	s.secured = startTLS(t, "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 1}}]\n",
		append(metricsAt, "ADMIN=true", "ADMIN_TOKEN_FILE="+token, "MEMORY_MAX_KEYS=100", "SHADOW_MODE=true")...)
	s.distant = startProcess(t, "", append(metricsAt, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+testkit.Listen(t).Addr().String(), "CONFIG_GRPC_XDS_NODE_ID=x")...)
	s.shop.ready()
	return s
}

// load sends requests of all kinds to the shop. That some fail is part of it.
func (s *stage) load(ctx context.Context, worker int) {
	client := s.shop.client()
	send := func(domain string, d *rlcommonv3.RateLimitDescriptor) *rlsv3.RateLimitResponse {
		within, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		answer, _ := client.ShouldRateLimit(within, &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*rlcommonv3.RateLimitDescriptor{d}})
		return answer
	}
	for i := 0; ctx.Err() == nil; i++ {
		for _, text := range []string{"user=ann", "user=bob", "hot=x", "shadow=x", "free=x", "soft=x", "alone=x", "pinned=x", "customer=acme", fmt.Sprint("visitor=", i%200)} {
			send("shop", descriptorOf(text))
		}
		send("shop", descriptorOf(fmt.Sprint("visitor=", i%200)))
		send("nowhere", descriptorOf("user=ann"))
		back := descriptorOf("soft=x")
		back.IsNegativeHits = true
		send("shop", back)
		own := descriptorOf("user=carl")
		own.Limit = &rlcommonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 5, Unit: typev3.RateLimitUnit_MINUTE}
		send("shop", own)
		if id := idOf(send("llm", descriptorOf("tokens=x"))); id != "" && i%5 > 0 { // of some streams the end is still to come
			settle := descriptorOf("tokens=x")
			settle.Entries = append(settle.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: "reservation", Value: id})
			settle.HitsAddend = wrapperspb.UInt64(uint64(50 + 100*(worker%2)))
			send("llm", settle)
		}
		for _, hits := range []uint64{0, 600} { // the charge is dropped, but for the first one
			dropped := descriptorOf("dropped=x")
			dropped.HitsAddend = wrapperspb.UInt64(hits)
			send("llm", dropped)
		}
		time.Sleep(5 * time.Millisecond) // others need the processor too
	}
}

// operate does what operators do.
func (s *stage) operate() {
	s.t.Helper()
	api := adminv1.NewAdminServiceClient(s.shop.operate())
	if _, err := api.SetTenant(s.t.Context(), &adminv1.SetTenantRequest{Tenant: &adminv1.Tenant{Tenant: "acme", Plan: "gold"}}); err != nil {
		s.t.Fatal(err)
	}
	s.shop.command("limit", "shop", "pinned=x", "--to", "500/second", "--for", "1h")
	s.shop.command("block", "shop", "user=eve", "--for", "1h")
	if _, err := api.Watch(s.t.Context(), &adminv1.WatchRequest{}); err != nil {
		s.t.Fatal(err)
	}
}

// disturb has everything happen that alerts are about: new rules, good and then bad, a Redis that hangs, dies and is full, more requests
// than can be decided, and clients who are not let in.
func (s *stage) disturb() {
	s.t.Helper()
	shop := s.shop
	for _, text := range []string{
		strings.ReplaceAll(stageRules, "gold", "silver") + "  - {key: closed, rate_limit: {unit: hour}}\n", // a plan is gone, and the last rule has a warning
		"domain: [shop",
	} {
		before := shop.metric("runtime_load_attempts")
		certstest.Write(s.t, filepath.Join(s.rules, "shop.yaml"), []byte(text))
		shop.signal(syscall.SIGHUP)
		shop.until("rules are loaded, or invalid", func() bool { return shop.metric("runtime_load_attempts") > before })
	}
	shop.command("reset", "shop", "hot=x")
	for range 3 {
		s.strangers()
		time.Sleep(time.Second) // so that Prometheus sees each of them
	}
	node := fmt.Sprintf("{node=%q}", s.db.Addr())
	s.db.Stop()
	shop.until("the breaker opens", func() bool { return shop.metric("ratelimitd_backend_breaker_state"+node) == 2 })
	time.Sleep(2 * time.Second) // and that
	s.db.Cont()
	s.db.Kill()
	s.db.Restart()
	shop.ready()
	s.db.CLI("CONFIG", "SET", "maxmemory", "3mb", "maxmemory-policy", "allkeys-random")
	shop.until("keys are evicted", func() bool {
		for i := range 20 {
			s.db.CLI("SET", fmt.Sprint("filler", i), fmt.Sprintf("%0100000d", i))
		}
		return shop.metric("ratelimitd_backend_evicted_keys_total"+node) > 0
	})
	shop.until("requests are shed", s.crowd)
}

// strangers ask the server with tokens and little memory.
func (s *stage) strangers() {
	s.t.Helper()
	s.secured.notTLS()
	post := func(listener, path, body string) {
		s.t.Helper()
		if _, _, err := testkit.Fetch(s.t.Context(), http.MethodPost, "http://"+s.secured.At[listener]+path, body); err != nil {
			s.t.Fatal(err)
		}
	}
	post("DEBUG", "/admin/v1/reload", "{}")
	for i := range 300 {
		post("HTTP", "/json", fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"%d"}]}]}`, i/2))
	}
}

// crowd sends far more than can be decided in time, for some seconds.
func (s *stage) crowd() bool {
	client := s.shop.client()
	before := s.shop.shed()
	for range 5 {
		var crowd sync.WaitGroup
		for range 1000 {
			crowd.Go(func() {
				ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Millisecond)
				defer cancel()
				_, _ = client.ShouldRateLimit(ctx, request("user", "a")) // that it is too much is all that matters
			})
		}
		crowd.Wait()
	}
	return s.shop.shed() > before
}
