package console

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of the page that shows decisions as they are made.
const (
	livePerSecond = 20 // what a person can read
	lineFor       = 30 * time.Second
	liveBeat      = 15 * time.Second // how often something is sent where nothing happens, so that the connection stays
)

// livePage is the page of decisions, with its filter.
type livePage struct {
	Domain, Rule, Lines, Only string
	Events                    string // the address of the stream
}

func (u *console) live(_ context.Context, r *http.Request) (*livePage, error) {
	q := r.URL.Query()
	p := livePage{Domain: q.Get("domain"), Rule: q.Get("rule"), Lines: strings.Join(q["e"], "\n"), Only: q.Get("only")}
	p.Events = Root + "live/events?" + url.Values{"domain": {p.Domain}, "rule": {p.Rule}, "e": q["e"], "only": {p.Only}}.Encode()
	return &p, nil
}

// wanted returns what a filter asks for.
func wanted(q url.Values) *adminv1.WatchRequest {
	m := &adminv1.WatchRequest{Domain: strings.TrimSpace(q.Get("domain")), Rule: strings.TrimSpace(q.Get("rule")), MaxPerSecond: livePerSecond}
	for line := range strings.Lines(strings.Join(q["e"], "\n")) {
		key, value, exact := strings.Cut(strings.TrimSpace(line), "=")
		if key == "" {
			continue
		}
		f := &adminv1.EntryFilter{Key: key}
		if exact {
			f.Value = &value
		}
		m.Entries = append(m.Entries, f)
	}
	switch q.Get("only") {
	case "rejected":
		m.Outcomes = []adminv1.Outcome{adminv1.Outcome_OUTCOME_REJECTED, adminv1.Outcome_OUTCOME_BLOCKED, adminv1.Outcome_OUTCOME_FAILED}
	case "shadowed":
		m.Outcomes = []adminv1.Outcome{adminv1.Outcome_OUTCOME_SHADOWED}
	case "late":
		m.Outcomes = []adminv1.Outcome{adminv1.Outcome_OUTCOME_LATE_CHARGE}
	}
	return m
}

// events sends decisions as rows of a table, as a browser's EventSource reads them.
func (u *console) events(w http.ResponseWriter, r *http.Request) { //nolint:contextcheck // likewise
	ctx, change, ok := u.Sessions.Resume(r, sessionOf(r))
	if !ok {
		http.Error(w, "log in first", http.StatusUnauthorized)
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	out := stream{w: w, control: http.NewResponseController(w)}
	_ = out.control.SetReadDeadline(time.Time{}) // which would end the request
	answers := make(chan *adminv1.WatchResponse)
	ended := make(chan error, 1)
	go func() {
		ended <- u.Watch(ctx, wanted(r.URL.Query()), func(m *adminv1.WatchResponse) error {
			select {
			case answers <- m:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	beat := time.NewTicker(liveBeat)
	defer beat.Stop()
	for out.send("beat", ""); out.err == nil; {
		select {
		case m := <-answers:
			var b bytes.Buffer
			if err := u.pages.ExecuteTemplate(&b, "decisions", decisions{m, change}); err != nil {
				return
			}
			out.send("decisions", b.String())
		case <-beat.C:
			out.send("beat", "")
		case err := <-ended:
			out.send("failed", status.Convert(err).Message())
			return
		case <-ctx.Done():
			return
		}
	}
}

// stream is an answer that may take any time as a whole, but not for one event.
type stream struct {
	w       io.Writer
	control *http.ResponseController
	err     error // why nothing more can be sent
}

// decisions is some that were made, and whether the user may change something.
type decisions struct {
	*adminv1.WatchResponse

	Change bool
}

// send sends an event. Data is what people sent, so nothing in it may end a line for a browser.
func (s *stream) send(name, data string) {
	if s.err != nil {
		return
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(lineFor))
	lines := strings.NewReplacer("\r\n", "\ndata: ", "\r", "\ndata: ", "\n", "\ndata: ")
	text := "event: " + name + "\ndata: " + lines.Replace(strings.TrimSpace(data)) + "\n\n"
	if _, s.err = io.WriteString(s.w, text); s.err == nil {
		s.err = s.control.Flush()
	}
}
