package web

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// withoutOtherOrigins answers 403 to browser requests from web pages of other origins, unless they only read: such a page
// can post text to any address that the browser reaches, and so consume hits. Requests of programs and of pages of the same
// origin pass with any content type.
func withoutOtherOrigins(h http.Handler) http.Handler {
	var p http.CrossOriginProtection
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { foreign(w) }))
	return p.Handler(h)
}

// withoutPages answers 403 to all browser requests from web pages of other origins, because even reading a profile takes
// time. With DNS rebinding, a foreign page has the same origin for the browser, so the request's host must be localhost or
// an IP address.
func withoutPages(h http.HandlerFunc) http.HandlerFunc { return withoutOrigins(h, false) }

// withoutOrigins is withoutPages, but permits other hosts with anyName: if callers authenticate, DNS rebinding gains a page
// nothing.
func withoutOrigins(h http.HandlerFunc, anyName bool) http.HandlerFunc {
	var p http.CrossOriginProtection
	return func(w http.ResponseWriter, r *http.Request) {
		changing := r.WithContext(r.Context())
		changing.Method = http.MethodPost // reading always passes the check
		switch {
		case p.Check(changing) != nil:
			foreign(w)
		case !anyName && !direct(r.Host):
			http.Error(w, "this page is available only under localhost or an IP address", http.StatusForbidden)
		default:
			h(w, r)
		}
	}
}

// withoutForms is withoutOrigins, but permits users to follow a link from any page. The user sees the result, but not the page with the
// link.
func withoutForms(h http.HandlerFunc, anyName bool) http.HandlerFunc {
	strict := withoutOrigins(h, anyName)
	return func(w http.ResponseWriter, r *http.Request) {
		follows := r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
		if follows && (anyName || direct(r.Host)) {
			h(w, r)
			return
		}
		strict(w, r)
	}
}

func foreign(w http.ResponseWriter) {
	http.Error(w, "a web page from a different origin sent this request: only programs and this server's pages may", http.StatusForbidden)
}

// direct reports whether host, with or without a port, is a name that DNS cannot redirect. Browsers always send a host.
func direct(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
