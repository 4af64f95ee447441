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

// Debug configures the pages of the debug listener. Fields are required unless they state otherwise.
type Debug struct {
	// Rules writes the current rules, for /rlconfig.
	Rules func(w io.Writer) error
	// RulesVerbose writes the rules with their places, for /rlconfig?verbose.
	RulesVerbose func(w io.Writer) error
	// RulesJSON writes the rules in JSON, for /rlconfig?format=json.
	RulesJSON func(w io.Writer) error
	// Stats writes the counters, for /stats.
	Stats func(w io.Writer) error
	// Metrics answers /metrics.
	Metrics http.Handler
	// Admin serves /admin/v1/; nil disables it.
	Admin http.Handler
	// AdminByName permits any Host for Admin and Console, because their callers authenticate.
	AdminByName bool
	// Console serves /ui/; nil disables it.
	Console http.Handler
	// Off lists features that are disabled or read-only, and how to enable them, one a line.
	Off []string
	// MayProfile returns 200 if the client of a request may take profiles, or else a status and the reason.
	MayProfile func(r *http.Request) (status int, why string)
}

// adminRoot is the path prefix of the admin API.
const adminRoot = "/admin/v1/"

// consoleRoot is the path prefix of the console.
const consoleRoot = "/ui/"

// consoleIndex is the console's line in the index.
const consoleIndex = consoleRoot + `: the console, for a browser on this machine or with a token
`

// adminIndex is the admin API's line in the index.
const adminIndex = adminRoot + `: the admin API, to callers on this machine or with a token
`

// index is the answer to an unknown path: a sorted list of pages.
const index = pprofRoot + `: profiles of this process, if this port is open only to this machine, or with the admin token; hit for a list
` + pprofRoot + `profile: CPU profile over ?seconds=30, at most 60
` + pprofRoot + `trace: execution trace over ?seconds=1, at most 60
/metrics: the counters, for Prometheus
/rlconfig: print out the currently loaded configuration for debugging
/stats: print out stats
`

// plainText is the content type of pages for people.
const plainText = "text/plain; charset=utf-8"

// DebugHandler serves /rlconfig, /stats, and /metrics to all clients, and /debug/pprof/ to clients that MayProfile permits, under
// localhost or an IP address, and not to web pages of other origins. Other paths get a list of these pages, as in
// envoyproxy/ratelimit, or 404 if they are not literal. No page changes anything, except that Admin may. Hence it is not served
// to web pages of other origins either, and under other names only with AdminByName.
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

// literal reports whether target is an absolute path without escapes or anything to clean.
func literal(target string) bool {
	clean := path.Clean(target)
	return strings.HasPrefix(target, "/") && !strings.ContainsAny(target, `%\`) && (target == clean || target == clean+"/")
}

// rules serves the rules in the format and detail of the query.
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
	pageReaders = 4        // callers of a page at a time
	ofNetwork   = 2        // callers of one network at a time
	pageRest    = 9        // pause after a page as a multiple of its duration, so that pages get four tenths of a processor
	pageChunk   = 32 << 10 // bytes of a page buffered before sending
)

// page serves the output of write. If write fails before output was sent, the answer is an error. Otherwise the connection is
// closed, so that the client does not mistake the part for the whole page.
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

// inTurns serves h to a limited number of readers at a time.
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

// withoutBody discards the request's body without reading it: net/http would read it before answering.
func withoutBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
	r.Body = http.NoBody
}

// readers limits the readers of a page, which may be long.
type readers struct {
	all      *throttle.Turns
	networks throttle.NetworkTurns
}

func pageTurns() *readers {
	return &readers{throttle.NewTurns(pageReaders, pageRest), throttle.NetworkTurns{Places: ofNetwork}}
}

// busy answers 503 to a request that got no turn.
func busy(w http.ResponseWriter, why string) {
	http.Error(w, why+" at once; try again later", http.StatusServiceUnavailable)
}

// begun is a writer that records whether anything was written.
type begun struct {
	io.Writer
	yes bool
}

// Write implements [io.Writer].
func (b *begun) Write(p []byte) (int, error) {
	b.yes = true
	return b.Writer.Write(p)
}

// guarded calls h if may returns 200, and otherwise answers with its status and reason.
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
