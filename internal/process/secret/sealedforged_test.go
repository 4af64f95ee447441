package secret_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/internal/process/secret"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis"
)

// tenantOf is a client of a shared Redis without the secret. It can write anything.
type tenantOf struct {
	*testing.T
	*replicated.ScriptStore
}

// all returns all entries of the register, with their stored names.
func (v tenantOf) all() (all []replicated.Entry, at replicated.Revision) {
	v.Helper()
	for more := true; more; {
		c, err := v.Changes(v.Context(), at, "")
		if err != nil {
			v.Fatal(err)
		}
		all, at, more = append(all, c.Entries...), c.Revision, c.More
	}
	return all, at
}

// put writes an entry unconditionally.
func (v tenantOf) put(e replicated.Entry) {
	v.Helper()
	testkit.Eventually(v.T, "an entry can be written", func() bool {
		_, at := v.all()
		_, err := v.Put(v.Context(), at, []replicated.Entry{e}, false)
		return err == nil
	})
}

// TestForgedControls: with a secret, a client that can write to Redis but lacks the secret cannot activate a control in
// plaintext, by restoring one, or by extending one, and cannot remove any.
func TestForgedControls(t *testing.T) {
	t.Parallel()
	db, log := redistest.Start(t), new(testkit.Buffer)
	open := func(t *testing.T) *replicated.ScriptStore {
		t.Helper()
		b, err := redis.New(redis.Config{URL: db.Addr(), OpTimeout: 10 * time.Second, DialTimeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		testkit.Run(t, b.Run)
		return replicated.NewScriptStore(b.SideChannel("controls", replicated.Script), controls.MaxKept)
	}
	replica := func(t *testing.T, current, previous string) *controls.Controls {
		t.Helper()
		var keys *secret.Keys
		if current != "" {
			var err error
			if keys, err = secret.New(current, previous); err != nil {
				t.Fatal(err)
			}
		}
		v := controls.New(controls.Config{Store: secret.NewTexts(keys, slog.New(slog.NewTextHandler(log, nil))).Register(open(t))})
		testkit.Run(t, v.Run)
		<-v.First()
		return v
	}
	block := func(v *controls.Controls, user string) *override.Control {
		t.Helper()
		c := &override.Control{Domain: "shop", Entries: []override.Entry{{Key: "user", Value: user}}}
		testkit.Eventually(t, "a control can be set", func() bool { _, err := v.Set(t.Context(), c, time.Hour, false); return err == nil })
		return c
	}
	lift := func(v *controls.Controls, c *override.Control) {
		t.Helper()
		if _, err := v.Lift(t.Context(), []string{c.ID}, false); err != nil {
			t.Fatal(err)
		}
	}
	obey := func(v *controls.Controls, want ...string) {
		t.Helper()
		var got []string
		testkit.Eventually(t, "a replica obeys "+strings.Join(want, ", "), func() bool {
			got = nil
			for _, c := range v.List(t.Context()) {
				got = append(got, c.Entries[0].Value)
			}
			return slices.Equal(got, want)
		}, func() string { return strings.Join(got, ", ") })
	}
	stranger := tenantOf{t, open(t)}

	// A plaintext control, made by a replica without the secret.
	clear := replica(t, "", "")
	block(clear, "clear")
	one, two := replica(t, "one", ""), replica(t, "one", "")
	obey(one)
	testkit.Eventually(t, "it is logged", func() bool {
		return strings.Contains(log.String(), `it is in plaintext, but CACHE_KEY_SECRET_FILE has no line previous: clear`)
	})
	t.Run("previous: clear", func(t *testing.T) { // the replica stops at the end, because it may seal and write what it has read
		obey(replica(t, "one", "clear"), "clear")
	})

	// A restored control, as it was and with other times.
	kept, lifted := block(one, "kept"), block(one, "lifted")
	obey(two, "kept", "lifted")
	before, _ := stranger.all()
	lift(one, lifted)
	obey(two, "kept")
	var forged int
	for _, e := range before {
		if !strings.HasPrefix(e.Text, "sealed:") {
			continue
		}
		for _, more := range []time.Duration{0, time.Minute, 24 * time.Hour} {
			forged++
			e.Created += more.Microseconds()
			stranger.put(e)
			e.Expires += more.Milliseconds()
			stranger.put(e)
			obey(one, "kept")
			obey(two, "kept")
			obey(replica(t, "one", ""), "kept")
		}
	}
	if forged != 6 {
		t.Errorf("%d entries were restored, want 6", forged)
	}

	// Controls under another name, and in place of an active control, also under its plaintext name.
	sealed, _ := stranger.all()
	sealed = slices.DeleteFunc(sealed, func(e replicated.Entry) bool { return !strings.HasPrefix(e.Text, "sealed:") })
	sealed[0].Key, sealed[1].Key = sealed[1].Key, sealed[0].Key
	stranger.put(sealed[0])
	stranger.put(sealed[1])
	block(clear, "kept") // creates the name
	inClear, _ := stranger.all()
	for _, e := range inClear {
		if e.Created++; !strings.HasPrefix(e.Text, "sealed:") {
			e.Text = "sealed:garbage"
			stranger.put(e)
		}
	}
	testkit.Eventually(t, "they are written over", func() bool {
		all, _ := stranger.all()
		return slices.ContainsFunc(all, func(e replicated.Entry) bool { return e.Key == sealed[0].Key && e.Text != sealed[0].Text })
	})
	for _, v := range []*controls.Controls{one, two, replica(t, "one", "")} {
		obey(v, "kept")
	}
	lift(two, kept)
	obey(one)
}
