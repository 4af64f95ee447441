package ui

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// program is ratelimitd, and binary its path.
var (
	program = testkit.Build{Root: "../..", Packages: []string{"./cmd/ratelimitd"}}
	binary  string
)

func TestMain(m *testing.M) {
	dir, err := program.Make()
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "ratelimitd")
	code := m.Run()
	_ = program.Remove()
	os.Exit(code)
}

func start(t *testing.T, env ...string) *testkit.Daemon {
	t.Helper()
	return startBinary(t, binary, env...)
}

// TestStory: by clicks and keys, an operator logs in, finds who is rejected, lets them pass, blocks them instead, lifts both,
// and finds it all in the audit.
func TestStory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("ann: "+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, "ADMIN_TOKEN_FILE="+file)
	for range 5 {
		ask(t, d, "user=tom")
	}
	b := open(t, d)
	b.visit("/ui/rules")
	b.run(chromedp.SendKeys("#token", token+kb.Enter, chromedp.ByID))
	b.sees("Overview")
	b.press("gr", "/ui/rules")
	b.run(chromedp.Poll(`document.readyState === "complete"`, nil), chromedp.KeyEvent("/"))
	var focus string
	b.run(chromedp.Evaluate(`document.activeElement.id`, &focus), chromedp.Evaluate(`document.getElementById("q").value = ""`, nil), chromedp.SendKeys("#q", "sliding_log", chromedp.ByID))
	if focus != "q" {
		t.Errorf("/ led to %q, not to the search", focus)
	}
	b.sees("1 rule")
	b.click("user")
	b.sees("Never more than 3 in any hour")
	b.click("user=tom")
	b.sees("Passes again")

	b.press("go", "/ui/")
	b.click("Allow…")
	b.sees("Confirm: allow")
	b.run(chromedp.SendKeys("#reason", "ticket 7", chromedp.ByID))
	b.click("Confirm allow")
	b.sees("Recorded in the audit log")
	if got := ask(t, d, "user=tom"); got != 200 {
		t.Errorf("allowed: %d", got)
	}
	b.click("Back")
	b.sees("allowed")
	b.click("Block")
	b.run(chromedp.WaitVisible("#block-reason", chromedp.ByID), chromedp.SendKeys("#block-reason", "ticket 7", chromedp.ByID))
	b.click("Block…")
	b.sees("Applies to this server only")
	b.click("Confirm block")
	b.sees("Recorded in the audit log")
	if got := ask(t, d, "user=tom"); got != 429 {
		t.Errorf("blocked: %d", got)
	}
	for range 2 {
		b.press("gc", "/ui/controls")
		b.sees("Temporary overrides")
		b.click("Lift…")
		b.run(chromedp.SendKeys("#reason", "over", chromedp.ByID))
		b.click("Confirm lift")
		b.sees("Recorded in the audit log")
	}
	b.click("Controls")
	b.sees("No active controls")
	b.press("ga", "/ui/audit")
	b.sees("ticket 7")
	b.sees("lift")
	b.press("gl", "/ui/live")
	b.sees("live")
	ask(t, d, "user=zoe")
	b.sees("user=zoe")
	b.click("Pause")
	b.sees("paused")
	b.press("?", "/ui/help")
	b.sees("Keys")
	b.click("Log out")
	b.sees("Token")
	b.quiet("the story")
}

// violation is what axe-core finds.
type violation struct {
	ID, Help string
	Nodes    []struct {
		HTML           string `json:"html"`
		FailureSummary string `json:"failureSummary"`
	}
}

// awaited has a promise be waited for.
func awaited(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

func readAxe(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatalf("%v: make ui-test installs it", err)
	}
	return string(text)
}

// sound fails the test if the page is wider than the window, made the browser's console say anything, or does not pass the checks of
// axe-core. An answer that is an error is one that the browser's console tells.
func (b *tab) sound(where, axe string, isError bool) {
	b.t.Helper()
	var over int
	var found string
	b.run(chromedp.Evaluate(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &over))
	if over > 0 {
		b.t.Errorf("%s: %d px too wide", where, over)
	}
	var hidden []string
	b.run(chromedp.Evaluate(`[...document.querySelectorAll("main, main *, header, header *")].filter(e =>
		e.scrollWidth > e.clientWidth + 1 && ["auto", "scroll"].includes(getComputedStyle(e).overflowX) && !e.matches("input, textarea")).map(e => e.outerHTML)`, &hidden))
	for _, html := range hidden {
		b.t.Errorf("%s: scrolls sideways: %.300s", where, html)
	}
	if !isError {
		b.quiet(where)
	}
	b.run(chromedp.Evaluate(axe, nil), chromedp.Evaluate(`axe.run().then(r => JSON.stringify(r.violations))`, &found, awaited))
	var all []violation
	if err := json.Unmarshal([]byte(found), &all); err != nil {
		b.t.Fatal(err)
	}
	for _, v := range all {
		b.t.Errorf("%s: %s: %s", where, v.ID, v.Help)
		for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
			b.t.Errorf("%s\n%s", n.HTML, n.FailureSummary)
		}
	}
	b.mu.Lock()
	b.said = nil // what axe-core made it say
	b.mu.Unlock()
}

