package main

import (
	"context"
	"crypto/x509"
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	rlcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/memcachedtest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// countedRules have a rule for each kind of count.
const countedRules = `
domain: shop
descriptors:
  - key: a
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: fails, rate_limit: {unit: year, requests_per_unit: 2}}
      - {key: allows, rate_limit: {unit: year, requests_per_unit: 2, name: allows, on_failure: allow}}
      - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
      - {key: free, rate_limit: {unlimited: true}}
      - {key: reserved, rate_limit: {unit: year, requests_per_unit: 2, reserve: {estimate: {start: 1, min: 1, max: 2}}}}
      - {key: shared, rate_limit: {unit: minute, requests_per_unit: 2, rlqs: true}}
`

// family is what /metrics shows of a metric.
type family struct {
	help, kind string
	labels     map[string][]string // and the values that they have
}

// families parses /metrics, but for what Prometheus' client library adds.
func families(page string) map[string]family {
	all := make(map[string]family)
	var now string
	label := regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(line, "# HELP "); ok {
			var help string
			now, help, _ = strings.Cut(strings.TrimSpace(text), " ")
			all[now] = family{help: help, labels: make(map[string][]string)}
			continue
		}
		f := all[now]
		if text, ok := strings.CutPrefix(line, "# TYPE "+now+" "); ok {
			f.kind = strings.TrimSpace(text)
			all[now] = f
		}
		for _, m := range label.FindAllStringSubmatch(line, -1) {
			if m[1] != "le" && m[1] != "az" && !strings.HasPrefix(line, "#") { // of a bucket, and of EXTRA_TAGS
				f.labels[m[1]] = append(f.labels[m[1]], m[2])
			}
		}
	}
	for name := range all {
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			delete(all, name)
		}
	}
	return all
}

// TestEachSeriesHasItsRow: what three servers show that have everything switched on is what the table of metrics has, with
// the types, labels and helps that it says, and all of it.
func TestEachSeriesHasItsRow(t *testing.T) {
	t.Parallel()
	shown := families(everythingOverRedis(t))
	for _, page := range []string{everythingOverMemcached(t), rejections(t)} {
		for name, f := range families(page) {
			if known, ok := shown[name]; ok {
				for label, values := range known.labels {
					f.labels[label] = append(f.labels[label], values...)
				}
			}
			shown[name] = f
		}
	}
	texts := make(map[string]string) // of labels with values that are known in advance
	for _, l := range stats.LabelTexts() {
		if slices.Contains([]string{"class", "code", "err_type", "event", "mistake", "policy", "reason"}, l.Name) {
			texts[l.Name] = l.Text
		}
	}
	for _, section := range stats.Table() {
		for _, row := range section.Rows {
			name := strings.ReplaceAll(row.Name, "<domain>", "nowhere")
			f, ok := shown[name]
			if !ok {
				t.Errorf("the table has %s, but no server shows it", name)
				continue
			}
			delete(shown, name)
			if f.kind != string(row.Type) || f.help != row.Help {
				t.Errorf("%s is a %s with the help %q; the table has a %s with the help %q", name, f.kind, f.help, row.Type, row.Help)
			}
			var labels []string
			for label, values := range f.labels {
				labels = append(labels, label)
				for _, v := range values {
					if text, ok := texts[label]; ok && !strings.Contains(text, "`"+v+"`") {
						t.Errorf("%s has the %s %s, and the text of that label says nothing of it", name, label, v)
					}
				}
			}
			slices.Sort(labels)
			if !slices.Equal(labels, row.Labels) {
				t.Errorf("%s has the labels %q; the table has %q", name, labels, row.Labels)
			}
		}
	}
	for name := range shown {
		t.Errorf("%s is in no row of the table", name)
	}
}

