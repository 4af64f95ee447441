// Package console serves web pages for operators: the server's status, its rules, the descriptors that they limit, and forms to control
// them. It is a client of the admin API and otherwise only receives a history of totals. So a user sees and does only what the API
// permits, and the audit lists the user's calls.
//
// The server renders the pages, and a small script (htmx) replaces parts of them. Except for live updates, pages work without the
// script. There is no inline script or style, and nothing is loaded from other sites.
//
// This package is optional: the core works without it.
package console

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net/http"
	"sync"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Root is the path prefix of all pages.
const Root = "/ui/"

// maxForm is the maximum size of a form in bytes.
const maxForm = 64 << 10

// policy allows only resources of this server, and no inline script or style.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

//go:embed static templates
var embedded embed.FS

// Sessions manages logins.
type Sessions interface {
	// Guarded reports whether users must log in.
	Guarded() bool
	// Reachable returns the reason why the client of r cannot log in from its address, or nil.
	Reachable(r *http.Request) error
	// Login returns a session text for a token and the session's end, or the status to answer with.
	Login(r *http.Request, token string) (text string, ends time.Time, err error)
	// Resume returns the context for API calls of the client of r, given the text that Login returned, and whether the user may
	// make changes. ok is false if the user must log in.
	Resume(r *http.Request, text string) (ctx context.Context, change, ok bool)
}

// Config configures a console. All fields are required.
type Config struct {
	API      adminv1.AdminServiceClient // Watch is not called
	Watch    func(ctx context.Context, q *adminv1.WatchRequest, send func(*adminv1.WatchResponse) error) error
	Sessions Sessions
	History  *History
	Version  string // the server's version
	Command  string // the command that runs ratelimitd on the server's host
}

// console serves the pages.
type console struct {
	Config

	pages       *template.Template
	rates       rates
	domainCache domains
	turns       map[bool]*throttle.Turns // for rendering pages, by whether the user may make changes
}

// New returns a handler for all paths below [Root]. It must run behind [http.CrossOriginProtection].
func New(c Config) (http.Handler, error) {
	u := &console{Config: c, turns: map[bool]*throttle.Turns{}}
	for _, change := range []bool{false, true} {
		u.turns[change] = throttle.NewTurns(pagesAtOnce, restOfPage)
	}
	pages, err := template.New("").Funcs(words(c.Command)).ParseFS(embedded, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("parsing the console's pages: %w", err)
	}
	u.pages = pages
	static, err := fs.Sub(embedded, "static")
	if err != nil {
		return nil, fmt.Errorf("opening the console's files: %w", err)
	}
	mux := http.NewServeMux()
	files := http.StripPrefix(Root+"static/", http.FileServerFS(static))
	mux.HandleFunc("GET /ui/static/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-cache")
		files.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /ui/login", u.showLogin)
	mux.HandleFunc("POST /ui/login", u.login)
	mux.HandleFunc("POST /ui/logout", u.logout)
	mux.HandleFunc("GET /ui/live/events", u.events)
	for pattern, p := range map[string]page{
		"GET /ui/{$}":         {"overview", "Overview", data(u.overview)},
		"GET /ui/change":      {"change", "Last change", data(u.lastChange)},
		"GET /ui/rules":       {"rules", "Rules", data(u.ruleTree)},
		"GET /ui/rule":        {"rule", "Rule", data(u.rule)},
		"GET /ui/descriptor":  {"descriptor", "Descriptor", data(u.descriptor)},
		"POST /ui/act":        {"act", "Confirm", data(u.act)},
		"GET /ui/playground":  {"playground", "Playground", data(u.playground)},
		"GET /ui/controls":    {"controls", "Controls", data(u.controls)},
		"GET /ui/audit":       {"audit", "Audit log", data(u.audit)},
		"GET /ui/live":        {"live", "Live", data(u.live)},
		"GET /ui/help":        {"help", "Help", func(context.Context, *http.Request) (any, error) { return nil, nil }},
		"GET /ui/{something}": {"", "", func(context.Context, *http.Request) (any, error) { return nil, errNoPage }},
	} {
		mux.HandleFunc(pattern, u.guarded(p))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		form, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm)) // read before waiting for a turn
		if err != nil {
			http.Error(w, fmt.Sprintf("the form is incomplete, or has more than %d KiB", maxForm>>10), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(form))
		mux.ServeHTTP(w, r)
	}), nil
}

