// Package web serves HTTP: the main listener with /json and the health pages, the debug listener, the Prometheus
// listener, and the [Server] that each of them runs in.
//
// Status codes, bodies, and paths are envoyproxy/ratelimit's, on which probes and scripts of its users rely. This
// package is stricter where envoyproxy/ratelimit has no limits: bodies, heads, and times are limited; a path must be
// spelled exactly as defined, without cleaning, decoding, or redirects; the connection closes after a request whose end
// is in doubt; and profiles are restricted to clients on the same machine. Functions passed in provide the contents of
// pages, so this package does not depend on counters, rules, or backends.
//
// This package is part of the process.
package web

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/leaf/throttle"
	"github.com/ratelimitd/ratelimitd/internal/process/health"
)

// DefaultMaxBody is the default maximum size of a request's body in bytes; larger ones are answered 413.
const DefaultMaxBody = 1 << 20

// Limits of the memory for large bodies. A body takes about ten times its size while it is decided.
const (
	smallBody = maxHead // bodies up to this size are read at once: they take no more memory than the head of a request
	maxLarge  = 4       // larger bodies of one network that are read, decided, or answered at a time
	allLarge  = 16      // the same for all networks; a further body replaces the oldest one that is not being decided
)

// lastWords is the time to answer a request that was replaced.
const lastWords = time.Second

// jsonTimeout is the maximum time that /json waits for a verdict.
const jsonTimeout = 5 * time.Second

// undated hides the deadline of a context. Backends wait until a deadline, but an HTTP request has none, and
// jsonTimeout is not one of the client.
type undated struct{ context.Context } //nolint:containedctx // it is one

// Deadline returns that there is no deadline.
func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Main configures the pages of the main listener. Fields are required unless they state otherwise.
type Main struct {
	// MaxBody is the maximum size of a body of /json in bytes; 0 means [DefaultMaxBody].
	MaxBody int
	// JSON returns the answer to a body of /json. It must not retain body.
	JSON func(ctx context.Context, body []byte) (status int, contentType string, answer []byte)
	// Healthy reports whether /healthcheck passes.
	Healthy func() bool
	// Components returns the state of each component, for /healthcheck?verbose and, if degraded, for /readyz.
	Components func() []health.Component
	// NotReady returns the reasons why the server cannot answer requests now, for /readyz, or nil. A reason about a
	// component is its name, a colon, and the reason.
	NotReady func() []string
}

// MainHandler serves /json, /healthcheck, /livez, and /readyz. Other paths get 404.
func MainHandler(m Main) http.Handler {
	return routes{
		"/json":        m.json(),
		"/healthcheck": m.health,
		"/livez":       func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "OK") },
		"/readyz":      m.ready,
	}
}

// MetricsHandler serves h at path to a few callers at a time. Other paths get 404.
func MetricsHandler(path string, h http.Handler) http.Handler {
	return routes{path: inTurns(h.ServeHTTP, pageTurns())}
}

// routes are handlers by path. A path must be spelled exactly: /x/../json, //json, /%6ason, and http://host/json get
// 404, never a redirect.
type routes map[string]http.HandlerFunc

// ServeHTTP calls the handler of r's path, or answers 404.
func (rs routes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h, ok := rs[target(r)]
	if !ok {
		h = http.NotFound
	}
	h(w, r)
}

// target returns the request target as spelled by the client, without the query.
func target(r *http.Request) string {
	t, _, _ := strings.Cut(r.RequestURI, "?")
	return t
}

// json returns the handler of /json.
func (m Main) json() http.HandlerFunc {
	longest := int64(cmp.Or(m.MaxBody, DefaultMaxBody))
	large := largeBodies{networks: throttle.NetworkTurns{Places: maxLarge}, deciding: throttle.NewTurns(1, 0)}
	large.buffers.New = func() any { return new(bytes.Buffer) }
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method != http.MethodPost:
			w.Header().Set("Allow", http.MethodPost)
			fail(w, http.StatusMethodNotAllowed)
			return
		case r.ContentLength > longest:
			w.Header().Set("Connection", "close") // the server must not wait for the body
			fail(w, http.StatusRequestEntityTooLarge)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, longest)
		body, err := io.ReadAll(io.LimitReader(r.Body, smallBody+1))
		switch {
		case err != nil:
			fail(w, statusOf(err))
		case len(body) > smallBody:
			large.answer(w, r, body, m.decide)
		default:
			m.decide(r, body).send(w)
		}
	}
}

// largeBodies answers requests with bodies of more than smallBody. It limits their number, and decides one at a time. A
// client that sends or reads slowly blocks at most other clients of its network.
type largeBodies struct {
	deciding *throttle.Turns
	networks throttle.NetworkTurns
	buffers  sync.Pool // of *bytes.Buffer

	mu   sync.Mutex
	here []*largeBody // oldest first
}

// largeBody is a request with a place.
type largeBody struct {
	*http.ResponseController

	deciding bool // does not wait for its client
}

// enter takes a place until leave is called; ok is false if all are taken by requests that are being decided.
func (l *largeBodies) enter(w http.ResponseWriter) (b *largeBody, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.here) == allLarge {
		i := slices.IndexFunc(l.here, func(other *largeBody) bool { return !other.deciding })
		if i < 0 {
			return nil, false
		}
		_ = l.here[i].SetReadDeadline(time.Now())
		_ = l.here[i].SetWriteDeadline(time.Now().Add(lastWords))
		l.here = slices.Delete(l.here, i, i+1)
	}
	b = &largeBody{ResponseController: http.NewResponseController(w)}
	l.here = append(l.here, b)
	return b, true
}

