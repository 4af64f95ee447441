package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// Two servers on one Redis, for streams that reserve hits when they begin and settle them at their end.

const (
	streams     = 200
	budget      = 20_000
	reservation = budget / streams // so that all streams fit at once

	reservationRules = `
domain: llm
descriptors:
  - key: fixed_window
    rate_limit: {unit: year, requests_per_unit: 20000, reserve: {estimate: 100, ttl: 1h}}
  - key: sliding_window
    rate_limit: {unit: year, requests_per_unit: 20000, algorithm: sliding_window, reserve: {estimate: 100, ttl: 1h}}
  - key: token_bucket
    rate_limit: {unit: year, unit_multiplier: 4, requests_per_unit: 20000, algorithm: token_bucket, reserve: {estimate: 100, ttl: 1h}}
  - key: once
    rate_limit: {unit: year, requests_per_unit: 4000000, reserve: {estimate: 100, ttl: 1h}}
`
)

// envoys ask servers on behalf of streams. Servers may be replaced meanwhile.
type envoys struct {
	t       *testing.T
	mu      sync.Mutex
	clients []rlsv3.RateLimitServiceClient
}

func (g *envoys) any() rlsv3.RateLimitServiceClient { //nolint:ireturn // what the generated code has
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.clients[rand.IntN(len(g.clients))] //nolint:gosec // any will do
}

func (g *envoys) replace(i int, c rlsv3.RateLimitServiceClient) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.clients[i] = c
}

// ask makes the call of a stream for a counter: the first one or, with an id, the second, with the true cost as hits.
func (g *envoys) ask(key, value, id string, hits uint64) (*rlsv3.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(g.t.Context(), patience)
	defer cancel()
	d := &rlcommonv3.RateLimitDescriptor{Entries: []*rlcommonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}, HitsAddend: wrapperspb.UInt64(hits)}
	if id != "" {
		d.Entries = append(d.Entries, &rlcommonv3.RateLimitDescriptor_Entry{Key: "reservation", Value: id})
	}
	return g.any().ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "llm", Descriptors: []*rlcommonv3.RateLimitDescriptor{d}})
}

// left returns what is left of a counter, which is not changed: a charge of nothing.
func (g *envoys) left(key, value string) uint32 {
	g.t.Helper()
	answer, err := g.ask(key, value, "none", 0)
	testkit.Check(g.t, err)
	return answer.GetStatuses()[0].GetLimitRemaining()
}

func idOf(answer *rlsv3.RateLimitResponse) string {
	return answer.GetDynamicMetadata().GetFields()["reservation"].GetStringValue()
}

// startReserving starts a server, and waits until it is ready: then it knows the key that it shares with the others.
func startReserving(t *testing.T, db *redistest.Server) (*daemon, rlsv3.RateLimitServiceClient) { //nolint:ireturn // what the generated code has
	t.Helper()
	d := startDaemon(t, db, reservationRules, "REDIS_OP_TIMEOUT=10s")
	d.ready()
	g := &envoys{t: t, clients: []rlsv3.RateLimitServiceClient{d.client()}}
	if answer, err := g.ask("once", "first", "", 0); err != nil || idOf(answer) == "" {
		t.Fatalf("the first request is answered %v, %v, want an id", answer, err)
	}
	return d, g.clients[0]
}

