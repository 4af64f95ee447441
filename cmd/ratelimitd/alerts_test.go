package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
)

const planRules = `
domain: shop
descriptors:
  - key: customer
    plan_of: customer
    plans:
      default: {unit: hour, requests_per_unit: 1000000}
      gold: {unit: hour, requests_per_unit: 2000000}
`

const wellFor = 10 // minutes without trouble at the start

// trouble is an incident of a server and the alerts that it must raise.
type trouble struct {
	name   string
	alerts []string
	play   func(t *testing.T) (pages []string) // returns Prometheus' pages, one a minute; without trouble at first
}

func troubles() []trouble {
	return []trouble{
		{"Redis dies", []string{"RateLimitErrors", "RateLimitNoConnection", "RateLimitBreakerOpen"}, redisDies},
		{"Redis hangs", []string{"RateLimitErrors", "RateLimitBreakerOpen"}, redisHangs},
		{"on_failure decides", []string{"RateLimitFallback"}, onFailureDecides},
		{"the user of Redis loses a permission", []string{"RateLimitBackendAccessDenied"}, permissionLost},
		{"Redis is slow", []string{"RateLimitSlow"}, redisIsSlow},
		{"Redis is full", []string{"RateLimitRedisEvicts"}, redisIsFull},
		{"rules are invalid", []string{"RateLimitRulesInvalid", "RateLimitRulesStale"}, rulesInvalid},
		{"more comes than can be decided", []string{"RateLimitOverload"}, moreThanCanBeDecided},
		{"the store panics", []string{"RateLimitPanic"}, storePanics},
		{"the server is gone", []string{"RateLimitNoServer"}, serverGone},
		{"tenants are invalid", []string{"RateLimitTenantsInvalid"}, tenantsInvalid},
		{"memory is full of counters", []string{"RateLimitMemoryEvicts"}, memoryIsFull},
		{"costs come without the reservation", []string{"RateLimitMistake"}, costsWithoutReservation},
	}
}

// TestAlerts evaluates the alerts of deploy/grafana with promtool, on metrics of real servers: a server without trouble
// raises none, and each trouble raises its alerts.
func TestAlerts(t *testing.T) {
	t.Parallel()
	raised := []string{"RateLimitCertificateExpires"} // see below
	for _, tt := range troubles() {
		raised = append(raised, tt.alerts...)
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pages := tt.play(t)
			promtool(t, time.Minute, append(slices.Repeat(pages[:1], wellFor), pages[1:]...), []expectation{
				{at: wellFor - 1},
				{at: wellFor + len(pages) - 2, alerts: tt.alerts},
			})
		})
	}
	for _, r := range rulesOfPrometheus(t) {
		if r.Alert != "" && !slices.Contains(raised, r.Alert) {
			t.Errorf("nothing here raises %s", r.Alert)
		}
	}
}

// TestAlertOfTheCertificate covers the alert that compares with the time of day, with a page of today.
func TestAlertOfTheCertificate(t *testing.T) {
	t.Parallel()
	today := time.Duration(time.Now().Unix()) * time.Second
	for days, want := range map[int][]string{60: nil, 13: {"RateLimitCertificateExpires"}} {
		dir := t.TempDir()
		cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		certstest.NewCA(t, "servers").Issue(t, x509.Certificate{NotAfter: time.Now().AddDate(0, 0, days)}).Write(t, cert, key)
		d := startProcess(t, endlessRules, "BACKEND_TYPE=memory", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key)
		page := metrics(d)
		promtool(t, today, []string{page, page}, []expectation{{at: 1, alerts: want}})
	}
}

// TestFewErrors: one error in thousands of calls raises no alert and is forgotten; one a minute raises a warning.
func TestFewErrors(t *testing.T) {
	t.Parallel()
	for every, pages := range map[int][]string{1000: {}, 1: {"ticket"}} {
		var all []string
		for minute := range 40 {
			all = append(all, fmt.Sprintf("ratelimitd_build_info 1\nratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} %d\n"+
				"ratelimitd_call_errors_total{err_type=\"redis_error\"} %d\n", 6000*minute, (minute+every-1)/every))
		}
		promtool(t, time.Minute, all, []expectation{{at: 4, firing: []string{}}, {at: 39, firing: pages}})
	}
}