// everythingOverRedis returns /metrics of a server with counters in Redis, once everything has been counted.
func everythingOverRedis(t *testing.T) string {
	t.Helper()
	db := redistest.Start(t)
	dir := t.TempDir()
	certstest.Write(t, filepath.Join(dir, "rules.yaml"), []byte(countedRules))
	d := startDaemon(
		t, db, "", "RUNTIME_ROOT="+dir, "REDIS_PERSECOND=true", "REDIS_PERSECOND_SOCKET_TYPE=tcp", "REDIS_PERSECOND_URL="+db.Addr(),
		"LOCAL_CACHE_SIZE_IN_BYTES=1000000", "SHADOW_MODE=true", "ADMIN=true", "GRPC_REFLECTION=true",
	)
	d.ready()
	client, hits := d.client(), uint64(1)
	ask := func(domain, key string, negative bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		q := descriptorOf("a," + key)
		q.HitsAddend, q.IsNegativeHits = wrapperspb.UInt64(hits), negative
		_, err := client.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: domain, Descriptors: []*rlcommonv3.RateLimitDescriptor{q}})
		return err
	}
	blocked := &adminv1.BlockRequest{Domain: "shop", Entries: []*adminv1.Entry{{Key: "a"}, {Key: "blocked"}}, For: durationpb.New(time.Hour)}
	limited := &adminv1.LimitRequest{
		Domain: "shop", Entries: []*adminv1.Entry{{Key: "a"}, {Key: "allows"}}, For: durationpb.New(time.Hour),
		To: &adminv1.Override{RequestsPerUnit: 3, Unit: adminv1.Unit_UNIT_DAY}, LimitName: "allows",
	}
	admin := adminv1.NewAdminServiceClient(d.operate())
	if _, err := admin.Block(t.Context(), blocked); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Limit(t.Context(), limited); err != nil {
		t.Fatal(err)
	}
	testkit.Check(t, ask("shop", "blocked", false))
	for _, key := range []string{"user", "user", "user", "user", "shadow", "free"} { // the last user is rejected from memory
		testkit.Check(t, ask("shop", key, false))
	}
	testkit.Check(t, errors.Join(ask("shop", "user", true), ask("nowhere", "a", false)))
	if ask("", "a", false) == nil {
		t.Error("a request without a domain is answered")
	}
	for hits = range 2 { // the second one has a cost, but no ID
		testkit.Check(t, ask("shop", "reserved", false))
	}
	hits = 1
	certstest.Write(t, filepath.Join(dir, "bad.yaml"), []byte("domain: ["))
	d.until("the rules are rejected", func() bool { return d.metric("ratelimit_service_config_load_error") > 0 })
	db.Kill()
	d.until("Redis fails", func() bool { return ask("shop", "fails", false) != nil })
	return everything(d)
}

// everythingOverMemcached returns /metrics of a server with counters in memcached, TLS, and rules of a control plane.
func everythingOverMemcached(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	certstest.NewCA(t, "servers").Issue(t, x509.Certificate{}).Write(t, cert, key)
	d := startProcess(
		t, "", "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+memcachedtest.Start(t).Addr(), "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1",
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+cert, "GRPC_SERVER_TLS_KEY="+key, "EXTRA_TAGS=az:a",
	)
	return everything(d)
}

// rejections returns /metrics of a server that rejects a request, which none does with SHADOW_MODE=true.
func rejections(t *testing.T) string {
	t.Helper()
	d := startProcess(t, countedRules)
	for range 4 {
		decide(t, d.client(), &rlsv3.RateLimitRequest{Domain: "shop", Descriptors: descriptorsOf("a,user")})
	}
	stream, err := rlqspb.NewRateLimitQuotaServiceClient(d.dial()).StreamRateLimitQuotas(t.Context())
	testkit.Check(t, err)
	report := &rlqspb.RateLimitQuotaUsageReports{Domain: "shop"}
	for _, key := range []string{"shared", "unknown"} {
		report.BucketQuotaUsages = append(report.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqspb.BucketId{Bucket: map[string]string{"a": "", key: ""}}, NumRequestsAllowed: 1, NumRequestsDenied: 1,
		})
	}
	testkit.Check(t, stream.Send(report))
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	return metrics(d)
}

// everything returns /metrics after a garbage collection, before which there are fewer.
func everything(d *daemon) string {
	d.t.Helper()
	if _, status := d.get("DEBUG", "/debug/pprof/heap?gc=1"); status != 200 {
		d.t.Fatalf("a garbage collection: status %d", status)
	}
	return metrics(d)
}
