package server

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

const consoleRules = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3, algorithm: sliding_log}
  - key: plan
    value: <b>free</b>
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 100, algorithm: token_bucket, burst: 20}
`

// browser visits the console, with its own cookies.
type browser struct {
	http.Client

	at string
}

// open returns the body of a streaming page. It closes at the end of the test.
func (b *browser) open(t *testing.T, path string) io.Reader {
	t.Helper()
	answer, err := b.Do(b.request(t, http.MethodGet, path, ""))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer.Body
}

// browse starts a server with rules and tokens and returns a browser for it. ann is logged in, unless env configures access.
func browse(t *testing.T, env ...string) (v *Server, b *browser) {
	t.Helper()
	dir := t.TempDir()
	if !slices.ContainsFunc(env, func(pair string) bool { return strings.HasPrefix(pair, "ADMIN_") }) {
		env = append(env, "ADMIN_TOKEN_FILE=DIR/full")
		defer func() { b.post(t, "/ui/login", url.Values{"token": {"sesame-of-ann-0123456789abcdef"}}) }()
	}
	for name, text := range map[string]string{
		"config/shop.yaml": consoleRules,
		"full":             "ann: sesame-of-ann-0123456789abcdef\n",
		"read":             "looking-only-0123456789abcdef\n",
		"some":             "eve[domains=search]: good-for-one-0123456789abcdef\n",
	} {
		testkit.WriteFile(t, filepath.Join(dir, name), text)
	}
	for i := range env {
		env[i] = strings.ReplaceAll(env[i], "DIR", dir)
	}
	v = inProcess(t, append([]string{"ADMIN=true", "RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=.", "RUNTIME_APPDIRECTORY=config", "RUNTIME_WATCH_ROOT=false"}, env...)...)
	testkit.Run(t, v.Run)
	testkit.Eventually(t, "the rules are loaded", func() bool { return v.limiter.Rules() != nil })
	return v, newBrowser(t, v)
}

func newBrowser(t *testing.T, v *Server) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &browser{at: "http://" + v.listeners.debug.Addr().String()}
	b.Jar = jar
	b.Transport = &http.Transport{DisableKeepAlives: true}
	return b
}

// request returns a request for path, with a form as its body unless form is empty.
func (b *browser) request(t *testing.T, method, path, form string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, b.at+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return r
}

// get returns a page.
func (b *browser) get(t *testing.T, path string) answered {
	t.Helper()
	return b.do(t, b.request(t, http.MethodGet, path, ""))
}

// post sends a form.
func (b *browser) post(t *testing.T, path string, form url.Values) answered {
	t.Helper()
	r := b.request(t, http.MethodPost, path, form.Encode())
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return b.do(t, r)
}

type answered struct {
	code    int
	text    string
	headers http.Header
	path    string
}

func (b *browser) do(t *testing.T, r *http.Request) answered {
	t.Helper()
	answer, err := b.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{answer.StatusCode, string(text), answer.Header, answer.Request.URL.Path}
}

// hit sends a request of cost 1 for a user.
func hit(t *testing.T, v *Server, user string) (code int) {
	t.Helper()
	code, _, err := testkit.Fetch(t.Context(), http.MethodPost, "http://"+v.listeners.http.Addr().String()+"/json",
		`{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"`+user+`"}]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func wantPage(t *testing.T, name string, a answered, code int, wants ...string) {
	t.Helper()
	if a.code != code {
		t.Errorf("%s: %d, want %d", name, a.code, code)
	}
	for _, want := range wants {
		if without, not := strings.CutPrefix(want, "!"); strings.Contains(a.text, strings.TrimPrefix(want, "!")) == not {
			t.Errorf("%s: want %q (%t), got:\n%s", name, without, !not, a.text)
		}
	}
}

