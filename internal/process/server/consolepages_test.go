package server

import (
	"cmp"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// TestConsoleLoginLeadsBack: after login the browser returns to the requested page, also from a partial page or a form. It never
// leads elsewhere.
func TestConsoleLoginLeadsBack(t *testing.T) {
	const page = "/ui/descriptor?domain=shop&e=user%3Dann"
	_, b := browse(t, "ADMIN_TOKEN_FILE=DIR/full")
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	login := "/ui/login?" + url.Values{"next": {page}}.Encode()
	a := b.get(t, page)
	if got := a.headers.Get("Location"); got != login {
		t.Errorf("a page redirects to %q, want %q", got, login)
	}
	a = b.post(t, "/ui/act", url.Values{"do": {"block"}, "domain": {"shop"}, "e": {"user=ann"}})
	if got := a.headers.Get("Location"); got != login {
		t.Errorf("a form redirects to %q, want %q", got, login)
	}
	r := b.request(t, http.MethodGet, "/ui/", "")
	r.Header.Set("HX-Request", "true")
	r.Header.Set("HX-Current-URL", b.at+page)
	if got := b.do(t, r).headers.Get("HX-Redirect"); got != login {
		t.Errorf("a partial page redirects to %q, want %q", got, login)
	}
	a = b.post(t, "/ui/login", url.Values{"token": {"guess"}, "next": {page}})
	wantPage(t, "a wrong token", a, 401, `name="next" value="/ui/descriptor?domain=shop&amp;e=user%3Dann"`)
	for next, want := range map[string]string{
		page:                            page,
		"":                              "/ui/",
		"/stats":                        "/ui/",
		"/ui/../stats":                  "/ui/",
		"/ui/%2e%2e/stats":              "/ui/",
		"//evil.example/ui/":            "/ui/",
		"https://evil.example/ui/rules": "/ui/rules",
		"javascript:alert(1)":           "/ui/",
		"/ui/\\evil.example":            "/ui/%5Cevil.example",
		"/ui/rules?q=" + strings.Repeat("x", 2048): "/ui/",
	} {
		a := b.post(t, "/ui/login", url.Values{"token": {"sesame-of-ann-0123456789abcdef"}, "next": {next}})
		if got := a.headers.Get("Location"); a.code != http.StatusSeeOther || got != want {
			t.Errorf("next=%.50q redirects to %d %q, want %q", next, a.code, got, want)
		}
	}
}

// TestConsolePages: 10,000 rules come in pages of less than 100 KB, each rule once. After a reload, paging starts over.
func TestConsolePages(t *testing.T) {
	dir := t.TempDir()
	write := func(first int) {
		text := strings.Builder{}
		text.WriteString("domain: shop\ndescriptors:\n")
		for i := range 10_000 {
			fmt.Fprintf(&text, "- {key: k%05d, rate_limit: {unit: hour, requests_per_unit: 3}}\n", first+i)
		}
		testkit.WriteFile(t, filepath.Join(dir, "config", "shop.yaml"), text.String())
	}
	write(0)
	v, b := browse(t, "RUNTIME_ROOT="+dir)
	link := regexp.MustCompile(`<a id="next" href="([^"]*)"`)
	rule := regexp.MustCompile(`>k(\d{5})</a>`)
	var second string
	for path, from := "/ui/rules", 0; ; {
		a := b.get(t, path)
		for i, m := range rule.FindAllStringSubmatch(a.text, -1) {
			if want := fmt.Sprintf("%05d", from+i); m[1] != want {
				t.Fatalf("%s: rule %d is %s, want %s", path, i, m[1], want)
			}
		}
		if len(a.text) > 100_000 || !strings.Contains(a.text, "100 of 10000 rules") {
			t.Fatalf("%s has %d bytes, or lacks the number of rules", path, len(a.text))
		}
		from += 100
		next := link.FindStringSubmatch(a.text)
		if next == nil {
			if from != 10_000 {
				t.Errorf("the pages have %d rules", from)
			}
			break
		}
		path = html.UnescapeString(next[1])
		second = cmp.Or(second, path)
	}
	a := b.get(t, "/ui/rules?q=k0123")
	wantPage(t, "a search", a, 200, "10 rules", ">k01239</a>", "!k01240", "!Next page")
	write(5)
	v.Reload()
	testkit.Eventually(t, "the rules are others", func() bool { return strings.Contains(b.get(t, second).text, ">k00005</a>") })
	a = b.get(t, "/ui/rules?after=nonsense")
	wantPage(t, "a bad token", a, 400, "was not issued by this server")
}

// TestConsoleSearch: search finds rules and requested keys, and offers a link to other keys.
func TestConsoleSearch(t *testing.T) {
	v, b := browse(t)
	hit(t, v, "ann")
	hit(t, v, "<b>bob")
	for search, wants := range map[string][]string{
		"ANN":      {"e=user%3Dann", "!bob", "No matching rules", "!Peek at"},
		"user":     {"e=user%3Dann", "user=&lt;b&gt;bob", "1 rule", "!<b>bob"},
		"user=zoe": {"No match among the busiest keys", `href="/ui/descriptor?domain=shop&amp;e=user%3Dzoe">Peek at user=zoe`},
		"<b>=<i>":  {"Peek at &lt;b&gt;=&lt;i&gt;", "!<i>"},
	} {
		a := b.get(t, "/ui/rules?"+url.Values{"q": {search}}.Encode())
		wantPage(t, search, a, 200, wants...)
	}
	a := b.get(t, "/ui/rules?q="+strings.Repeat("x", 300))
	wantPage(t, "too long", a, 400, "search has 300 bytes", `value="xxx`)
}
