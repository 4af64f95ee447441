package e2e

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotav3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
)

// steady returns cases about the requests that two Envoys admit in each second, from the first one on, during failures of the service.
// The limit is that of examples/envoy-rlqs: 100/s with a burst of 200. Each Envoy has 40 or 45/s, so that nothing may be rejected, or
// 80/s.
func steady() (all []example) {
	const enough = "2 × 45/s: no 429 from the first second on; 2 × 80/s: at least 95 of 100/s in each second but the first, no Envoy below 35/s for more than a second, " +
		"and no more than the bound"
	const restart = "2 × 40/s: no 429; 2 × 80/s: at least 90 of 100/s in each second"
	all = []example{
		{name: "RLQS, two Envoys start", want: enough, effort: most, play: func(w *world) { w.starts(1) }},
		{name: "RLQS, two Envoys start with a replica each", want: enough, effort: most, play: func(w *world) { w.starts(2) }},
		{
			name: "RLQS, a block and an allow are lifted, and a limit is raised", effort: whole, play: controlled,
			want: "in force within 2 s; then 2 × 45/s: no 429; 2 × 80/s: 95 % of the limit in each second but the first",
		},
		{name: "RLQS, a replica restarts", want: restart, effort: most, play: func(w *world) { w.restarts(true) }},
		{name: "RLQS, a replica restarts, Envoys without a name", want: restart, effort: whole, play: func(w *world) { w.restarts(false) }},
		{name: "RLQS, three replicas restart in turn", want: restart, effort: whole, play: rolled},
		{name: "RLQS, connections end after 6 s, Envoys without a name", want: restart, effort: whole, play: aged},
		{
			name: "RLQS, a replica is killed", effort: whole, play: orphaned,
			want: "2 × 40/s: half of it in each second, and no 429 from 9 s after on, when Envoys have been connected elsewhere for 3 s",
		},
	}
	all = append(all, example{
		name: "RLQS, an Envoy is replaced beside another one", effort: whole, play: replaced,
		want: "2 × 40/s: no 429, whether the new one reports to the same replica or to another one",
	})
	for _, how := range []string{"is killed", "hangs"} {
		all = append(all, example{
			name: "RLQS, Redis " + how + " for 40 s", effort: whole, play: func(w *world) { w.returns(how == "hangs") },
			want: "2 × 80/s: at least 95 of 100/s in each second but the first after it is back, and the bound holds again",
		})
	}
	for _, policy := range []string{"deny", "allow"} {
		x := example{
			name: "RLQS, a strict window without its store, on_failure: " + policy, effort: whole, play: func(w *world) { w.unpaid(policy == "deny") },
			want: "all pass in the second half of the outage; so do all of an Envoy that starts meanwhile, from 1 s on",
		}
		if policy == "deny" {
			x.effort = most
			x.want = "600 a minute and what passes before the first assignment; in the second half of the outage, and of an Envoy that starts meanwhile from 1 s on, a twentieth at most"
		}
		all = append(all, x)
	}
	all = append(all, example{
		name: "RLQS, a day is used up and its rule loses rlqs", effort: whole, play: released,
		want: "each Envoy does what no_assignment_behavior says, 200, within 20 s",
	})
	for i := range all {
		all[i].since = sinceQuotas
	}
	return all
}

// Parameters of the example's limit, and of Envoys' parts.
const (
	quota, quotaBurst = 100, 200
	// Requests beyond burst and rate: Envoys' tokens and their usage during message delays, 1.3 s of the rate.
	quotaExtra = 1.3 * quota
	// Maximum wait of an Envoy for its first assignment.
	unassigned = 500 * time.Millisecond
)

// bound returns the maximum number of admitted requests in a time, if everything is assigned.
func bound(d time.Duration) float64 { return quotaBurst + quota*d.Seconds() + quotaExtra }

