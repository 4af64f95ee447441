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

// Limits of the live page.
const (
	livePerSecond = 20 // as many as a person can read
	lineFor       = 30 * time.Second
	liveBeat      = 15 * time.Second // interval of messages that keep an idle connection open
)

// livePage is the live page with its filter.
type livePage struct {
	Domain, Rule, Lines, Only string
	Events                    string // URL of the event stream
}

func (u *console) live(_ context.Context, r *http.Request) (*livePage, error) {
	q := r.URL.Query()
	p := livePage{Domain: q.Get("domain"), Rule: q.Get("rule"), Lines: strings.Join(q["e"], "\n"), Only: q.Get("only")}
	p.Events = Root + "live/events?" + url.Values{"domain": {p.Domain}, "rule": {p.Rule}, "e": q["e"], "only": {p.Only}}.Encode()
	return &p, nil
}

// wanted converts a filter to a request of the API.
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

// events streams decisions as table rows to a browser's EventSource.
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
	_ = out.control.SetReadDeadline(time.Time{}) // a deadline would end the request
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

// stream is a response whose events have a time limit each, but not in total.
type stream struct {
	w       io.Writer
	control *http.ResponseController
	err     error // the first error; nothing more is sent
}

// decisions is a batch of decisions, and whether the user may make changes.
type decisions struct {
	*adminv1.WatchResponse

	Change bool
}

// send sends an event. data contains text from clients, so send replaces its line breaks for the browser.
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
