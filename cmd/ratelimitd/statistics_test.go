package main

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

const workedRules = `
domain: worked
descriptors:
  - {key: a, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: b, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: c, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: d, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: e, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 20}}
  - key: f
    descriptors: [{key: g, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}]
`

// workedCalls is how many calls worked makes.
const workedCalls = 14

// worked has requests, and the resulting counts. For each key, the last request is one of the reference's own worked
// examples (limit 20, ratio 0.8).
func worked(t *testing.T, c rlsv3.RateLimitServiceClient) map[string]uint64 {
	t.Helper()
	call := func(domain string, hits uint32, descriptor string) {
		t.Helper()
		decide(t, c, &rlsv3.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: descriptorsOf(descriptor)})
	}
	for _, r := range []struct {
		key  string
		hits uint32
	}{
		{"a", 16}, {"a", 3}, // 19
		{"b", 16}, {"b", 3}, {"b", 3}, // 22
		{"c", 15}, {"c", 7}, // 22
		{"d", 16}, {"d", 11}, {"d", 3}, // 30
		{"e", 19}, {"e", 3}, // 22, in shadow mode
	} {
		call("worked", r.hits, r.key)
	}
	call("worked", 1, "f,g=10.0.0.1:80")
	call("nowhere.at.all", 1, "a")
	want := map[string]uint64{}
	for key, values := range map[string][6]uint64{ // total, within, near, over, shadow
		"a": {19, 19, 3, 0, 0}, "b": {22, 19, 3 + 1, 2, 0}, "c": {22, 15, 4, 2, 0},
		"d": {30, 16, 4, 7 + 3, 0}, "e": {22, 19, 3 + 1, 2, 2}, "f_.g_10_0_0_1_80": {1, 1, 0, 0, 0},
	} {
		for i, name := range []string{"total_hits", "within_limit", "near_limit", "over_limit", "shadow_mode"} {
			if values[i] > 0 {
				want["ratelimit.service.rate_limit.worked."+key+"."+name] = values[i]
			}
		}
	}
	want["ratelimit.service.rate_limit.nowhere.at.all.domain_not_found"] = 1
	want["ratelimit.service.config_load_success"] = 1
	want["ratelimit_server.ShouldRateLimit.total_requests"] = workedCalls
	want["ratelimit_server.ShouldRateLimit.response_time"] = workedCalls
	want["runtime.load_attempts"] = 1
	want["reserved_tag"] = 1 // zone is none, az is
	return want
}

// sums adds up the lines of counters and of timers, and lists the gauges. Tags must end every name as they do in want.
func sums(t *testing.T, lines []string, tags string) (counts map[string]uint64, gauges []string) {
	t.Helper()
	counts = map[string]uint64{}
	line := regexp.MustCompile(`^([^:|]+):([0-9.]+)\|(c|g|ms)(?:\|@([0-9.]+))?(\|#.*)?$`)
	for _, l := range lines {
		m := line.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("no line of statsd: %q", l)
		}
		name, ok := strings.CutSuffix(m[1], tags)
		if strings.HasPrefix(tags, "|#") {
			name, ok = m[1], m[5] == tags
		}
		if !ok && !strings.HasPrefix(m[1], "ratelimitd.") { // extensions may have tags of their own
			t.Errorf("%q does not have the tags %q", l, tags)
		}
		switch m[3] {
		case "c":
			n, err := strconv.ParseUint(m[2], 10, 64)
			testkit.Check(t, err)
			counts[name] += n
		case "ms":
			counts[name]++
		case "g":
			gauges = append(gauges, name)
		}
	}
	return counts, slices.Compact(slices.Sorted(slices.Values(gauges)))
}

// compareSums compares all series except those of the runtime and our own.
func compareSums(t *testing.T, want map[string]uint64, lines []string, tags string) {
	t.Helper()
	counts, gauges := sums(t, lines, tags)
	for name := range counts {
		if strings.HasPrefix(name, "ratelimit.go.") || strings.HasPrefix(name, "ratelimitd.") {
			delete(counts, name)
		}
	}
	if d := cmp.Diff(want, counts); d != "" {
		t.Errorf("counters and calls (-want +got):\n%s", d)
	}
	for _, name := range []string{"ratelimit.go.heapAlloc", "ratelimit.go.numGoroutine", "ratelimit.go.nextGC", "runtime.num_values"} {
		if !slices.Contains(gauges, name) {
			t.Errorf("no gauge %s among %q", name, gauges)
		}
	}
}