// edge starts an Envoy of the example with another name or none. With inTurn, it uses the first healthy service, and otherwise any.
func (w *world) edge(name string, inTurn bool, up *upstream, services ...*service) *proxy {
	w.Helper()
	return w.proxy(setup{example: "envoy-rlqs", change: func(c *config) {
		filter := new(quotav3.RateLimitQuotaFilterConfig)
		holder := c.manager.GetHttpFilters()[0].GetConfigType().(*hcmv3.HttpFilter_TypedConfig)
		testkit.Check(w, holder.TypedConfig.UnmarshalTo(filter))
		said := slices.DeleteFunc(filter.GetRlqsServer().GetInitialMetadata(), func(h *corev3.HeaderValue) bool { return h.GetKey() == "x-ratelimitd-client" })
		if name != "" {
			said = append(said, &corev3.HeaderValue{Key: "x-ratelimitd-client", Value: name})
		}
		filter.RlqsServer.InitialMetadata = said
		holder.TypedConfig = w.pack(filter)
		if inTurn {
			at := c.service.GetLoadAssignment()
			hosts := at.GetEndpoints()[0].GetLbEndpoints()
			at.Endpoints = nil
			for i, host := range hosts {
				at.Endpoints = append(at.Endpoints, &endpointv3.LocalityLbEndpoints{Priority: uint32(i), LbEndpoints: []*endpointv3.LbEndpoint{host}})
			}
		}
	}}, up, services...)
}

// starts starts two Envoys together with replicas.
func (w *world) starts(replicas int) {
	took := 20 * time.Second
	if *upTo == whole.String() {
		took = 30 * time.Second
	}
	for _, rate := range []int{45, 80} {
		w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
			store := "BACKEND_TYPE=memory"
			if replicas > 1 {
				_, store = w.redis()
			}
			up := w.upstream(hello)
			var all []*service
			for range replicas {
				all = append(all, w.serveQuotas(store))
			}
			one, other := w.edge("edge-1", true, up, all[0]), w.edge("edge-2", true, up, all[replicas-1])
			f := w.flows(rate, one, other)
			f.until(took)
			f.end()
			if 2*rate <= quota {
				return []check{f.span(0, took).allPass()}
			}
			late := f.span(time.Second, took)
			return []check{late.together(95), late.each(35), f.atMost(0, took, bound(took)+2*float64(rate)*unassigned.Seconds())}
		})
	}
}

// controlled sets and lifts a control on the divided limit.
func controlled(w *world) {
	const settled, watched = 8 * time.Second, 13 * time.Second
	for _, rate := range []int{45, 80} {
		w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
			socket := filepath.Join(w.TempDir(), "admin")
			s, up := w.serveQuotas("BACKEND_TYPE=memory", "ADMIN_SOCKET="+socket), w.upstream(hello)
			f := w.flows(rate, w.edge("edge-1", true, up, s), w.edge("edge-2", true, up, s))
			change := func(args ...string) time.Duration {
				w.operate(socket, args...)
				return f.now()
			}
			f.until(settled)
			f.until(change("block", "edge", "service=shop", "--for", "1h") + 5*time.Second)
			unblocked := change("lift", "edge", "service=shop")
			f.until(unblocked + watched + 3*time.Second)
			f.until(change("allow", "edge", "service=shop", "--for", "1h") + 7*time.Second)
			limited := change("lift", "edge", "service=shop")
			f.until(limited + watched + 3*time.Second)
			raised := change("limit", "edge", "service=shop", "--to", "200/second", "--for", "1h")
			f.until(raised + watched + 3*time.Second)
			f.end()
			back := f.firstPassed(unblocked)
			checks := []check{{good: back-unblocked <= 2*time.Second, text: fmt.Sprintf("the first pass %.1f s after lift", (back - unblocked).Seconds())}}
			for i, from := range []time.Duration{back, limited, raised} {
				var c check
				if 2*rate <= quota {
					c = f.span(from, from+watched).allPass()
				} else {
					if from != back { // controls take effect in about a second
						from += 1200 * time.Millisecond
					}
					c = f.span(from+time.Second, from+watched).together([]int{95, 95, 152}[i])
					if from < raised {
						checks = append(checks, f.atMost(from, from+watched, bound(watched)))
					}
				}
				c.text = []string{"after the block ", "after the allow ", "with the limit "}[i] + c.text
				checks = append(checks, c)
			}
			return checks
		})
	}
}

