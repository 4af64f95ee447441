package redis

import (
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// TestSentinelPasswords checks that a password in the address of a sentinel is the sentinels', as in envoyproxy/ratelimit, and that
// errors name the server and the setting.
func TestSentinelPasswords(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t, "requirepass mp")
	locked := redistest.Sentinels(t, master, "mine", 1, "sentinel auth-pass mine mp", "requirepass spw")[0].Addr()
	open := redistest.Sentinels(t, master, "mine", 1, "sentinel auth-pass mine mp")[0].Addr()
	for _, c := range []struct {
		url, auth, guards string
		want              []string // parts of the error; empty for success
	}{
		{"mine,redis://:spw@" + locked, "mp", "", nil},
		{"mine," + locked, "mp", "spw", nil},
		{"mine,redis://:other@" + locked, "mp", "spw", nil},
		{"mine,redis://:spw@" + locked + ",redis://:other@" + locked, "mp", "", nil},
		{"mine," + open, "mp", "", nil},
		{"mine," + locked, "mp", "", []string{locked, "asking the sentinel: NOAUTH", "REDIS_SENTINEL_AUTH"}},
		{"mine,redis://:other@" + locked, "mp", "", []string{locked, "asking the sentinel: WRONGPASS", "REDIS_SENTINEL_AUTH"}},
		{"mine,redis://:mp@" + open, "", "", []string{master.Addr(), "NOAUTH", "REDIS_AUTH", "not this master's"}},
		{"mine,redis://:spw@" + locked, "", "", []string{master.Addr(), "NOAUTH", "REDIS_AUTH", "not this master's"}},
		{"mine," + open, "mp", "spw", nil}, // without a password, HELLO accepts any
		{"other," + open, "mp", "", []string{open, "asking the sentinel: it knows no master with this name"}},
	} {
		b := opened(t, Config{Type: Sentinel, URL: c.url, Auth: c.auth, SentinelAuth: c.guards, DialTimeout: slow})
		err := reached(t, b)
		if c.want == nil && err != nil || c.want != nil && err == nil {
			t.Errorf("%s: %v", c.url, err)
		}
		for _, part := range c.want {
			if err != nil && !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v, want %q in it", c.url, err, part)
			}
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestSentinelsDisagree checks that a sentinel that is behind, hangs, or names a dead server or a replica does not hide the master that
// the others know, even if it is queried first.
func TestSentinelsDisagree(t *testing.T) {
	t.Parallel()
	lone := func(s *redistest.Server) *redistest.Server { // unknown to the others
		return redistest.Sentinels(t, s, redistest.MasterName, 1)[0]
	}
	t.Run("behind", func(t *testing.T) {
		t.Parallel()
		w, old := redistest.StartWatched(t), redistest.Start(t)
		testkit.Eventually(t, "a failover", func() bool { return w.Sentinels[0].CLI("SENTINEL", "FAILOVER", redistest.MasterName) == "OK" })
		failover(t, func() bool {
			return strings.Contains(w.Sentinels[1].CLI("SENTINEL", "MASTER", redistest.MasterName), "\nconfig-epoch\n1\n")
		})
		sentinels := []string{lone(old).Addr(), lone(old).Addr(), w.Sentinels[1].Addr()}
		run(t, Config{Type: Sentinel, URL: redistest.MasterName + "," + strings.Join(sentinels, ",")}, true)
		if old.CLI("DBSIZE") != "0" || w.Replica.CLI("DBSIZE") == "0" {
			t.Error("hits were counted where the sentinels that are behind say")
		}
		testkit.Eventually(t, "go-redis alone to believe a sentinel that is behind: else masters is not needed", func() bool {
			plainSet(t, sentinels, "plain")
			return old.CLI("EXISTS", "plain") == "1"
		})
	})
	t.Run("hangs", func(t *testing.T) {
		t.Parallel()
		w := redistest.StartWatched(t)
		w.Sentinels[0].Stop()
		redistest.Down(w.Sentinels[1:], redistest.MasterName, testkit.Patience)
		run(t, Config{Type: Sentinel, URL: w.URL()}, true)
	})
	t.Run("dead", func(t *testing.T) {
		t.Parallel()
		first, second := redistest.Start(t), redistest.Start(t)
		b := run(t, Config{Type: Sentinel, URL: redistest.MasterName + "," + lone(first).Addr() + "," + lone(second).Addr()}, true)
		first.Kill()
		figure(t, "a decision of the other master", testkit.Eventually(t, "a decision", func() bool { return one(b, 1).Err == nil }), 3e9)
	})
	t.Run("replica", func(t *testing.T) {
		t.Parallel()
		master := redistest.Start(t)
		replica := redistest.Replica(t, master)
		b := run(t, Config{Type: Sentinel, URL: redistest.MasterName + "," + lone(replica).Addr() + "," + lone(master).Addr()}, true)
		b2, err := New(Config{Type: Sentinel, URL: redistest.MasterName + "," + lone(replica).Addr(), DialTimeout: slow})
		if err != nil {
			t.Fatal(err)
		}
		defer b2.Close()
		if err := reached(t, b2); err == nil || !strings.Contains(err.Error(), "readonly: the sentinels say that this is the master, but it is a replica") {
			t.Errorf("where there is only a replica: %v", err)
		}
		if one(b, 1).Err != nil {
			t.Error("no decision")
		}
	})
}