// statsdTCP is a statsd server for one connection. What it was sent is available once the connection has ended.
func statsdTCP(t *testing.T) (port string, sent func() string) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	testkit.Check(t, err)
	all := make(chan string, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			all <- err.Error()
			return
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		if err != nil {
			b = append(b, err.Error()...)
		}
		all <- string(b)
	}()
	t.Cleanup(func() {
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
	})
	return portOf(t, ln.Addr()), func() string { return <-all }
}

// statsdUDP is a statsd, or a DogStatsD. What it was sent so far is there when it is asked for.
func statsdUDP(t *testing.T) (port string, sent func() string) {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	testkit.Check(t, err)
	const mark = "all until here"
	var all testkit.Buffer
	marks, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 1<<16)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			if string(b[:n]) == mark {
				marks <- struct{}{}
				continue
			}
			_, _ = all.Write(b[:n]) // never fails
		}
	}()
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return portOf(t, conn.LocalAddr()), func() string {
		if _, err := conn.WriteTo([]byte(mark), conn.LocalAddr()); err != nil {
			t.Error(err)
			return ""
		}
		<-marks // datagrams arrive in order on this machine
		return all.String()
	}
}

func portOf(t *testing.T, a net.Addr) string {
	t.Helper()
	_, port, err := net.SplitHostPort(a.String())
	testkit.Check(t, err)
	return port
}

// What is counted is sent to statsd when the server ends, at the latest, with the reference's names and arithmetic.
func TestStatsd(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"tcp", "UDP"} {
		t.Run(protocol, func(t *testing.T) {
			port, sent := statsdTCP(t)
			if protocol != "tcp" {
				port, sent = statsdUDP(t)
			}
			d := startProcess(t, workedRules, "BACKEND_TYPE=memory", "USE_STATSD=true", "STATSD_PROTOCOL="+protocol, "STATSD_HOST=127.0.0.1", "STATSD_PORT="+port,
				"EXTRA_TAGS=zone:eu.1,az:b", "STATS_FLUSH_INTERVAL=1h")
			want := worked(t, d.client())
			d.stop()
			compareSums(t, want, lines(sent()), ".__az=b.__zone=eu_1")
			if log := d.Log.String(); strings.Contains(log, "statistics") {
				t.Errorf("the log speaks of statistics:\n%s", log)
			}
		})
	}
}

// Nothing is sent with DISABLE_STATS, and statistics arrive before the server ends if the flush interval is not an
// hour.
func TestFlushInterval(t *testing.T) {
	t.Parallel()
	port, sent := statsdUDP(t)
	d := startProcess(t, workedRules, "BACKEND_TYPE=memory", "USE_STATSD=true", "STATSD_PROTOCOL=udp", "STATSD_PORT="+port, "STATS_FLUSH_INTERVAL=200ms", "EXTRA_TAGS=az:b")
	want := worked(t, d.client())
	flushes := func() int { return strings.Count(sent(), "ratelimit.go.numGoroutine.__az=b:") } // once each time
	before := flushes()
	if !testkit.Poll(patience, func() bool { return flushes() >= before+3 }) { // one of them began after the last call, and has ended
		t.Errorf("it sends %d times in %v, which takes it less than one second", flushes(), patience)
	}
	compareSums(t, want, lines(sent()), ".__az=b")
	d.stop()

	silent, nothing := statsdUDP(t)
	d = startProcess(t, workedRules, "BACKEND_TYPE=memory", "USE_STATSD=true", "STATSD_PROTOCOL=udp", "STATSD_PORT="+silent, "STATS_FLUSH_INTERVAL=200ms", "DISABLE_STATS=true")
	worked(t, d.client())
	d.stop()
	if got := nothing(); got != "" {
		t.Errorf("with DISABLE_STATS=true it sends %q", got)
	}
}