// returns makes Redis unavailable for a while.
func (w *world) returns(hangs bool) {
	const away, watched = 40 * time.Second, 25 * time.Second
	w.timed("2 × 80/s", func() []check {
		redis, store := w.redis()
		up := w.upstream(hello)
		f := w.flows(80, w.edge("edge-1", true, up, w.serveQuotas(store)), w.edge("edge-2", true, up, w.serveQuotas(store)))
		f.until(8 * time.Second)
		gone := f.now()
		if hangs {
			redis.Stop()
			f.until(gone + away)
			redis.Cont()
		} else {
			redis.Kill()
			f.until(gone + away)
			redis.Restart()
		}
		back := f.now()
		f.until(back + watched)
		f.end()
		again := back + 7*time.Second // each Envoy has reported by then
		return []check{f.span(back+time.Second, back+watched).together(95), f.atMost(again, back+watched, bound(back+watched-again))}
	})
}

// restarts stops the replica to which both Envoys report. They connect to another one.
func (w *world) restarts(named bool) {
	const took = 26 * time.Second
	for _, rate := range []int{40, 80} {
		w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
			_, store := w.redis()
			up := w.upstream(hello)
			replicas := []*service{w.serveQuotas(store, "DRAIN_DELAY=1s"), w.serveQuotas(store, "DRAIN_DELAY=1s")}
			one, other := "edge-1", "edge-2"
			if !named {
				one, other = "", ""
			}
			f := w.flows(rate, w.edge(one, true, up, replicas...), w.edge(other, true, up, replicas...))
			replicas[0].streams(w, 2)
			f.until(6 * time.Second)
			replicas[0].terminate(w)
			f.until(took)
			replicas[1].streams(w, 2)
			f.end()
			return f.unbroken(took)
		})
	}
}

// unbroken is the expectation that failures of replicas have no effect.
func (f *flows) unbroken(took time.Duration) []check {
	s := f.span(0, took)
	if 2*f.rate > quota {
		return []check{s.together(90)}
	}
	return []check{s.allPass()}
}

// rolled restarts all replicas one after the other, like a rollout.
func rolled(w *world) {
	for _, rate := range []int{40, 80} {
		w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
			_, store := w.redis()
			up := w.upstream(hello)
			var replicas []*service
			for range 3 {
				replicas = append(replicas, w.serveQuotas(store, "DRAIN_DELAY=3s"))
			}
			f := w.flows(rate, w.edge("edge-1", false, up, replicas...), w.edge("edge-2", false, up, replicas...))
			f.until(8 * time.Second)
			for _, s := range replicas {
				s.terminate(w)
				s.Restart()
				f.until(f.now() + 6*time.Second)
			}
			took := f.now() + 14*time.Second
			f.until(took)
			f.end()
			return f.unbroken(took)
		})
	}
}

// aged makes the service close connections continuously.
func aged(w *world) {
	const took = 20 * time.Second
	for _, rate := range []int{40, 80} {
		w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
			_, store := w.redis()
			up := w.upstream(hello)
			replicas := []*service{w.serveQuotas(store, "GRPC_MAX_CONNECTION_AGE=6s"), w.serveQuotas(store, "GRPC_MAX_CONNECTION_AGE=6s")}
			f := w.flows(rate, w.edge("", false, up, replicas...), w.edge("", false, up, replicas...))
			f.until(took)
			f.end()
			return f.unbroken(took)
		})
	}
}