// TestShedCallsWake: calls shed in an overload, which Envoy admits, page someone, although none counts as answered.
// Decisions by on_failure raise a warning.
func TestShedCallsWake(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string][]string{`reason="calls"`: {"page", "ticket"}, `domain="shop",reason="process"`: {"ticket"}} {
		var all []string
		for minute := range 15 {
			all = append(all, fmt.Sprintf("ratelimitd_build_info 1\nratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} %d\n"+
				"ratelimitd_shed_total{%s} %d\n", 6000*minute, reason, 600*minute))
		}
		promtool(t, time.Minute, all, []expectation{{at: 14, firing: want}})
	}
}

// TestInvalidUntilFixed: the alert for invalid rules lasts until they are fixed.
func TestInvalidUntilFixed(t *testing.T) {
	t.Parallel()
	invalid := rulesInvalid(t)
	well := invalid[0]
	pages := slices.Concat(slices.Repeat([]string{well}, 5), slices.Repeat(invalid[len(invalid)-1:], 60))
	both := []string{"RateLimitRulesInvalid", "RateLimitRulesStale"}
	fixed := strings.Replace(well, "ratelimitd_config_load_errors_total 0", "ratelimitd_config_load_errors_total 1", 1)
	promtool(t, time.Minute, append(pages, fixed, fixed), []expectation{{at: 4}, {at: 5, alerts: both[:1]}, {at: 64, alerts: both}, {at: 66}})
}

// TestOneJobOfTwoIsGone: with several deployments, a missing one raises an alert, and the others do not.
func TestOneJobOfTwoIsGone(t *testing.T) {
	t.Parallel()
	const east, west = `ratelimitd_build_info{job="east",version="1"} 1` + "\n", `ratelimitd_build_info{job="west",version="1"} 1` + "\n"
	pages := slices.Concat(slices.Repeat([]string{east + west}, 5), slices.Repeat([]string{west}, 12), slices.Repeat([]string{east + west}, 3))
	promtool(t, time.Minute, pages, []expectation{
		{at: 4}, {at: 16, alerts: []string{"RateLimitNoServer"}}, {at: 19},
	})
}

// TestFailsOnce: a Redis that fails for a moment, such as during a change of password, raises no alert.
func TestFailsOnce(t *testing.T) {
	t.Parallel()
	var pages []string
	for minute := range 15 {
		pages = append(pages, fmt.Sprintf("ratelimitd_build_info 1\nratelimitd_backend_errors_total{class=\"noauth\"} %d\n", 30*min(minute/5, 1)))
	}
	var never []expectation
	for at := range pages {
		never = append(never, expectation{at: at, firing: []string{}})
	}
	promtool(t, time.Minute, pages, never)
}

// rulesFile has the alerts and recording rules.
const rulesFile = "deploy/grafana/rules.yaml"

func alerts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, rulesFile))
	testkit.Check(t, err)
	return string(text)
}

// prometheusRule is an alert or a recorded series.
type prometheusRule struct{ Alert, Record, Expr string }

func rulesOfPrometheus(t *testing.T) (all []prometheusRule) {
	t.Helper()
	var file struct {
		Groups []struct{ Rules []prometheusRule }
	}
	testkit.Check(t, yaml.Unmarshal([]byte(alerts(t)), &file))
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// expectation is the alerts that a page raises; none without names.
type expectation struct {
	at     int // index of the page
	alerts []string
	firing []string // severities of all firing alerts; if not nil, compared instead of alerts
}

// promtool runs promtool test rules on pages, one for each interval.
func promtool(t *testing.T, interval time.Duration, pages []string, all []expectation) {
	t.Helper()
	type (
		series struct {
			Series, Values string
		}
		sample struct {
			Labels string
			Value  int
		}
		check struct {
			Expr       string
			EvalTime   string   `yaml:"eval_time"`
			ExpSamples []sample `yaml:"exp_samples"`
		}
		group struct {
			Interval       string
			InputSeries    []series `yaml:"input_series"`
			PromqlExprTest []check  `yaml:"promql_expr_test"`
		}
	)
	seconds := func(n int) string { return fmt.Sprintf("%ds", n*int(interval/time.Second)) }
	g := group{Interval: seconds(1)}
	rules := alerts(t)
	for name, values := range mentioned(pages, rules) {
		g.InputSeries = append(g.InputSeries, series{name, strings.Join(values, " ")})
	}
	for _, e := range all {
		c := check{Expr: "group by (alertname) (ALERTS)", EvalTime: seconds(e.at)}
		if len(e.alerts) > 0 {
			c.Expr = fmt.Sprintf("group by (alertname) (ALERTS{alertstate='firing', alertname=~'%s'})", strings.Join(e.alerts, "|"))
		}
		for _, name := range e.alerts {
			c.ExpSamples = append(c.ExpSamples, sample{fmt.Sprintf("{alertname=%q}", name), 1})
		}
		if e.firing != nil {
			c.Expr = "group by (severity) (ALERTS{alertstate='firing'})"
		}
		for _, severity := range e.firing {
			c.ExpSamples = append(c.ExpSamples, sample{fmt.Sprintf("{severity=%q}", severity), 1})
		}
		g.PromqlExprTest = append(g.PromqlExprTest, c)
	}
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{"alerts.yaml"}, "evaluation_interval": seconds(1), "tests": []group{g}})
	testkit.Check(t, err)
	testkit.NotShort(t)
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "alerts.yaml"), []byte(rules))
	certstest.Write(t, filepath.Join(dir, "test.yaml"), text)
	cmd := exec.CommandContext(t.Context(), "promtool", "test", "rules", "test.yaml") // installed by make test
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s\n%s", err, out, text)
	}
}