func TestDogStatsD(t *testing.T) {
	t.Parallel()
	port, sent := statsdUDP(t)
	d := startProcess(t, workedRules, "BACKEND_TYPE=memory", "USE_DOG_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT="+port, "EXTRA_TAGS=zone:eu,az:b",
		"DD_ENTITY_ID=pod1", "DD_ENV=prod", "DD_SERVICE=limits", "DD_VERSION=1.2", "STATS_FLUSH_INTERVAL=1h",
		"USE_DOG_STATSD_MOGRIFIERS=rule", "DOG_STATSD_MOGRIFIER_RULE_PATTERN=^ratelimit\\.service\\.rate_limit\\.worked\\.(.*)\\.(.*)$",
		"DOG_STATSD_MOGRIFIER_RULE_NAME=hits.$2.$1")
	want := map[string]uint64{}
	for name, n := range worked(t, d.client()) {
		if rule, ok := strings.CutPrefix(name, "ratelimit.service.rate_limit.worked."); ok {
			i := strings.LastIndexByte(rule, '.')
			name = "hits." + rule[i+1:] + "." + rule[:i]
		}
		want[name] = n
	}
	d.stop()
	compareSums(t, want, lines(sent()), "|#dd.internal.entity_id:pod1,env:prod,service:limits,version:1.2,az:b,zone:eu")
}

func lines(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }

// promtool check metrics accepts what is served, and complains only about the reference's naming.
func TestPromtool(t *testing.T) {
	t.Parallel()
	mapping := filepath.Join(t.TempDir(), "mapping.yaml")
	if err := os.WriteFile(mapping, []byte("mappings: [{match: ratelimit.service.rate_limit.*.*.total_hits, name: hits_total, labels: {domain: $1, rule: $2}}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{"plain", nil, `ratelimit_service_rate_limit_total_hits{domain="worked",key1="a"} 19`},
		{"tags", []string{"EXTRA_TAGS=zone:eu,domain:x"}, `ratelimit_service_rate_limit_total_hits{domain="worked",exported_domain="x",key1="a",zone="eu"} 19`},
		{"milliseconds", []string{"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS=true"}, `ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 14`},
		{"mapping", []string{"PROMETHEUS_MAPPER_YAML=" + mapping, "EXTRA_TAGS=zone:eu"}, `hits_total{domain="worked",rule="a",zone="eu"} 19`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := startProcess(t, workedRules, append([]string{"BACKEND_TYPE=memory", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"}, tt.env...)...)
			worked(t, d.client())
			served, _ := d.get("METRICS", "/metrics")
			if !strings.Contains(served, "\n"+tt.want+"\n") {
				t.Errorf("no line %s in\n%s", tt.want, served)
			}
			check := exec.CommandContext(t.Context(), "promtool", "check", "metrics") // make test gets it
			check.Stdin = strings.NewReader(served)
			out, err := check.CombinedOutput()
			const remarks = 3 // the exit code where all can be read
			if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != remarks) {
				t.Fatalf("promtool: %v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				ours := !strings.HasPrefix(line, "ratelimit_") && !strings.HasPrefix(line, "runtime_")
				if unmapped := strings.HasPrefix(line, "ratelimitd_rejections_worked_"); ours && !unmapped { // a series of statsd ends in the rule
					t.Errorf("promtool: %s", line)
				}
			}
		})
	}
}

func TestRedisPools(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	d := startDaemon(t, db, workedRules, "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL="+db.Addr(), "LOG_LEVEL=error")
	value := func(served, name string) int {
		m := regexp.MustCompile(`(?m)^` + name + ` (\d+)$`).FindStringSubmatch(served)
		if m == nil {
			return 0
		}
		n, err := strconv.Atoi(m[1])
		testkit.Check(t, err)
		return n
	}
	var served string
	testkit.Eventually(t, "connections are shown", func() bool {
		served = metrics(d)
		for _, pool := range []string{"ratelimit_redis_pool_", "ratelimit_redis_per_second_pool_"} {
			if active := value(served, pool+"cx_active"); active < 1 || value(served, pool+"cx_total") < active {
				return false
			}
		}
		return true
	}, func() string { return served })
	db.Kill()
	testkit.Eventually(t, "the end of the connections is shown", func() bool {
		served = metrics(d)
		return value(served, "ratelimit_redis_pool_cx_active") == 0 && value(served, "ratelimit_redis_pool_cx_local_close") == value(served, "ratelimit_redis_pool_cx_total")
	}, func() string { return served })
}
