package web_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/process/web"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// way is everything that a request goes through, from the listeners to the store.
type way struct {
	limiter     *limiter.Limiter
	main, debug string // addresses
}

func startWay(t *testing.T, store backend.Backend, rules string) way {
	t.Helper()
	registry := stats.New()
	w := way{limiter: limiter.New(store, registry, limiter.Config{})}
	w.limiter.SetRules(rulefiletest.Load(t, rules))
	m := echo()
	m.JSON = rls.New(w.limiter, rls.Config{}).JSON
	w.main, _ = start(t, web.MainHandler(m), web.Limits{})
	w.debug, _ = start(t, web.DebugHandler(web.Debug{Metrics: registry.Handler(stats.PrometheusConfig{})}), web.Limits{})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

const oneRule = `domain: shop
descriptors:
  - key: a
    rate_limit: {unit: hour, requests_per_unit: 2}
`

// down is a store that cannot be reached, or that hangs, unless its caller has a deadline.
type down struct{ hang bool }

func (d down) Apply(ctx context.Context, ops []backend.Op) {
	err := errors.New("connection refused")
	if _, dated := ctx.Deadline(); d.hang && dated {
		return
	} else if d.hang {
		<-ctx.Done()
		err = ctx.Err()
	}
	for i := range ops {
		ops[i].Err = err
	}
}

func (down) Close() error { return nil }

func TestH03_StoreDown(t *testing.T) {
	const body = `{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`
	w := startWay(t, down{}, oneRule)
	if got := do(t, "POST", "http://"+w.main+"/json", body); got.Status != http.StatusServiceUnavailable {
		t.Errorf("a store that is down: %v; want 503", got)
	}
	// Requests that need no counter are answered nevertheless.
	other := strings.ReplaceAll(body, `"a"`, `"b"`)
	if got := do(t, "POST", "http://"+w.main+"/json", other); got.Status != http.StatusOK {
		t.Errorf("a descriptor without a limit: %v; want 200", got)
	}
}

// A store that hangs delays an answer by no more than the time that /json allows, which is no deadline for the store:
// it waits as long as it does for callers who have none.
func TestH03_StoreHangs(t *testing.T) {
	t.Parallel()
	w := startWay(t, down{hang: true}, oneRule)
	begin := time.Now()
	got := do(t, "POST", "http://"+w.main+"/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]}]}`)
	if d := time.Since(begin); got.Status < 500 || d > 50*time.Second {
		t.Errorf("%v after %v; want an error of the server within 5 s", got, d)
	}
}

func TestH04_Bodies(t *testing.T) {
	w := startWay(t, memory.New(memory.Config{}), strings.Replace(oneRule, "requests_per_unit: 2", "requests_per_unit: 1000", 1))
	descriptor := func(more string) string {
		return `{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"1"}]` + more + `}]}`
	}
	for name, tt := range map[string]struct {
		body string
		want int
	}{
		"nothing":                    {"", 400},
		"no JSON":                    {"not json", 400},
		"an array":                   {"[]", 400},
		"null":                       {"null", 400},
		"two values":                 {descriptor("") + descriptor(""), 400},
		"no domain":                  {`{"domain":"","descriptors":[{}]}`, 400},
		"no descriptors":             {`{"domain":"shop"}`, 400},
		"an unknown field":           {`{"domain":"shop","nope":1}`, 400},
		"a field twice":              {`{"domain":"shop","domain":"shop","descriptors":[{}]}`, 400},
		"a field in both spellings":  {descriptor(`,"hitsAddend":"1","hits_addend":"1"`), 400},
		"deeply nested":              {strings.Repeat(`{"descriptors":[`, 10_000) + strings.Repeat("]}", 10_000), 400},
		"deeply nested, unknown":     {`{"x":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "}", 400},
		"cut off":                    {descriptor("")[:40], 400},
		"hits as a string":           {descriptor(`,"hitsAddend":"1"`), 200},
		"hits in snake case":         {descriptor(`,"hits_addend":"1"`), 200},
		"hits of 2^64 − 1":           {strings.Replace(descriptor(`,"hitsAddend":"18446744073709551615"`), `"1"`, `"2"`, 1), 429},
		"hits of 2^64":               {descriptor(`,"hitsAddend":"18446744073709551616"`), 400},
		"hits of 1e400":              {descriptor(`,"hitsAddend":1e400`), 400},
		"negative hits":              {descriptor(`,"hitsAddend":-1`), 400},
		"a fraction of a hit":        {descriptor(`,"hitsAddend":0.5`), 400},
		"NaN":                        {descriptor(`,"hitsAddend":NaN`), 400},
		"NaN as a string":            {descriptor(`,"hitsAddend":"NaN"`), 400},
		"hits beyond 32 bits":        {`{"domain":"shop","hitsAddend":4294967296,"descriptors":[{}]}`, 400},
		"half a surrogate":           {`{"domain":"shop","descriptors":[{"entries":[{"key":"a","value":"\ud800"}]}]}`, 400},
		"no UTF-8":                   {"{\"domain\":\"shop\",\"descriptors\":[{\"entries\":[{\"key\":\"a\",\"value\":\"\xff\"}]}]}", 400},
		"too many descriptors":       {`{"domain":"shop","descriptors":[` + strings.Repeat("{},", 1024) + `{}]}`, 400},
		"too many entries":           {`{"domain":"shop","descriptors":[{"entries":[` + strings.Repeat("{},", 256) + `{}]}]}`, 400},
		"a unit that no one knows":   {descriptor(`,"limit":{"requestsPerUnit":5,"unit":"FORTNIGHT"}`), 400},
		"a unit that is only a name": {descriptor(`,"limit":{"requestsPerUnit":5,"unit":"UNKNOWN"}`), 200},
	} {
		t.Run(name, func(t *testing.T) {
			got := do(t, "POST", "http://"+w.main+"/json", tt.body)
			if got.Status != tt.want {
				t.Errorf("%d %.200s; want %d", got.Status, got.Body, tt.want)
			}
			if tt.want == 400 && (got.Body != "Bad Request\n" || got.Type != plainText) {
				t.Errorf("answer %v; want the reference's", got)
			}
		})
	}
}

// Whatever a hundred thousand callers send, the metrics stay small and quick: at most 1 MB in at most 200 ms. The test fails
// only at ten times that, to allow for the race detector and a busy machine.
func TestH08_MetricsUnderAttack(t *testing.T) {
	w := startWay(t, memory.New(memory.Config{MaxKeys: 10_000}), `domain: shop
descriptors:
  - key: plain
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 2}
`)
	var wg sync.WaitGroup
	for half := range 2 {
		wg.Go(func() {
			var scratch limiter.Scratch
			entry := make([]descriptors.Entry, 1)
			for i := range 50_000 {
				value := fmt.Appendf(nil, "%d-%d-%s", half, i, "attack")
				domain := []byte("shop")
				switch i % 3 {
				case 0:
					entry[0] = descriptors.Entry{Key: []byte("plain"), Value: value}
				case 1:
					entry[0] = descriptors.Entry{Key: []byte("detailed"), Value: value}
				default:
					entry[0], domain = descriptors.Entry{Key: []byte("k"), Value: value}, value
				}
				r := &limiter.Request{Domain: domain, Descriptors: []limiter.Descriptor{{Entries: entry}}}
				if _, err := w.limiter.Decide(t.Context(), r, &scratch); err != nil {
					t.Errorf("deciding: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	best := time.Hour // the best of several attempts, since the machine may be busy
	for range 5 {
		begin := time.Now()
		got := do(t, "GET", "http://"+w.debug+"/metrics", "")
		best = min(best, time.Since(begin))
		if got.Status != 200 || len(got.Body) > 1<<20 || !strings.Contains(got.Body, "__other__") {
			t.Fatalf("/metrics: %d with %d bytes; want 200 with at most 1 MB, and __other__ in it", got.Status, len(got.Body))
		}
	}
	if best > 2*time.Second {
		t.Errorf("/metrics took %v; want at most 200 ms", best)
	}
}
