package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

func examplesOfLLM() []example {
	return []example{
		{name: "examples/envoy-llm, streams", want: "5 of 2000 at once; what a stream has not used comes back when it has ended", play: streams},
		{name: "examples/envoy-llm, answers in JSON", want: "settled by their usage; without one the estimate stands", play: bodies},
		{name: "examples/envoy-llm, large answers", want: "JSON of 15 MB and an event of 9 MB are settled, and so is one of 20 KB in pieces of 4 KB", play: large},
		{name: "examples/envoy-llm, errors", want: "cost nothing: 500, 429, a connection that closes before headers", play: failing},
		{name: "examples/envoy-llm, callers who hide the usage", want: "compressed answers are not asked for; a stream without usage, or a body that Envoy cannot read, is answered 400, and costs nothing", play: hiding},
	}
}

// stream is an answer that has begun.
type stream struct {
	w     *world
	usage chan int
	resp  *http.Response
	end   context.CancelFunc
}

// open makes a request whose answer streams. A nil stream was rejected.
func open(w *world, p *proxy, usages chan chan int) *stream {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	w.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base()+"/v1/chat", http.NoBody)
	testkit.Check(w, err)
	req.Header.Set("x-user", "alice")
	resp, err := callers.Do(req)
	testkit.Check(w, err)
	if resp.StatusCode == http.StatusTooManyRequests {
		resp.Body.Close()
		return nil
	}
	if resp.StatusCode != http.StatusOK {
		w.Fatalf("a stream is answered %d", resp.StatusCode)
	}
	return &stream{w: w, usage: <-usages, resp: resp, end: cancel}
}

// ends ends a stream that has taken so many tokens, and reads it to its end.
func (s *stream) ends(tokens int) {
	s.w.Helper()
	s.usage <- tokens
	said := ""
	lines := bufio.NewScanner(s.resp.Body)
	for lines.Scan() {
		said += lines.Text() + "\n"
	}
	s.resp.Body.Close()
	if lines.Err() != nil || !strings.Contains(said, "[DONE]") {
		s.w.Errorf("a stream ends with %v, after %q", lines.Err(), said)
	}
}

func streams(w *world) {
	usages := make(chan chan int, 10)
	up := w.upstream(func(out http.ResponseWriter, r *http.Request) {
		usage := make(chan int)
		out.Header().Set("content-type", "text/event-stream")
		fmt.Fprint(out, "data: {\"choices\": [{\"delta\": {\"content\": \"hello\"}}]}\n\n")
		_ = http.NewResponseController(out).Flush() // the end of the test does not wait for it
		usages <- usage
		select {
		case n := <-usage:
			fmt.Fprintf(out, "data: {\"usage\": {\"total_tokens\": %d}}\n\ndata: [DONE]\n\n", n)
		case <-r.Context().Done():
		}
	})
	s := w.serveExample("envoy-llm")
	p := w.proxy(setup{example: "envoy-llm", timeout: patient}, up, s)
	var all []*stream
	for range 5 {
		if one := open(w, p, usages); one != nil {
			all = append(all, one)
		}
	}
	w.got(len(all) == 5 && up.all() == 5, "%d of 10,000 tokens stream at once", len(all))
	w.got(open(w, p, usages) == nil && up.all() == 5, "the next is rejected")
	if len(all) < 5 {
		return
	}
	left := func(want int, when string) {
		w.Helper()
		testkit.Eventually(w, fmt.Sprintf("%s %d are left", when, want), func() bool { return s.left(w, "llm", "alice") == want },
			func() string { return fmt.Sprintf("%d are left", s.left(w, "llm", "alice")) })
		w.got(true, "%s %d are left", when, want)
	}
	left(0, "now")
	all[0].ends(500)
	left(1500, "500 used instead of 2000,")
	w.got(open(w, p, usages) == nil, "2000 more do not fit")
	all[1].ends(1300)
	left(2200, "1300 used,")
	again := open(w, p, usages)
	w.got(again != nil, "2000 more fit")
	if again == nil {
		return
	}
	left(200, "then")
	again.ends(2100)
	left(100, "2100 used,")
	all[2].end() // the caller goes, and no one says what it took: the estimate stands
	all[3].ends(2000)
	all[4].ends(0)
	left(2100, "after all of them")
}

func bodies(w *world) {
	answer := `{"choices": [], "usage": {"total_tokens": 1200}}`
	up := w.upstream(func(out http.ResponseWriter, _ *http.Request) {
		out.Header().Set("content-type", "application/json; charset=utf-8")
		fmt.Fprint(out, answer)
	})
	s := w.serveExample("envoy-llm")
	p := w.proxy(setup{example: "envoy-llm", timeout: patient}, up, s)
	for _, want := range []int{8800, 7600} {
		w.ask(p, "/v1/chat", "alice")
		testkit.Eventually(w, fmt.Sprintf("%d are left", want), func() bool { return s.left(w, "llm", "alice") == want })
	}
	w.got(true, "2 of 1200 leave 7600")
	answer = `{"choices": []}` // nothing else is on its way
	w.ask(p, "/v1/chat", "alice")
	w.got(s.left(w, "llm", "alice") == 5600, "one without usage leaves %d", s.left(w, "llm", "alice"))
}

