// Package ui tests the console in a browser: headless Chromium with the real binary.
package ui

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/proc"
	"github.com/ratelimitd/ratelimitd/pkg/client"
)

const rules = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3, algorithm: sliding_log}
  - key: login
    rate_limit:
      unit: minute
      requests_per_unit: 5
      penalty: {for: 5m, on: exceeded}
  - key: plan
    value: free
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 100, algorithm: token_bucket, burst: 20}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}
`

// token is an operator's login token.
const token = "sesame-of-ann-0123456789abcdef0123"

// tb is the part of [testing.TB] in use, so that a command can implement it.
type tb interface { //nolint:interfacebloat // testing.TB has more
	Helper()
	Context() context.Context
	TempDir() string
	Cleanup(end func())
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// startBinary starts ratelimitd with additional environment variables.
func startBinary(t tb, binary string, env ...string) *testkit.Daemon {
	t.Helper()
	return startIn(t, t.TempDir(), rules, binary, env...)
}

// startIn starts ratelimitd in a directory with rules in config/shop.yaml.
func startIn(t tb, dir, rules, binary string, env ...string) *testkit.Daemon {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "shop.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary)
	cmd.Dir = dir
	cmd.Env = append(testkit.Env("config"), append([]string{"ADMIN=true"}, env...)...)
	d, err := testkit.StartDaemon(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Terminate(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// tab is a page in a browser, and the output of its console.
type tab struct {
	context.Context //nolint:containedctx // for chromedp the browser is its context

	t    tb
	root string
	mu   sync.Mutex
	said []string
}

// open opens a browser.
func open(t tb, d *testkit.Daemon) *tab {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("%v: tools/need chromium chromium installs it", err)
	}
	var browser *exec.Cmd
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(testkit.Patience), chromedp.ModifyCmdFunc(func(cmd *exec.Cmd) {
			browser, cmd.SysProcAttr = cmd, cmp.Or(proc.EndWithParent(), &syscall.SysProcAttr{})
			cmd.SysProcAttr.Setpgid = true
		}))
	alloc, end := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(func() { // child processes write to the directory until they end
		if end(); browser != nil && browser.Process != nil {
			proc.KillGroup(browser.Process.Pid)
		}
	})
	ctx, close := chromedp.NewContext(alloc)
	t.Cleanup(close)
	b := &tab{Context: ctx, t: t, root: "http://" + d.At["DEBUG"]}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
				b.said = append(b.said, fmt.Sprint(e.Type, " ", string(e.Args[0].Value)))
			}
		case *runtime.EventExceptionThrown:
			b.said = append(b.said, e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			b.said = append(b.said, e.Entry.Text+" "+e.Entry.URL)
		}
	})
	if err := chromedp.Run(ctx, log.Enable(), runtime.Enable()); err != nil { // the browser ends with this context
		t.Fatal(err)
	}
	return b
}

// run runs actions in the browser.
func (b *tab) run(actions ...chromedp.Action) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.Context, testkit.Patience)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		var html string
		_ = chromedp.Run(b.Context, chromedp.OuterHTML("main", &html, chromedp.AtLeast(0)))
		b.t.Fatalf("%v; the page has\n%s", err, html)
	}
}

func (b *tab) visit(path string) {
	b.t.Helper()
	b.run(chromedp.Navigate(b.root+path), chromedp.WaitReady("footer"))
}

// sees waits until the page contains text.
func (b *tab) sees(text string) {
	b.t.Helper()
	var seen string
	testkit.Eventually(b.t, "the page says "+text, func() bool {
		return b.now(`document.body?.innerText ?? ""`, &seen) && strings.Contains(seen, text)
	}, func() string { return seen })
}

// now evaluates an expression on the current page. ok is false while the page changes.
func (b *tab) now(expression string, into any) (ok bool) {
	ctx, cancel := context.WithTimeout(b.Context, 10*time.Second)
	defer cancel()
	return chromedp.Run(ctx, chromedp.Evaluate(expression, into)) == nil
}

// press repeats keys until the browser is at a path, after the page has loaded its scripts. Two keys count as one shortcut
// only in quick succession, which a busy machine may prevent.
func (b *tab) press(keys, path string) {
	b.t.Helper()
	var at string
	testkit.Eventually(b.t, "the keys "+keys+" lead to "+path, func() bool {
		var ready bool
		if !b.now(`document.readyState === "complete"`, &ready) || !ready {
			return false
		}
		if b.now("location.pathname", &at) && at == path {
			return true
		}
		b.run(chromedp.KeyEvent(keys))
		time.Sleep(300 * time.Millisecond) // the browser needs a moment, and the keys must not reach the next page
		return b.now("location.pathname", &at) && at == path
	}, func() string { return "it is at " + at })
	b.run(chromedp.WaitReady("footer"))
}

// click clicks a link, button, or summary by its text when nothing covers it. It finds and clicks the element in one step, because
// parts of the page may be replaced at any time.
func (b *tab) click(words string) {
	b.t.Helper()
	script := fmt.Sprintf(`(() => {
		const all = [...document.querySelectorAll("a, button, summary")];
		const found = all.find(e => e.textContent.trim().replace(/\s+/g, " ") === %q);
		if (document.readyState !== "complete" || !found) return false;
		found.scrollIntoView({ block: "center", behavior: "instant" });
		const at = found.getBoundingClientRect();
		const top = document.elementFromPoint(at.x + at.width / 2, at.y + at.height / 2);
		if (!top || !found.contains(top)) return false;
		found.click();
		return true;
	})()`, words)
	testkit.Eventually(b.t, "one can click on "+words, func() bool {
		var clicked bool
		return b.now(script, &clicked) && clicked
	}, func() (html string) {
		b.now(`document.querySelector("main")?.outerHTML ?? ""`, &html)
		return html
	})
}

// look sets the size of the window and the theme of the system.
func (b *tab) look(width, height int64, theme string) {
	b.t.Helper()
	b.run(chromedp.EmulateViewport(width, height),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
}

// quiet fails the test if the browser's console has output.
func (b *tab) quiet(where string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, text := range b.said {
		b.t.Errorf("%s: the browser says: %s", where, text)
	}
	b.said = nil
}

// ask requests a hit and returns the status.
func ask(t tb, d *testkit.Daemon, entry string) int {
	t.Helper()
	key, value, _ := strings.Cut(entry, "=")
	code, _, err := testkit.Fetch(t.Context(), "POST", "http://"+d.At["HTTP"]+"/json",
		fmt.Sprintf(`{"domain":"shop","descriptors":[{"entries":[{"key":%q,"value":%q}]}]}`, key, value))
	if err != nil {
		t.Fatal(err)
	}
	return code
}

// page is a page of the console.
type page struct{ name, path string }

// pages are all pages of the console, with content.
func pages() []page {
	return []page{
		{"overview", "/ui/"},
		{"rules", "/ui/rules"},
		{"rule", "/ui/rule?path=shop.user"},
		{"descriptor", "/ui/descriptor?domain=shop&e=user%3Dann"},
		{"playground", "/ui/playground?domain=shop&e=user%3Dann&n=12&over=2h&other=rate_limit%3A%0A++unit%3A+hour%0A++requests_per_unit%3A+5%0A"},
		{"controls", "/ui/controls"},
		{"audit", "/ui/audit"},
		{"live", "/ui/live"},
		{"help", "/ui/help"},
		{"empty", "/ui/descriptor"},
		{"error", "/ui/rule?path=shop.nobody"},
	}
}

// manyRules returns 10,000 rules. The first one has a long name.
func manyRules() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: shop\ndescriptors:\n- {key: %s, rate_limit: {unit: hour, requests_per_unit: 3}}\n", longName)
	for i := range 9_999 {
		fmt.Fprintf(&b, "- {key: user, value: tenant-%05d, rate_limit: {unit: hour, requests_per_unit: %d, algorithm: token_bucket}}\n", i, i+1)
	}
	return b.String()
}

// longName has no opportunity for a line break.
const (
	longName = longPart + longPart + longPart + longPart
	longPart = "a-part-of-a-long-name-without-any-spaces"
)

// hostile sends requests that are rejected, with values that pages must not interpret.
func hostile(t tb, d *testkit.Daemon) {
	t.Helper()
	for range 5 {
		for _, entry := range []string{"user=<img src=x onerror=alert(1)>", "user='; drop table \u202euser --", "user=" + longName, "login=eve", "user=ann"} {
			ask(t, d, entry)
		}
	}
}

// busy sends requests, some of which are rejected, and sets two controls with binary.
func busy(t tb, binary string, d *testkit.Daemon) {
	t.Helper()
	for range 12 {
		ask(t, d, "user=ann")
		ask(t, d, "user=bob")
		ask(t, d, "login=eve")
		ask(t, d, "trial=x")
		time.Sleep(30 * time.Millisecond)
	}
	for _, args := range [][]string{
		{"block", "shop", "user=eve", "--for", "2h", "--reason", "scrapes the catalogue"},
		{"limit", "shop", "user=ann", "--to", "5/hour", "--for", "1h", "--reason", "a large order"},
	} {
		cmd := exec.CommandContext(t.Context(), binary, append(args, "--addr", "unix:"+d.At["SOCKET"])...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
}

// traffic makes calls over gRPC for more than a minute, so that charts have curves.
func traffic(t tb, d *testkit.Daemon) {
	t.Helper()
	c, err := client.New(d.At["GRPC"], "shop", client.Config{Timeout: testkit.Patience})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	names := []string{"ann", "bob", "cyd", "dan", "eve", "fay", "gus", "hal"}
	for i, begin := 0, time.Now(); time.Since(begin) < 75*time.Second; i++ {
		c.Limiter(client.Pairs("user", names[i*i%len(names)])).Allow(t.Context())
		c.Limiter(client.Pairs("plan", "free", "path", fmt.Sprint("/items/", i%7))).Allow(t.Context())
		c.Limiter(client.Pairs("trial", names[i%3])).Allow(t.Context())
		wave := 1 + math.Sin(time.Since(begin).Seconds()/9)
		time.Sleep(time.Duration(20+40*wave) * time.Millisecond)
	}
}
