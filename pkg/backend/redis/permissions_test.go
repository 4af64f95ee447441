package redis

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/redis/internal/probe"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// called matches the commands that a script calls.
var called = regexp.MustCompile(`(?:\bp?call\(|\beach\(l, )'([^']+)'`)

// TestPermittedKnowsCommands: permitted.lua knows each command that a script calls for decisions, and users get those of all scripts.
func TestPermittedKnowsCommands(t *testing.T) {
	t.Parallel()
	script, err := newScript(scriptFiles)
	if err != nil {
		t.Fatal(err)
	}
	permitted, err := os.ReadFile("internal/probe/permitted.lua")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	granted := map[string]bool{"+eval": true, "+evalsha": true, "+info": true}
	for _, name := range []string{"operate/replicated/register", "operate/audit/audit", "envoy/rlqs/rows"} { // those of side channels
		text, err := os.ReadFile("../../../internal/" + name + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range called.FindAllStringSubmatch(string(text), -1) {
			granted["+"+strings.ToLower(m[1])] = true
		}
	}
	for _, m := range called.FindAllStringSubmatch(script.text, -1) {
		found++
		granted["+"+strings.ToLower(m[1])] = true
		if m[1] != "TIME" && !strings.HasPrefix(m[1], "Z") && // sorted sets are for reservations alone
			!regexp.MustCompile(`\b`+m[1]+` = \{`).Match(permitted) {
			t.Errorf("permitted.lua does not know %s, which the script calls", m[1])
		}
	}
	_, grants, _ := strings.Cut(probe.Grant{Scripts: true}.Command("app", false), " app ")
	if diff := cmp.Diff(slices.Sorted(maps.Keys(granted)), slices.Sorted(slices.Values(strings.Fields(grants)))); diff != "" {
		t.Errorf("what users are granted, which docs/redis.md repeats, is not what the scripts call (-scripts +grants):\n%s", diff)
	}
	if found < 20 {
		t.Errorf("only %d calls were found in the script", found)
	}
}

// TestTrialChangesNothing: finding out what a user may not do leaves nothing behind, whatever the user may do, and each
// command that is taken away is found.
func TestTrialChangesNothing(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.CLI("ACL", "SETUSER", "app", "on", ">secret", "~*", "+@all")
	script, err := newScript(scriptFiles)
	if err != nil {
		t.Fatal(err)
	}
	var e events
	for _, format := range []KeyFormat{OurKeys, ReferenceKeys} {
		b, err := New(Config{URL: s.Addr(), Auth: "app:secret", KeyFormat: format, DialTimeout: slow, Observer: remote.Observer{Event: e.observe}})
		if err != nil {
			t.Fatal(err)
		}
		commands := map[string]bool{"INCRBY": true, "EXPIRE": true, "GET": true, "EVALSHA": true, "EVAL": true}
		if format == OurKeys {
			delete(commands, "EXPIRE")
			for _, m := range called.FindAllStringSubmatch(script.text, -1) {
				commands[m[1]] = true
			}
		}
		for name := range commands {
			name = strings.ToLower(name)
			s.CLI("ACL", "SETUSER", "app", "-"+name)
			needed := format == OurKeys && !strings.HasPrefix(name, "z") || format == ReferenceKeys && !strings.HasPrefix(name, "eval")
			switch err := reached(t, b); {
			case needed && (err == nil || !strings.Contains(err.Error(), "may not run "+name) || !strings.Contains(err.Error(), "ACL SETUSER app +")):
				t.Errorf("without %s: %v, want that the user may not run it", name, err)
			case !needed && err != nil:
				t.Errorf("without %s: %v", name, err)
			}
			s.CLI("ACL", "SETUSER", "app", "+"+name)
		}
		if err := reached(t, b); err != nil {
			t.Errorf("with everything: %v", err)
		}
	}
	if got := s.CLI("DBSIZE"); got != "0" {
		t.Errorf("%s keys are left: %s", got, s.CLI("KEYS", "*"))
	}
}

func TestGrant(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{}, "ACL SETUSER default ~rl:* +eval "},
		{Config{KeyPrefix: "p:"}, "ACL SETUSER default ~p:rl:* +eval "},
		{Config{KeyPrefix: `a "b`}, `ACL SETUSER default "~a \"brl:*" +eval `},
		{Config{KeyPrefix: "*"}, `ACL SETUSER default "~\\*rl:*" +eval `},
		{Config{KeyFormat: ReferenceKeys, KeyPrefix: "p:"}, "ACL SETUSER default ~p:* +incrby "},
	} {
		p := &pool{config: &c.config}
		if got := p.grant().Command("default", true); !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %s, want %s…", c.config, got, c.want)
		}
	}
}
