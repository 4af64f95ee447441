package web

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/pprof"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pprofRoot is the path under which `go tool pprof` looks for profiles.
const pprofRoot = "/debug/pprof/"

// longestProfile is the maximum duration of whatever is recorded over time.
const longestProfile = 60 * time.Second

// profiler serves profiles of this process by the handlers of net/http/pprof, and bounds how long, and how many at a
// time, are recorded. Importing that package also registers them on [http.DefaultServeMux], which nothing here serves.
type profiler struct {
	longest time.Duration
	running sync.Mutex // held while a profile over time runs; only one may run at a time
}

// ServeHTTP answers with the list of profiles, or with one of them.
func (p *profiler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(target(r), pprofRoot)
	h := profile(name)
	r.Form = r.URL.Query() // so that the handlers do not look for parameters in the body
	r.Body = http.MaxBytesReader(w, r.Body, DefaultMaxBody)
	if name != "profile" && name != "trace" && !r.Form.Has("seconds") {
		h.ServeHTTP(w, r)
		return
	}
	p.record(w, r, name, h)
}

// profile returns the handler of a profile.
func profile(name string) http.Handler {
	switch name {
	case "":
		return http.HandlerFunc(pprof.Index)
	case "cmdline":
		return http.HandlerFunc(pprof.Cmdline)
	case "profile":
		return http.HandlerFunc(pprof.Profile)
	case "symbol":
		return http.HandlerFunc(pprof.Symbol)
	case "trace":
		return http.HandlerFunc(pprof.Trace)
	default:
		return pprof.Handler(name)
	}
}

// record has h record for as long as r asks, at most p.longest, or until the client disconnects. If another recording is
// running, it answers 409.
func (p *profiler) record(w http.ResponseWriter, r *http.Request, name string, h http.Handler) {
	seconds, err := p.seconds(name, r.Form.Get("seconds"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !p.running.TryLock() {
		http.Error(w, "another profile is being taken; only one can be taken at a time", http.StatusConflict)
		return
	}
	defer p.running.Unlock()
	withoutBody(w, r)
	// h moves the write deadline. The read deadline is meant for bodies, and passing it would end the request's context.
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(p.longest + 30*time.Second)); err != nil {
		http.Error(w, "cannot keep the connection for so long: "+err.Error(), http.StatusInternalServerError)
		return
	}
	r.Form.Set("seconds", seconds)
	h.ServeHTTP(w, r)
}

// seconds returns how long to record for what a request asked: at most p.longest, and but for traces in whole seconds,
// which is all that net/http/pprof takes. Empty leaves it to net/http/pprof: 30 for a profile, 1 for a trace.
func (p *profiler) seconds(name, asked string) (string, error) {
	if asked == "" {
		return "", nil
	}
	s, err := strconv.ParseFloat(asked, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || !(s > 0) { // NaN is not above 0 either
		return "", fmt.Errorf("seconds=%q: want a number above 0; the maximum is %g", asked, p.longest.Seconds())
	}
	if name != "trace" {
		s = math.Ceil(s)
	}
	return strconv.FormatFloat(min(s, p.longest.Seconds()), 'f', -1, 64), nil
}
