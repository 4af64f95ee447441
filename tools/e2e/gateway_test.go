package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
	"google.golang.org/grpc"
)

// gateways are policies of Envoy Gateway, as it sent their rules and routes when they were recorded. make gateways plays the same through
// Envoy Gateway itself.
func gateways() []example {
	return []example{
		{
			name: "Envoy Gateway, recorded: selectors", since: sinceGateway,
			want: "each kind of selector, cost, shadow mode, a shared rule and a limit from metadata limit as the policy says",
			play: func(w *world) { selectors(w, w.replay("kinds")) },
		},
		{
			name: "Envoy Gateway, recorded: tokens", since: sinceGateway,
			want: "0 hits at the request; the tokens when the answer has ended, unless none are known or the request was rejected",
			play: func(w *world) {
				tokens(w, w.replay("examples", w.budgetOf("requests_per_unit: 1000, late_charge: true")))
			},
		},
		{
			name: "Envoy Gateway, recorded: `reserve: {by: …}`", since: sinceGateway,
			want: "of forty calls at a time 20 pass, with a budget of 1000 and an estimate of 50; what they did not use comes back",
			play: func(w *world) {
				together(w, w.replay("examples", w.budgetOf("requests_per_unit: 1000, reserve: {by: rule-0-match-1, estimate: 50}")), burst{40, 20, 50, 30})
			},
		},
	}
}

// gateway is an Envoy that Envoy Gateway has configured, or that a recording has.
type gateway struct {
	url   string
	up    *model
	calls *ledger // nil in tests of decisions only
	serve *service
}

// replay starts the server and an Envoy with what is recorded.
func (w *world) replay(name string, env ...string) *gateway {
	w.Helper()
	r, up := recorded(w, name), newModel(w)
	s := w.serveRecorded(r, env...)
	y := &ledger{to: rlsv3.NewRateLimitServiceClient(s.conn)}
	at := w.serveGRPC(testkit.Listen(w), func(s *grpc.Server) { rlsv3.RegisterRateLimitServiceServer(s, y) })
	p := w.launch("", func(port int) ([]byte, error) {
		return json.Marshal(r.bootstrap(port, at, up.Listener.Addr().String()))
	})
	return &gateway{url: p.base(), up: up, calls: y, serve: s}
}

func (w *world) write(file, text string) {
	w.Helper()
	testkit.Check(w, os.WriteFile(file, []byte(text), 0o600))
}

// budgetOf returns the variable of an overlay for the examples with tokens, whose budgets are for a year, which does not end meanwhile: the
// one of shop is 1,000 tokens; keys are those of llm.
func (w *world) budgetOf(keys string) string {
	w.Helper()
	file := filepath.Join(w.TempDir(), "overlay.yaml")
	w.write(file, `domain: default/eg/*
descriptors:
  - key: httproute/default/llm/*
    value: "*"
    descriptors:
      - key: rule-0-match-0
        descriptors: [{key: rule-0-match-1, rate_limit: {unit: year, `+keys+`}}]
  - key: httproute/default/shop/*
    value: "*"
    descriptors:
      - key: rule-2-match-0
        value: rule-2-match-0
        descriptors: [{key: rule-2-match-1, rate_limit: {unit: year, requests_per_unit: 1000, late_charge: true}}]
`)
	return "RULES_OVERLAY=" + file
}

// model is an application that does what a request's headers say: x-tokens says how many tokens it takes, x-status how it answers, and x-end
// where it stops: before the headers, in the body, or by closing the connection.
type model struct {
	*httptest.Server

	hold  chan struct{} // not nil: no request is answered until it is closed
	stops sync.Map      // by x-call, the channel that a request closes that stops before the headers
	calls atomic.Int64
}

func newModel(w *world) *model {
	m := new(model)
	m.Server = httptest.NewServer(m)
	w.Cleanup(m.Close)
	return m
}

