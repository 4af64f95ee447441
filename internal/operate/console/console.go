// Package console is a set of pages for operators: what the server does, what its rules are and which descriptors they limit, and the means
// to steer it. It is a client of the admin API and knows nothing else of the server but a history of its totals, so what it
// shows and does is what the API lets the user see and do, and stands in the audit as the user's call.
//
// Pages are rendered here; a little script (htmx) replaces parts of them. All of them work without it, but for what is live.
// Nothing is inline, nothing comes from elsewhere.
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

// Root is what the paths of all pages begin with.
const Root = "/ui/"

// maxForm is how many bytes a form may have.
const maxForm = 64 << 10

// policy lets pages use what comes from here, and nothing that is inline.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

//go:embed static templates
var embedded embed.FS

// Sessions say who has logged in.
type Sessions interface {
	// Guarded reports whether callers have to show who they are.
	Guarded() bool
	// Reachable returns why the sender of a request cannot log in from where it is; nil if they can.
	Reachable(r *http.Request) error
	// Login returns a text that stands for a token until its end, or the status to answer with.
	Login(r *http.Request, token string) (text string, ends time.Time, err error)
	// Resume returns the context in which the sender of a request calls the API, with the text that Login returned, and whether
	// they may change something. It is not ok if they have to log in.
	Resume(r *http.Request, text string) (ctx context.Context, change, ok bool)
}

// Config is what a console consists of. All fields are required.
type Config struct {
	API      adminv1.AdminServiceClient // but for Watch
	Watch    func(ctx context.Context, q *adminv1.WatchRequest, send func(*adminv1.WatchResponse) error) error
	Sessions Sessions
	History  *History
	Version  string // of the server
	Command  string // runs ratelimitd where the server runs
}

// console serves the pages.
type console struct {
	Config

	pages *template.Template
	rates rates
	known domains
	turns map[bool]*throttle.Turns // of those who look at pages, by whether they may change something
}

// New returns a handler of everything below [Root], which has to be behind [http.CrossOriginProtection].
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
		form, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxForm)) // before anything waits for it
		if err != nil {
			http.Error(w, fmt.Sprintf("the form is incomplete, or has more than %d KiB", maxForm>>10), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(form))
		mux.ServeHTTP(w, r)
	}), nil
}

// How many pages are made at a time, for those who may change something and as many for others, and how many times as long as one took its
// place rests: decisions do not feel it if someone asks for many.
const (
	pagesAtOnce = 2
	restOfPage  = 4
)

var errNoPage = status.Error(codes.NotFound, "page not found")

// page is a template, its title, and what makes the data that it shows. An error is a status, whose code and text are shown: above the
// data, such as a form with what was typed, if there is some, and otherwise on a page of its own.
type page struct {
	name, title string
	data        func(ctx context.Context, r *http.Request) (any, error)
}

// data returns make as pages have it.
func data[T any](make func(context.Context, *http.Request) (*T, error)) func(context.Context, *http.Request) (any, error) {
	return func(ctx context.Context, r *http.Request) (any, error) {
		p, err := make(ctx, r)
		if p == nil {
			return nil, err
		}
		return p, err
	}
}

// view is what every template gets.
type view struct {
	Page, Title, Version string
	Guarded, In, Change  bool // whether one logs in, whether the user has, and what they may do
	Error                string
	Domains              func() []string // to choose from
	Body                 any
}

// guarded shows a page to users that the admin API answers, and the login to others.
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

// partly reports whether a script asks for a part of a page, which it does again and again.
func partly(r *http.Request) bool { return r.Header.Get("HX-Request") != "" }

// render makes a page, calls made, and sends it, which may take long.
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
	_, _ = w.Write(b.Bytes()) // the client has gone
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
