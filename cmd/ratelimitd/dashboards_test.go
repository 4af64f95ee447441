package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
)

// mayBeZero has panels, legends of queries, and rules, of which it is enough that they are there, and why.
func mayBeZero() map[string]string {
	return map[string]string{
		"panics":                       "a bug",
		"closed a minute: {{reason}}":  "takes ten thousand connections",
		"What the control plane did":   "it is away",
		"certificates not loaded":      "takes a bad certificate",
		"connected":                    "the control plane is down",
		"invalid loads":                "TENANTS_FILE is not used",
		"RateLimitPanic":               "a bug",
		"RateLimitTenantsInvalid":      "TENANTS_FILE is not used",
		"RateLimitBackendAccessDenied": "Redis lets the server in",
		"Us: wait for this process":    "a moment, which may be between two scrapes",
		"Store: wait for a node":       "a moment, which may be between two scrapes",
		"Wait for a node":              "a moment, which may be between two scrapes",
		"Who waits":                    "a moment, which may be between two scrapes",
	}
}

// TestDashboards makes each query of the dashboard and each rule of deploy/grafana over what a real Prometheus scraped from real
// servers: all of them find something, and nothing is raised without a reason.
func TestDashboards(t *testing.T) {
	t.Parallel()
	s := openStage(t)
	begin := time.Now()
	p := startPrometheus(t, s.shop, s.secured, s.distant)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	for i := range 4 {
		load.Go(func() { s.load(ctx, i) })
	}
	s.operate()
	p.scraped(5)
	raised := func(want ...string) {
		t.Helper()
		var got []string
		testkit.Eventually(t, fmt.Sprintf("only these alerts are raised: %v", want), func() bool {
			got = p.names(`ALERTS{alertstate="firing"}`)
			return slices.Equal(got, want)
		}, func() string { return fmt.Sprint(got) })
	}
	raised()

	s.disturb()
	p.scraped(5)
	raised("RateLimitMemoryEvicts", "RateLimitRedisEvicts", "RateLimitRulesInvalid")
	pending := p.names(`max_over_time(ALERTS{alertstate="pending"}[5m])`)
	for _, name := range []string{"RateLimitErrors", "RateLimitFallback", "RateLimitBreakerOpen", "RateLimitOverload", "RateLimitRulesStale"} {
		if !slices.Contains(pending, name) {
			t.Errorf("%s does not notice: pending are %v", name, pending)
		}
	}
	stop()
	load.Wait()
	all := dashboardQueries(t, "", map[string]string{"namespace": ".*", "job": ".*", "instance": ".*", "domain": ".*", "rule": ".*"})
	some := dashboardQueries(t, "$domain", map[string]string{ // those that a domain is chosen for, of the server that has it
		"namespace": ".*", "job": "ratelimitd", "instance": regexp.QuoteMeta(s.shop.At["METRICS"]),
		"domain": "(shop|llm)", "rule": "(user|visitor|shadow|free|soft|tokens)",
	})
	p.check(begin, slices.Concat(all, some, ruleQueries(t)))
}

// asking is a query, and what it is of.
type asking struct{ of, name, expr string }

