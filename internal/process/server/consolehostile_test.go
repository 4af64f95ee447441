package server

import (
	"bufio"
	"encoding/json"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// ask sends a request of cost 1 for a descriptor with one entry.
func ask(t *testing.T, v *Server, domain, key, value string) {
	t.Helper()
	entry := []map[string]string{{"key": key, "value": value}}
	body, err := json.Marshal(map[string]any{"domain": domain, "descriptors": []any{map[string]any{"entries": entry}}})
	if err != nil {
		t.Fatal(err)
	}
	if code, text, err := testkit.Fetch(t.Context(), http.MethodPost, "http://"+v.listeners.http.Addr().String()+"/json", string(body)); err != nil || code >= 500 {
		t.Fatalf("%d %s %v", code, text, err)
	}
}

// TestConsoleHostileStream: a line break in a request's value does not start a new event. An event named failed would close the
// stream of every viewer.
func TestConsoleHostileStream(t *testing.T) {
	v, b := browse(t)
	lines := bufio.NewScanner(b.open(t, "/ui/live/events"))
	lines.Split(asBrowsers)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "event: failed":
			t.Fatal("a value of a request became a separate event")
		case line == "event: beat": // the first beat may precede the subscription
			ask(t, v, "shop", "user", "eve\r\revent: failed\rdata: the server is down\r\r")
			ask(t, v, "shop", "user", "last")
		case strings.Contains(line, "user=last"):
			return
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
}

// asBrowsers is a split function for event streams. A line ends with a line feed, a carriage return, or both.
func asBrowsers(data []byte, atEOF bool) (advance int, token []byte, err error) {
	i := strings.IndexAny(string(data), "\r\n")
	if i < 0 {
		if atEOF && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	}
	return i + 1, data[:i], nil
}

// TestConsoleUnwritable: some descriptors cannot be written as lines of key=value, such as a value with a line feed. Pages do not
// link to a different descriptor instead, which an operator might block by mistake.
func TestConsoleUnwritable(t *testing.T) {
	v, b := browse(t)
	for _, value := range []string{"two\nlines", "returns\r", "#0123456789ab", "fine = too"} {
		ask(t, v, "shop", "user", value)
	}
	testkit.Eventually(t, "the busiest are listed", func() bool { return strings.Contains(b.get(t, "/ui/rule?path=shop.user").text, "fine = too") })
	a := b.get(t, "/ui/rule?path=shop.user")
	wantPage(t, "the busiest", a, 200, `user=two\nlines`, `e=user%3Dfine&#43;%3D&#43;too`, `e=user%3D%230123456789ab`, "!e=user%3Dtwo", "!e=user%3Dreturns")
	a = b.get(t, "/ui/descriptor?"+url.Values{"domain": {"shop"}, "e": {"user=#0123456789ab"}}.Encode())
	wantPage(t, "a value like a hidden one, for who sees all", a, 200, "<b>2</b> of 3", "/ui/act", "!hidden from you")
}

// TestConsoleLinks: users may follow a link from another site to the console. Embedded requests and frames of other sites are
// denied.
func TestConsoleLinks(t *testing.T) {
	_, b := browse(t, "ADMIN_TOKEN_FILE=") // without tokens the Host header is checked
	for _, tt := range []struct {
		method, mode, dest, host string
		code                     int
	}{
		{http.MethodGet, "navigate", "document", "", 200},
		{http.MethodGet, "navigate", "iframe", "", 403},
		{http.MethodGet, "no-cors", "image", "", 403},
		{http.MethodGet, "navigate", "document", "evil.example", 403},
		{http.MethodPost, "navigate", "document", "", 403},
	} {
		r := b.request(t, tt.method, "/ui/rules", "")
		r.Header = http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {tt.mode}, "Sec-Fetch-Dest": {tt.dest}}
		r.Host = tt.host
		if a := b.do(t, r); a.code != tt.code {
			t.Errorf("%+v: %d %.200s", tt, a.code, a.text)
		}
	}
}

// TestConsoleSamePath: rules with equal path texts have separate pages, in one domain or in two.
func TestConsoleSamePath(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "domain: shop\ndescriptors:\n- {key: eu.user, rate_limit: {unit: hour, requests_per_unit: 11}}\n" +
			"- {key: eu, descriptors: [{key: user, \n    rate_limit: {unit: hour, requests_per_unit: 12}}]}\n",
		"b.yaml": "domain: shop.eu\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 13}}]\n",
	} {
		testkit.WriteFile(t, filepath.Join(dir, "config", name), text)
	}
	v, b := browse(t, "RUNTIME_ROOT="+dir)
	ask(t, v, "shop.eu", "user", "of-shop-eu")
	ask(t, v, "shop", "eu.user", "of-shop")
	tree := b.get(t, "/ui/rules")
	links := regexp.MustCompile(`href="(/ui/rule\?[^"]*)"`).FindAllStringSubmatch(tree.text, -1)
	if len(links) != 3 {
		t.Fatalf("%d links to rules, want 3:\n%s", len(links), tree.text)
	}
	for i, wants := range [][]string{
		{"<h2>Definition", "requests_per_unit: 11", "Other rules have the same path", "a.yaml:4", "of-shop", "!of-shop-eu"},
		{"requests_per_unit: 12", "Other rules have the same path", "a.yaml:3", "!of-shop-eu"},
		{"requests_per_unit: 13", "!Other rules", "of-shop-eu", "!of-shop<"},
	} {
		path := html.UnescapeString(links[i][1])
		testkit.Eventually(t, "the top keys are there", func() bool { return strings.Contains(b.get(t, path).text, "of-shop") })
		wantPage(t, path, b.get(t, path), 200, wants...)
	}
	a := b.get(t, "/ui/rule?path=shop.eu.user")
	wantPage(t, "an address from before", a, 200, "requests_per_unit: 11")
}

// TestConsoleSlowForms: forms that never arrive completely do not delay pages.
func TestConsoleSlowForms(t *testing.T) {
	v, b := browse(t)
	at, err := url.Parse(b.at + "/ui/")
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", v.listeners.debug.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		head := "POST /ui/act HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\nCookie: " + b.Jar.Cookies(at)[0].String() +
			"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\ndomain=shop"
		if _, err := io.WriteString(c, head); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		wantPage(t, "a page beside slow forms", b.get(t, "/ui/help"), 200, "this page")
	}
	a := b.post(t, "/ui/act", url.Values{"reason": {strings.Repeat("x", 65<<10)}})
	wantPage(t, "a form that is too large", a, 400, "has more than 64 KiB")
}
