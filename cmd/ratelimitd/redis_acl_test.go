package main

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// aclRules need every algorithm, a list and a penalty; referenceRules what the reference's keys support.
const (
	referenceRules = `
domain: shop
descriptors:
  - {key: fixed, rate_limit: {unit: hour, requests_per_unit: 100}}
`
	aclRules = referenceRules + `
  - {key: first, rate_limit: {unit: hour, requests_per_unit: 100, align: first}}
  - {key: window, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_window}}
  - {key: log, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}}
  - {key: bucket, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: token_bucket}}
  - {key: leaky, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: leaky_bucket}}
  - {key: slots, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: concurrency}}
  - {key: held, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: concurrency, holder: held}}
  - {key: reserved, rate_limit: {unit: hour, requests_per_unit: 100, reserve: {estimate: 1}}}
  - {key: tenant, plan_of: tenant, plans: {default: {unit: hour, requests_per_unit: 100}, gold: {unit: hour, requests_per_unit: 200}}}
  - {key: shared, rate_limit: {unit: second, requests_per_unit: 1000, algorithm: token_bucket, rlqs: true}}
  - {key: penalty, rate_limit: {unit: hour, requests_per_unit: 2, penalty: {for: 1m, on: exceeded}}}
  - key: list
    rate_limits:
      - {unit: hour, requests_per_unit: 100}
      - {unit: day, requests_per_unit: 100, algorithm: token_bucket}
`
)

// sideChannels are commands that read and write what is not a counter, by key format.
var sideChannels = map[string][]string{
	"":          {"reset shop fixed=a", "block shop fixed=b --for 1h", "controls", "lift shop fixed=b", "tenant set acme gold", "tenant list", "audit"},
	"reference": {"reset shop fixed=a"},
}

// quotaStream opens a stream, reports, and returns once the first answer has come, or what keeps it from coming.
func quotaStream(ctx context.Context, conn *grpc.ClientConn, report *rlqspb.RateLimitQuotaUsageReports) error {
	stream, err := rlqspb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(report); err != nil {
		return err
	}
	_, err = stream.Recv()
	return err
}

// aclLines returns the permissions in the ACL SETUSER lines of a document, without the user's name, state and password.
// Each is one line, so that it can be pasted into redis-cli.
func aclLines(t *testing.T, file string) (lines []string) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(repository, file))
	testkit.Check(t, err)
	for _, m := range regexp.MustCompile(`(?m)^ *ACL SETUSER limiter (?:on >SECRET )?(.*)$`).FindAllStringSubmatch(string(raw), -1) {
		lines = append(lines, m[1])
	}
	return lines
}

// TestACLs plays the documents' permissions against a Redis that has a user with just these: nothing is rejected,
// whatever a rule asks for.
func TestACLs(t *testing.T) {
	t.Parallel()
	lines := aclLines(t, "docs/redis.md")
	if len(lines) != 2 {
		t.Fatalf("redis.md has %d lines of ACL SETUSER, want 2: %q", len(lines), lines)
	}
	for i, format := range []string{"", "reference"} {
		t.Run("format_"+format, func(t *testing.T) {
			t.Parallel()
			db := redistest.Start(t)
			db.CLI(append([]string{"ACL", "SETUSER", "limiter", "on", ">secret"}, strings.Fields(lines[i])...)...)
			rules := aclRules
			if format != "" {
				rules = referenceRules
			}
			d := startDaemon(t, db, rules, "REDIS_AUTH=limiter:secret", "REDIS_KEY_FORMAT="+format, "REDIS_OP_TIMEOUT=10s", "ADMIN=true", "TENANTS_REDIS="+strconv.FormatBool(format == ""))
			d.ready()
			client := d.client()
			for _, m := range regexp.MustCompile(`key: (\w+)`).FindAllStringSubmatch(rules, -1) {
				for _, hits := range []int64{1, 1, 3, -1, 0} {
					r := request(m[1], "a")
					r.Descriptors[0].HitsAddend = wrapperspb.UInt64(uint64(max(hits, -hits)))
					r.Descriptors[0].IsNegativeHits = hits < 0
					if _, err := client.ShouldRateLimit(t.Context(), r); err != nil {
						t.Errorf("%d hits of %s: %v", hits, m[1], err)
					}
				}
			}
			db.CLI("SCRIPT", "FLUSH")
			if _, err := client.ShouldRateLimit(t.Context(), request("fixed", "b")); err != nil {
				t.Errorf("without scripts: %v", err)
			}
			for _, line := range sideChannels[format] {
				words := strings.Fields(line)
				args := append([]string{words[0], "--addr", "unix:" + d.At["SOCKET"]}, words[1:]...)
				if out, err := exec.Command(shipped.Path(t, "ratelimitd"), args...).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", line, err, out)
				}
			}
			if format == "" {
				report := &rlqspb.RateLimitQuotaUsageReports{Domain: "shop", BucketQuotaUsages: []*rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
					{BucketId: &rlqspb.BucketId{Bucket: map[string]string{"shared": ""}}, NumRequestsAllowed: 1},
				}}
				if err := quotaStream(t.Context(), d.dial(), report); err != nil {
					t.Errorf("a quota: %v", err)
				}
			}
			d.stop()
			optional := []string{"info", "config|get", "echo", "ping", "script|load"}
			for _, m := range regexp.MustCompile(`(?m)^object\n(.*)$`).FindAllStringSubmatch(db.CLI("ACL", "LOG", "1000"), -1) {
				if !slices.Contains(optional, m[1]) {
					t.Errorf("Redis has rejected %s", m[1])
				}
			}
			log := d.Log.String()
			if strings.Contains(log, "NOPERM") {
				t.Errorf("the log says:\n%s", log)
			}
		})
	}
}