// dashboardQueries returns those queries of the dashboard's panels, annotations and variables that mention something, with what was
// chosen for its variables.
func dashboardQueries(t *testing.T, mention string, choice map[string]string) (all []asking) {
	t.Helper()
	type panel struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
		Panels  []panel
	}
	var board struct {
		Panels      []panel
		Annotations struct {
			List []struct{ Name, Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	text, err := os.ReadFile(filepath.Join(repository, "deploy", "grafana", "dashboard.json"))
	if err == nil {
		err = json.Unmarshal(text, &board)
	}
	testkit.Check(t, err)
	ask := func(of, name, expr string) {
		if !strings.Contains(expr, mention) {
			return
		}
		expr = strings.ReplaceAll(expr, "$__rate_interval", "10s")
		for name, value := range choice {
			expr = strings.ReplaceAll(expr, "$"+name, strings.ReplaceAll(value, `\`, `\\`))
		}
		if strings.Contains(strings.ReplaceAll(expr, `"$1"`, ""), "$") { // that one is of label_replace
			t.Errorf("a variable is left in %s", expr)
		}
		all = append(all, asking{of, name, expr})
	}
	var add func(panels []panel)
	add = func(panels []panel) {
		for _, p := range panels {
			for _, q := range p.Targets {
				ask(p.Title, q.LegendFormat, q.Expr)
			}
			add(p.Panels)
		}
	}
	add(board.Panels)
	for _, a := range board.Annotations.List {
		ask("annotation", a.Name, a.Expr)
	}
	for _, v := range board.Templating.List {
		if m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition); m != nil && v.Name != "namespace" { // is of Kubernetes
			ask("variable", v.Name, fmt.Sprintf("count by (%s) (%s)", m[2], m[1]))
		}
	}
	return all
}

// ruleQueries returns the expressions of the rules: of alerts what they compare with a bound, or with what is there now, which is there
// also where all is well.
func ruleQueries(t *testing.T) (all []asking) {
	t.Helper()
	for _, r := range rulesOfPrometheus(t) {
		expr := regexp.MustCompile(`^(.*) unless .*$|^(.*) (?:>|<|==) [^<>=]*$`).ReplaceAllString(r.Expr, "$1$2")
		if r.Alert != "" && expr == r.Expr {
			t.Errorf("%s: %s compares nothing", r.Alert, expr)
		}
		all = append(all, asking{"rule", r.Alert + r.Record, expr})
	}
	return all
}

// prometheus is a real one, which scrapes servers, and itself, every second and evaluates the rules as often.
type prometheus struct {
	*testkit.Server

	t *testing.T
}

func startPrometheus(t *testing.T, servers ...*daemon) *prometheus {
	t.Helper()
	dir := t.TempDir()
	var targets []string
	for _, d := range servers {
		targets = append(targets, strconv.Quote(d.At["METRICS"]))
	}
	certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(alerts(t)))
	configure := func(port int) {
		certstest.Write(t, filepath.Join(dir, "prometheus.yaml"), fmt.Appendf(nil, `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: ratelimitd
    static_configs: [{targets: [%s]}]
  - job_name: another
    static_configs: [{targets: ['127.0.0.1:%d']}]
`, strings.Join(targets, ", "), port))
	}
	ready := func(s *testkit.Server, _ string) bool {
		status, _, err := testkit.Fetch(t.Context(), http.MethodGet, "http://"+s.Addr()+"/-/ready", "")
		return err == nil && status == http.StatusOK
	}
	return &prometheus{t: t, Server: testkit.Start(t, &testkit.Program{
		Name: "prometheus", Package: "prometheus", Ready: ready,
		Args: func(port int) []string {
			configure(port)
			return []string{
				"--config.file=" + filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
				"--web.listen-address=127.0.0.1:" + strconv.Itoa(port), "--log.level=warn",
			}
		},
	})}
}

// names asks for the alerts of an expression.
func (p *prometheus) names(expr string) []string {
	p.t.Helper()
	status, body, err := testkit.Fetch(p.t.Context(), http.MethodGet, "http://"+p.Addr()+"/api/v1/query?query="+url.QueryEscape("group by (alertname) ("+expr+")"), "")
	var answer struct {
		Data struct {
			Result []struct{ Metric struct{ Alertname string } }
		}
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &answer)
	}
	if err != nil || status != http.StatusOK {
		p.t.Fatalf("%s: %d, %v: %s", expr, status, err, body)
	}
	names := make(map[string]bool)
	for _, r := range answer.Data.Result {
		names[r.Metric.Alertname] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// scraped waits until every server has been scraped n more times.
func (p *prometheus) scraped(n int) {
	p.t.Helper()
	begin := time.Now().Unix()
	testkit.Eventually(p.t, "Prometheus scrapes", func() bool {
		seconds := time.Now().Unix() - begin + 1
		return len(p.names(fmt.Sprintf("label_replace(min(count_over_time(up[%ds])) > %d, 'alertname', 'x', '', '')", seconds, n))) > 0
	})
}

// check makes queries, each of which must find something since begin that is not 0 all the time,
// and nothing of another program.
func (p *prometheus) check(begin time.Time, all []asking) {
	p.t.Helper()
	var wg sync.WaitGroup
	tickets := make(chan struct{}, 4)
	for _, q := range all {
		wg.Go(func() {
			tickets <- struct{}{}
			defer func() { <-tickets }()
			status, body, err := testkit.Fetch(p.t.Context(), http.MethodGet, fmt.Sprintf("http://%s/api/v1/query_range?step=1&start=%d&end=%d&query=%s",
				p.Addr(), begin.Unix(), time.Now().Unix(), url.QueryEscape(q.expr)), "")
			var answer struct {
				Data struct {
					Result []struct {
						Metric struct{ Instance string }
						Values [][2]any
					}
				}
			}
			if err == nil {
				err = json.Unmarshal([]byte(body), &answer)
			}
			if err != nil || status != http.StatusOK {
				p.t.Errorf("%s, %q: %s: %d, %v\n%s", q.of, q.name, q.expr, status, err, body)
				return
			}
			series := answer.Data.Result
			moves := false
			for _, s := range series {
				if s.Metric.Instance == p.Addr() {
					p.t.Errorf("%s, %q finds Prometheus itself: %s", q.of, q.name, q.expr)
				}
				moves = moves || slices.ContainsFunc(s.Values, func(v [2]any) bool { return v[1] != "0" && v[1] != "NaN" })
			}
			switch {
			case len(series) == 0:
				p.t.Errorf("%s, %q finds nothing: %s", q.of, q.name, q.expr)
			case !moves && mayBeZero()[q.name] == "" && mayBeZero()[q.of] == "":
				p.t.Errorf("%s, %q is 0 all the time: %s", q.of, q.name, q.expr)
			}
		})
	}
	wg.Wait()
	p.t.Logf("%d queries", len(all))
}

// notTLS sends something else to the gRPC port.
func (d *daemon) notTLS() {
	d.t.Helper()
	conn, err := new(net.Dialer).DialContext(d.t.Context(), "tcp", d.At["GRPC"])
	if err == nil {
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	}
	testkit.Check(d.t, err)
	if err := conn.Close(); err != nil {
		d.t.Error(err)
	}
}

// startTLS starts a server with counters in memory whose gRPC listener has a certificate.
func startTLS(t *testing.T, rules string, env ...string) *daemon {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	certstest.NewCA(t, "servers").Issue(t, x509.Certificate{NotAfter: time.Now().AddDate(0, 0, 60)}).Write(t, cert, key)
	return startProcess(t, rules, append([]string{"BACKEND_TYPE=memory", "GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + cert, "GRPC_SERVER_TLS_KEY=" + key}, env...)...)
}
