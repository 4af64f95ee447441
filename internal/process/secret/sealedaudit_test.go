package secret_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/process/secret"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// TestSealedAudit: with a secret, an act takes at most 1 KiB in Redis. Replicas with the secret read it, and others skip it.
func TestSealedAudit(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	said := new(testkit.Buffer)
	log := slog.New(slog.NewTextHandler(said, nil))
	replica := func(keys *secret.Keys) *audit.Log {
		b, err := redis.New(redis.Config{URL: db.Addr(), OpTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		acts := b.SideChannel("audit", audit.Script)
		t.Cleanup(acts.Close)
		return audit.New(secret.NewTexts(keys, log).Audit(audit.ScriptStore{SideChannel: acts}), log)
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
	for text := range strings.Lines(db.CLI("HVALS", "rl:{audit}:acts")) {
		if text = strings.TrimSpace(text); text == fmt.Sprint(acts) { // the last number
			continue
		}
		if longest = max(longest, len(text)); !strings.HasPrefix(text, "sealed:") {
			t.Errorf("an act is not sealed: %.20s", text)
		}
	}
	if longest > 1024 || longest < 960 {
		t.Errorf("the longest act has %d bytes in Redis, want at most about 1 KiB", longest)
	}
	if all, complete := replica(keys).Acts(t.Context()); !complete || len(all) != acts || string(all[0].Domain) != "shop" {
		t.Errorf("another replica reads %d acts, complete: %t", len(all), complete)
	}

	// Entries of another tenant of Redis are skipped: plaintext acts, and oversized acts. The log mentions it once.
	if n := strings.Count(said.String(), "\n"); n > 0 {
		t.Errorf("%d log lines: %s", n, said)
	}
	replica(nil).Add(t.Context(), &audit.Act{Method: "Block", Reason: "forged"})
	for i := range 3 {
		id := fmt.Sprint("x", i)
		db.CLI("ZADD", "rl:{audit}:ids", "1", id)
		db.CLI("HSET", "rl:{audit}:acts", id, strings.Repeat("x", 5000))
	}
	reader := replica(keys)
	if all, complete := reader.Acts(t.Context()); !complete || len(all) != acts {
		t.Errorf("a replica reads %d acts, complete: %t", len(all), complete)
	}
	if text := said.String(); strings.Count(text, "an entry in the backend cannot be read") != 1 || !strings.Contains(text, "rl:{audit}:acts") {
		t.Errorf("log: %s", text)
	}
	if all, complete := replica(nil).Acts(t.Context()); !complete || len(all) != 1 {
		t.Errorf("a replica without the secret reads %v, complete: %t", all, complete)
	}
}
