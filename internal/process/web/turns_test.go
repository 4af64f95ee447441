package web_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/ratelimitd/ratelimitd/internal/process/web"
)

// TestH12_SlowScrapes: two callers of a network may read metrics at a time, and others get an error after a while, on either listener.
func TestH12_SlowScrapes(t *testing.T) {
	for name, handler := range map[string]func(http.Handler) http.Handler{
		"debug":      func(h http.Handler) http.Handler { return web.DebugHandler(web.Debug{Metrics: h}) },
		"Prometheus": func(h http.Handler) http.Handler { return web.MetricsHandler("/metrics", h) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read := make(chan struct{})
				h := handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-read }))
				ask := func() *httptest.ResponseRecorder {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
					return w
				}
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() { ask() })
				}
				synctest.Wait()
				if w := ask(); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "too many callers") {
					t.Errorf("a fifth: %d %s, want 503", w.Code, w.Body)
				}
				close(read)
				wg.Wait()
				if w := ask(); w.Code != http.StatusOK {
					t.Errorf("afterwards: %d", w.Code)
				}
			})
		})
	}
}