// TestConsoleStory: an operator finds a limited user, allows, blocks and lifts, and finds all changes in the audit log.
func TestConsoleStory(t *testing.T) {
	v, b := browse(t)
	for i, want := range []int{200, 200, 200, 429} {
		if got := hit(t, v, "ann"); got != want {
			t.Fatalf("hit %d: %d, want %d", i, got, want)
		}
	}
	const look = "/ui/descriptor?domain=shop&e=user%3Dann"
	for path, wants := range map[string][]string{
		"/ui":                     {"Overview", "healthy", "2 rules in 1 domain,", "in-memory counters", "Log out"},
		"/ui/rules":               {"user", "3 per hour, sliding_log", "shop.yaml:3", "plan=&lt;b&gt;free&lt;/b&gt;", "!<b>free"},
		"/ui/rules?q=bucket":      {"1 rule", "!sliding_log"},
		"/ui/rules?q=nobody":      {"No matching rules"},
		"/ui/rule?path=shop.user": {"algorithm: sliding_log", "Never more than 3 in any hour", "user=ann", "Most rejected"},
		look:                      {"rejected", "<b>0</b> of 3 per hour", "Passes again", "Refill", "Block", "Reset"},
		"/ui/descriptor":          {"Enter a domain and entries", "<option>shop</option>"},
		"/ui/controls":            {"No active controls"},
		"/ui/audit":               {"No changes yet"},
		"/ui/live":                {`data-events="/ui/live/events?`},
		"/ui/help":                {"Keys"},
		"/ui/playground?domain=shop&e=user%3Dann&n=5&over=1m": {"Current rule: 3 of 5 pass", "First rejection: request 4, after 36 s"},
		"/ui/playground?domain=shop&e=user%3Dann&n=5&over=1m&other=rate_limit%3A%0A++unit%3A+hour%0A++requests_per_unit%3A+4": {
			"Current rule: 3 of 5 pass", "Changed rule: 4 of 5 pass",
		},
		"/ui/playground?domain=shop&e=user%3Dann&other=rate_limit%3A%0A++unit%3A+fortnight%0A++requests_per_unit%3A+4": {"line 2:", "fortnight"},
	} {
		a := b.get(t, path)
		wantPage(t, path, a, 200, wants...)
	}
	for path, want := range map[string]int{"/ui/rule?path=shop.nobody": 404, "/ui/nothing": 404} {
		a := b.get(t, path)
		wantPage(t, path, a, want, `role="alert"`)
	}

	form := url.Values{"do": {"allow"}, "domain": {"shop"}, "e": {"user=ann"}, "for": {"1h"}, "reason": {"a <good> customer"}}
	a := b.post(t, "/ui/act", form)
	wantPage(t, "asking to allow", a, 200, "Confirm: allow", "Applies to this server only", "All requests pass")
	if got := hit(t, v, "ann"); got != 429 {
		t.Errorf("before confirmation: %d", got)
	}
	form = hidden(a.text)
	a = b.post(t, "/ui/act", form)
	wantPage(t, "allowing", a, 200, "Done: allow", "Done. Recorded in the audit log.")
	if got := hit(t, v, "ann"); got != 200 {
		t.Errorf("after allow: %d", got)
	}
	b.post(t, "/ui/act", form) // as a browser does on reload
	a = b.get(t, "/ui/audit")
	wantPage(t, "the audit", a, 200, "a &lt;good&gt; customer", "ann")
	if n := strings.Count(a.text, "a &lt;good&gt; customer"); n != 1 {
		t.Errorf("a change confirmed twice with one request is %d times in the audit log", n)
	}
	a = b.get(t, "/ui/controls")
	wantPage(t, "controls", a, 200, "allow", "user=ann", "Lift")
	a = b.post(t, "/ui/act", hidden(a.text))
	form = hidden(a.text)
	form.Set("reason", "enough")
	a = b.post(t, "/ui/act", form)
	wantPage(t, "lifting", a, 200, "Done: lift")
	if got := hit(t, v, "ann"); got != 429 {
		t.Errorf("after lift: %d", got)
	}
	for do, more := range map[string]url.Values{"block": {"for": {"10m"}}, "limit": {"for": {"10m"}, "requests": {"9"}, "unit": {"hour"}}, "grant": {"hits": {"2"}}, "reset": {}} {
		more.Set("do", do)
		more.Set("domain", "shop")
		more.Set("e", "user=ann")
		more.Set("reason", "a test")
		a := b.post(t, "/ui/act", more)
		wantPage(t, do, a, 200, "Confirm: "+do)
		a = b.post(t, "/ui/act", hidden(a.text))
		wantPage(t, do, a, 200, "Done: "+do)
	}
	a = b.get(t, look)
	wantPage(t, "the end", a, 200, `blocked</span> by the <a href="#controls">block</a> set by ann, which ends in`, "Change history", "grant 2 hits", "reset")
	hit(t, v, "ann")
	a = b.get(t, "/ui/rule?path=shop.user")
	wantPage(t, "its rule", a, 200, `user=ann</a> <span class="pill bad">blocked</span>`)
	a = b.get(t, "/ui/")
	wantPage(t, "the first page", a, 200, "Most rejected keys", "e=user%3Dann", ">a control</a>", "Rules that rejected most", ">shop.user</a>")
	for _, bad := range []url.Values{{"do": {"block"}, "for": {"soon"}}, {"do": {"limit"}, "for": {"1h"}, "requests": {"-1"}}, {"do": {"grant"}, "hits": {"x"}}, {"do": {"dance"}}, {"do": {"lift"}}} {
		bad.Set("domain", "shop")
		bad.Set("e", "user=ann")
		bad.Set("reason", "<why> not")
		a := b.post(t, "/ui/act", bad)
		wants := []string{"Invalid request", `value="&lt;why&gt; not"`}
		for _, typed := range []string{"for", "requests", "hits"} {
			if v := bad.Get(typed); v != "" {
				wants = append(wants, `name="`+typed+`"`, `value="`+v+`"`)
			}
		}
		if do := bad.Get("do"); do == "dance" || do == "lift" {
			wants = wants[:1]
		}
		wantPage(t, bad.Encode(), a, 400, wants...)
		bad.Set("confirmed", "yes")
		wantPage(t, bad.Encode(), b.post(t, "/ui/act", bad), 400, append(wants, "!Done:", "!Recorded")...)
	}
}

