package controls

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// set sets a control, in parse's syntax.
func set(t *testing.T, c *Controls, text string, span time.Duration) *override.Control {
	t.Helper()
	w := parse(text)
	w.To = descriptors.Override{RequestsPerUnit: 5, Unit: descriptors.Minute}
	if _, err := c.Set(t.Context(), w, span, false); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return w
}

// learn adds w to c without a store.
func learn(t *testing.T, c *Controls, w *override.Control) {
	t.Helper()
	e, err := entryOf(w)
	if err == nil {
		e.Created = 1
		err = c.entries.Take(&e)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestEnd: controls expire to the millisecond, and without controls there is no table.
func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(Config{})
		go func() { _ = c.Run(t.Context()) }()
		synctest.Wait()
		set(t, c, "block shop a=1", time.Hour)
		set(t, c, "allow shop a=2", 30*time.Minute) // ends before Run's timer
		set(t, c, "limit shop a=3", 6*time.Hour)
		set(t, c, "block shop a=1", 2*time.Hour) // replaces the first
		synctest.Wait()
		for _, step := range []struct {
			after               time.Duration
			block, allow, limit int
		}{
			{30*time.Minute - time.Millisecond, 1, 1, 1},
			{time.Millisecond, 1, 0, 1},
			{90*time.Minute - time.Millisecond, 1, 0, 1},
			{time.Millisecond, 0, 0, 1},
			{4*time.Hour - time.Millisecond, 0, 0, 1},
			{time.Millisecond, 0, 0, 0},
		} {
			time.Sleep(step.after)
			synctest.Wait()
			table := c.Overrides().Load()
			if b, a, l := table.Count(override.Block), table.Count(override.Allow), table.Count(override.Limit); b != step.block || a != step.allow || l != step.limit {
				t.Errorf("after another %v there are %d blocks, %d allows and %d limits in force, want %+v", step.after, b, a, l, step)
			}
		}
		if c.Overrides().Load() != nil {
			t.Error("there is a table of no controls")
		}
	})
}

// TestLift: lifted controls have no effect. If one of several is not active, none is lifted.
func TestLift(t *testing.T) {
	c := New(Config{})
	a, b := set(t, c, "block shop a=1", time.Hour), set(t, c, "block shop a=2", time.Hour)
	if _, err := c.Lift(t.Context(), []string{a.ID, "nothing"}, false); !errors.Is(err, ErrUnknown) || c.Overrides().Load().Count(override.Block) != 2 {
		t.Errorf("lifting one that is not there: %v, and %d are left", err, c.Overrides().Load().Count(override.Block))
	}
	if lifted, err := c.Lift(t.Context(), []string{a.ID, b.ID}, true); err != nil || len(lifted) != 2 || c.Overrides().Load().Count(override.Block) != 2 {
		t.Errorf("a dry run lifted %v, %v", lifted, err)
	}
	if lifted, err := c.Lift(t.Context(), []string{a.ID}, false); err != nil || len(lifted) != 1 || lifted[0].Text() != "shop a=1" {
		t.Errorf("lifted %v, %v", lifted, err)
	}
	if all := c.List(t.Context()); len(all) != 1 || all[0].ID != b.ID {
		t.Errorf("in force are %v", all)
	}
	set(t, c, "block shop a=1", time.Hour)
	if found(c.Overrides().Load(), "shop", "a=1") == "" {
		t.Error("what was lifted cannot be put in force again")
	}
}

// TestFull: 10,000 controls are accepted, and a further one is rejected unless it replaces another.
func TestFull(t *testing.T) {
	c := New(Config{})
	for i := range Max { // avoids building 10,000 tables
		w := parse(fmt.Sprintf("block shop a=%d", i))
		w.ID, w.Until = newID(), time.Now().Add(time.Hour)
		learn(t, c, w)
	}
	w := parse("block shop b=1")
	_, err := c.Set(t.Context(), w, time.Hour, false)
	if !errors.Is(err, ErrFull) || err.Error() != "there is no room for another control: 10000 are active, which is the maximum: lift some first" {
		t.Errorf("one more: %v", err)
	}
	set(t, c, "block shop a=1", 2*time.Hour)
	if n := c.Overrides().Load().Count(override.Block); n != Max {
		t.Errorf("%d are in force, want %d", n, Max)
	}
}