// ServeHTTP implements [http.Handler].
func (m *model) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	if m.hold != nil {
		select {
		case <-m.hold:
		case <-r.Context().Done():
		}
	}
	switch r.Header.Get("x-end") {
	case "before":
		if stopped, ok := m.stops.LoadAndDelete(r.Header.Get("x-call")); ok {
			close(stopped.(chan struct{}))
		}
		<-r.Context().Done()
		return
	case "close":
		panic(http.ErrAbortHandler)
	}
	if n := r.Header.Get("x-tokens"); n != "" {
		out.Header().Set("x-tokens-used", n)
	}
	if status, err := strconv.Atoi(r.Header.Get("x-status")); err == nil {
		out.WriteHeader(status)
	}
	fmt.Fprintln(out, "hello")
	if r.Header.Get("x-end") == "body" {
		_ = http.NewResponseController(out).Flush() // fails if the caller has gone
		<-r.Context().Done()
	}
}

// send makes a request, and returns the status. Headers are pairs of names and values. One with x-end leaves where the application stops; the
// status is 0 if that is before the headers.
func (g *gateway) send(w *world, method, host, path string, headers ...string) int {
	ctx, cancel := context.WithTimeout(w.Context(), testkit.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, g.url+path, http.NoBody)
	if err != nil {
		w.Error(err)
		return 0
	}
	req.Host = host
	for h := range slices.Chunk(headers, 2) {
		req.Header.Set(h[0], h[1])
	}
	leaves := req.Header.Get("x-end") == "before"
	if leaves {
		call, stopped := strconv.FormatInt(g.up.calls.Add(1), 10), make(chan struct{})
		req.Header.Set("x-call", call)
		g.up.stops.Store(call, stopped)
		go func() {
			select {
			case <-stopped:
				cancel()
			case <-ctx.Done(): // it was rejected
			}
		}()
	}
	resp, err := callers.Do(req)
	if err != nil {
		if !leaves {
			w.Errorf("a caller gets no answer: %v", err)
		}
		return 0
	}
	defer resp.Body.Close()
	if req.Header.Get("x-end") != "body" {
		if _, err := drain(resp.Body); err != nil {
			w.Errorf("a caller gets half an answer: %v", err)
		}
	}
	return resp.StatusCode
}

