package secret_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/secret"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// TestSealedTenants: with a secret, Redis reveals no tenants and plans. Replicas read all tenants, also plaintext ones and those
// under the previous secret, and use the latest entry of each.
func TestSealedTenants(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	unread := make(chan struct{}, 100)
	replica := func(t *testing.T, current, previous string) *tenants.Tenants {
		t.Helper()
		b, err := redis.New(redis.Config{URL: db.Addr(), OpTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		testkit.Run(t, b.Run)
		store := replicated.NewScriptStore(b.SideChannel("tenants", replicated.Script), tenants.MaxTenants)
		c := tenants.Config{Event: func(e tenants.Event) {
			if e == tenants.Unread {
				unread <- struct{}{}
			}
		}}
		var keys *secret.Keys
		if current != "" {
			if keys, err = secret.New(current, previous); err != nil {
				t.Fatal(err)
			}
		}
		c.Store = secret.NewTexts(keys, slog.New(slog.DiscardHandler)).Register(store)
		v := tenants.New(c)
		testkit.Run(t, v.Run)
		<-v.First()
		return v
	}
	put := func(v *tenants.Tenants, name, plan, before string) {
		t.Helper()
		c := tenants.Change{Tenant: name}
		if plan != "" {
			c.Entry = &plans.Entry{Plan: plan}
		}
		var was []*plans.Entry
		tries := 0
		testkit.Eventually(t, "a tenant can be changed", func() (done bool) {
			tries++
			var err error
			was, err = v.Put(t.Context(), []tenants.Change{c}, false)
			return err == nil
		})
		if tries == 1 && (was[0] == nil && before != "" || was[0] != nil && was[0].Plan != before) {
			t.Errorf("%s had plan %v, want %q", name, was[0], before)
		}
	}
	on := func(v *tenants.Tenants, name, plan string) {
		t.Helper()
		testkit.Eventually(t, name+" is on "+plan, func() bool {
			e, _ := v.Plans().Load().Find([]byte(name))
			return e.Plan == plan
		})
	}
	shown := func() string {
		return db.CLI("HGETALL", "rl:{tenants}:entries") + db.CLI("ZRANGE", "rl:{tenants}:changed", "0", "-1") +
			db.CLI("ZRANGE", "rl:{tenants}:ends", "0", "-1")
	}
	t.Run("plaintext", func(t *testing.T) { // the replica stops at the end, because it would write its entries again
		put(replica(t, "", ""), "ann@example.com", "gold", "")
	})
	one := replica(t, "one", "clear")
	on(one, "ann@example.com", "gold")
	put(one, "bob@example.com", "gold", "")
	put(one, "ann@example.com", "silver", "gold")
	if all := shown(); strings.Contains(all, "bob") || strings.Contains(all, "silver") {
		t.Errorf("Redis reveals: %s", all)
	}
	two, first := replica(t, "two", "one"), replica(t, "one", "two") // as during a change of the secret
	on(two, "ann@example.com", "silver")
	put(two, "ann@example.com", "platinum", "silver")
	on(first, "ann@example.com", "platinum")
	put(first, "bob@example.com", "", "gold")
	on(two, "bob@example.com", "")
	put(first, "ann@example.com", "silver", "platinum")
	put(two, "ann@example.com", "", "silver")
	on(first, "ann@example.com", "")
	put(two, "cid@example.com", "gold", "")
	on(first, "cid@example.com", "gold")
	late := replica(t, "two", "one") // its first request may have timed out
	testkit.Eventually(t, "one that comes later knows who is left", func() bool { return late.Len(plans.Store) == 1 })
	other := replica(t, "other", "")
	testkit.Eventually(t, "one with another secret counts what it cannot read", func() bool { return len(unread) > 0 })
	if n := other.Len(plans.Store); n != 0 {
		t.Errorf("a replica with another secret reads %d tenants", n)
	}
	db.CLI("FLUSHALL")
	testkit.Eventually(t, "the tenants are put back", func() bool { return strings.Contains(shown(), "sealed:") })
	if all := shown(); strings.Contains(all, "example.com") {
		t.Errorf("Redis reveals: %s", all)
	}
}