var input = regexp.MustCompile(`type="hidden" name="([^"]*)" value="([^"]*)"`)

// hidden returns the hidden fields of the forms on a page.
func hidden(page string) url.Values {
	form := url.Values{}
	for _, m := range input.FindAllStringSubmatch(page, -1) {
		form.Add(m[1], strings.NewReplacer("&lt;", "<", "&gt;", ">", "&#34;", `"`, "&#43;", "+", "&amp;", "&").Replace(m[2]))
	}
	return form
}

// TestConsoleLogin: with tokens configured, the console asks for one and sets a cookie that scripts and other sites cannot read.
// A read-only user sees no forms for changes and cannot make any. Requests from another origin are denied.
func TestConsoleLogin(t *testing.T) {
	v, b := browse(t, "ADMIN_TOKEN_FILE=DIR/full", "ADMIN_READ_TOKEN_FILE=DIR/read")
	hit(t, v, "ann")
	for _, path := range []string{"/ui/", "/ui/rules", "/ui/audit", "/ui/live"} {
		a := b.get(t, path)
		wantPage(t, path, a, 200, "Log in", "!<nav")
		csp := a.headers.Get("Content-Security-Policy")
		if a.path != "/ui/login" || !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(csp, "unsafe") ||
			a.headers.Get("Referrer-Policy") != "no-referrer" || a.headers.Get("X-Content-Type-Options") != "nosniff" || a.headers.Get("Cache-Control") != "no-store" {
			t.Errorf("%s led to %s with %v", path, a.path, a.headers)
		}
	}
	a := b.get(t, "/ui/live/events")
	wantPage(t, "the stream", a, 401)
	a = b.post(t, "/ui/login", url.Values{"token": {"guess"}})
	wantPage(t, "a wrong token", a, 401, "Wrong token")

	a = b.post(t, "/ui/login", url.Values{"token": {"looking-only-0123456789abcdef"}})
	wantPage(t, "who looks", a, 200, "Overview", "read-only", "Log out")
	wantPage(t, "help", b.get(t, "/ui/help"), 200, "token or certificate is read-only", "admin socket")
	a = b.get(t, "/ui/rule?path=shop.user")
	wantPage(t, "a rule", a, 200, "user=#", "!ann")
	a = b.get(t, "/ui/descriptor?domain=shop&e=user%3Dann")
	wantPage(t, "a descriptor", a, 200, "<b>2</b> of", "!/ui/act")
	block := url.Values{"do": {"block"}, "domain": {"shop"}, "e": {"user=ann"}, "for": {"1h"}, "confirmed": {"yes"}}
	a = b.post(t, "/ui/act", block)
	wantPage(t, "who looks and blocks", a, 403, "your access is read-only")

	b = newBrowser(t, v)
	b.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	a = b.do(t, b.request(t, http.MethodPost, "/ui/login", "token=sesame-of-ann-0123456789abcdef"))
	c := a.headers.Get("Set-Cookie")
	for _, want := range []string{"; Path=/ui;", "; HttpOnly", "; SameSite=Strict", "; Expires="} {
		if !strings.Contains(c+";", want) || strings.Contains(c, "sesame") || strings.Contains(c, "Secure") {
			t.Errorf("the cookie is %q; want %s, and no token", c, want)
		}
	}
	for header, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		r := b.request(t, http.MethodPost, "/ui/act", block.Encode())
		r.Header.Set(header, value)
		if a := b.do(t, r); a.code != 403 || !strings.Contains(a.text, "different origin") {
			t.Errorf("request from another origin: %d %s", a.code, a.text)
		}
	}
	if got := hit(t, v, "ann"); got != 200 {
		t.Errorf("after two denied blocks: %d", got)
	}
	a = b.post(t, "/ui/act", block)
	wantPage(t, "ann blocks", a, 200, "Done: block")
	a = b.get(t, "/ui/audit")
	wantPage(t, "the audit", a, 200, "ann", "PermissionDenied")
	b.post(t, "/ui/logout", nil)
	a = b.get(t, "/ui/")
	wantPage(t, "once logged out", a, 303)
}