// selectors plays each rule of testdata/envoy-gateway/kinds.yaml.
func selectors(w *world, g *gateway) {
	const kinds, more = "kinds.example.com", "more.example.com"
	get := func(n int, host, path string, headers ...string) (statuses []int) {
		for range n {
			statuses = append(statuses, g.send(w, http.MethodGet, host, path, headers...))
		}
		return statuses
	}
	write := func(methods ...string) (statuses []int) {
		for i, m := range methods {
			statuses = append(statuses, g.send(w, m, kinds, fmt.Sprint("/write/", i)))
		}
		return statuses
	}
	from := func(host string, addresses ...string) (statuses []int) {
		for _, a := range addresses {
			statuses = append(statuses, get(1, host, "/", "x-forwarded-for", a)...)
		}
		return statuses
	}
	const ok, no = http.StatusOK, http.StatusTooManyRequests
	rows := []struct {
		kind string
		got  []int
		want []int
	}{
		{"header, Distinct", slices.Concat(get(4, kinds, "/", "x-user-id", "a"), get(1, kinds, "/", "x-user-id", "b")), []int{ok, ok, ok, no, ok}},
		{"header, Exact", slices.Concat(get(3, kinds, "/", "x-plan", "free"), get(3, kinds, "/", "x-plan", "paid")), []int{ok, ok, no, ok, ok, ok}},
		{"CIDR, Distinct", from(kinds, "10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2"), []int{ok, ok, no, ok}},
		{"CIDR, Exact", from(kinds, "192.168.0.1", "192.168.0.2", "192.168.0.3"), []int{ok, ok, no}},
		{"shadow mode", get(3, kinds, "/", "x-shadow", "a"), []int{ok, ok, ok}},
		{"cost 4 of 10", get(4, kinds, "/", "x-weigh", "a"), []int{ok, ok, no, no}},
		{"method and path", write(http.MethodPost, http.MethodPut, http.MethodPost, http.MethodGet, http.MethodGet), []int{ok, ok, no, ok, ok}},
		{"query, Distinct", slices.Concat(get(3, kinds, "/?q=a"), get(1, kinds, "/?q=b")), []int{ok, ok, no, ok}},
		{"shared", slices.Concat(get(3, "one.example.com", "/"), get(2, "two.example.com", "/")), []int{ok, ok, no, ok, no}},
		{"limit of the rule", get(3, more, "/", "x-user-id", "a"), []int{ok, ok, no}},
		{"limit from metadata", get(5, more, "/", "x-user-id", "b", "x-limit", "4"), []int{ok, ok, ok, ok, no}},
		{"CIDR, inverted", slices.Concat(from(more, "127.0.0.2", "127.0.0.2", "127.0.0.2"), from(more, "8.8.8.8", "8.8.4.4", "8.8.8.8")), []int{ok, ok, ok, ok, ok, no}},
		{
			"header, RegularExpression and inverted",
			slices.Concat(get(2, more, "/", "x-not", "b", "x-yes", "bb"), get(2, more, "/", "x-not", "a", "x-yes", "bb")),
			[]int{ok, no, ok, ok},
		},
	}
	good := 0
	for _, x := range rows {
		if !slices.Equal(x.want, x.got) {
			w.got(false, "%s: %v, want %v", x.kind, x.got, x.want)
			continue
		}
		good++
	}
	w.got(good == len(rows), "%d of %d kinds are so", good, len(rows))
}

// event is how a request ends, and the calls that follow from it: their hits, and whether they were rejected.
type event struct {
	name    string
	headers []string
	status  int // 0 if the caller has gone
	calls   string
}

// events are those of a request with an estimate or a check, and a charge when its answer has ended.
func events() []event {
	return []event{
		{"200 with tokens", []string{"x-tokens", "300"}, 200, "0 300"},
		{"200 with 0 tokens", []string{"x-tokens", "0"}, 200, "0 0"},
		{"200 without tokens", nil, 200, "0"},
		{"503 without tokens", []string{"x-status", "503"}, 503, "0"},
		{"503 with tokens", []string{"x-status", "503", "x-tokens", "50"}, 503, "0 50"},
		{"the connection closes", []string{"x-end", "close"}, 503, "0"},
		{"the caller leaves before the headers", []string{"x-end", "before", "x-tokens", "300"}, 0, "0"},
		{"the caller leaves in the body", []string{"x-end", "body", "x-tokens", "300"}, 200, "0 300"},
	}
}

