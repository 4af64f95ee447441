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

// pprofRoot is the path of profiles that `go tool pprof` uses.
const pprofRoot = "/debug/pprof/"

// longestProfile is the maximum duration of a profile over time.
const longestProfile = 60 * time.Second

// profiler serves profiles of this process with the handlers of net/http/pprof. It limits the duration and the number
// of recordings. Importing that package also registers handlers on [http.DefaultServeMux], which this program does not
// serve.
type profiler struct {
	longest time.Duration
	running sync.Mutex // held while recording; only one recording may run
}

// ServeHTTP serves a list of profiles, or one of them.
func (p *profiler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(target(r), pprofRoot)
	h := profile(name)
	r.Form = r.URL.Query() // prevents the handlers from reading parameters in the body
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

// record records with h for the requested duration, at most p.longest, or until the client disconnects. During another
// recording, it answers 409.
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
	// h extends the write deadline. The read deadline is for bodies; exceeding it would cancel the request's context.
	if err := http.NewResponseController(w).SetReadDeadline(time.Now().Add(p.longest + 30*time.Second)); err != nil {
		http.Error(w, "cannot keep the connection for so long: "+err.Error(), http.StatusInternalServerError)
		return
	}
	r.Form.Set("seconds", seconds)
	h.ServeHTTP(w, r)
}

// seconds returns the duration of a recording: at most p.longest, and in whole seconds except for traces, because
// net/http/pprof accepts nothing else. Empty selects the default of net/http/pprof: 30 for a profile, 1 for a trace.
func (p *profiler) seconds(name, asked string) (string, error) {
	if asked == "" {
		return "", nil
	}
	s, err := strconv.ParseFloat(asked, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || !(s > 0) { // also rejects NaN
		return "", fmt.Errorf("seconds=%q: want a number above 0; the maximum is %g", asked, p.longest.Seconds())
	}
	if name != "trace" {
		s = math.Ceil(s)
	}
	return strconv.FormatFloat(min(s, p.longest.Seconds()), 'f', -1, 64), nil
}