// TestReservationsWithSecret: with CACHE_KEY_SECRET_FILE nothing in Redis makes ids, a change of the secret leaves none of them
// unsettled, and a server with another secret takes them for forged, which it says and counts, and charges nothing.
func TestReservationsWithSecret(t *testing.T) {
	t.Parallel()
	const current, next = "the-secret-of-all-replicas-until-today", "the-secret-of-all-replicas-since-today"
	db := redistest.Start(t)
	start := func(file string) (*daemon, *envoys) {
		name := filepath.Join(t.TempDir(), "secret")
		certstest.Write(t, name, []byte(file))
		d := startDaemon(t, db, reservationRules, "REDIS_OP_TIMEOUT=10s", "CACHE_KEY_SECRET_FILE="+name)
		d.ready()
		return d, &envoys{t: t, clients: []rlsv3.RateLimitServiceClient{d.client()}}
	}
	outcome := func(d *daemon, name string) float64 {
		return d.metric(fmt.Sprintf(`ratelimitd_reservations_total{domain="llm",outcome=%q}`, name))
	}
	ask := func(g *envoys, id string, hits uint64) string {
		t.Helper()
		answer, err := g.ask("once", "ann", id, hits)
		testkit.Check(t, err)
		return idOf(answer)
	}
	_, first := start(current)
	id, other := ask(first, "", 0), ask(first, "", 0)
	if keys := db.CLI("--scan", "--pattern", "rl:{controls}:secret"); id == "" || keys != "" {
		t.Errorf("the id is %q, and Redis has the key %q", id, keys)
	}

	strange, g := start("a secret that only this replica has")
	ask(g, id, 10)
	if n := outcome(strange, "forged"); n != 1 {
		t.Errorf("%v ids are counted as forged, want that of the others", n)
	}
	testkit.Eventually(t, "the log says it", func() bool {
		return strings.Contains(strange.Log.String(), "requests have reservation IDs that were not made with these keys")
	}, strange.Log.String)
	testkit.Eventually(t, "the log says it", func() bool {
		return strings.Contains(strange.Log.String(), "replicas that share this backend have a different CACHE_KEY_SECRET_FILE, or none")
	}, strange.Log.String)
	if left := g.left("once", "ann"); left != 4_000_000 {
		t.Errorf("%d are left, want nothing to be charged", left)
	}

	rotated, g := start("previous: " + current + "\ncurrent: " + next + "\n")
	ask(g, id, 10) // its counter has another name by now, but the id is known as this server's
	if forged, unknown := outcome(rotated, "forged"), outcome(rotated, "unknown"); forged != 0 || unknown != 1 {
		t.Errorf("%v ids are counted as forged, and %v as unknown, want none and 1", forged, unknown)
	}

	same, g := start("current: " + current + "\nprevious: " + next + "\n")
	ask(g, other, 10)
	ask(g, id, 20)
	if n := outcome(same, "settled"); n != 2 {
		t.Errorf("%v reservations are settled, want both", n)
	}
	if left := g.left("once", "ann"); left != 4_000_000-30 {
		t.Errorf("%d are left, want what did not cost 10 and 20", left)
	}
}

// TestReservationsBelowTheEstimate: a tenant whose own number, or whose control, is below the estimate is served, in memory and in
// Redis, one request at a time.
func TestReservationsBelowTheEstimate(t *testing.T) {
	t.Parallel()
	const rules = `
domain: llm
descriptors:
  - key: tenant
    plan_of: tenant
    plans:
      default: {unit: hour, requests_per_unit: 1000, reserve: {estimate: 100}}
`
	tenants := filepath.Join(t.TempDir(), "tenants.csv")
	certstest.Write(t, tenants, []byte("ann,default,30\n"))
	for name, db := range map[string]*redistest.Server{"memory": nil, "redis": redistest.Start(t)} {
		t.Run(name, func(t *testing.T) {
			env := []string{"ADMIN=true", "TENANTS_FILE=" + tenants, "REDIS_OP_TIMEOUT=10s"}
			if db != nil {
				env = append(env, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+db.Addr())
			} else {
				env = append(env, "BACKEND_TYPE=memory")
			}
			d := startProcess(t, rules, env...)
			d.ready()
			d.command("limit", "llm", "tenant=bob", "--to", "20/hour", "--for", "1h")
			g := &envoys{t: t, clients: []rlsv3.RateLimitServiceClient{d.client()}}
			for _, tenant := range []string{"ann", "bob"} {
				answer, err := g.ask("tenant", tenant, "", 0)
				if err != nil || answer.GetOverallCode() != rlsv3.RateLimitResponse_OK || idOf(answer) == "" {
					t.Fatalf("the first request is answered %v, %v, want an id", answer, err)
				}
				if second, err := g.ask("tenant", tenant, "", 0); err != nil || second.GetOverallCode() != rlsv3.RateLimitResponse_OVER_LIMIT {
					t.Errorf("one beside it is answered %v, %v", second, err)
				}
				if _, err := g.ask("tenant", tenant, idOf(answer), 0); err != nil {
					t.Fatal(err)
				}
				if third, err := g.ask("tenant", tenant, "", 0); err != nil || third.GetOverallCode() != rlsv3.RateLimitResponse_OK {
					t.Errorf("the one after it is answered %v, %v", third, err)
				}
			}
			if n := d.metric(`ratelimitd_reserved_hits{rule="llm.tenant@default"}`); n != 30+20 {
				t.Errorf("%v hits are reserved in the metrics, want those of both tenants", n)
			}
		})
	}
}