// TestScoped: controls with tokens for some domains leave room for others, in total and by domain.
func TestScoped(t *testing.T) {
	c := New(Config{})
	add := func(domain string, from, n int) {
		for i := range n {
			w := parse(fmt.Sprintf("block %s a=%d", domain, from+i))
			w.ID, w.Until = newID(), time.Now().Add(time.Hour)
			learn(t, c, w)
		}
	}
	set := func(domain string, scoped bool) error {
		w := parse("block " + domain + " b=1")
		w.Scoped = scoped
		_, err := c.Set(t.Context(), w, time.Hour, true)
		return err
	}
	add("shop", 0, MaxOfDomain)
	if err := set("shop", true); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "1000 are active in this domain") {
		t.Errorf("one more of a domain: %v", err)
	}
	if err := errors.Join(set("other", true), set("shop", false)); err != nil {
		t.Errorf("in another domain, and for other tokens: %v", err)
	}
	add("many", 0, MaxScoped)
	if err := set("other", true); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "5000 are active, the maximum for tokens") {
		t.Errorf("one more in all: %v", err)
	}
	if err := set("other", false); err != nil {
		t.Errorf("for other tokens: %v", err)
	}
}

// TestIDs: an ID reveals nothing about its control, and stays when the control is replaced.
func TestIDs(t *testing.T) {
	one, other := New(Config{}), New(Config{})
	id := func(c *Controls, text string, span time.Duration) string {
		w := parse(text)
		if _, err := c.Set(t.Context(), w, span, false); err != nil {
			t.Fatal(err)
		}
		return w.ID
	}
	first := id(one, "block shop ip=203.0.113.9", time.Hour)
	if again := id(one, "block shop ip=203.0.113.9", 2*time.Hour); again != first || len(first) != 16 {
		t.Errorf("the block has the ID %s, and then %s", first, again)
	}
	if there := id(other, "block shop ip=203.0.113.9", time.Hour); there == first {
		t.Errorf("the same block has the same ID elsewhere, %s, so that it can be found by trying", first)
	}
	if n := one.Overrides().Load().Count(override.Block); n != 1 {
		t.Errorf("%d blocks are in force, want 1", n)
	}
}

// TestInvalid: a control that can never be active is rejected with the valid values.
func TestInvalid(t *testing.T) {
	valid := func() *override.Control { return parse("block shop a=1") }
	for _, tt := range []struct {
		change func(*override.Control)
		span   time.Duration
		want   string
	}{
		{func(c *override.Control) { c.Domain = "" }, time.Hour, "the domain is empty"},
		{func(c *override.Control) { c.Entries = nil }, time.Hour, "add at least one, or set below"},
		{func(c *override.Control) { c.Entries = make([]override.Entry, 65) }, time.Hour, "each entry needs a key"},
		{func(c *override.Control) { c.Entries = slicesOf(257) }, time.Hour, "has 257 entries: it may have at most 256"},
		{func(c *override.Control) { c.Domain = strings.Repeat("x", 4097) }, time.Hour, "4099 bytes: they may have at most 4096"},
		{func(c *override.Control) { c.Reason = strings.Repeat("x", 501) }, time.Hour, "501 bytes: it may have at most 500"},
		{func(*override.Control) {}, Longest + time.Second, "must be from 1s to 30 days (720h)"},
		{func(*override.Control) {}, time.Second - 1, "must be from 1s to 30 days (720h)"},
		{func(*override.Control) {}, -time.Hour, "must be from 1s to 30 days (720h)"},
		{func(c *override.Control) { c.Kind = override.Limit }, time.Hour, "must be second, minute,"},
	} {
		c, w := New(Config{}), valid()
		tt.change(w)
		_, err := c.Set(t.Context(), w, tt.span, false)
		if _, ok := errors.AsType[InvalidError](err); !ok || !strings.Contains(err.Error(), tt.want) || c.Overrides().Load() != nil {
			t.Errorf("%v for %v: %v, want an error with %q", w, tt.span, err, tt.want)
		}
	}
}

