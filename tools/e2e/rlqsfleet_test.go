package e2e

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// moving has three Envoys and three replicas, and traffic that moves between them. After half of the time, an Envoy and a replica die.
func moving(w *world) {
	const (
		limit, burst = 100, 200
		phase        = 15 * time.Second
		interval     = 5 // seconds between two reports
	)
	rates := [][]int{{150, 20, 20}, {20, 150, 20}, {0, 30, 150}, {0, 75, 75}} // requests a second by phase and Envoy
	_, redis := w.redis()
	up := w.upstream(hello)
	var replicas []*service
	for range 3 {
		replicas = append(replicas, w.serveQuotas(redis))
	}
	var envoys []*proxy
	for i := range 3 {
		envoys = append(envoys, w.proxy(setup{example: "envoy-rlqs"}, up, slices.Concat(replicas[i:], replicas[:i])...))
	}
	sent := func(some []*service) (actions float64) {
		for _, s := range some {
			actions += s.metrics(w)["ratelimitd_rlqs_assignments_total"]
		}
		return actions
	}
	begin, lost, alive := time.Now(), 0.0, 0.0
	var said []string
	for i, now := range rates {
		if i == len(rates)/2 {
			lost = sent(replicas[:1])
			envoys[0].process.Kill()
			replicas[0].Kill()
		}
		from, since := up.all(), time.Now()
		var stops []func() *tally
		for j, rate := range now {
			if rate > 0 {
				alive += phase.Seconds()
				stops = append(stops, w.flow(envoys[j], rate, "ann"))
			}
		}
		testkit.Eventually(w, "time passes", func() bool { return time.Since(begin) >= time.Duration(i+1)*phase })
		for _, stop := range stops {
			if y := stop(); y.odd > 0 || y.failed > 0 {
				w.got(false, "%d callers get something else", y.odd+y.failed)
			}
		}
		said = append(said, fmt.Sprintf("%.1f", float64(up.all()-from)/time.Since(since).Seconds()))
	}
	n, took := float64(up.all()), time.Since(begin).Seconds()
	// Each Envoy had its first assignment at most twice: a full bucket, and the requests that passed before it. The usage since the
	// last reports to the dead replica is unknown.
	const extra = 2*3*(limit+limit/2) + interval*limit
	messages := (lost+sent(replicas[1:]))/alive + 1.0/interval
	w.got(n <= burst+limit*took+extra && n >= 0.7*limit*took && messages <= 1,
		"%.0f reach the upstream in %.1f s, at most %.0f by the bound; in the four phases %s a second; %.2f messages a second and Envoy",
		n, took, burst+limit*took+extra, strings.Join(said, ", "), messages)
}

// quotaLatency alternates requests through Envoys without a limit, with RLQS, and with RLS, and measures their
// latencies.
func quotaLatency(w *world) {
	const rounds, each, callers = 12, 500, 4
	up := w.upstream(hello)
	rlqs := w.serve("domain: edge\ndescriptors:\n  - key: service\n"+
		"    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: token_bucket, rlqs: true}\n", "BACKEND_TYPE=memory")
	rls := w.serve("domain: edge\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: second, requests_per_unit: 1000000}\n", "BACKEND_TYPE=memory")
	none := setup{example: "envoy-rlqs", change: func(c *config) { c.manager.HttpFilters = c.manager.GetHttpFilters()[1:] }}
	ways := []string{"without a limit", "RLQS", "RLS"}
	proxies := []*proxy{w.proxy(none, up, rlqs), w.proxy(setup{example: "envoy-rlqs"}, up, rlqs), w.proxy(setup{example: "envoy"}, up, rls)}
	took := make([][]time.Duration, len(ways))
	for range rounds {
		for i, p := range proxies {
			parts := make([][]time.Duration, callers)
			var all sync.WaitGroup
			for j := range parts {
				all.Go(func() {
					for range each / callers {
						parts[j] = append(parts[j], w.ask(p, "/", "ann").took)
					}
				})
			}
			all.Wait()
			took[i] = slices.Concat(took[i], slices.Concat(parts...))
		}
	}
	var said []string
	for i, all := range took {
		slices.Sort(all)
		at := func(part float64) float64 {
			return float64(all[int(math.Ceil(part*float64(len(all))))-1].Microseconds()) / 1000
		}
		said = append(said, fmt.Sprintf("%s p50 %.2f ms, p99 %.2f ms", ways[i], at(0.5), at(0.99)))
	}
	w.got(up.all() == rounds*each*len(ways), "%s; %d requests each, %d at a time", strings.Join(said, "; "), rounds*each, callers)
}