func (l *largeBodies) leave(b *largeBody) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.here = slices.DeleteFunc(l.here, func(other *largeBody) bool { return other == b })
}

func (l *largeBodies) setDeciding(b *largeBody, deciding bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.deciding = deciding
}

// answer answers r, whose body starts with begin.
func (l *largeBodies) answer(w http.ResponseWriter, r *http.Request, begin []byte, decide func(*http.Request, []byte) decided) {
	done, ok := l.networks.Of(fmt.Sprint(Caller(r.Context()))).Take(r.Context())
	if !ok {
		crowded(w)
		return
	}
	defer done() // after the answer, which may be as large as the body, has been sent
	place, ok := l.enter(w)
	if !ok {
		crowded(w)
		return
	}
	defer l.leave(place)
	b := l.buffers.Get().(*bytes.Buffer)
	defer l.buffers.Put(b)
	b.Reset()
	b.Grow(int(max(r.ContentLength, smallBody)) + bytes.MinRead)
	if _, err := b.ReadFrom(io.MultiReader(bytes.NewReader(begin), r.Body)); err != nil {
		fail(w, statusOf(err))
		return
	}
	l.setDeciding(place, true)
	answer, ok := l.decide(r, b.Bytes(), decide)
	l.setDeciding(place, false)
	if ok {
		answer.send(w)
	} else {
		crowded(w)
	}
}

// decide decides r when no other large body is being decided; ok is false if too many are waiting.
func (l *largeBodies) decide(r *http.Request, body []byte, decide func(*http.Request, []byte) decided) (decided, bool) {
	done, ok := l.deciding.Take(r.Context())
	if !ok {
		return decided{}, false
	}
	defer done()
	return decide(r, body), true
}

func crowded(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // the server must not wait for the rest of the body
	busy(w, "too many requests with a body of more than 16 KiB")
}

// statusOf returns the status for an error of reading a body.
func statusOf(err error) int {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusRequestTimeout
	default:
		return http.StatusBadRequest
	}
}

// decided is the answer to a body.
type decided struct {
	status      int
	contentType string
	answer      []byte
}

// decide returns the answer of m.JSON to a body.
func (m Main) decide(r *http.Request, body []byte) (d decided) {
	ctx, cancel := context.WithTimeout(r.Context(), jsonTimeout)
	defer cancel()
	d.status, d.contentType, d.answer = m.JSON(undated{ctx}, body) //nolint:contextcheck // it is r's
	return d
}

func (d decided) send(w http.ResponseWriter) {
	w.Header().Set("Content-Type", d.contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Length", strconv.Itoa(len(d.answer)))
	w.WriteHeader(d.status)
	send(w, d.answer)
}

func (m Main) health(w http.ResponseWriter, r *http.Request) {
	ok, status := m.Healthy(), http.StatusOK
	if !ok {
		status = http.StatusInternalServerError
	}
	switch {
	case !r.URL.Query().Has("verbose") && ok:
		text(w, status, "OK")
	case !r.URL.Query().Has("verbose"):
		w.WriteHeader(status)
	case strings.Contains(r.Header.Get("Accept"), "application/json"):
		verboseJSON(w, status, ok, m.Components())
	default:
		verboseText(w, status, ok, m.Components())
	}
}

// verboseText writes a line for the server and one for each component.
func verboseText(w http.ResponseWriter, status int, ok bool, cs []health.Component) {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", word(ok))
	for _, c := range cs {
		state := word(c.OK)
		if c.Degraded {
			state = "degraded"
		}
		line := fmt.Sprintf("%s: %s since %s", c.Name, state, c.Since.UTC().Format(time.RFC3339))
		if c.LastError != "" {
			line += ", last error: " + c.LastError
		}
		b.WriteString(plain.Text(line) + "\n")
	}
	text(w, status, b.String())
}

func word(ok bool) string {
	if ok {
		return "OK"
	}
	return "failing"
}

func verboseJSON(w http.ResponseWriter, status int, ok bool, cs []health.Component) {
	answer := struct {
		OK         bool               `json:"ok"`
		Components []health.Component `json:"components"`
	}{OK: ok, Components: []health.Component{}}
	for _, c := range cs {
		c.Since = c.Since.UTC()
		answer.Components = append(answer.Components, c)
	}
	b, err := json.Marshal(answer)
	if err != nil { // the year is after 9999
		fail(w, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	send(w, append(b, '\n'))
}

func (m Main) ready(w http.ResponseWriter, _ *http.Request) {
	status, lines := http.StatusOK, []string{"OK"}
	if reasons := m.NotReady(); len(reasons) > 0 {
		status, lines = http.StatusServiceUnavailable, reasons
	}
	for _, c := range m.Components() {
		if line := c.Name + ": " + c.LastError; c.Degraded && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if status == http.StatusOK && len(lines) == 1 {
		text(w, status, lines[0])
		return
	}
	for i := range lines {
		lines[i] = plain.Text(lines[i])
	}
	text(w, status, strings.Join(lines, "\n")+"\n")
}

// fail answers with a status and its name.
func fail(w http.ResponseWriter, status int) {
	http.Error(w, http.StatusText(status), status)
}

func text(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", plainText)
	w.WriteHeader(status)
	send(w, []byte(body))
}

// send writes the body of an answer. It ignores errors, because the client notices if the body does not arrive.
func send(w io.Writer, body []byte) {
	_, _ = w.Write(body)
}