// allowedBy is the command that a message gives for what the user may not do.
var allowedBy = regexp.MustCompile(`allow it in Redis: (ACL SETUSER [^\n]*)`)

// denied waits until d is not ready because its user may not do something, checks what log and health say about it, and
// returns the command that /readyz gives.
func (d *daemon) denied(what string) []string {
	d.t.Helper()
	var body string
	testkit.Eventually(d.t, "/readyz says what is not allowed", func() bool {
		var status int
		body, status = d.get("HTTP", "/readyz")
		return status != http.StatusOK && allowedBy.MatchString(body)
	}, func() string { return body }, d.Log.String)
	verbose, _ := d.get("HTTP", "/healthcheck?verbose")
	line := allowedBy.FindStringSubmatch(body)[1]
	for where, text := range map[string]string{"/readyz": body, "/healthcheck?verbose": verbose, "the log": d.Log.String()} {
		if !strings.Contains(text, what) || !strings.Contains(text, line) {
			d.t.Errorf("%s does not say %q and %q:\n%s", where, what, line, text)
		}
	}
	return strings.Fields(line)
}

// TestMigrationWithACL goes from a Redis user who was sized for envoyproxy/ratelimit to one with what step 2 of
// docs/migrate.md needs, with the command that the server gives; then it takes something away again, and has the user replaced.
func TestMigrationWithACL(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	db.CLI("ACL", "SETUSER", "limiter", "on", ">secret", "~*", "+incrby", "+expire", "+get", "+ping", "+auth")
	db.CLI("ACL", "SETUSER", "other", "on", ">secret", "~shop_*", "~rl:*", "+incrby", "+expire", "+get")
	auth := filepath.Join(t.TempDir(), "auth")
	write := func(text string) {
		t.Helper()
		certstest.Write(t, auth, []byte(text))
	}
	write("limiter:secret")
	env := []string{"REDIS_AUTH_FILE=" + auth, "REDIS_OP_TIMEOUT=10s"}

	d := startDaemon(t, db, referenceRules, append(env, "REDIS_KEY_FORMAT=reference")...)
	d.ready()
	if _, err := d.client().ShouldRateLimit(t.Context(), request("fixed", "a")); err != nil {
		t.Errorf("step 1: %v", err)
	}
	d.stop()

	d = startDaemon(t, db, aclRules, env...)
	client := d.client()
	line := d.denied("the user lacks a permission")
	if _, status := d.get("HTTP", "/healthcheck"); status == http.StatusOK {
		t.Error("healthy, though there has been no connection yet that could be used")
	}
	if _, err := client.ShouldRateLimit(t.Context(), request("fixed", "a")); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("step 2, too early: %v, want NOPERM", err)
	}
	if want := strings.TrimPrefix(aclLines(t, "docs/redis.md")[0], "~rl:* "); strings.Join(line, " ") != "ACL SETUSER limiter "+want {
		t.Errorf("to be allowed: %q, want what docs/redis.md says, but for the keys: %q", line, want)
	}
	db.CLI(line...)
	d.ready()
	if _, err := client.ShouldRateLimit(t.Context(), request("fixed", "a")); err != nil {
		t.Errorf("step 2: %v", err)
	}

	db.CLI("ACL", "SETUSER", "limiter", "-hset", "resetkeys")
	if _, err := client.ShouldRateLimit(t.Context(), request("log", "a")); err == nil {
		t.Error("a call with a key that the user may not use")
	}
	line = d.denied("the user may not use the keys of counters")
	if _, status := d.get("HTTP", "/healthcheck"); status != http.StatusOK {
		t.Error("unhealthy, though there was a connection that could be used")
	}
	db.CLI(line...)
	d.ready()

	write("other:secret") // which new connections use
	db.CLI("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	testkit.Eventually(t, "what the other user needs", func() bool {
		body, _ := d.get("HTTP", "/readyz")
		m := allowedBy.FindStringSubmatch(body)
		if m != nil && strings.Contains(m[1], " other ") {
			line = strings.Fields(m[1])
		}
		return line[2] == "other"
	})
	db.CLI(line...)
	d.ready()
}

// TestReferenceKeysOfDomains: with the reference's keys the user must be allowed those of the domains.
func TestReferenceKeysOfDomains(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	db.CLI("ACL", "SETUSER", "limiter", "on", ">secret", "~rl:*", "+incrby", "+expire", "+get")
	d := startDaemon(t, db, referenceRules, "REDIS_AUTH=limiter:secret", "REDIS_KEY_FORMAT=reference", "REDIS_OP_TIMEOUT=10s")
	d.ready()
	if _, err := d.client().ShouldRateLimit(t.Context(), request("fixed", "a")); err == nil || !strings.Contains(err.Error(), "may not use the keys of counters") {
		t.Errorf("%v, want NOPERM", err)
	}
	testkit.Eventually(t, "the log says what to allow", func() bool {
		return strings.Contains(d.Log.String(), "allow it in Redis: ACL SETUSER limiter ~* +incrby +expire +get")
	}, d.Log.String)
	db.CLI("ACL", "SETUSER", "limiter", "~shop_*")
	if _, err := d.client().ShouldRateLimit(t.Context(), request("fixed", "a")); err != nil {
		t.Error(err)
	}
}
