package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// charges returns cases with late charges.
func charges() []example {
	return []example{
		{
			name: "charge-after, as it is counted", play: counted, since: sinceAnswersRead,
			want: "callers see 4 × 200 and 50 × 429; ratelimitd counts 4 ok, 4 late_charge and 50 over_limit; `over_limit` of the rule is what envoyproxy/ratelimit would count",
		},
		{
			name: "charges, as Envoy counts them", play: lostCharges, since: sinceAnswersRead,
			want: "5 requests are 10 calls and `ok: 5`; a charge that is lost is in `upstream_rq_5xx` of the cluster of the service alone",
		},
	}
}

// counted makes a user exceed a budget and continue.
func counted(w *world) {
	up := w.upstream(func(out http.ResponseWriter, _ *http.Request) { out.Header().Set("x-tokens-used", "300") })
	s := w.serveExample("envoy")
	p := w.proxy(setup{example: "envoy", timeout: patient}, up, s)
	var y tally
	for range 54 {
		a := w.ask(p, "/v1/chat", "alice")
		y.add("alice", a)
		if left := 1000 - 300*y.passed; a.status == http.StatusOK { // the bucket refills a token in 3.6 s
			testkit.Eventually(w, "the charge is made", func() bool { return s.left(w, "edge", "alice") <= max(left, 0)+50 })
		}
	}
	w.got(y.passed == 4 && y.rejected == 50, "callers see %d × 200 and %d × 429", y.passed, y.rejected)
	e := p.counts()
	w.got(e.ok == 4 && e.over == 50 && e.failed == 0, "Envoy counts ok %d and over_limit %d", e.ok, e.over)
	m := s.metrics(w)
	verdict := func(v string) float64 { return m[`ratelimitd_decisions_total{domain="edge",verdict="`+v+`"}`] }
	w.got(verdict("ok") == 4 && verdict("late_charge") == 4 && verdict("over_limit") == 50, "ratelimitd decides ok %.0f, late_charge %.0f, over_limit %.0f",
		verdict("ok"), verdict("late_charge"), verdict("over_limit"))
	const rule = `{domain="edge",key1="user",key2="budget_tokens"}`
	over, rejected := m["ratelimit_service_rate_limit_over_limit"+rule], m["ratelimitd_rejections_total"+rule]
	w.got(over > 150 && over <= 200 && rejected == 50, "hits over the limit %.0f, rejections %.0f", over, rejected)
	out, err := exec.CommandContext(w.Context(), w.program, "top", "--addr", s.Addr(), "--rejected", "--output", "json", "edge").Output()
	var top struct {
		Entries []struct{ Rule, Rejected string }
	}
	if err == nil {
		err = json.Unmarshal(out, &top)
	}
	if err != nil || len(top.Entries) == 0 {
		w.Fatalf("top: %v: %s", err, out)
	}
	first := top.Entries[0]
	w.got(first.Rule == "edge.user.budget_tokens" && first.Rejected == "50", "top --rejected: %s %s", first.Rule, first.Rejected)
}

// lostCharges stops the server while answers are in progress.
func lostCharges(w *world) {
	hold := make(chan bool)
	up := w.upstream(func(out http.ResponseWriter, r *http.Request) {
		select {
		case <-hold:
		case <-r.Context().Done():
		}
		out.Header().Set("x-tokens-used", "7")
	})
	s := w.serveExample("envoy")
	p := w.proxy(setup{example: "envoy", timeout: patient, change: func(c *config) {
		c.service.HealthChecks = nil // otherwise, they would remove the server
	}}, up, s)
	const calls, lost = "cluster.ratelimitd.upstream_rq_200", "cluster.ratelimitd.upstream_rq_5xx"
	for range 5 {
		go func() { hold <- true }()
		w.ask(p, "/v1/chat", "alice")
	}
	testkit.Eventually(w, "all charges are made", func() bool { return p.count(calls) >= 10 })
	w.got(p.count(calls) == 10 && p.counts().ok == 5 && s.left(w, "edge", "alice") == 965, "%d calls, ok %d, %d tokens left", p.count(calls), p.counts().ok, s.left(w, "edge", "alice"))
	var done sync.WaitGroup
	statuses := make([]int, 4)
	for i := range statuses {
		done.Go(func() { statuses[i] = w.ask(p, "/v1/chat", "alice").status })
	}
	testkit.Eventually(w, "four answers are on their way", func() bool { return up.all() == 9 })
	s.Kill()
	close(hold)
	done.Wait()
	testkit.Eventually(w, "four charges are lost", func() bool { return p.count(lost) >= 4 })
	e := p.counts()
	w.got(!slices.ContainsFunc(statuses, func(status int) bool { return status != http.StatusOK }) && p.count(lost) == 4 && e == counts{ok: 9},
		"then with the server killed: callers see %s, upstream_rq_5xx %d, of the filter ok %d, error %d, failure_mode_allowed %d",
		strings.Trim(fmt.Sprint(statuses), "[]"), p.count(lost), e.ok, e.failed, e.allowed)
}
