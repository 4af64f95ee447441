package server

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/audit"
	"github.com/ratelimitd/ratelimitd/internal/secret"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/redistest"
)

// TestSealedAudit: with a secret the largest act has 1 KiB in Redis, replicas with the secret read it, and others leave it out.
func TestSealedAudit(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	log := slog.New(slog.DiscardHandler)
	replica := func(keys *secret.Keys) *audit.Log {
		b, err := redis.New(redis.Config{URL: db.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		acts, err := b.Audit()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(acts.Leave)
		return audit.New(sealedAudit{acts, newSeal(keys, log)}, log)
	}
	keys, err := secret.New(strings.Repeat("s", 32), "")
	if err != nil {
		t.Fatal(err)
	}
	const acts = 70
	writer, longest := replica(keys), 0
	for i := range acts {
		writer.Add(t.Context(), &audit.Act{Method: "Block", Domain: []byte("shop"), Reason: strings.Repeat("r", 10*i)})
	}
	for text := range strings.Lines(db.CLI("LRANGE", "rl:{audit}", "0", "-1")) {
		text = strings.TrimSpace(text)
		if longest = max(longest, len(text)); !strings.HasPrefix(text, "sealed:") {
			t.Errorf("an act is not sealed: %.20s", text)
		}
	}
	if longest > 1024 || longest < 960 {
		t.Errorf("the longest act has %d bytes in Redis, want about 1 KiB at most", longest)
	}
	if all, complete := replica(keys).Acts(t.Context()); !complete || len(all) != acts || string(all[0].Domain) != "shop" {
		t.Errorf("another replica reads %d acts, complete: %t", len(all), complete)
	}
	if all, complete := replica(nil).Acts(t.Context()); !complete || len(all) != 0 {
		t.Errorf("a replica without the secret reads %v, complete: %t", all, complete)
	}
}