// TestConsoleInDomains: with a token for one domain, the overview names it and shows no curves, because they cover all domains.
func TestConsoleInDomains(t *testing.T) {
	_, b := browse(t, "ADMIN_TOKEN_FILE=DIR/some")
	b.post(t, "/ui/login", url.Values{"token": {"good-for-one-0123456789abcdef"}})
	a := b.get(t, "/ui/")
	wantPage(t, "overview", a, 200, "Your token is limited to the domain search.",
		"0 rules in 0 domains", "!<svg", "!No requests", "!In flight", "!counters in memory")
	a = b.get(t, "/ui/rules")
	wantPage(t, "rules", a, 200, "!shop")
	a = b.get(t, "/ui/descriptor?domain=shop&e=user%3Dann")
	wantPage(t, "another domain", a, 403, "your token is limited to the domain search and does not cover")
}

// TestConsoleCounts: the curves include requests to /json.
func TestConsoleCounts(t *testing.T) {
	v, b := browse(t)
	testkit.Eventually(t, "the curves show a call", func() bool {
		hit(t, v, "ann")
		for _, s := range v.history.Last() {
			if s.Requests > 0 && s.Slow > 0 {
				return true
			}
		}
		return false
	})
	a := b.get(t, "/ui/")
	wantPage(t, "overview", a, 200, "<dt>Requests</dt>", "<dt>p99 latency</dt>", "!No requests")
}

// fromAfar starts a server and returns a browser that reaches its debug port from another machine.
func fromAfar(t *testing.T, env ...string) *browser {
	t.Helper()
	dir := t.TempDir()
	testkit.WriteFile(t, dir+"/full", "sesame")
	ca := certstest.NewCA(t, "servers")
	ca.Issue(t, x509.Certificate{}).Write(t, dir+"/cert", dir+"/key")
	for i := range env {
		env[i] = strings.ReplaceAll(env[i], "DIR", dir)
	}
	v := inProcess(t, append([]string{"ADMIN=true"}, env...)...)
	v.listeners.debug = testkit.From(v.listeners.debug, &net.TCPAddr{IP: net.IPv4(203, 0, 113, 5), Port: 5})
	v.tasks = v.group()
	testkit.Run(t, v.Run)
	b := newBrowser(t, v)
	if v.settings.Debug.TLS {
		b.at = strings.Replace(b.at, "http", "https", 1)
		b.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}
	}
	return b
}

// TestConsoleFromAfar: the console accepts a token from another machine only over TLS. Without TLS it explains what to configure.
func TestConsoleFromAfar(t *testing.T) {
	b := fromAfar(t, "ADMIN_TOKEN_FILE=DIR/full")
	a := b.get(t, "/ui/")
	wantPage(t, "in clear", a, 403, "accepted only over TLS", "set DEBUG_TLS=true, with GRPC_SERVER_TLS_CERT", "!name=\"token\"")
	a = b.post(t, "/ui/login", url.Values{"token": {"sesame"}})
	wantPage(t, "a token in clear", a, 403, "accepted only over TLS", "set DEBUG_TLS=true")

	b = fromAfar(t)
	a = b.get(t, "/ui/")
	wantPage(t, "without tokens", a, 403, "set ADMIN_TOKEN_FILE, and DEBUG_TLS=true, to admit other callers with a token")

	secure := []string{"DEBUG_TLS=true", "GRPC_SERVER_TLS_CERT=DIR/cert", "GRPC_SERVER_TLS_KEY=DIR/key"}
	b = fromAfar(t, append(secure, "ADMIN_TOKEN_FILE=DIR/full")...)
	a = b.get(t, "/ui/")
	wantPage(t, "over TLS", a, 200, `name="token"`)
	a = b.post(t, "/ui/login", url.Values{"token": {"sesame"}})
	wantPage(t, "a token over TLS", a, 200, "Overview")
}