// mentioned returns the values of the pages' series that occur in the rules; _ means missing.
func mentioned(pages []string, rules string) map[string][]string {
	all := make(map[string][]string)
	line := regexp.MustCompile(`(?m)^((\w+)(?:\{.*\})?) (\S+)$`)
	for i, page := range pages {
		for _, m := range line.FindAllStringSubmatch(page, -1) {
			value, err := strconv.ParseFloat(m[3], 64)
			if err != nil || !strings.Contains(rules, m[2]) {
				continue
			}
			if all[m[1]] == nil {
				all[m[1]] = slices.Repeat([]string{"_"}, len(pages))
			}
			all[m[1]][i] = strconv.FormatFloat(value, 'f', -1, 64)
		}
	}
	return all
}

func metrics(d *daemon) string {
	d.t.Helper()
	page, _ := d.get("DEBUG", "/metrics")
	return page
}

// minutes gets a page without trouble, and then one after each of n incidents.
func minutes(d *daemon, n int, happens func(i int)) []string {
	d.t.Helper()
	d.ready()
	pages := []string{metrics(d)}
	for i := range n {
		happens(i)
		pages = append(pages, metrics(d))
	}
	return pages
}

// until waits for a condition on the metrics.
func (d *daemon) until(what string, is func() bool) {
	d.t.Helper()
	testkit.Eventually(d.t, what, is, func() string { return metrics(d) }, d.Log.String)
}

func redisDies(t *testing.T) []string {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, endlessRules)
	client := d.client()
	return minutes(d, 5, func(i int) {
		if i == 0 {
			db.Kill()
		}
		d.until("the connections are gone", func() bool { return d.metric("ratelimitd_backend_connections") == 0 })
		d.until("the breaker is shown as open", func() bool {
			return d.metric(fmt.Sprintf("ratelimitd_backend_breaker_state{node=%q}", db.Addr())) == 2 // open
		})
		d.until("a call fails", func() bool { return asked(t, client) == "Unavailable" })
	})
}

func redisHangs(t *testing.T) []string {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, endlessRules)
	client := d.client()
	return minutes(d, 5, func(i int) {
		if i == 0 {
			db.Stop()
			t.Cleanup(db.Cont)
		}
		d.until("calls fail, and the breaker is not closed", func() bool {
			return asked(t, client) == "Unavailable" && d.metric(fmt.Sprintf("ratelimitd_backend_breaker_state{node=%q}", db.Addr())) > 0
		})
	})
}

func onFailureDecides(t *testing.T) []string {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, strings.ReplaceAll(endlessRules, "{unit:", "{on_failure: allow, unit:"))
	client := d.client()
	return minutes(d, 8, func(i int) {
		if i == 0 {
			db.Kill()
		}
		before := fallbacks(d)
		d.until("on_failure decides", func() bool { return asked(t, client) == "OK" && fallbacks(d) != before })
	})
}

func permissionLost(t *testing.T) []string {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, endlessRules)
	client := d.client()
	const series = `ratelimitd_backend_errors_total{class="noauth"}`
	return minutes(d, 8, func(i int) {
		if i == 0 {
			db.CLI("ACL", "SETUSER", "default", "-@scripting")
		}
		before := d.metric(series)
		d.until("a call fails for want of a permission", func() bool { return asked(t, client) == "Unavailable" && d.metric(series) > before })
	})
}

func redisIsSlow(t *testing.T) []string {
	t.Helper()
	db := redistest.Start(t)
	d := startDaemon(t, db, endlessRules, "REDIS_OP_TIMEOUT=10s")
	client := d.client()
	const series = `ratelimit_service_response_time_seconds_%s{grpc_method="ShouldRateLimit"%s}`
	slow := func() float64 {
		return d.metric(fmt.Sprintf(series, "count", "")) - d.metric(fmt.Sprintf(series, "bucket", `,le="0.01"`))
	}
	return minutes(d, 16, func(int) {
		before := slow()
		d.until("a call is slow", func() bool {
			db.CLI("CLIENT", "PAUSE", "30")
			_ = asked(t, client) // only slowness matters
			return slow() > before
		})
	})
}

