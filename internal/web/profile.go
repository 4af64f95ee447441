package web

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"sync"
	"time"
)

// pprofRoot is the path under which `go tool pprof` looks for profiles.
const pprofRoot = "/debug/pprof/"

// longestProfile is the maximum duration of CPU profiles and execution traces.
const longestProfile = 60 * time.Second

// profiler serves profiles of this process. It replaces net/http/pprof, which registers itself on the process's default
// mux as soon as it is imported, and sets no limit to the duration of a profile.
type profiler struct {
	longest time.Duration
	running sync.Mutex // held while a profile over time runs; only one may run at a time
}

// ServeHTTP answers with the list of profiles, or with one of them.
func (p *profiler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch name := strings.TrimPrefix(target(r), pprofRoot); name {
	case "":
		text(w, http.StatusOK, profileList())
	case "profile":
		p.record(w, r, recording{"profile", 30 * time.Second, pprof.StartCPUProfile, pprof.StopCPUProfile})
	case "trace":
		p.record(w, r, recording{"trace", time.Second, trace.Start, trace.Stop})
	default:
		snapshot(w, r, name)
	}
}

func profileList() string {
	var b strings.Builder
	for _, p := range pprof.Profiles() {
		fmt.Fprintf(&b, "%s%s: %d\n", pprofRoot, p.Name(), p.Count())
	}
	fmt.Fprintf(&b, "%sprofile: ?seconds=30, at most 60, one at a time\n", pprofRoot)
	fmt.Fprintf(&b, "%strace: ?seconds=1, at most 60, one at a time\n", pprofRoot)
	return b.String()
}

// snapshot answers with the current state of the named profile, as text if ?debug is above 0. If ?gc is above 0, a heap
// profile is taken after a garbage collection.
func snapshot(w http.ResponseWriter, r *http.Request, name string) {
	p := pprof.Lookup(name)
	if p == nil {
		http.Error(w, "no such profile: "+pprofRoot+" lists those that there are", http.StatusNotFound)
		return
	}
	level, _ := strconv.Atoi(r.FormValue("debug")) // anything but a number means 0
	if collect, _ := strconv.Atoi(r.FormValue("gc")); name == "heap" && collect > 0 {
		runtime.GC()
	}
	if level > 0 {
		w.Header().Set("Content-Type", plainText)
	} else {
		attach(w, name)
	}
	_ = p.WriteTo(w, level) // fails only if the client has gone
}

func attach(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// recording is a kind of profile over time.
type recording struct {
	name  string
	usual time.Duration // the duration if a request does not give one
	start func(io.Writer) error
	stop  func()
}

// record runs a recording for as long as r asks, at most p.longest, or until the client disconnects. If another one is
// running, it answers 409.
func (p *profiler) record(w http.ResponseWriter, r *http.Request, rec recording) {
	d, err := p.duration(r.FormValue("seconds"), rec.usual)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if !p.running.TryLock() {
		http.Error(w, "another profile is being taken; there is one at a time", http.StatusConflict)
		return
	}
	defer p.running.Unlock()
	// The server's time-outs are meant for pages, and passing the read deadline would also end the request's context.
	rc, until := http.NewResponseController(w), time.Now().Add(d+30*time.Second)
	if err := errors.Join(rc.SetReadDeadline(until), rc.SetWriteDeadline(until)); err != nil {
		http.Error(w, "cannot keep the connection for so long: "+err.Error(), http.StatusInternalServerError)
		return
	}
	attach(w, rec.name)
	if err := rec.start(w); err != nil {
		w.Header().Del("Content-Disposition")
		http.Error(w, "cannot start: "+err.Error(), http.StatusConflict)
		return
	}
	defer rec.stop()
	ctx, cancel := context.WithTimeout(r.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// duration returns how long to record for the parameter seconds of a request, or usual if that is empty.
func (p *profiler) duration(seconds string, usual time.Duration) (time.Duration, error) {
	if seconds == "" {
		return min(usual, p.longest), nil
	}
	s, err := strconv.ParseFloat(seconds, 64)
	if err != nil && !errors.Is(err, strconv.ErrRange) || !(s > 0) { // NaN is not above 0 either
		return 0, fmt.Errorf("seconds=%q: want a number above 0; at most %g are taken", seconds, p.longest.Seconds())
	}
	if s >= p.longest.Seconds() {
		return p.longest, nil
	}
	return time.Duration(s * float64(time.Second)), nil
}