// TestConsoleReloads: the overview shows invalid rules with file and line of each error, and valid rules with their changes.
func TestConsoleReloads(t *testing.T) {
	v, b := browse(t)
	a := b.get(t, "/ui/change")
	wantPage(t, "no change", a, 200, "The rules have not changed since the server started")

	file := filepath.Join(v.settings.Rules.Root, "config", "shop.yaml")
	testkit.WriteFile(t, file, strings.Replace(consoleRules, "unit: hour", "unit: fortnight", 1))
	v.Reload()
	testkit.Eventually(t, "the overview shows what is wrong", func() bool {
		a = b.get(t, "/ui/")
		return strings.Contains(a.text, "<h3 id=\"problems\">Invalid rules")
	})
	wantPage(t, "invalid rules", a, 200, "The newest rules are invalid</b>; the last valid ones stay in use",
		"!>healthy<", "shop.yaml:4", "fortnight", "1 problem", "!Changed")
	testkit.WriteFile(t, file, strings.Replace(consoleRules, "requests_per_unit: 3,", "requests_per_unit: 4,", 1))
	v.Reload()
	testkit.Eventually(t, "the overview shows what has changed", func() bool {
		a = b.get(t, "/ui/")
		return strings.Contains(a.text, "1 change: 1 raises a limit")
	})
	wantPage(t, "changed rules", a, 200, "!The newest rules are invalid", `<li class="warn"><code>shop.user</code>`, "Earlier invalid rules")
	a = b.get(t, "/ui/change")
	wantPage(t, "the change", a, 200, "shop.user", "3→4 per hour, sliding_log, keeps its counters", "raises a limit", "shop.yaml:3:5")
}

// TestConsoleLive: the stream sends matching decisions as escaped rows, and no others.
func TestConsoleLive(t *testing.T) {
	v, b := browse(t)
	stream := b.open(t, "/ui/live/events?domain=shop&e=user&rule=shop.user")
	var seen testkit.Buffer
	go func() { _, _ = io.Copy(&seen, stream) }() // until the test ends
	testkit.Eventually(t, "a decision is shown", func() bool {
		hit(t, v, "<i>eve</i>")
		return strings.Contains(seen.String(), "&lt;i&gt;eve") && strings.Contains(seen.String(), "event: decisions")
	}, seen.String)
	if strings.Contains(seen.String(), "<i>") {
		t.Errorf("not escaped: %s", seen.String())
	}
	a := b.get(t, "/ui/live/events?rule=shop.nobody")
	wantPage(t, "a rule that there is not", a, 200, "event: failed", "shop.nobody")
}

// TestConsoleIsOff: without the admin API there is no console. The index lists features that are off or read-only.
func TestConsoleIsOff(t *testing.T) {
	v := inProcess(t, "ADMIN=false", "DISABLE_STATS=true")
	testkit.Run(t, v.Run)
	a := newBrowser(t, v).get(t, "/ui/")
	wantPage(t, "off", a, 200, "!Overview", "!/ui/", "/rlconfig", "off: the admin API and the console; ADMIN=true turns them on\n",
		"off: /metrics and /stats; DISABLE_STATS=false turns them on\n")
	_, b := browse(t, "ADMIN_TOKEN_FILE=")
	a = b.get(t, "/")
	wantPage(t, "read only", a, 200, "/ui/: the console", "read-only: the admin API and the console", "ADMIN_TOKEN_FILE", "!off:")
	_, b = browse(t, "ADMIN_TOKEN_FILE=DIR/full")
	a = b.get(t, "/")
	wantPage(t, "everything is on", a, 200, "/ui/: the console", "!read only", "!off:")
}
