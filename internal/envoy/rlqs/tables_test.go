package rlqs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// slow is a timeout that no call reaches unless it fails.
const slow = 20 * time.Second

// tables returns tables in Redis.
func tables(t *testing.T, c redis.Config) *Tables {
	t.Helper()
	c.DialTimeout = slow
	b, err := redis.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	testkit.Run(t, b.Run)
	return NewTables(func(name string) SideChannel { return b.SideChannel(name, Script) })
}

// TestTables compares the script with sharestest.Agree. Expired rows are dropped, and so is the table after its last row has expired.
func TestTables(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	var replicas []*Tables
	for range 2 {
		r := tables(t, redis.Config{URL: db.Addr(), KeyPrefix: "test:", OpTimeout: slow})
		replicas = append(replicas, r)
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	all := map[string][]shares.Row{}
	for i := range 200 {
		limit := fmt.Sprint("limit", random.IntN(20))
		mine := shares.Row{
			Replica: fmt.Sprint("replica", random.IntN(5)), Life: 3600 * 1e6,
			Held: random.Float64(), Left: random.IntN(2) > 0,
		}
		rows, err := replicas[i%2].Agree(t.Context(), limit, &mine)
		if err != nil {
			t.Fatal(err)
		}
		all[limit] = sharestest.Agree(all[limit], mine, 0)
		if diff := cmp.Diff(wordsOf(all[limit]), wordsOf(rows)); diff != "" {
			t.Fatalf("(-Agree +rows.lua)\n%s", diff)
		}
	}

	short := &shares.Row{Replica: "short", Life: 1}
	if _, err := replicas[0].Agree(t.Context(), "short", short); err != nil {
		t.Fatal(err)
	}
	rows, err := replicas[1].Agree(t.Context(), "short", &shares.Row{Replica: "other", Life: 1000, Held: 1})
	if err != nil || len(rows) != 1 || rows[0].Held != 1 {
		t.Errorf("got %v, %v, want the row of other alone", rows, err)
	}
	testkit.Eventually(t, "a table without rows ends", func() bool { return db.CLI("KEYS", "*:short") == "" })
}

// wordsOf formats rows without their ends.
func wordsOf(rows []shares.Row) (words []string) {
	for _, r := range rows {
		words = append(words, fmt.Sprintf("%s holds %.9f, left %t", r.Replica, r.Held, r.Left))
	}
	return words
}

// TestTablesSpoiled checks that rows that no script wrote are omitted. An error of Redis fails the call, and the next call succeeds
// again.
func TestTablesSpoiled(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r := tables(t, redis.Config{URL: db.Addr(), OpTimeout: slow})
	mine := &shares.Row{Replica: "one", Life: 3600 * 1e6, Held: 2}
	rows, err := r.Agree(t.Context(), "x", mine)
	if err != nil || len(rows) != 1 {
		t.Fatalf("got %v, %v", rows, err)
	}
	key := db.CLI("KEYS", "*x")
	db.CLI("SET", key, "nonsense\nmore and more nonsense\n"+db.CLI("GET", key)+"\n")
	mine.Replica = "two"
	if rows, err = r.Agree(t.Context(), "x", mine); err != nil || len(rows) != 2 || rows[0].Held != 2 {
		t.Errorf("got %v, %v, want both rows", rows, err)
	}
	db.CLI("EVAL", "redis.call('SET', KEYS[1], string.rep('one 9007199254740991 {}\\n', 100000))", "1", key)
	if rows, err = r.Agree(t.Context(), "x", mine); err != nil || len(rows) != 1 || len(db.CLI("GET", key)) > 1000 {
		t.Errorf("got %v, %v, want the own row in place of 2 MB", rows, err)
	}
	db.Restart()
	testkit.Eventually(t, "Redis is found again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rows, err = r.Agree(ctx, "x", mine)
		return err == nil
	})
}