func redisIsFull(t *testing.T) []string {
	t.Helper()
	db := redistest.Start(t, "maxmemory 3mb", "maxmemory-policy allkeys-random")
	fill := func() {
		for i := range 100 {
			db.CLI("SET", fmt.Sprint("filler", i), strings.Repeat("x", 50_000))
		}
	}
	fill() // evictions before the start of the server do not count
	d := startDaemon(t, db, endlessRules)
	series := fmt.Sprintf("ratelimitd_backend_evicted_keys_total{node=%q}", db.Addr())
	return minutes(d, 1, func(int) {
		if n := d.metric(series); n != 0 {
			t.Errorf("at first %g keys were evicted", n)
		}
		fill()
		d.until("keys are evicted", func() bool { return d.metric(series) > 0 })
	})
}

func rulesInvalid(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "good.yaml"), []byte(endlessRules))
	d := startProcess(t, "", "BACKEND_TYPE=memory", "RUNTIME_ROOT="+dir)
	return minutes(d, 12, func(i int) {
		if i == 0 {
			certstest.Write(t, filepath.Join(dir, "bad.yaml"), []byte("domain: [shop"))
		}
		d.until("the rules are invalid", func() bool { return d.metric("ratelimitd_config_load_errors_total") > 0 })
	})
}

func moreThanCanBeDecided(t *testing.T) []string {
	t.Helper()
	d := startProcess(t, endlessRules, "BACKEND_TYPE=memory")
	client := d.client()
	return minutes(d, 8, func(int) {
		before := d.shed()
		d.until("requests are shed", func() bool {
			var crowd sync.WaitGroup
			for range 1000 {
				crowd.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
					defer cancel()
					_, _ = client.ShouldRateLimit(ctx, request("user", "a")) // the load matters, not the results
				})
			}
			crowd.Wait()
			return d.shed() > before
		})
	})
}

// panicking is a backend with a bug.
type panicking struct{ backend.Backend }

func (panicking) Apply(context.Context, []backend.Op) { panic("a bug") }

func storePanics(t *testing.T) []string {
	t.Helper()
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(endlessRules))
	s, _, err := settings.Parse(testkit.Env(dir))
	testkit.Check(t, err)
	d := &daemon{t: t, Daemon: new(testkit.Daemon)}
	v, err := server.New(t.Context(), s, server.Config{
		Log: slog.New(slog.DiscardHandler), Stdout: &d.Stdout, Store: func(b backend.Backend) backend.Backend { return panicking{b} },
	})
	testkit.Check(t, err)
	testkit.Run(t, v.Run)
	testkit.Eventually(t, "it serves", func() bool { return strings.Contains(d.Stdout.String(), "\ndebug ") })
	d.At = testkit.Addresses(d.Stdout.String())
	client := d.client()
	return minutes(d, 1, func(int) {
		if got := asked(t, client); got != "Internal" {
			t.Errorf("a bug is answered %s", got)
		}
	})
}

func serverGone(t *testing.T) []string {
	t.Helper()
	d := startProcess(t, endlessRules, "BACKEND_TYPE=memory")
	d.ready()
	return append([]string{metrics(d)}, slices.Repeat([]string{""}, 12)...) // Prometheus considers the last 5 minutes
}

func tenantsInvalid(t *testing.T) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tenants.csv")
	certstest.Write(t, file, []byte("acme,gold\n"))
	d := startProcess(t, planRules, "BACKEND_TYPE=memory", "TENANTS_FILE="+file)
	return minutes(d, 1, func(int) {
		certstest.Write(t, file, []byte("acme,platinum\n"))
		d.until("the file is invalid", func() bool { return d.metric(`ratelimitd_tenants_loads_total{result="invalid"}`) > 0 })
	})
}

func memoryIsFull(t *testing.T) []string {
	t.Helper()
	d := startProcess(t, endlessRules, "BACKEND_TYPE=memory", "MEMORY_MAX_KEYS=100")
	client := d.client()
	n := 0
	return minutes(d, 1, func(int) {
		d.until("a counter is dropped", func() bool {
			for range 100 {
				n++
				decide(t, client, request("user", strconv.Itoa(n)))
			}
			return d.metric("ratelimitd_memory_forced_out_total") > 0
		})
	})
}
