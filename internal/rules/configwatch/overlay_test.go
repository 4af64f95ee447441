package configwatch_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch"
	"github.com/ratelimitd/ratelimitd/internal/rules/overlay"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// TestTheLastGoodOverlayStays: rules and overlay change separately in any order. The newest valid combination is in use;
// if both newest are invalid together, the changed one is used with the last good other one.
func TestTheLastGoodOverlayStays(t *testing.T) {
	t.Parallel()
	f := &fixture{}
	c := configwatch.Quiet()
	c.Overlay, c.Compare = overlay.With, compare
	loads, newest := 0, false
	c.Loaded = func(_ *descriptors.Set, _ int, is bool) { loads, newest = loads+1, is }
	f.Watch = configwatch.New(slog.New(slog.NewTextHandler(&f.log, nil)), c)
	lay := func(keys string) func() error {
		return func() error {
			return f.Overlay().Update([]descriptors.Source{source("o.yaml", "domain: shop\ndescriptors:\n  - key: login\n    rate_limit: {"+keys+"}\n")}, nil)
		}
	}
	rules := func(limit string) func() error {
		return func() error { return f.Update([]descriptors.Source{login(limit)}, nil) }
	}
	unread := func() error { return f.Overlay().Update(nil, descriptors.Problems{{File: "o.yaml", Text: "gone"}}) }
	for _, step := range []struct {
		what string
		do   func() error
		err  string // part of the error; empty if none
		want string // the rule in use; empty if none
		log  string // part of the log
	}{
		{"an overlay before any rules is kept", lay("algorithm: nonsense"), "", "", ""},
		{"and is told with the first rules, which are invalid", rules("3"), "o.yaml:4:29: shop.login: unknown algorithm", "", "serving=none"},
		{"a good one lets them in", lay("algorithm: sliding_log"), "", "3 per minute, sliding_log", "rules loaded"},
		{"rules change", rules("4"), "", "4 per minute, sliding_log", "rules changed"},
		{"a bad overlay", lay("algorithm: nonsense"), "o.yaml:4:29", "4 per minute, sliding_log", "last good"},
		{"rules change beside it", rules("5"), "", "5 per minute, sliding_log", "not used together"},
		{"the same rules beside it are not loaded again", rules("5"), "", "5 per minute, sliding_log", "not used together"},
		{"bad rules beside it: the error is of the rules", rules("x"), "a.yaml:4", "5 per minute, sliding_log", "last good"},
		{"a good overlay beside bad rules", lay("algorithm: token_bucket"), "", "5 per minute, token_bucket", "not used together"},
		{"good rules again", rules("20000"), "", "20000 per minute, token_bucket", "rules changed"},
		{"an overlay that these rules do not go with", lay("algorithm: sliding_log"), "a.yaml:4", "20000 per minute, token_bucket", "last good"},
		{"until they do", rules("6"), "", "6 per minute, sliding_log", "rules changed"},
		{"an overlay that is gone", unread, "o.yaml: gone", "6 per minute, sliding_log", "last good"},
	} {
		before, loaded := f.OverlayRevision(), loads
		err := step.do()
		beside := step.log == "not used together"
		if fresh := loads > loaded; fresh && newest == beside || beside && fresh == strings.Contains(step.what, "not loaded again") {
			t.Errorf("%s: loaded %t, newest %t", step.what, fresh, newest)
		}
		switch {
		case step.err == "" && err != nil, step.err != "" && (err == nil || !strings.Contains(err.Error(), step.err)):
			t.Errorf("%s: %v, want %q", step.what, err, step.err)
		}
		got := ""
		if set := f.Rules(); set != nil {
			for r := range set.Rules() {
				got = r.String()
			}
		}
		if log := f.logged(); got != step.want || !strings.Contains(log, step.log) {
			t.Errorf("%s: %q, want %q; log\n%s", step.what, got, step.want, log)
		}
		if beside && (f.Last().Err == nil || f.Last().Changes != nil && !slices.Equal(lines(f.Last()), lines(f.Accepted()))) {
			t.Errorf("%s: what is invalid is forgotten: %+v", step.what, f.Last())
		} else if !beside && step.err == "" && f.Last() != nil && f.Last().Err != nil {
			t.Errorf("%s: what was invalid is not over: %+v", step.what, f.Last())
		}
		if changed := f.OverlayRevision() != before; changed != strings.Contains(step.what, "overlay") && !strings.Contains(step.what, "a good one") {
			t.Errorf("%s: the number of the overlay changed: %t", step.what, changed)
		}
	}
	if tried := f.Overlay().Try([]descriptors.Source{source("o.yaml", "domain: shop\nquota_group_by: [login]\n")}, nil); tried.Err != nil || len(lines(tried)) != 2 {
		t.Errorf("%+v", tried)
	}
	if accepted := f.Accepted(); f.Try([]descriptors.Source{login("6")}, nil).Version == accepted.Version || f.Last() == accepted {
		t.Error("a version without its overlay, or a invalid overlay that is not the last outcome")
	}
}