// still fails the test if something on the page jumps while its parts are replaced by new ones.
func (b *tab) still(where string) {
	b.t.Helper()
	var moved float64
	b.run(chromedp.Evaluate(`new Promise(done => {
		let moved = 0;
		new PerformanceObserver(l => { for (const e of l.getEntries()) moved += e.value; }).observe({ type: "layout-shift", buffered: true });
		document.addEventListener("htmx:afterSettle", () => requestAnimationFrame(() => setTimeout(() => done(moved), 50)));
		setTimeout(() => done(-1), 40000);
	})`, &moved, awaited))
	if moved < 0 || moved > 0.01 {
		b.t.Errorf("%s: the layout shifts by %v while it is renewed; want 0, and -1 stands for never", where, moved)
	}
}

// state is a state of a server that a page shows.
type state struct {
	name, path, says string
	rules            string // instead of the usual ones
	env              []string
	isError          bool
	once             func(t tb, d *testkit.Daemon, dir string) // brings the state about
	each             func(*tab)                                // brings the page about, once it is visited
}

func states(t tb) []state {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	noRules := []string{"RUNTIME_ROOT=nowhere"}
	away := []string{"BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=unix", "REDIS_URL=/nowhere/redis.sock"}
	asks := func(t tb, d *testkit.Daemon, _ string) { hostile(t, d) }
	return []state{
		{name: "nothing-yet", path: "/ui/", says: "No requests in the last hour"},
		{name: "no-rules", path: "/ui/", says: "No rules", env: noRules},
		{name: "no-rules-tree", path: "/ui/rules", says: "Counters cannot be read without rules", env: noRules, isError: true},
		{name: "redis-away", path: "/ui/", says: "not healthy", env: away},
		{name: "redis-away-descriptor", path: "/ui/descriptor?domain=shop&e=user%3Dann", says: "The backend is down", env: away},
		{name: "wrong-token", path: "/ui/login", says: "Wrong token", env: []string{"ADMIN_TOKEN_FILE=" + file}, isError: true, each: func(b *tab) {
			b.run(chromedp.SendKeys("#token", "guess"+kb.Enter, chromedp.ByID))
		}},
		{name: "first-page", path: "/ui/", says: "onerror=alert(1)", once: asks},
		{name: "rules-10000", path: "/ui/rules", says: "100 of 10000 rules", rules: manyRules()},
		{name: "search-key", path: "/ui/rules?q=user%3Dann", says: "Peek at user=ann", once: asks},
		{name: "read-only", path: "/ui/descriptor?domain=shop&e=user%3Dann", says: " -- /bin/ratelimitd allow shop user=ann --for 1h", env: []string{"KUBERNETES_SERVICE_HOST=10.0.0.1"}, once: asks},
		{name: "invalid", path: "/ui/", says: "The newest rules are invalid; the last valid ones stay in use", once: func(t tb, _ *testkit.Daemon, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "config", "shop.yaml"), []byte(strings.Replace(rules, "hour", "fortnight", 1)), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "failed-form", path: "/ui/descriptor?domain=shop&e=user%3Dann", says: "Let all requests pass", env: []string{"ADMIN_TOKEN_FILE=" + file}, isError: true, each: func(b *tab) {
			var login bool
			b.run(chromedp.Evaluate(`document.getElementById("token") !== null`, &login))
			if login {
				b.run(chromedp.SendKeys("#token", token+kb.Enter, chromedp.ByID))
			}
			b.click("Allow") // the login leads back here
			b.run(chromedp.WaitVisible("#allow-for", chromedp.ByID), chromedp.SetValue("#allow-for", "soon", chromedp.ByID),
				chromedp.SendKeys("#allow-reason", "ticket 7", chromedp.ByID))
			b.click("Allow…")
			b.sees("Invalid request")
			var typed []string
			b.run(chromedp.Evaluate(`[...document.querySelectorAll("#allow-for, #allow-reason")].map(e => e.value)`, &typed))
			if want := []string{"soon", "ticket 7"}; !slices.Equal(typed, want) {
				b.t.Errorf("after a failure the form has %q, want %q", typed, want)
			}
		}},
	}
}

// TestStates: each state is a page, narrow and light, wide and dark, that passes the checks of TestPages. With STATES each is a picture in
// that directory.
func TestStates(t *testing.T) {
	axe := readAxe(t)
	for _, s := range states(t) {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := startIn(t, dir, cmp.Or(s.rules, rules), binary, s.env...)
			if s.once != nil {
				s.once(t, d, dir)
			}
			b := open(t, d)
			for theme, width := range map[string]int64{"light": 390, "dark": 1440} {
				where := fmt.Sprintf("%s, %d px, %s", s.name, width, theme)
				b.look(width, 844, theme)
				b.visit(s.path)
				if s.each != nil {
					s.each(b)
				}
				b.sees(s.says)
				b.sound(where, axe, s.isError)
				if dir := os.Getenv("STATES"); dir != "" {
					var png []byte
					b.run(chromedp.FullScreenshot(&png, 100))
					if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", s.name, width, theme)), png, 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// TestPages: every page, narrow and dark, wide and light, says nothing in the browser's console, is no wider than the window,
// and passes the checks of axe-core.
func TestPages(t *testing.T) {
	axe := readAxe(t)
	d := start(t)
	busy(t, binary, d)
	b := open(t, d)
	for _, p := range pages() {
		for theme, width := range map[string]int64{"dark": 360, "light": 2560} { // what depends on one does not depend on the other
			where := fmt.Sprintf("%s, %d px, %s", p.name, width, theme)
			b.look(width, 800, theme)
			b.visit(p.path)
			b.sound(where, axe, p.name == "error")
			if theme == "light" && (p.name == "overview" || p.name == "rules") {
				b.still(where)
			}
		}
	}
}