// Limits of rendering: pagesAtOnce pages at a time for users who may make changes, and as many for other users. After a page, its turn
// stays taken for restOfPage times the rendering time, so that many page requests do not slow down decisions.
const (
	pagesAtOnce = 2
	restOfPage  = 4
)

var errNoPage = status.Error(codes.NotFound, "page not found")

// page is a template, its title, and the function for its data. The function's error is a gRPC status. Its code and text are shown
// above the data, such as a submitted form, or on their own page if the data is nil.
type page struct {
	name, title string
	data        func(ctx context.Context, r *http.Request) (any, error)
}

// data adapts make to page.data. A nil *T becomes a nil interface.
func data[T any](make func(context.Context, *http.Request) (*T, error)) func(context.Context, *http.Request) (any, error) {
	return func(ctx context.Context, r *http.Request) (any, error) {
		p, err := make(ctx, r)
		if p == nil {
			return nil, err
		}
		return p, err
	}
}

// view is the data of every template.
type view struct {
	Page, Title, Version string
	Guarded, In, Change  bool // whether users log in, this user has logged in, and may make changes
	Error                string
	Domains              func() []string // choices of domains
	Body                 any
}

// guarded serves a page to logged-in users and the login page to others.
func (u *console) guarded(p page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { //nolint:contextcheck // the context of calls comes from that of r
		ctx, change, ok := u.Sessions.Resume(r, sessionOf(r))
		if !ok {
			toLogin(w, r)
			return
		}
		done, ok := u.turns[change].Take(ctx) //nolint:contextcheck // likewise
		if !ok {
			http.Error(w, "too many page requests: try again later", http.StatusTooManyRequests)
			return
		}
		made := sync.OnceFunc(done)
		defer made()
		body, err := p.data(ctx, r) //nolint:contextcheck // likewise
		v := view{Page: p.name, Title: p.title, In: true, Change: change, Body: body, Domains: func() []string { return u.domains(ctx, r) }}
		code := status.Code(err)
		if code == codes.Unauthenticated {
			toLogin(w, r)
			return
		}
		if err != nil {
			v.Title, v.Error = errorTitle(code), status.Convert(err).Message()
			if body == nil {
				v.Page = "error"
			}
		}
		u.render(w, runtime.HTTPStatusFromCode(code), v, made)
	}
}

// partly reports whether htmx requests a part of a page, which it repeats while the page is open.
func partly(r *http.Request) bool { return r.Header.Get("HX-Request") != "" }

// render renders a page, calls made, and sends the page, which may take long.
func (u *console) render(w http.ResponseWriter, code int, v view, made func()) {
	v.Version, v.Guarded = u.Version, u.Sessions.Guarded()
	var b bytes.Buffer
	err := u.pages.ExecuteTemplate(&b, v.Page, v)
	made()
	if err != nil {
		http.Error(w, "cannot render this page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write(b.Bytes()) // an error means that the client is gone
}

func errorTitle(code codes.Code) string {
	switch code { //nolint:exhaustive // for others nothing more can be said
	case codes.PermissionDenied:
		return "Not allowed"
	case codes.NotFound:
		return "Not found"
	case codes.Unavailable, codes.DeadlineExceeded:
		return "Unavailable"
	case codes.InvalidArgument, codes.FailedPrecondition:
		return "Invalid request"
	default:
		return "Something went wrong"
	}
}