// replaced kills one of two Envoys, and starts another one in its place, several times.
func replaced(w *world) {
	const rate, each = 40, 8 * time.Second
	_, store := w.redis()
	up := w.upstream(hello)
	replicas := []*service{w.serveQuotas(store), w.serveQuotas(store)}
	stays := w.flow(w.edge("edge-1", true, up, replicas...), rate, "ann")
	passed, rejected := 0, 0
	for _, at := range []int{0, 1, 1, 0} {
		p := w.edge("edge-2", true, up, replicas[at], replicas[1-at])
		begin, stop := time.Now(), w.flow(p, rate, "bob")
		testkit.Eventually(w, "time passes", func() bool { return time.Since(begin) >= each })
		y := stop()
		p.process.Kill()
		passed, rejected = passed+y.passed, rejected+y.rejected
	}
	y := stays()
	w.got(rejected+y.rejected == 0, "%d of %d requests of the replaced ones are rejected, and %d of %d of the other one", rejected, passed+rejected, y.rejected, y.passed+y.rejected)
}

// orphaned kills the replica to which both Envoys report.
func orphaned(w *world) {
	const rate = 40
	w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
		_, store := w.redis()
		up := w.upstream(hello)
		replicas := []*service{w.serveQuotas(store), w.serveQuotas(store)}
		f := w.flows(rate, w.edge("edge-1", true, up, replicas...), w.edge("edge-2", true, up, replicas...))
		replicas[0].streams(w, 2)
		f.until(10500 * time.Millisecond) // just after reports, so that Envoy detects the failure before the next ones
		killed := f.now()
		replicas[0].Kill()
		replicas[1].streams(w, 2)
		found := f.now() - killed
		took := killed + 25*time.Second
		f.until(took)
		f.end()
		last := f.span(killed+9*time.Second, took).allPass()
		last.text = fmt.Sprintf("connected again after %.1f s, ", found.Seconds()) + last.text + " from 9 s on"
		return []check{f.span(0, took).together(rate), last}
	})
}

// unpaid has a strict window without the backend, so that no more hits can be debited.
func (w *world) unpaid(deny bool) {
	const limit, rate = 600, 50
	away := 60 * time.Second
	if *upTo != whole.String() {
		away = 42 * time.Second // assignments have expired by then
	}
	policy := "allow"
	if deny {
		policy = "deny"
	}
	w.timed(fmt.Sprintf("2 × %d/s", rate), func() []check {
		redis, store := w.redis()
		up := w.upstream(hello)
		s := w.serve(fmt.Sprintf("domain: edge\ndescriptors:\n  - key: service\n    rate_limit: {unit: minute, requests_per_unit: %d, algorithm: fixed_window, "+
			"rlqs: true, on_failure: %s}\n", limit, policy), store)
		one, other, third := w.edge("edge-1", true, up, s), w.edge("edge-2", true, up, s), w.edge("edge-3", true, up, s)
		if *upTo == whole.String() { // the next window must begin in the second half of the outage
			const at = 13 * time.Second
			now := time.Now()
			time.Sleep(now.Truncate(time.Minute).Add(time.Minute+at).Sub(now) % time.Minute)
		}
		f := w.flows(rate, one, other)
		f.until(7 * time.Second)
		gone := f.now()
		redis.Kill()
		f.until(gone + away/4)
		late := w.flows(rate, third)
		f.until(gone + away)
		f.end()
		late.end()
		half, joined := f.span(gone+away/2, gone+away), late.span(time.Second, late.now())
		if !deny {
			c, d := half.allPass(), joined.allPass()
			d.text += " through the third Envoy"
			return []check{c, d}
		}
		c, d := half.fewPass(), joined.fewPass()
		c.text += " in the second half of the outage"
		d.text += " through the third Envoy"
		return []check{f.minutes(limit + 2*rate*unassigned.Seconds()), c, d}
	})
}