// ledger is what became of streams.
type ledger struct {
	cost, over atomic.Int64 // true cost, and by how much it exceeded what was reserved
	ok         atomic.Int64
	failures   atomic.Int64
}

// play has all streams reserve at once, and then each of them settle and begin again until it is rejected a few times in a
// row, while disturb does what it does. A stream costs less than most.
func (g *envoys) play(key, value string, most int, disturb func()) *ledger {
	var l ledger
	var wg, began sync.WaitGroup
	began.Add(streams)
	for range streams {
		wg.Go(func() {
			first := sync.OnceFunc(began.Done)
			defer first()
			for rejected := 0; rejected < 5; {
				answer, err := g.ask(key, value, "", 0)
				first()
				if err != nil { // it may have reserved, and no one will settle it
					l.failures.Add(1)
					time.Sleep(5 * time.Millisecond)
					continue
				}
				if answer.GetOverallCode() != rlsv3.RateLimitResponse_OK {
					rejected++
					time.Sleep(5 * time.Millisecond)
					continue
				}
				began.Wait() // so that all are under way
				rejected = 0
				cost := rand.IntN(most) //nolint:gosec // any will do
				l.ok.Add(1)
				l.cost.Add(int64(cost))
				l.over.Add(int64(max(0, cost-reservation)))
				if _, err := g.ask(key, value, idOf(answer), uint64(cost)); err != nil {
					l.failures.Add(1)
				}
			}
		})
	}
	began.Wait()
	disturb()
	wg.Wait()
	return &l
}

// TestReservationsHold: 200 streams at once, on two servers of which one after the other is killed and replaced, never take
// more than the budget if they never cost more than they reserved, and otherwise at most by how much they did.
func TestReservationsHold(t *testing.T) {
	t.Parallel()
	db, parent := redistest.Start(t), t
	servers, g := make([]*daemon, 2), &envoys{t: t, clients: make([]rlsv3.RateLimitServiceClient, 2)}
	for i := range servers {
		servers[i], g.clients[i] = startReserving(t, db)
	}
	for _, key := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		for name, most := range map[string]int{"estimates are bounds": reservation + 1, "estimates are too low": 3 * reservation} {
			t.Run(key+", "+name, func(t *testing.T) {
				victim := rand.IntN(2) //nolint:gosec // any will do
				l := g.play(key, t.Name(), most, func() {
					servers[victim].kill()
					d, c := startReserving(parent, db)
					servers[victim] = d
					g.replace(victim, c)
				})
				left, cost, over := int64(g.left(key, t.Name())), l.cost.Load(), l.over.Load()
				t.Logf("%d streams cost %d, %d more than was reserved; %d calls failed; %d are left", l.ok.Load(), cost, over, l.failures.Load(), left)
				if cost > budget+over {
					t.Errorf("the streams cost %d, want at most %d and the %d that were not reserved", cost, budget, over)
				}
				if spent := budget - left; cost < budget && spent < cost {
					t.Errorf("%d were spent, and the true cost was %d", spent, cost)
				}
				if l.ok.Load() < streams || most <= reservation+1 && l.ok.Load() < streams+10 || l.failures.Load() == 0 {
					t.Error("this shows little: nothing came back, or no one noticed that a server died")
				}
			})
		}
	}
}

