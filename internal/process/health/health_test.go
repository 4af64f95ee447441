package health_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
)

func TestTracker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := health.NewTracker()
		if !h.OK() {
			t.Error("a Tracker without components is not well")
		}
		var seen []bool
		h.OnChange(func(ok bool) { seen = append(seen, ok) })
		begin := time.Now()
		rules := h.Add("rules", false, "no rules are loaded")
		store := h.Add("store", true, "")
		time.Sleep(time.Second)
		rules.Set(true, "")
		time.Sleep(time.Second)
		store.Set(false, "connection refused")
		rules.Set(false, "gone")
		rules.Set(true, "")
		time.Sleep(time.Second)
		store.Set(false, "connection reset")
		want := []health.Component{
			{Name: "rules", OK: true, Since: begin.Add(2 * time.Second), LastError: "gone"},
			{Name: "store", OK: false, Since: begin.Add(2 * time.Second), LastError: "connection reset"},
		}
		if d := cmp.Diff(want, h.Components()); d != "" {
			t.Errorf("components (-want +got):\n%s", d)
		}
		if h.OK() {
			t.Error("well although the store is not")
		}
		store.Degrade("rejected, and done without")
		wantStore := health.Component{Name: "store", Degraded: true, Since: begin.Add(2 * time.Second), LastError: "rejected, and done without"}
		if d := cmp.Diff(wantStore, h.Components()[1]); d != "" || !h.OK() {
			t.Errorf("with a component that the process can do without health is %t, and the component (-want +got):\n%s", h.OK(), d)
		}
		if d := cmp.Diff([]bool{true, false, true, false, true}, seen); d != "" {
			t.Errorf("changes (-want +got):\n%s", d)
		}
	})
}