// tokens looks at the calls for each event, of a policy with one header and of one with an ID besides.
func tokens(w *world, g *gateway) {
	type route struct{ host, user string }
	routes := []route{{"llm.example.com", "rule-0-match-0"}, {"shop.example.com", "rule-2-match-1"}}
	said := func(key, user string) string {
		var calls []string
		for _, c := range g.calls.of(key, user) {
			if calls = append(calls, c.hits); c.hits == "0" && c.over {
				calls[len(calls)-1] += " over"
			}
		}
		return strings.Join(calls, " ")
	}
	type row struct{ key, user, name, want string }
	var rows []row
	play := func(x route, user string, e event) {
		rows = append(rows, row{x.user, user, x.host + ", " + e.name, e.calls})
		got := g.send(w, http.MethodGet, x.host, "/", append([]string{"x-user-id", user, "x-plan", "free", "x-stream-id", "forged"}, e.headers...)...)
		if got != e.status {
			w.got(false, "%s: %d, want %d", e.name, got, e.status)
		}
	}
	for _, x := range routes {
		for i, e := range events() {
			play(x, fmt.Sprint(x.host, i), e)
		}
	}
	const spent = "spent"
	once := event{"200 with more than the budget", []string{"x-tokens", "1200"}, 200, "0 1200"}
	play(routes[1], spent, once)
	testkit.Eventually(w, "the budget is spent", func() bool { return said(routes[1].user, spent) == once.calls }, func() string { return said(routes[1].user, spent) })
	rows = rows[:len(rows)-1]
	play(routes[1], spent, event{"429", []string{"x-tokens", "300"}, 429, once.calls + " 0 over"})
	g.up.Close()
	for _, x := range routes {
		play(x, x.host+" down", event{"no connection", nil, 503, "0"})
	}
	good := 0
	for _, r := range rows {
		if !testkit.Poll(testkit.Patience/6, func() bool { return said(r.key, r.user) == r.want }) {
			w.got(false, "%s: hits %s, want %s", r.name, said(r.key, r.user), r.want)
			continue
		}
		good++
	}
	w.got(good == len(rows), "%d of %d events make the calls", good, len(rows))
	ids, requests := map[string]bool{"forged": true}, 0
	for _, r := range rows {
		of := map[string]bool{}
		for _, c := range g.calls.of(routes[0].user, r.user) {
			if id := c.entries["rule-0-match-1"]; id != "" {
				ids[id], of[id] = true, true
			}
		}
		requests += len(of)
	}
	w.got(requests == len(events())+1 && len(ids) == requests+1, "%d requests have %d values of x-stream-id, none of which is the caller's", requests, len(ids)-1)
}

// burst is so many calls at a time, of which some fit into a budget of 1,000 with an estimate each; these then use so many tokens.
type burst struct{ calls, fit, estimate, used int }

// together plays a burst of one user.
func together(w *world, g *gateway, b burst) {
	g.up.hold = make(chan struct{})
	statuses := make(chan int, b.calls)
	var all sync.WaitGroup
	for range b.calls {
		all.Go(func() {
			statuses <- g.send(w, http.MethodGet, "llm.example.com", "/", "x-user-id", "alice", "x-stream-id", "forged", "x-tokens", strconv.Itoa(b.used))
		})
	}
	testkit.Eventually(w, "those that do not fit are rejected", func() bool { return len(statuses) == b.calls-b.fit }, func() string { return fmt.Sprint(len(statuses)) })
	held := g.left(w, "alice")
	close(g.up.hold)
	all.Wait()
	close(statuses)
	passed := 0
	for status := range statuses {
		if status == http.StatusOK {
			passed++
		}
	}
	w.got(passed == b.fit && held == 1000-b.fit*b.estimate, "%d of %d pass, and %d tokens are left meanwhile", passed, b.calls, held)
	testkit.Eventually(w, "all are settled", func() bool { return g.left(w, "alice") == 1000-b.fit*b.used }, func() string { return fmt.Sprint(g.left(w, "alice")) })
	m := g.serve.metrics(w)
	of := func(result string) float64 {
		return m[`ratelimitd_reservations_total{domain="default/eg/http",outcome="`+result+`"}`]
	}
	w.got(of("reserved") == float64(b.fit) && of("settled") == float64(b.fit), "%.0f are reserved and %.0f settled; then %d tokens are left",
		of("reserved"), of("settled"), g.left(w, "alice"))
}

// left returns what is left of a user's budget of examples/envoy-gateway/llm.yaml.
func (g *gateway) left(w *world, user string) int {
	w.Helper()
	const route = "httproute/default/llm/rule/0/match/0/llm_example_com"
	answer, err := adminv1.NewAdminServiceClient(g.serve.conn).Peek(w.Context(), &adminv1.PeekRequest{
		Domain: "default/eg/http", Entries: []*adminv1.Entry{{Key: route, Value: route}, {Key: "rule-0-match-0", Value: user}},
	})
	testkit.Check(w, err)
	return int(answer.GetCounter().GetLeft())
}