// settles waits until so many of alice's tokens are left.
func settles(w *world, s *service, want int, when string) {
	w.Helper()
	testkit.Eventually(w, fmt.Sprintf("%s, %d are left", when, want), func() bool { return s.left(w, "llm", "alice") == want },
		func() string { return fmt.Sprintf("%d are left", s.left(w, "llm", "alice")) })
	w.got(true, "%s: %d are left", when, want)
}

// large has answers that are larger than what Envoy holds by default.
func large(w *world) {
	const piece = 4 << 10
	up := w.upstream(func(out http.ResponseWriter, r *http.Request) {
		size := map[string]int{"/v1/chat/json": 15 << 20, "/v1/chat/event": 9 << 20, "/v1/chat/pieces": 20 << 10}[r.URL.Path]
		text := strings.Repeat("x", size)
		if r.URL.Path == "/v1/chat/json" {
			out.Header().Set("content-type", "application/json")
			fmt.Fprintf(out, `{"text": "%s", "usage": {"total_tokens": 1000}}`, text)
			return
		}
		out.Header().Set("content-type", "text/event-stream")
		event := fmt.Sprintf("data: {\"text\": \"%s\", \"usage\": {\"total_tokens\": 1000}}\n\n", text)
		for len(event) > 0 {
			n := min(piece, len(event))
			fmt.Fprint(out, event[:n])
			_ = http.NewResponseController(out).Flush() // a caller who has gone is seen below
			event = event[n:]
		}
	})
	s := w.serveExample("envoy-llm")
	p := w.proxy(setup{example: "envoy-llm", timeout: patient}, up, s)
	left := 10_000
	for _, kind := range []string{"json", "event", "pieces"} {
		a := w.ask(p, "/v1/chat/"+kind, "alice")
		if a.status != http.StatusOK {
			w.got(false, "%s is answered %d", kind, a.status)
		}
		left -= 1000
		settles(w, s, left, kind)
	}
}

// failing has more errors than estimates fit into the limit.
func failing(w *world) {
	up := w.upstream(func(out http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/chat/500":
			out.WriteHeader(http.StatusInternalServerError)
		case "/v1/chat/429":
			out.WriteHeader(http.StatusTooManyRequests)
		default:
			panic(http.ErrAbortHandler) // closes the connection
		}
	})
	s := w.serveExample("envoy-llm")
	p := w.proxy(setup{example: "envoy-llm", timeout: patient}, up, s)
	for _, c := range []struct {
		path string
		want int
	}{{"500", http.StatusInternalServerError}, {"429", http.StatusTooManyRequests}, {"close", http.StatusServiceUnavailable}} {
		for range 6 {
			a := w.ask(p, "/v1/chat/"+c.path, "alice")
			if a.status != c.want {
				w.got(false, "%s is answered %d", c.path, a.status)
			}
			testkit.Eventually(w, "the estimate comes back", func() bool { return s.left(w, "llm", "alice") == 10_000 },
				func() string { return fmt.Sprintf("%d are left after %s", s.left(w, "llm", "alice"), c.path) })
		}
	}
	w.got(up.all() == 18, "%d errors, 10000 are left", up.all())
}

// hiding has callers who would rather pay an estimate than what they use.
func hiding(w *world) {
	asked := make(chan string, 10)
	up := w.upstream(func(out http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("accept-encoding")
		out.Header().Set("content-type", "application/json")
		fmt.Fprint(out, `{"usage": {"total_tokens": 1500}}`)
	})
	s := w.serveExample("envoy-llm")
	p := w.proxy(setup{example: "envoy-llm", timeout: patient}, up, s)
	post := func(kind, body string) int {
		w.Helper()
		req, err := http.NewRequestWithContext(w.Context(), http.MethodPost, p.base()+"/v1/chat", strings.NewReader(body))
		testkit.Check(w, err)
		req.Header = http.Header{"X-User": {"alice"}, "Content-Type": {kind}, "Accept-Encoding": {"gzip, br"}}
		resp, err := callers.Do(req)
		testkit.Check(w, err)
		defer resp.Body.Close()
		_, _ = drain(resp.Body)
		return resp.StatusCode
	}
	status := post("application/json", `{"model": "m"}`)
	w.got(status == http.StatusOK, "a request that does not stream: %d", status)
	encoding := <-asked
	w.got(encoding == "", "the upstream is asked for the encoding `%s`", encoding)
	settles(w, s, 8500, "then")
	for _, c := range []struct {
		kind, body string
		want       int
	}{
		{"application/json", `{"stream": true}`, http.StatusBadRequest},
		{"text/plain", `{"stream": true, "stream_options": {"include_usage": false}}`, http.StatusBadRequest},
		{"application/json", `{"stream": true, "metadata": {"include_usage": true}}`, http.StatusBadRequest},
		{"", `{"stream": true}`, http.StatusBadRequest},
		{"application/json", `{"stream": true, "top_p": NaN}`, http.StatusBadRequest}, // JSON for Python, and not for Envoy
		{"application/json", `{"stream": true, "stream_options": {"include_usage": true}}`, http.StatusOK},
	} {
		status := post(c.kind, c.body)
		w.got(status == c.want, "`%s`: %d", c.body, status)
	}
	settles(w, s, 7000, "then")
}
