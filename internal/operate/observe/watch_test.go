package observe_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func newObserver() *observe.Observer {
	return observe.New(func(context.Context) string { return "10.0.0.7:51234" })
}

func watching(t *testing.T, h *observe.Observer, o observe.Options) *observe.Watcher {
	t.Helper()
	w, err := h.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// publish sends d, decided now, to watchers.
func publish(t *testing.T, h *observe.Observer, d *limiter.Decision) {
	t.Helper()
	d.Time = time.Now()
	if sample := (limiter.Sample{Skip: 1}); h.Wants(&sample) {
		h.Observe(t.Context(), &sample, []limiter.Decision{*d})
	}
}

func decision(domain, rule string, o limiter.Outcome, pairs ...string) *limiter.Decision {
	d := &limiter.Decision{Domain: []byte(domain), Facts: limiter.Facts{Rule: rule, Outcome: o}}
	for _, pair := range pairs {
		key, value, _ := strings.Cut(pair, "=")
		d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(key), Value: []byte(value)})
	}
	return d
}

func TestFilter(t *testing.T) {
	all := []*limiter.Decision{
		decision("shop", "shop.user", limiter.Admitted, "user=ann"),
		decision("shop", "shop.user", limiter.Rejected, "user=bob"),
		decision("shop", "shop.user.path", limiter.Rejected, "user=ann", "path=/"),
		decision("shop", "", limiter.NoLimit, "other=x"),
		decision("bank", "bank.user", limiter.Failed, "user=ann"),
	}
	for name, c := range map[string]struct {
		options observe.Options
		want    []int
	}{
		"everything": {observe.Options{Filter: observe.Filter{}}, []int{0, 1, 2, 3, 4}},
		"domain":     {observe.Options{Filter: observe.Filter{Domain: "bank"}}, []int{4}},
		"rule":       {observe.Options{Filter: observe.Filter{Rule: "shop.user"}}, []int{0, 1}},
		"outcomes":   {observe.Options{Outcomes: []limiter.Outcome{limiter.Rejected, limiter.NoLimit}}, []int{1, 2, 3}},
		"value":      {observe.Options{Filter: observe.Filter{Entries: []observe.EntryFilter{{Key: "user", Value: "ann"}}}}, []int{0, 2, 4}},
		"both":       {observe.Options{Filter: observe.Filter{Domain: "shop", Entries: []observe.EntryFilter{{Key: "path", Value: "/"}, {Key: "user", AnyValue: true}}}}, []int{2}},
		"key":        {observe.Options{Filter: observe.Filter{Entries: []observe.EntryFilter{{Key: "user", AnyValue: true}}}}, []int{0, 1, 2, 4}},
		"none":       {observe.Options{Filter: observe.Filter{Entries: []observe.EntryFilter{{Key: "user"}}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newObserver()
			w := watching(t, h, c.options)
			var got []int
			for i, d := range all {
				publish(t, h, d)
				select {
				case <-w.Lines():
					got = append(got, i)
				default:
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("decisions %v, want %v", got, c.want)
			}
		})
	}
}

// TestLinesAreCopies: lines are copies, because the bytes of a request are reused.
func TestLinesAreCopies(t *testing.T) {
	h := newObserver()
	w := watching(t, h, observe.Options{})
	d := decision("shop", "shop.user", limiter.Admitted, "user=ann", "text="+strings.Repeat("x", 5000), "more=y")
	publish(t, h, d)
	copy(d.Entries[0].Value, "eve")
	line := <-w.Lines()
	if string(line.Domain) != "shop" || string(line.Entries[0].Value) != "ann" || line.Caller != "10.0.0.7:51234" {
		t.Errorf("line %+v", line)
	}
	if n := len(line.Entries); !line.Cut || n != 2 || len(line.Entries[1].Value) > 1024 {
		t.Errorf("a long decision has %d entries, cut: %t", n, line.Cut)
	}
}

// TestSlowWatcherLosesLines: a slow watcher loses lines and receives their number. Other watchers and the publisher are
// not affected.
func TestSlowWatcherLosesLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newObserver()
		slow := watching(t, h, observe.Options{})
		quick := watching(t, h, observe.Options{})
		d := decision("shop", "shop.user", limiter.Admitted, "user=ann")
		for range 2000 {
			publish(t, h, d)
			<-quick.Lines()
		}
		waiting := len(slow.Lines())
		if lost, skipped := slow.Missed(); waiting == 0 || int(lost) != 2000-waiting || skipped != 0 {
			t.Errorf("of 2000 lines %d wait, %d are lost, and %d are skipped", waiting, lost, skipped)
		}
		if lost, _ := slow.Missed(); lost != 0 {
			t.Errorf("%d lines are counted as lost twice", lost)
		}
		if lost, skipped := quick.Missed(); lost != 0 || skipped != 0 {
			t.Errorf("the quick watcher lost %d and skipped %d", lost, skipped)
		}
	})
}

func TestPerSecondAndOneIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newObserver()
		few := watching(t, h, observe.Options{PerSecond: 10})
		some := watching(t, h, observe.Options{OneIn: 10})
		d := decision("shop", "shop.user", limiter.Admitted, "user=ann")
		for range 2 {
			for range 1000 {
				publish(t, h, d)
			}
			time.Sleep(time.Second)
		}
		if _, skipped := few.Missed(); len(few.Lines()) != 20 || skipped != 1980 {
			t.Errorf("%d lines in two seconds, and %d skipped", len(few.Lines()), skipped)
		}
		if n := len(some.Lines()); n < 100 || n > 320 { // mean 200, standard deviation 13
			t.Errorf("%d of 2000 lines, want one in ten", n)
		}
	})
}

func TestBoundedWatchers(t *testing.T) {
	h := newObserver()
	if h.Watchers() != 0 {
		t.Error("a new observer has watchers")
	}
	var all []*observe.Watcher
	for range observe.MaxWatchers {
		all = append(all, watching(t, h, observe.Options{}))
	}
	if _, err := h.Watch(observe.Options{}); !errors.Is(err, observe.ErrTooMany) || !strings.Contains(err.Error(), "there are 8, the maximum") {
		t.Errorf("one more watcher: %v", err)
	}
	all[0].Close()
	all[0].Close()
	for _, w := range all {
		w.Close()
	}

	// Fewer watchers may be read-only or have tokens for some domains, which leaves room for others.
	all = nil
	for _, token := range []string{"ann", "ann", "bob", "bob", "", ""} {
		all = append(all, watching(t, h, observe.Options{Narrow: true, Token: token}))
	}
	const narrow = "there are 6 of callers who may only look"
	for token, want := range map[string]string{"ann": "there are 2 with your token", "joe": narrow, "": narrow} {
		if _, err := h.Watch(observe.Options{Narrow: true, Token: token}); !errors.Is(err, observe.ErrTooMany) || !strings.Contains(err.Error(), want) {
			t.Errorf("one more watcher of %s: %v, want %s", token, err, want)
		}
	}
	for range observe.MaxWatchers - observe.MaxNarrow {
		all = append(all, watching(t, h, observe.Options{}))
	}
	all[0].Close()
	if h.Watchers() != observe.MaxWatchers-1 {
		t.Errorf("%d watchers", h.Watchers())
	}
	for _, w := range all {
		w.Close()
	}
	if h.Watchers() != 0 {
		t.Error("watchers after all are closed")
	}
	publish(t, h, decision("shop", "", limiter.NoLimit))
}
