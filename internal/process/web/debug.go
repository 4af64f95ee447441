package web

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
)

// Debug says what the pages of the debug listener show. All fields are required unless it says otherwise.
type Debug struct {
	// Rules writes the current rules, for /rlconfig.
	Rules func(w io.Writer) error
	// RulesVerbose writes them with their places, for /rlconfig?verbose.
	RulesVerbose func(w io.Writer) error
	// RulesJSON writes them in JSON, for /rlconfig?format=json.
	RulesJSON func(w io.Writer) error
	// Stats writes the counters, for /stats.
	Stats func(w io.Writer) error
	// Metrics answers /metrics.
	Metrics http.Handler
	// Admin answers what begins with /admin/v1/; nil is none.
	Admin http.Handler
	// AdminByName says that Admin and Console may be asked under any name, because their callers show who they are.
	AdminByName bool
	// Console answers what begins with /ui/; nil is none.
	Console http.Handler
	// Off says what is off or only reads, and what switches it on, a line each.
	Off []string
	// MayProfile returns 200 if the sender of a request may take profiles, or else the status to answer with, and why.
	MayProfile func(r *http.Request) (status int, why string)
}

// adminRoot is what the paths of the admin API begin with.
const adminRoot = "/admin/v1/"

// consoleRoot is what the paths of the console begin with.
const consoleRoot = "/ui/"

// consoleIndex is the line of index for it, where there is one.
const consoleIndex = consoleRoot + `: the console, for a browser on this machine or with a token
`

// adminIndex is the line of index for it, where there is one.
const adminIndex = adminRoot + `: the admin API, to callers on this machine or with a token
`

// index is the debug listener's answer to an unknown target: its pages, sorted.
const index = pprofRoot + `: profiles of this process, if this port is open only to this machine, or with the admin token; hit for a list
` + pprofRoot + `profile: CPU profile over ?seconds=30, at most 60
` + pprofRoot + `trace: execution trace over ?seconds=1, at most 60
/metrics: the counters, for Prometheus
/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
`

// plainText is the type of pages for people.
const plainText = "text/plain; charset=utf-8"

// DebugHandler serves /rlconfig, /stats and /metrics to every client, and /debug/pprof/ to whom MayProfile lets, under
// localhost or an IP address, and not to web pages of other origins. The answer to any other target is a list of these
// pages, as in envoyproxy/ratelimit, or 404 if the target is not a plain path. No page changes anything, but Admin may: it is not
// served to web pages of other origins either, and under other names only with AdminByName.
func DebugHandler(d Debug) http.Handler {
	return debugHandler(d, longestProfile)
}

func debugHandler(d Debug, longest time.Duration) http.Handler {
	pages := routes{
		"/rlconfig": rules(d),
		"/stats":    page(plainText, d.Stats, pageTurns()),
		"/metrics":  inTurns(d.Metrics.ServeHTTP, pageTurns()),
	}
	profiles := withoutPages(guarded(d.MayProfile, &profiler{longest: longest}))
	list, admin := index, http.HandlerFunc(nil)
	if d.Admin != nil {
		list, admin = adminIndex+index, withoutOrigins(d.Admin.ServeHTTP, d.AdminByName)
	}
	console := http.HandlerFunc(nil)
	if d.Console != nil {
		list, console = list+consoleIndex, withoutForms(d.Console.ServeHTTP, d.AdminByName)
	}
	for _, line := range d.Off {
		list += line + "\n"
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := target(r)
		switch h, ok := pages[t]; {
		case admin != nil && strings.HasPrefix(t, adminRoot) && literal(t):
			admin(w, r)
		case console != nil && t+"/" == consoleRoot:
			http.Redirect(w, r, consoleRoot, http.StatusSeeOther)
		case console != nil && strings.HasPrefix(t, consoleRoot) && literal(t):
			console(w, r)
		case ok:
			h(w, r)
		case strings.HasPrefix(t, pprofRoot):
			profiles(w, r)
		case literal(t):
			text(w, http.StatusOK, list)
		default:
			http.NotFound(w, r)
		}
	})
}

// literal reports whether target is a literal path: absolute, with nothing escaped and nothing to clean.
func literal(target string) bool {
	clean := path.Clean(target)
	return strings.HasPrefix(target, "/") && !strings.ContainsAny(target, `%\`) && (target == clean || target == clean+"/")
}

// rules answers with the rules, in the format and the detail that the query asks for.
func rules(d Debug) http.HandlerFunc {
	readers := pageTurns()
	lines, places := page(plainText, d.Rules, readers), page(plainText, d.RulesVerbose, readers)
	object := page("application/json", d.RulesJSON, readers)
	return func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		switch format := q.Get("format"); {
		case format == "json":
			object(w, r)
		case format == "" && q.Has("verbose"):
			places(w, r)
		case format == "":
			lines(w, r)
		default:
			http.Error(w, fmt.Sprintf("format=%s: want json, or no format for lines of text", plain.Text(format)), http.StatusBadRequest)
		}
	}
}

const (
	pageReaders = 4        // how many callers a page may have at once
	ofNetwork   = 2        // of one network
	pageRest    = 9        // times as long as one took, so that they get four tenths of a processor
	pageChunk   = 32 << 10 // how many bytes of it are written before it is sent
)

// page answers with what write writes, as the caller reads it. An error from write means that there is nothing useful to
// show; if part of the page has been sent already, the connection is cut, so that the client does not take that part for the whole.
func page(contentType string, write func(io.Writer) error, readers *readers) http.HandlerFunc {
	return inTurns(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		out := &begun{Writer: w}
		b := bufio.NewWriterSize(out, pageChunk)
		err := write(b)
		if err == nil {
			err = b.Flush()
		}
		switch {
		case err == nil:
		case out.yes:
			panic(http.ErrAbortHandler) //nolint:forbidigo // net/http's way to cut a connection
		default:
			http.Error(w, fmt.Sprintf("cannot show this: %v", err), http.StatusInternalServerError)
		}
	}, readers)
}

// inTurns answers as many readers with h at a time as there are turns.
func inTurns(h http.HandlerFunc, readers *readers) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, turns := range []*throttle.Turns{readers.networks.Of(fmt.Sprint(Caller(r.Context()))), readers.all} {
			done, ok := turns.Take(r.Context())
			if !ok {
				busy(w, "too many callers are reading this page")
				return
			}
			defer done()
		}
		withoutBody(w, r)
		h(w, r)
	}
}

// withoutBody has the answer to r not wait for a body, which is ignored: net/http would read the rest of one before it answers.
func withoutBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
	r.Body = http.NoBody
}

// readers are the turns of those who read a page, which may be long.
type readers struct {
	all      *throttle.Turns
	networks throttle.NetworkTurns
}

func pageTurns() *readers {
	return &readers{throttle.NewTurns(pageReaders, pageRest), throttle.NetworkTurns{Places: ofNetwork}}
}

// busy answers 503 to a request for which there was no turn.
func busy(w http.ResponseWriter, why string) {
	http.Error(w, why+" at once; try again later", http.StatusServiceUnavailable)
}

// begun is a writer that knows whether anything has been written.
type begun struct {
	io.Writer
	yes bool
}

// Write implements [io.Writer].
func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	return b.Writer.Write(p)
}

// guarded answers with h if may lets the caller, or else with what may says.
func guarded(may func(*http.Request) (status int, why string), h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, why := may(r)
		if status == http.StatusOK {
			h.ServeHTTP(w, r)
			return
		}
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", "Bearer")
		}
		http.Error(w, why, status)
	}
}