// minutes expects at most this many requests in any minute of the clock.
func (f *flows) minutes(most float64) check {
	passed, worst := map[time.Time]int{}, 0
	for _, y := range f.came {
		for _, m := range y.moments {
			if minute := m.asked.Truncate(time.Minute); m.status == http.StatusOK {
				passed[minute]++
				worst = max(worst, passed[minute])
			}
		}
	}
	return check{good: float64(worst) <= most, text: fmt.Sprintf("%d in a minute, at most %.0f by the bound", worst, most)}
}

// released removes rlqs from a rule whose window is used up, in all possible ways, with an Envoy each.
func released(w *world) {
	const limit, within = 300, 20 * time.Second
	rules := func(more string, rlqs bool) string {
		return fmt.Sprintf("domain: edge\ndescriptors:\n  - key: service\n    value: shop\n    rate_limit: {unit: day, requests_per_unit: %d, rlqs: %t}\n%s", limit, rlqs, more)
	}
	const another = "  - key: service\n    value: reports\n    rate_limit: {unit: minute, requests_per_unit: 6000, rlqs: true}\n"
	type way struct {
		name, more string
		happen     func(s *service, socket string)

		s      *service
		socket string
		up     *upstream
		p      *proxy
		lost   time.Time
		took   time.Duration
	}
	restart := func(s *service, _ string) { s.terminate(w); s.Restart() }
	reload := func(_ *service, socket string) { w.operate(socket, "reload") }
	kill := func(s *service, _ string) { s.Restart() }
	ways := []*way{
		{name: "reload", more: another, happen: reload},
		{name: "reload, and no rule has it", happen: reload},
		{name: "restart", more: another, happen: restart},
		{name: "restart, and no rule has it", happen: restart},
		{name: "kill, and no rule has it", happen: kill},
	}
	for _, x := range ways {
		x.socket, x.up = filepath.Join(w.TempDir(), "admin"), w.upstream(hello)
		x.s = w.serve(rules(x.more, true), "BACKEND_TYPE=memory", "ADMIN_SOCKET="+x.socket)
		a, err := rlsv3.NewRateLimitServiceClient(x.s.conn).ShouldRateLimit(w.Context(), // quickly, because Envoys are assigned small amounts gradually
			&rlsv3.RateLimitRequest{Domain: "edge", Descriptors: []*commonv3.RateLimitDescriptor{shop()}, HitsAddend: limit})
		if err != nil || a.GetOverallCode() != rlsv3.RateLimitResponse_OK {
			w.Fatalf("using up the day: %v, %v", a, err)
		}
		x.p = w.edge("edge-1", true, x.up, x.s)
		defer w.flow(x.p, 30, "ann")()
	}
	for _, x := range ways {
		n, since := x.up.all(), time.Now()
		testkit.Eventually(w, "nothing passes", func() bool {
			if m := x.up.all(); m != n {
				n, since = m, time.Now()
			}
			return time.Since(since) > 6*time.Second // not even after the next report
		}, func() string { return fmt.Sprintf("%d pass", n) })
	}
	for _, x := range ways {
		testkit.Check(w, os.WriteFile(x.s.rules, []byte(rules(x.more, false)), 0o600))
		x.happen(x.s, x.socket)
		x.lost = time.Now()
	}
	testkit.Poll(2*within, func() bool {
		waits := 0
		for _, x := range ways {
			if x.took > 0 {
				continue
			}
			if waits++; w.ask(x.p, "/", "bob").status == http.StatusOK {
				x.took = time.Since(x.lost)
			}
		}
		return waits == 0
	})
	var said []string
	good := true
	for _, x := range ways {
		took := cmp.Or(x.took, 2*within)
		good = good && took <= within
		said = append(said, fmt.Sprintf("%s: %.1f s", x.name, took.Seconds()))
	}
	w.got(good, "%s", strings.Join(said, "; "))
}