// TestTablesOfOthers checks that a key of another type is an error only of its own limit in a call. A caller that gives up while Redis
// hangs must leave nothing that would be written later.
func TestTablesOfOthers(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r := tables(t, redis.Config{URL: db.Addr(), OpTimeout: 2 * time.Second})
	mine := &shares.Row{Replica: "one", Life: 3600 * 1e6, Held: 1}
	all := func(patience time.Duration) (failed []int) {
		const limits = 1000
		var calls sync.WaitGroup
		errs := make([]error, limits)
		for i := range limits {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				_, errs[i] = r.Agree(ctx, fmt.Sprint("limit", i), mine)
			})
		}
		calls.Wait()
		for i, err := range errs {
			if err != nil {
				failed = append(failed, i)
			}
		}
		return failed
	}
	if failed := all(slow); len(failed) > 0 {
		t.Fatalf("%d limits have no rows", len(failed))
	}
	key := db.CLI("KEYS", "*limit7")
	db.CLI("DEL", key)
	db.CLI("LPUSH", key, "x")
	if failed := all(slow); len(failed) != 1 || failed[0] != 7 {
		t.Errorf("limits %v have no rows, want 7 only", failed)
	}
	db.CLI("CLIENT", "PAUSE", "1000")
	if failed := all(50 * time.Millisecond); len(failed) < 900 { // callers that call for others wait for the answer
		t.Errorf("%d limits have no rows while Redis hangs, want nearly all", len(failed))
	}
	for _, c := range r.channels {
		c.mu.Lock()
		if len(c.waits) > 0 {
			t.Errorf("%d rows still wait", len(c.waits))
		}
		c.mu.Unlock()
	}
}

// TestTablesFar checks that the rows of ten thousand limits are exchanged every second with a Redis a millisecond away, in few calls that
// together take less than that second.
func TestTablesFar(t *testing.T) {
	t.Parallel()
	const limits = 10_000
	db := redistest.Start(t)
	far := testkit.NewProxy(t, db.Addr())
	far.Latency.Store(int64(time.Millisecond / 2)) // in each direction
	r := tables(t, redis.Config{URL: far.Addr(), DialTimeout: slow, OpTimeout: slow})
	agree := func() (took time.Duration) {
		var all sync.WaitGroup
		begun := time.Now()
		for i := range limits {
			all.Go(func() {
				mine := &shares.Row{Replica: "one", Life: 3600 * 1e6, Held: 1}
				if rows, err := r.Agree(t.Context(), fmt.Sprint("limit", i), mine); err != nil || len(rows) != 1 {
					t.Errorf("got %v, %v, want one row", rows, err)
				}
			})
		}
		all.Wait()
		return time.Since(begun)
	}
	agree() // opens the connections
	db.CLI("CONFIG", "RESETSTAT")
	before := db.CPU()
	took := agree()
	_, stats, _ := strings.Cut(db.CLI("INFO", "commandstats"), "cmdstat_evalsha:calls=")
	calls, err := strconv.Atoi(stats[:strings.IndexByte(stats, ',')])
	t.Logf("%d limits took %d calls, %v of Redis and %v", limits, calls, db.CPU()-before, took)
	if err != nil || calls > 2*limits/rowsAtOnce {
		t.Errorf("%d limits took %d calls, want few more than %d", limits, calls, limits/rowsAtOnce)
	}
}

// TestTablesInCluster checks that the rows of a limit are in one slot, and outlive the failure of its master.
func TestTablesInCluster(t *testing.T) {
	t.Parallel()
	all := redistest.Cluster(t, 3)
	r := tables(t, redis.Config{URL: all[0].Addr(), Type: redis.Cluster, DialTimeout: slow, OpTimeout: slow})
	agree := func(limit, replica string) (rows []shares.Row, err error) {
		return r.Agree(t.Context(), limit, &shares.Row{Replica: replica, Life: 3600 * 1e6, Held: 1})
	}
	testkit.Eventually(t, "the cluster is known", func() bool { _, err := agree("limit0", "one"); return err == nil })
	const limits = 40 // more than the connections, and more than one call takes
	for i := range limits {
		if _, err := agree(fmt.Sprint("limit", i), "one"); err != nil {
			t.Fatal(err)
		}
	}
	redistest.NodeTimeout(all, 5*time.Second) // a failed attempt may be repeated after twice that time
	for _, replica := range all[3:] {
		testkit.Eventually(t, "the replica has what its master has", replica.InStep)
		if !testkit.Poll(2*testkit.Patience, func() bool {
			_, _ = replica.Try("CLUSTER", "FAILOVER") // fails while one is in progress
			return replica.IsMaster()
		}) {
			t.Fatal("no other master")
		}
	}
	for i := range limits {
		testkit.Eventually(t, "the other row is there", func() bool {
			rows, err := agree(fmt.Sprint("limit", i), "two")
			return err == nil && len(rows) == 2 && rows[0].Replica == "one"
		})
	}
}