// TestReservationsSettleOnce: of 2,000 reservations some are settled twice, some never, some by the id of another tenant,
// and by ids that no one gave out; what is spent is what was settled, and what was reserved where nothing was.
func TestReservationsSettleOnce(t *testing.T) {
	t.Parallel()
	const all, tenants, workers = 2_000, 5, 32
	db := redistest.Start(t)
	g := &envoys{t: t}
	var servers []*daemon
	for range 2 {
		d, c := startReserving(t, db)
		servers, g.clients = append(servers, d), append(g.clients, c)
	}
	sum := func(outcome string) (n float64) {
		for _, d := range servers {
			n += d.metric(fmt.Sprintf(`ratelimitd_reservations_total{domain="llm",outcome=%q}`, outcome))
		}
		return n
	}
	reserved := sum("reserved")
	var spent [tenants]atomic.Int64
	var next, settled, unknown, forged atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			settle := func(tenant int, id string, cost uint64) {
				if answer, err := g.ask("once", fmt.Sprint(tenant), id, cost); err != nil || answer.GetOverallCode() != rlsv3.RateLimitResponse_OK {
					t.Errorf("a settlement is answered %v, %v", answer, err)
				}
			}
			var again []func()
			for n := next.Add(1); n <= all; n = next.Add(1) {
				tenant, estimate, cost := int(n%tenants), uint64(1+n%300), uint64(n%311)
				answer, err := g.ask("once", fmt.Sprint(tenant), "", estimate)
				if err != nil || answer.GetOverallCode() != rlsv3.RateLimitResponse_OK || idOf(answer) == "" {
					t.Errorf("a reservation is answered %v, %v", answer, err)
					return
				}
				id := idOf(answer)
				switch n % 8 {
				case 0: // lost
					spent[tenant].Add(int64(estimate))
					continue
				case 1: // another tenant's
					settle((tenant+1)%tenants, id, cost)
					unknown.Add(1)
				case 2: // no one's
					settle(tenant, id[1:]+id[:1], cost)
					forged.Add(1)
				case 3: // doubled, on their way at once
					var twice sync.WaitGroup
					twice.Go(func() { settle(tenant, id, cost) })
					twice.Go(func() { settle(tenant, id, cost) })
					twice.Wait()
					spent[tenant].Add(int64(cost))
					settled.Add(1)
					unknown.Add(1)
					continue
				case 4: // doubled later
					again = append(again, func() { settle(tenant, id, 7) })
					unknown.Add(1)
				}
				settle(tenant, id, cost)
				settled.Add(1)
				spent[tenant].Add(int64(cost))
			}
			for _, once := range again {
				once()
			}
		})
	}
	wg.Wait()
	for tenant := range spent {
		if got, want := 4_000_000-int64(g.left("once", fmt.Sprint(tenant))), spent[tenant].Load(); got != want {
			t.Errorf("tenant %d has spent %d, want %d", tenant, got, want)
		}
	}
	for outcome, want := range map[string]int64{"settled": settled.Load(), "unknown": unknown.Load(), "forged": forged.Load()} {
		if got := sum(outcome); got != float64(want) {
			t.Errorf("%v were %s, want %d", got, outcome, want)
		}
	}
	if got := sum("reserved") - reserved; got != all {
		t.Errorf("%v were reserved, want %d", got, all)
	}
}

// TestFirstRequestReserves: the first request to a new server has a reservation ID. An error on the way is that of a port that has not
// begun to answer.
func TestFirstRequestReserves(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	for range 5 {
		d := startDaemon(t, db, "domain: llm\ndescriptors:\n  - {key: user, rate_limit: {unit: year, requests_per_unit: 9999999, reserve: {estimate: 10}}}\n", "REDIS_OP_TIMEOUT=10s")
		r := request("user", "ann")
		r.Domain = "llm"
		r.Descriptors[0].HitsAddend = wrapperspb.UInt64(0)
		answer, err := d.client().ShouldRateLimit(t.Context(), r)
		if err != nil || idOf(answer) == "" {
			t.Errorf("the first request is answered %v, %v; want a reservation", answer, err)
		}
		d.stop()
	}
}
