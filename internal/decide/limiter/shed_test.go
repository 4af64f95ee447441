package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

const policies = `
domain: mixed
descriptors:
- {key: error, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: allow, rate_limit: {unit: hour, requests_per_unit: 2, on_failure: allow}}
- {key: deny, rate_limit: {unit: hour, requests_per_unit: 2, on_failure: deny}}
- {key: local, rate_limit: {unit: hour, requests_per_unit: 2, on_failure: local}}

`

// TestShed checks that the fallbacks of the rules decide a request for which this process or the backend has no time, without asking the
// backend, and that it is counted with the reason.
func TestShed(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"process", "store"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			asked := 0
			full := &calls{Backend: still(), before: func() { asked++ }, err: backend.ErrShed}
			r := stats.New()
			l := limiter.New(full, r, limiter.Config{Local: memory.New(memory.Config{})})
			load(t, l, policies)
			var scratch limiter.Scratch
			decide := func(what string) (*limiter.Verdict, error) {
				q := request("mixed", what)
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if reason == "process" {
					q.OutOfTime = true
				}
				return l.Decide(ctx, q, &scratch)
			}
			if _, err := decide("error=a"); !errors.Is(err, limiter.ErrOverload) || !errors.Is(err, limiter.ErrBackend) {
				t.Errorf("error: %v, want ErrOverload", err)
			}
			for range 3 {
				if v, err := decide("allow=a"); err != nil || v.Over {
					t.Errorf("allow: over is %v, and the error %v", v != nil && v.Over, err)
				}
				if v, err := decide("deny=a"); err != nil || !v.Over {
					t.Errorf("deny: passes, or the error is %v", err)
				}
			}
			for i := range 4 {
				if v, err := decide("local=a"); err != nil || v.Over != (i >= 2) {
					t.Errorf("local, hit %d of 2: over is %v, and the error %v", i+1, v != nil && v.Over, err)
				}
			}
			if reason == "process" && asked > 0 {
				t.Errorf("the store was asked %d times", asked)
			}
			w := httptest.NewRecorder()
			r.Handler(stats.PrometheusConfig{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
			if text, want := w.Body.String(), `ratelimitd_shed_total{domain="mixed",reason="`+reason+`"} 11`; !strings.Contains(text, want) {
				t.Errorf("want %s in\n%s", want, text)
			}
		})
	}
}

// TestShedOnce checks that a request whose descriptors are charged together counts as shed once, although the backend sheds both its
// checks and its takes.
func TestShedOnce(t *testing.T) {
	t.Parallel()
	asked := 0
	full := &calls{Backend: still(), before: func() { asked++ }, err: backend.ErrShed}
	r := stats.New()
	l := limiter.New(full, r, limiter.Config{})
	load(t, l, strings.Replace(policies, "domain: mixed", "domain: mixed\ncharge: together", 1))
	var scratch limiter.Scratch
	q := request("mixed", "allow=a")
	q.Descriptors = append(q.Descriptors, request("mixed", "allow=b").Descriptors...)
	for range 3 {
		if v, err := l.Decide(t.Context(), q, &scratch); err != nil || v.Over {
			t.Fatalf("over is %v, and the error %v", v != nil && v.Over, err)
		}
	}
	if asked != 6 {
		t.Errorf("the store was asked %d times, want twice for each of 3 requests", asked)
	}
	w := httptest.NewRecorder()
	r.Handler(stats.PrometheusConfig{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if text, want := w.Body.String(), `ratelimitd_shed_total{domain="mixed",reason="store"} 3`; !strings.Contains(text, want) {
		t.Errorf("want %s in\n%s", want, text)
	}
	if got := l.Shed(); got != (limiter.Shed{Store: 3}) {
		t.Errorf("shed so far: %+v, want 3 by the store", got)
	}
}

// calls is a backend that records calls and can fail.
type calls struct {
	backend.Backend

	before func()
	saw    func(context.Context)
	err    error
}

func (c *calls) Apply(ctx context.Context, ops []backend.Op) {
	if c.before != nil {
		c.before()
	}
	if c.saw != nil {
		c.saw(ctx)
	}
	if c.err == nil {
		c.Backend.Apply(ctx, ops)
		return
	}
	for i := range ops {
		ops[i].Err = c.err
	}
}

// TestForesee checks the result of Foresee: whether a domain has rules, and whether all fallbacks of these are errors.
func TestForesee(t *testing.T) {
	t.Parallel()
	const failing = "domain: failing\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]"
	l := limiter.New(still(), stats.New(), limiter.Config{})
	foresee := func(domain string, wantKnown, wantFails bool) {
		t.Helper()
		if known, fails := l.Foresee([]byte(domain)); known != wantKnown || fails != wantFails {
			t.Errorf("%q: known is %v, and that its policies fail is %v", domain, known, fails)
		}
	}
	foresee("failing", false, false) // there are no rules yet
	load(t, l, failing, policies)
	foresee("failing", true, true)
	foresee("mixed", true, false)
	foresee("other", false, false)
	foresee("", false, false)
}

// TestShedSeriesAreBounded checks that a set of many domains creates few series of shed requests, both initially and later.
func TestShedSeriesAreBounded(t *testing.T) {
	t.Parallel()
	const domains = 3000
	var files []string
	for i := range domains {
		files = append(files, fmt.Sprintf("domain: d%04d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1}}]", i))
	}
	r := stats.New()
	l := limiter.New(still(), r, limiter.Config{})
	load(t, l, files...)
	series := func() (n, sum int) {
		w := httptest.NewRecorder()
		r.Handler(stats.PrometheusConfig{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		for line := range strings.Lines(w.Body.String()) {
			if value, ok := strings.CutPrefix(line, "ratelimitd_shed_total{"); ok {
				n++
				one, err := strconv.Atoi(strings.Fields(value)[1])
				if err != nil {
					t.Fatal(err)
				}
				sum += one
			}
		}
		return n, sum
	}
	if n, _ := series(); n == 0 || n > 200 {
		t.Errorf("before anything is shed there are %d series, want some, and at most 200", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	var scratch limiter.Scratch
	for range 2 {
		for i := range domains {
			q := request(fmt.Sprintf("d%04d", i), "a=1")
			q.OutOfTime = true
			if _, err := l.Decide(ctx, q, &scratch); !errors.Is(err, limiter.ErrOverload) {
				t.Fatalf("domain %d: %v", i, err)
			}
		}
	}
	if n, sum := series(); n > 2002 || sum != 2*domains {
		t.Errorf("%d series count %d requests, want at most 2,002, and %d", n, sum, 2*domains)
	}
	if got := l.Shed(); got != (limiter.Shed{Process: 2 * domains}) {
		t.Errorf("shed so far: %+v, want %d by the process", got, 2*domains)
	}
}
