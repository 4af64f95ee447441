package ui

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestStory: by clicks and keys, an operator logs in, finds who is refused, lets them pass, blocks them instead, lifts both,
// and finds it all in the audit.
func TestStory(t *testing.T) {
	const token = "sesame-of-ann-0123456789abcdef"
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
	b.run(chromedp.KeyEvent("g"), chromedp.KeyEvent("r"), chromedp.WaitVisible("#q", chromedp.ByID), chromedp.KeyEvent("/"))
	var focus string
	b.run(chromedp.Evaluate(`document.activeElement.id`, &focus), chromedp.Evaluate(`document.getElementById("q").value = ""`, nil), chromedp.SendKeys("#q", "sliding_log", chromedp.ByID))
	if focus != "q" {
		t.Errorf("/ led to %q, not to the search", focus)
	}
	b.sees("1 of 4")
	b.click("user")
	b.sees("Never more than 3 in any hour")
	b.click("user=tom")
	b.sees("Passes again")

	do := func(summary, kind, verb string) {
		t.Helper()
		b.click(summary)
		b.run(chromedp.WaitVisible("#"+kind+"-reason", chromedp.ByID), chromedp.SendKeys("#"+kind+"-reason", "ticket 7", chromedp.ByID))
		b.click(summary + "…")
		b.sees("This server alone obeys")
		b.click("Yes, " + verb)
		b.sees("It is done")
	}
	do("Allow", "allow", "allow")
	if got := ask(t, d, "user=tom"); got != 200 {
		t.Errorf("allowed: %d", got)
	}
	b.click("Back")
	b.sees("allowed")
	do("Block", "block", "block")
	if got := ask(t, d, "user=tom"); got != 429 {
		t.Errorf("blocked: %d", got)
	}
	for range 2 {
		b.run(chromedp.KeyEvent("g"), chromedp.KeyEvent("c"))
		b.sees("What operators have decided")
		b.click("Lift…")
		b.run(chromedp.SendKeys("#reason", "over", chromedp.ByID))
		b.click("Yes, lift")
		b.sees("It is done")
	}
	b.click("Controls")
	b.sees("No control is in force")
	b.run(chromedp.KeyEvent("g"), chromedp.KeyEvent("a"))
	b.sees("ticket 7")
	b.sees("lift")
	b.run(chromedp.KeyEvent("g"), chromedp.KeyEvent("l"))
	b.sees("live")
	ask(t, d, "user=zoe")
	b.sees("user=zoe")
	b.click("Pause")
	b.sees("paused")
	b.run(chromedp.KeyEvent("?"))
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

// TestPages: every page, narrow and wide, light and dark, says nothing in the browser's console, is no wider than the window,
// and passes the checks of axe-core.
func TestPages(t *testing.T) {
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	if err != nil {
		t.Fatalf("%v: make ui installs it", err)
	}
	d := start(t)
	busy(t, d)
	b := open(t, d)
	for _, p := range pages {
		for _, width := range []int64{360, 1280} {
			for _, theme := range []string{"light", "dark"} {
				where := p.name + ", " + theme
				b.look(width, 800, theme)
				b.visit(p.path)
				var over int
				var found string
				b.run(chromedp.Evaluate(`document.documentElement.scrollWidth - document.documentElement.clientWidth`, &over))
				if over > 0 {
					t.Errorf("%s: %d px wide, and %d px too wide", where, width, over)
				}
				if p.name != "error" {
					b.quiet(where)
				}
				b.run(chromedp.Evaluate(string(axe), nil),
					chromedp.Evaluate(`axe.run().then(r => JSON.stringify(r.violations))`, &found, awaited))
				var all []violation
				if err := json.Unmarshal([]byte(found), &all); err != nil {
					t.Fatal(err)
				}
				for _, v := range all {
					t.Errorf("%s, %d px: %s: %s", where, width, v.ID, v.Help)
					for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
						t.Logf("%s\n%s", n.HTML, n.FailureSummary)
					}
				}
				b.mu.Lock()
				b.said = nil // what axe-core made it say
				b.mu.Unlock()
			}
		}
	}
}

// TestScreenshots makes the pictures of docs/console, if SCREENSHOTS names the directory.
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("SCREENSHOTS")
	if dir == "" {
		t.Skip("make screenshots")
	}
	d := start(t)
	b := open(t, d)
	busy(t, d)
	traffic(t, d)
	for _, s := range []struct {
		name, page, theme string
		width, height     int64
	}{
		{"overview", "overview", "light", 1280, 780},
		{"rules", "rules", "light", 1280, 460},
		{"rule", "rule", "dark", 1280, 780},
		{"descriptor", "descriptor", "light", 1280, 880},
		{"playground", "playground", "dark", 1280, 980},
		{"live", "live", "light", 1280, 500},
		{"overview-narrow", "overview", "dark", 360, 740},
	} {
		var path string
		for _, p := range pages {
			if p.name == s.page {
				path = p.path
			}
		}
		b.look(s.width, s.height, s.theme)
		b.visit(path)
		if s.page == "live" {
			b.sees("live")
			busy(t, d)
			b.sees("user=ann")
		}
		var png []byte
		b.run(chromedp.CaptureScreenshot(&png))
		if err := os.WriteFile(filepath.Join(dir, s.name+".png"), png, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
