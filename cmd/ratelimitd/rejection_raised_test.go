package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// What the rules of TestRejectionRaised allow at first, and what a reload makes of it.
const (
	raisedFrom = 10
	raisedTo   = 500
)

// raised is two servers on one Redis and one directory of rules. What this one is told ends what it remembers, so it
// remembers for an hour, and has no other reason to forget; the other one for a second, as it does unless told otherwise.
type raised struct {
	t           *testing.T
	dir         string
	hits        map[string]int // of each rule
	this, other *daemon
}

func startRaised(t *testing.T) *raised {
	t.Helper()
	r := &raised{t: t, dir: t.TempDir(), hits: map[string]int{"fixed_window": raisedFrom, "token_bucket": raisedFrom}}
	if err := os.Mkdir(filepath.Join(r.dir, "live"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.write()
	db := redistest.Start(t)
	env := []string{"RUNTIME_ROOT=" + filepath.Join(r.dir, "live"), "ADMIN=true", "REDIS_OP_TIMEOUT=10s"}
	r.this = startDaemon(t, db, "", append(env, "NEAR_CACHE_REJECTION=1h")...)
	r.other = startDaemon(t, db, "", env...)
	r.this.ready()
	r.other.ready()
	return r
}

// write writes the rules, which the servers see as a whole.
func (r *raised) write() {
	r.t.Helper()
	text := fmt.Sprintf(`
domain: shop
descriptors:
  - key: fixed_window
    rate_limit: {unit: year, requests_per_unit: %d}
  - key: token_bucket
    rate_limit: {unit: year, requests_per_unit: %d, algorithm: token_bucket, burst: %d}
`, r.hits["fixed_window"], raisedFrom, r.hits["token_bucket"])
	written := filepath.Join(r.dir, "rules.yaml")
	if err := os.WriteFile(written, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(written, filepath.Join(r.dir, "live", "rules.yaml")); err != nil {
		r.t.Fatal(err)
	}
}

// reload raises the limit of a rule, and waits until both servers go by it.
func (r *raised) reload(rule string) {
	r.t.Helper()
	const page = "/rlconfig"
	before, _ := r.this.get("DEBUG", page)
	r.hits[rule] = raisedTo
	r.write()
	for _, d := range []*daemon{r.this, r.other} {
		d.until("the rules are loaded again", func() bool { now, _ := d.get("DEBUG", page); return now != before })
	}
}

// passes reports whether a request is admitted.
func (r *raised) passes(c rlsv3.RateLimitServiceClient, q *rlsv3.RateLimitRequest) bool {
	r.t.Helper()
	answer, err := c.ShouldRateLimit(r.t.Context(), q)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
}

// remember has d remember the rejection of a request, and shows that it answers from memory.
func (r *raised) remember(d *daemon, c rlsv3.RateLimitServiceClient, q *rlsv3.RateLimitRequest) {
	r.t.Helper()
	const rejections = "ratelimitd_near_cache_rejections_total"
	before := d.metric(rejections)
	d.until("a rejection is served from memory", func() bool {
		if r.passes(c, q) {
			r.t.Fatal("more is admitted than the limit says")
		}
		return d.metric(rejections) > before
	})
}

// TestRejectionRaised: two servers reject a key from memory when one of them learns that its limit was raised. That
// server admits the next request, and the other one does so within a second.
func TestRejectionRaised(t *testing.T) {
	t.Parallel()
	r := startRaised(t)
	this, other := r.this.client(), r.other.client()
	for _, event := range []struct {
		name  string
		raise func(t *testing.T, rule, value string)
	}{
		{"refund", func(t *testing.T, rule, value string) {
			t.Helper()
			q := request(rule, value)
			q.Descriptors[0].HitsAddend, q.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(raisedTo), true
			if !r.passes(this, q) {
				t.Error("refunding is rejected")
			}
		}},
		{"reset", func(t *testing.T, rule, value string) {
			t.Helper()
			out, err := exec.CommandContext(t.Context(), shipped.Path(t, "ratelimitd"),
				"reset", "--addr", "unix:"+r.this.At["SOCKET"], "--timeout", "1m", "shop", rule+"="+value).CombinedOutput()
			if err != nil {
				t.Fatalf("ratelimitd reset: %v\n%s", err, out)
			}
		}},
		{"reload", func(_ *testing.T, rule, _ string) { r.reload(rule) }},
	} {
		for _, rule := range []string{"fixed_window", "token_bucket"} {
			t.Run(event.name+"/"+rule, func(t *testing.T) {
				r.t = t
				one, all := request(rule, event.name), request(rule, event.name)
				all.HitsAddend = raisedFrom
				if !r.passes(this, all) {
					t.Fatal("a request for all of the limit is rejected")
				}
				r.remember(r.this, this, one)
				r.remember(r.other, other, one)
				event.raise(t, rule, event.name)
				at := time.Now()
				if !r.passes(this, one) {
					t.Error("the server that was told rejects the next request")
				}
				r.soon(other, one, at)
			})
		}
	}
}

// soon checks that requests are admitted soon after the limit was raised. That should take a second; a busy machine gets longer.
func (r *raised) soon(c rlsv3.RateLimitServiceClient, q *rlsv3.RateLimitRequest, at time.Time) {
	r.t.Helper()
	if !testkit.Poll(patience, func() bool { return r.passes(c, q) }) {
		r.t.Fatalf("the other server rejects requests %v after, want a second at most", time.Since(at))
	}
	r.t.Logf("the other server admits requests %v after", time.Since(at))
}
