package web

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// withoutOtherOrigins answers 403 to what a browser sends for a web page of another origin, unless it only reads: such a
// page may post text to any address that the browser's machine can reach, and so spend hits. Programs and pages of the same
// origin are not concerned, whatever content type they send.
func withoutOtherOrigins(h http.Handler) http.Handler {
	var p http.CrossOriginProtection
	p.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { foreign(w) }))
	return p.Handler(h)
}

// withoutPages answers 403 to what a browser sends for a web page of another origin, even if it only reads, because reading
// a profile costs time. A page whose own name leads here (DNS rebinding) is of the same origin for a browser, so the request
// must be for localhost or an IP address too.
func withoutPages(h http.HandlerFunc) http.HandlerFunc { return withoutOrigins(h, false) }

// withoutOrigins is withoutPages that, with anyName, lets requests be for other hosts too: where callers show who they are, a
// page gains nothing by its name.
func withoutOrigins(h http.HandlerFunc, anyName bool) http.HandlerFunc {
	var p http.CrossOriginProtection
	return func(w http.ResponseWriter, r *http.Request) {
		changing := r.WithContext(r.Context())
		changing.Method = http.MethodPost // reading is always allowed
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

// withoutForms is withoutOrigins that lets people follow a link to a page, from wherever it stands: the page is shown to them, and not to
// the page with the link.
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

// direct reports whether host, which may have a port, is a name that cannot be made to lead elsewhere. Without a host the
// request is not a browser's.
func direct(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || host == "localhost" || strings.HasSuffix(host, ".localhost")
}