func slicesOf(n int) (all []override.Entry) {
	for i := range n {
		all = append(all, override.Entry{Key: fmt.Sprint(i)})
	}
	return all
}

// TestRecord: converting a control to an entry and back preserves it, for any bytes.
func TestRecord(t *testing.T) {
	w := &override.Control{
		Kind: override.Limit, Domain: "sh\xffop", Entries: []override.Entry{{Key: "a\x00 ", Value: "\xfe,;"}, {Key: "b"}},
		Below: true, LimitName: "day", By: "me", Reason: "why not",
		To:    descriptors.Override{RequestsPerUnit: 7, Unit: descriptors.Week, Multiplier: 3},
		Since: time.UnixMilli(1_700_000_000_000), Until: time.UnixMilli(1_700_000_360_000),
	}
	w.ID = newID()
	e, err := entryOf(w)
	if err != nil {
		t.Fatal(err)
	}
	got, lifted, err := fromEntry(&e)
	if err != nil || lifted || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", w) {
		t.Errorf("got %+v, %t, %v; want %+v", got, lifted, err, w)
	}
	e, err = liftedOf(w)
	if err != nil {
		t.Fatal(err)
	}
	if got, lifted, err = fromEntry(&e); err != nil || !lifted || got.Domain != w.Domain || e.Key != keyOf(w) {
		t.Errorf("lifted: %+v, %t, %v", got, lifted, err)
	}
	for _, text := range []string{
		"", "{}", `{"id":"x","kind":"explode","domain":"c2hvcA==","entries":[["YQ==","MQ=="]]}`,
		`{"id":"x","kind":"block","domain":""}`, `{"kind":"block","domain":"c2hvcA==","entries":[["YQ==","MQ=="]]}`,
	} {
		e.Text = text
		if c, _, err := fromEntry(&e); err == nil {
			t.Errorf("%s is the control %+v", text, c)
		}
	}
}

// TestKept: lifted controls are remembered until their original expiry. Their number is limited too, and leaves room for tokens for
// all domains.
func TestKept(t *testing.T) {
	c := New(Config{})
	add := func(domain string, n int) {
		for i := range n {
			e, err := liftedOf(parse(fmt.Sprintf("block %s a=%d", domain, i)))
			if err != nil {
				t.Fatal(err)
			}
			if e.Created, e.Expires = 1, time.Now().Add(time.Hour).UnixMilli(); c.entries.Take(&e) != nil {
				t.Fatal("it cannot be read")
			}
		}
	}
	set := func(domain string, scoped bool) error {
		w := parse("block " + domain + " b=1")
		w.Scoped = scoped
		_, err := c.Set(t.Context(), w, time.Hour, true)
		return err
	}
	full := func(err error) bool {
		return errors.Is(err, ErrFull) && strings.Contains(err.Error(), "too many lifted controls are remembered")
	}
	add("shop", MaxKept/10)
	if err := set("shop", true); !full(err) {
		t.Errorf("one more of a domain: %v", err)
	}
	if err := errors.Join(set("other", true), set("shop", false)); err != nil {
		t.Errorf("in another domain, and for other tokens: %v", err)
	}
	add("many", MaxKept/2)
	if err := set("other", true); !full(err) {
		t.Errorf("one more in all: %v", err)
	}
	add("all", MaxKept)
	if err := set("other", false); !full(err) {
		t.Errorf("one more for other tokens: %v", err)
	}
	c.entries.Settle(time.Now().Add(2 * time.Hour).UnixMilli())
	if err := set("other", true); err != nil {
		t.Errorf("once they would have ended: %v", err)
	}
}
