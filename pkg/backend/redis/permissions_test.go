package redis

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/backendtest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// called matches the commands called by a script.
var called = regexp.MustCompile(`(?:\bp?call\(|\beach\(l, )'([^']+)'`)

// TestGrants checks that the lines of docs/redis.md equal the constants, and allow exactly the commands that scripts call.
func TestGrants(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, m := range regexp.MustCompile(`(?m)^ *ACL SETUSER limiter on >SECRET (.*)$`).FindAllStringSubmatch(string(page), -1) {
		lines = append(lines, m[1])
	}
	if diff := cmp.Diff([]string{grants, referenceGrants}, lines); diff != "" {
		t.Errorf("docs/redis.md differs (-constants +page):\n%s", diff)
	}
	script, err := newScript(scriptFiles)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{script.text}
	for _, name := range []string{"operate/replicated/register", "operate/audit/audit", "envoy/rlqs/rows"} { // scripts of side channels
		text, err := os.ReadFile("../../../internal/" + name + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	needed := map[string]bool{"~rl:*": true, "+eval": true, "+evalsha": true, "+info": true}
	for _, text := range texts {
		for _, m := range called.FindAllStringSubmatch(text, -1) {
			needed["+"+strings.ToLower(m[1])] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(needed)), slices.Sorted(slices.Values(strings.Fields(grants)))); diff != "" {
		t.Errorf("grants are not what the scripts call (-scripts +grants):\n%s", diff)
	}
}

// TestGranted runs the suite as a user with exactly the permissions of docs/redis.md.
func TestGranted(t *testing.T) {
	t.Parallel()
	testkit.NotShort(t)
	s := redistest.Start(t, "user app on >secret "+grants)
	backendtest.Run(t, backendtest.Harness{Calls: 10, Takes: 2000, Open: func(tb testing.TB, now func() engine.Micros) backend.Backend {
		tb.Helper()
		s.CLI("FLUSHALL")
		return run(tb, Config{URL: s.Addr(), Auth: "app:secret", Now: now, OpTimeout: slow}, true)
	}})
	optional := regexp.MustCompile(`(?m)^object\n(echo|config\|get)$`)
	if log := optional.ReplaceAllString(s.CLI("ACL", "LOG", "1000"), ""); strings.Contains(log, "object\n") {
		t.Errorf("Redis has rejected:\n%s", log)
	}
}

// TestDenied checks that connecting detects a permission missing for common limits, reports the line of docs/redis.md, and changes
// nothing.
func TestDenied(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "user app on >secret "+grants)
	b := opened(t, Config{URL: s.Addr(), Auth: "app:secret", DialTimeout: slow})
	for _, name := range []string{"eval", "evalsha", "get", "set", "unlink", "time", "pexpire", "rpush", "hset", "~rl:*", "info"} {
		without, with := []string{"-" + name}, []string{"+" + name}
		if name[0] == '~' {
			without, with = []string{"resetkeys"}, []string{name}
		}
		s.CLI(append([]string{"ACL", "SETUSER", "app"}, without...)...)
		err := reached(t, b)
		want := "NOPERM: the user lacks a permission; allow it in Redis: ACL SETUSER app " + strings.TrimPrefix(grants, "~rl:* ")
		if name[0] == '~' {
			want = "NOPERM: the user may not use the keys of counters; allow it in Redis: ACL SETUSER app " + grants
		}
		if name == "info" && err != nil ||
			name != "info" && (err == nil || !strings.HasSuffix(err.Error(), want)) {
			t.Errorf("without %s: %v, want %s", name, err, want)
		}
		s.CLI(append([]string{"ACL", "SETUSER", "app"}, with...)...)
		if err := reached(t, b); err != nil {
			t.Errorf("with everything: %v", err)
		}
	}
	if got := s.CLI("DBSIZE"); got != "0" {
		t.Errorf("%s keys are left: %s", got, s.CLI("KEYS", "*"))
	}
}
