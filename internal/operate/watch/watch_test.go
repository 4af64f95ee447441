package watch_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/watch"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func newHub() *watch.Hub { return watch.New(func(context.Context) string { return "10.0.0.7:51234" }) }

func watching(t *testing.T, h *watch.Hub, o watch.Options) *watch.Watcher {
	t.Helper()
	w, err := h.Watch(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// at returns d, made now.
func at(d *limiter.Decision) *limiter.Decision {
	d.Time = time.Now()
	return d
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
		filter watch.Filter
		want   []int
	}{
		"everything": {watch.Filter{}, []int{0, 1, 2, 3, 4}},
		"domain":     {watch.Filter{Domain: "bank"}, []int{4}},
		"rule":       {watch.Filter{Rule: "shop.user"}, []int{0, 1}},
		"outcomes":   {watch.Filter{Outcomes: []limiter.Outcome{limiter.Rejected, limiter.NoLimit}}, []int{1, 2, 3}},
		"value":      {watch.Filter{Entries: []watch.EntryFilter{{Key: "user", Value: "ann"}}}, []int{0, 2, 4}},
		"both":       {watch.Filter{Domain: "shop", Entries: []watch.EntryFilter{{Key: "path", Value: "/"}, {Key: "user", AnyValue: true}}}, []int{2}},
		"key":        {watch.Filter{Entries: []watch.EntryFilter{{Key: "user", AnyValue: true}}}, []int{0, 1, 2, 4}},
		"none":       {watch.Filter{Entries: []watch.EntryFilter{{Key: "user"}}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHub()
			w := watching(t, h, watch.Options{Filter: c.filter})
			var got []int
			for i, d := range all {
				h.Publish(t.Context(), at(d))
				select {
				case <-w.Lines():
					got = append(got, i)
				default:
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the watcher got %v, want %v", got, c.want)
			}
		})
	}
}

// A watcher gets a copy: the bytes of a request are used again.
func TestLinesAreCopies(t *testing.T) {
	h := newHub()
	w := watching(t, h, watch.Options{})
	d := decision("shop", "shop.user", limiter.Admitted, "user=ann", "text="+strings.Repeat("x", 5000), "more=y")
	h.Publish(t.Context(), at(d))
	copy(d.Entries[0].Value, "eve")
	line := <-w.Lines()
	if line.Domain != "shop" || line.Entries[0].Value != "ann" || line.Caller != "10.0.0.7:51234" {
		t.Errorf("the line is %+v", line)
	}
	if n := len(line.Entries); !line.Cut || n != 2 || len(line.Entries[1].Value) > 1024 {
		t.Errorf("a long decision has %d entries, and cut is %t", n, line.Cut)
	}
}

// A slow watcher loses lines and is told how many; others, and who publishes, do not notice.
func TestSlowWatcherLosesLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub()
		slow := watching(t, h, watch.Options{})
		quick := watching(t, h, watch.Options{})
		d := decision("shop", "shop.user", limiter.Admitted, "user=ann")
		for range 2000 {
			h.Publish(t.Context(), at(d))
			<-quick.Lines()
		}
		waiting := len(slow.Lines())
		if lost, skipped := slow.Missed(); waiting == 0 || int(lost) != 2000-waiting || skipped != 0 {
			t.Errorf("of 2000 lines %d wait, %d are lost and %d are skipped", waiting, lost, skipped)
		}
		if lost, _ := slow.Missed(); lost != 0 {
			t.Errorf("%d lines are lost again", lost)
		}
		if lost, skipped := quick.Missed(); lost != 0 || skipped != 0 {
			t.Errorf("the quick one lost %d and skipped %d", lost, skipped)
		}
	})
}

func TestPerSecondAndOneIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub()
		few := watching(t, h, watch.Options{PerSecond: 10})
		some := watching(t, h, watch.Options{OneIn: 10})
		d := decision("shop", "shop.user", limiter.Admitted, "user=ann")
		for range 2 {
			for range 1000 {
				h.Publish(t.Context(), at(d))
			}
			time.Sleep(time.Second)
		}
		if _, skipped := few.Missed(); len(few.Lines()) != 20 || skipped != 1980 {
			t.Errorf("%d lines in two seconds, and %d are skipped", len(few.Lines()), skipped)
		}
		if n := len(some.Lines()); n < 100 || n > 320 { // 200 on average, with a deviation of 13
			t.Errorf("%d of 2000 lines, want one in ten", n)
		}
	})
}

func TestBoundedWatchers(t *testing.T) {
	h := newHub()
	if h.Watched() || h.Count() != 0 {
		t.Error("someone watches")
	}
	var all []*watch.Watcher
	for range watch.MaxWatchers {
		all = append(all, watching(t, h, watch.Options{}))
	}
	if _, err := h.Watch(watch.Options{}); !errors.Is(err, watch.ErrTooMany) || !strings.Contains(err.Error(), "there are 8, the maximum") {
		t.Errorf("one too many gets %v", err)
	}
	all[0].Close()
	all[0].Close()
	for _, w := range all {
		w.Close()
	}

	// Of those who may only look, or have tokens for some domains only, there may be fewer, so that there is room for others.
	all = nil
	for _, token := range []string{"ann", "ann", "bob", "bob", "", ""} {
		all = append(all, watching(t, h, watch.Options{Narrow: true, Token: token}))
	}
	const narrow = "there are 6 of callers who may only look"
	for token, want := range map[string]string{"ann": "there are 2 with your token", "joe": narrow, "": narrow} {
		if _, err := h.Watch(watch.Options{Narrow: true, Token: token}); !errors.Is(err, watch.ErrTooMany) || !strings.Contains(err.Error(), want) {
			t.Errorf("one more of %s: %v, want %s", token, err, want)
		}
	}
	for range watch.MaxWatchers - watch.MaxNarrow {
		all = append(all, watching(t, h, watch.Options{}))
	}
	all[0].Close()
	if h.Count() != watch.MaxWatchers-1 {
		t.Errorf("%d watch", h.Count())
	}
	for _, w := range all {
		w.Close()
	}
	if h.Watched() {
		t.Error("someone still watches")
	}
	h.Publish(t.Context(), at(decision("shop", "", limiter.NoLimit)))
}
