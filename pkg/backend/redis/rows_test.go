package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// TestRows: the script does what shares.Agree does. A row that ends is gone, and so is the table, once all rows have ended.
func TestRows(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	var replicas []*Rows
	for range 2 {
		r, err := run(t, Config{URL: db.Addr(), KeyPrefix: "test:", OpTimeout: slow}, false).Rows()
		if err != nil {
			t.Fatal(err)
		}
		replicas = append(replicas, r)
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	tables := map[string][]shares.Row{}
	for i := range 200 {
		limit := fmt.Sprint("limit", random.IntN(20))
		mine := shares.Row{
			Replica: fmt.Sprint("replica", random.IntN(5)), Life: 3600 * 1e6,
			Held: float64(random.IntN(3)) / 3, Want: random.Float64(), Cap: 2 * random.Float64(),
		}
		rows, err := replicas[i%2].Agree(t.Context(), limit, &mine)
		if err != nil {
			t.Fatal(err)
		}
		tables[limit] = shares.Agree(tables[limit], mine, 0)
		if diff := cmp.Diff(wordsOf(tables[limit]), wordsOf(rows)); diff != "" {
			t.Fatalf("(-Agree +rows.lua)\n%s", diff)
		}
	}

	short := &shares.Row{Replica: "short", Life: 1, Want: 1, Cap: 1}
	if _, err := replicas[0].Agree(t.Context(), "short", short); err != nil {
		t.Fatal(err)
	}
	rows, err := replicas[1].Agree(t.Context(), "short", &shares.Row{Replica: "other", Life: 1000, Want: 1, Cap: 1})
	if err != nil || len(rows) != 1 || rows[0].Part != 1 {
		t.Errorf("got %v, %v, want the row of other alone", rows, err)
	}
	testkit.Eventually(t, "a table without rows ends", func() bool { return db.CLI("KEYS", "*:short") == "" })
}

// wordsOf returns rows in words, without their ends.
func wordsOf(rows []shares.Row) (words []string) {
	for _, r := range rows {
		words = append(words, fmt.Sprintf("%s wants %.9f, has %.9f", r.Replica, r.Want, r.Part))
	}
	return words
}

// TestRowsSpoiled: what no script wrote is left out. An error of Redis is one of the call, and the next one finds Redis again.
func TestRowsSpoiled(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	r, err := run(t, Config{URL: db.Addr(), OpTimeout: slow}, false).Rows()
	if err != nil {
		t.Fatal(err)
	}
	mine := &shares.Row{Replica: "one", Life: 3600 * 1e6, Want: 2, Cap: 3}
	rows, err := r.Agree(t.Context(), "x", mine)
	if err != nil || len(rows) != 1 {
		t.Fatalf("got %v, %v", rows, err)
	}
	key := db.CLI("KEYS", "*x")
	db.CLI("SET", key, "nonsense\nmore and more nonsense\n"+db.CLI("GET", key)+"\n")
	mine.Replica = "two"
	if rows, err = r.Agree(t.Context(), "x", mine); err != nil || len(rows) != 2 || rows[1].Part != 1 {
		t.Errorf("got %v, %v, want parts of 2 and 1", rows, err)
	}
	db.Restart()
	testkit.Eventually(t, "Redis is found again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		rows, err = r.Agree(ctx, "x", mine)
		return err == nil
	})
}
