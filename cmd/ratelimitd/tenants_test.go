package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

const tenantRules = `
domain: shop
descriptors:
  - key: tenant
    plan_of: tenant
    plans:
      default: {unit: year, requests_per_unit: 1}
      even: {unit: year, requests_per_unit: 2000000}
      odd: {unit: year, requests_per_unit: 3000000}
`

// Bounds of TestTenantsChangeUnderLoad.
const (
	changedTenants = 20
	changeRounds   = 10
	obeyedWithin   = time.Second
)

// tenantAnswer is the plan that an answer was given by, and when it was asked for and given.
type tenantAnswer struct {
	tenant      int
	limit       uint32
	asked, told time.Time
}

// standstill measures by how much timers are late: what a machine that is busy with other things takes away from everyone.
func standstill(ctx context.Context) (latest func() time.Duration) {
	const each = 10 * time.Millisecond
	var (
		mu    sync.Mutex
		worst time.Duration
	)
	go func() {
		for ctx.Err() == nil {
			began := time.Now()
			timer := time.NewTimer(each)
			select {
			case <-ctx.Done():
				timer.Stop()
			case <-timer.C:
			}
			mu.Lock()
			worst = max(worst, time.Since(began)-each)
			mu.Unlock()
		}
	}()
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return worst
	}
}

// TestTenantsChangeUnderLoad: while tenants change their plans on one of two servers and both are asked all the time, each
// answer is by the plan before or by the plan after the change, never by another one, and none is by the plan before that is
// asked for a second or more after the change was made.
func TestTenantsChangeUnderLoad(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	start := func() controlled { return startControlled(t, db, tenantRules, "ADMIN=true", "TENANTS_REDIS=true") }
	servers := []controlled{start(), start()}
	api := adminv1.NewAdminServiceClient(servers[0].operate())
	plans := []string{"even", "odd"}
	limit := func(round int) uint32 { return uint32(2_000_000 + round%2*1_000_000 + round) } // each has one of its own
	first := &adminv1.ImportTenantsRequest{}
	for i := range changedTenants {
		first.Tenants = append(first.Tenants, &adminv1.Tenant{Tenant: fmt.Sprint("t", i), Plan: plans[0], RequestsPerUnit: new(limit(0))})
	}
	if _, err := api.ImportTenants(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	ask := func(server, tenant int) tenantAnswer {
		a := tenantAnswer{tenant: tenant, asked: time.Now()}
		answer, err := servers[server].ShouldRateLimit(t.Context(), request("tenant", fmt.Sprint("t", tenant)))
		if err != nil {
			t.Error(err)
			return a
		}
		a.told, a.limit = time.Now(), answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit()
		return a
	}
	for i := range servers {
		testkit.Eventually(t, "a server knows the tenants", func() bool { return ask(i, changedTenants-1).limit == limit(0) })
	}

	ctx, stop := context.WithCancel(t.Context())
	late := standstill(ctx)
	var callers sync.WaitGroup
	answers := make([][]tenantAnswer, 2*len(servers))
	for c := range answers {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				time.Sleep(time.Millisecond) // others need the processor too
				answers[c] = append(answers[c], ask(c%len(servers), i%changedTenants))
			}
		})
	}
	changes := make([][]change, changedTenants) // of each tenant
	for round := 1; round <= changeRounds; round++ {
		for i := range changedTenants {
			c := change{limit: limit(round), began: time.Now()}
			m := &adminv1.Tenant{Tenant: fmt.Sprint("t", i), Plan: plans[round%2], RequestsPerUnit: &c.limit}
			if _, err := api.SetTenant(t.Context(), &adminv1.SetTenantRequest{Tenant: m}); err != nil {
				t.Fatal(err)
			}
			c.done = time.Now()
			changes[i] = append(changes[i], c)
		}
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(obeyedWithin + 500*time.Millisecond)
	stop()
	callers.Wait()
	allowed := obeyedWithin + 2*late()
	n, stale := 0, 0
	var slowest time.Duration
	for _, a := range slices.Concat(answers...) {
		if a.told.IsZero() {
			continue
		}
		n++
		may := couldBe(changes[a.tenant], &a, allowed, limit(0))
		if !slices.Contains(may, a.limit) {
			t.Fatalf("t%d has the limit %d in an answer asked for at %v: want one of %v (timers were late by up to %v)", a.tenant, a.limit, a.asked, may, late())
		}
		if by := outdated(changes[a.tenant], &a, limit(0)); by > 0 {
			stale, slowest = stale+1, max(slowest, by)
		}
	}
	t.Logf("%d answers, %d of them by a plan that had been changed before they were asked for, by %v at most; timers were late by up to %v", n, stale, slowest, late())
	for i := range changedTenants {
		for s := range servers {
			if got := ask(s, i).limit; got != limit(changeRounds) {
				t.Errorf("at the end t%d has the limit %d on server %d, want %d", i, got, s, limit(changeRounds))
			}
		}
	}
}

// change is one that was made between two times.
type change struct {
	limit       uint32
	began, done time.Time
}

// couldBe returns the limits that an answer may be by: that after the last change that had to be obeyed when it was asked for, and
// those of all changes since that had begun when it was told.
func couldBe(changes []change, a *tenantAnswer, within time.Duration, limit uint32) (may []uint32) {
	may = []uint32{limit}
	for _, c := range changes {
		switch {
		case a.told.Before(c.began):
			return may
		case a.asked.After(c.done.Add(within)):
			may = []uint32{c.limit}
		default:
			may = append(may, c.limit)
		}
	}
	return may
}

// outdated returns for how long the change had been made that an answer did not know of when it was asked for; 0 if it knew all.
func outdated(changes []change, a *tenantAnswer, limit uint32) time.Duration {
	for _, c := range changes {
		if a.limit == limit {
			return max(0, a.asked.Sub(c.done))
		}
		limit = c.limit
	}
	return 0
}
