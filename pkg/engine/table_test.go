package engine_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// valid returns a valid limit of an algorithm with default parameters.
func valid(a engine.Algorithm) engine.Limit {
	l := engine.Limit{Algorithm: a, Hits: 100, Window: 60 * second}
	for p := range engine.Parameters() {
		if p.TakenBy(a) {
			p.Set(&l, p.Usual(&l))
		}
	}
	return l
}

// TestFieldsAreInTheTable checks that each field of a limit is a parameter or common to all limits, and that changing it changes Equal
// and Hash.
func TestFieldsAreInTheTable(t *testing.T) {
	calendar := engine.NewZone(time.UTC).Calendar(engine.CalendarDay, 1)
	every := []string{"Algorithm", "Listed", "Hits", "Window"}
	for f := range reflect.TypeFor[engine.Limit]().Fields() {
		if !f.IsExported() {
			continue
		}
		found := false
		for a := range engine.Algorithms() {
			l := valid(a)
			changed := l
			switch v := reflect.ValueOf(&changed).Elem().FieldByIndex(f.Index); {
			case f.Type == reflect.TypeOf(calendar):
				changed.Calendar = calendar
			case v.Kind() == reflect.Bool:
				v.SetBool(!v.Bool())
			case v.CanInt():
				v.SetInt(v.Int() + 1)
			default:
				v.SetUint(v.Uint() + 1)
			}
			if l.Equal(changed) {
				t.Errorf("%s: limits of %s that differ in it are equal", f.Name, a)
			}
			if l.Hash() == changed.Hash() {
				t.Errorf("%s: limits of %s that differ in it have one hash", f.Name, a)
			}
			for p := range engine.Parameters() {
				found = found || p.Get(&l) != p.Get(&changed) && p.TakenBy(a)
			}
		}
		if of := slices.Contains(every, f.Name); found == of {
			t.Errorf("%s is in the table of parameters: %t; every limit has it: %t", f.Name, found, of)
		}
	}
}

func TestHash(t *testing.T) {
	seen := map[uint64]engine.Limit{}
	for a := range engine.Algorithms() {
		for _, change := range []func(l *engine.Limit){
			func(*engine.Limit) {},
			func(l *engine.Limit) { l.Hits++ },
			func(l *engine.Limit) { l.Hits-- }, // a log of 100 and 99 slots
			func(l *engine.Limit) { l.Window++ },
			func(l *engine.Limit) { l.Listed = true },
		} {
			l := valid(a)
			change(&l)
			h := l.Hash()
			if other, taken := seen[h]; taken {
				t.Errorf("%+v and %+v have one hash", l, other)
			}
			if p := l.Prepared(); p.Hash() != h {
				t.Errorf("%+v has another hash when it is prepared", l)
			}
			seen[h] = l
		}
	}
}

// TestParameters checks that a limit with default parameters is valid, and that Get returns the value of Set if the parameter applies.
func TestParameters(t *testing.T) {
	for a := range engine.Algorithms() {
		l := valid(a)
		if err := l.Validate(); err != nil {
			t.Errorf("%s without further keys: %v", a, err)
		}
		for p := range engine.Parameters() {
			if p == engine.ParamCalendar || p == engine.ParamTimezone {
				continue
			}
			changed := l
			p.Set(&changed, 1)
			if got := p.Get(&changed); got != 1 {
				t.Errorf("%s is set to 1, and is %d", p, got)
			}
			var f *engine.FieldError
			if err := changed.Validate(); !p.TakenBy(a) && (!errors.As(err, &f) || f.Field != p.String()) {
				t.Errorf("%s under %s: %v", p, a, err)
			}
		}
	}
}

// TestValidateReportsEverything checks that every error is reported, except those that merely follow from another one.
func TestValidateReportsEverything(t *testing.T) {
	for name, c := range map[string]struct {
		limit engine.Limit
		want  []string
	}{
		"a bucket":        {bucket(func(l *engine.Limit) { l.Burst, l.Debt, l.FillInterval, l.Precision = 0, 1<<32, 1, 5 }), []string{"burst", "precision", "debt", "fill_interval"}},
		"a log":           {limitOf(engine.SlidingLog, func(l *engine.Limit) { l.Hits, l.Align, l.CountRefused, l.Listed = 1<<20, 1, true, true }), []string{"requests_per_unit", "align", "count_refused"}},
		"a sub-window":    {limitOf(engine.SlidingWindow, func(l *engine.Limit) { l.Window, l.Precision = 0, 101 }), []string{"unit_multiplier", "precision"}},
		"burst, initial":  {bucket(func(l *engine.Limit) { l.Burst, l.Initial = 0, 6 }), []string{"burst"}},
		"debt over a lot": {bucket(func(l *engine.Limit) { l.Debt, l.Initial = 1<<63, 21 }), []string{"debt", "initial"}},
	} {
		t.Run(name, func(t *testing.T) {
			var all engine.FieldErrors
			if err := c.limit.Validate(); !errors.As(err, &all) {
				t.Fatalf("got %v", err)
			}
			var got []string
			for _, e := range all {
				got = append(got, e.Field)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("fields (-want +got):\n%s%v", d, all)
			}
		})
	}
}

// TestTraits checks that the properties in the table of algorithms agree with the engines.
func TestTraits(t *testing.T) {
	for a := range engine.Algorithms() {
		l := valid(a)
		var s engine.State
		states := []*engine.State{&s}
		if left := (engine.Limits{l}).Peek(states, midnight, engine.Take{Cost: 1, Count: 1}).Left; left != l.Capacity() {
			t.Errorf("%s: a new counter has %d left, want its capacity, %d", a, left, l.Capacity())
		}
		most := engine.Limits{l}.Peek(states, midnight, engine.Take{Cost: l.MaxCost(), Count: 1})
		more := engine.Limits{l}.Peek(states, midnight, engine.Take{Cost: l.MaxCost() + 1, Count: 1})
		if most.Admitted != 1 || more.Admitted != 0 {
			t.Errorf("%s admits its largest cost: %d, and one more: %d", a, most.Admitted, more.Admitted)
		}
		if d := (engine.Limits{l}).Take(states, midnight, engine.Take{Cost: 2, Count: 2}); a.Queues() != (d.Wait > 0 || (engine.Limits{l}).Take(states, midnight, engine.Take{Cost: 1, Count: 1}).Wait > 0) {
			t.Errorf("%s queues: %t, and the wait is %v", a, a.Queues(), d.Wait)
		}
	}
}

// TestDocs checks that docs/algorithms.md has a row per algorithm and the table of parameters. To rewrite it, run make docs, or the test
// with -rewrite.
func TestDocs(t *testing.T) {
	const (
		file       = "../../docs/algorithms.md"
		begin, end = "<!-- keys: written by make docs -->\n", "<!-- end of keys -->"
	)
	head := goldentest.Section(t, file, [2]string{begin, end}, parameterTable(), *rewrite)
	for a := range engine.Algorithms() {
		if !strings.Contains(head, "\n| `"+a.String()+"` ") {
			t.Errorf("%s has no row for %s", file, a)
		}
	}
}

func parameterTable() string {
	var b strings.Builder
	b.WriteString("\n| key | under | takes | default |\n| --- | --- | --- | --- |\n")
	for p := range engine.Parameters() {
		var takers []string
		for _, a := range p.Takers() {
			takers = append(takers, "`"+a.String()+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p, strings.Join(takers, ", "), p.Accepts(), p.Default())
	}
	return b.String() + "\n"
}

// TestDefaults checks that a documented default value is the value of a limit without the key.
func TestDefaults(t *testing.T) {
	for p := range engine.Parameters() {
		for _, a := range p.Takers() {
			l := valid(a)
			texts := map[string]string{
				"`requests_per_unit`":         strconv.FormatUint(l.Hits, 10),
				"`burst`":                     strconv.FormatUint(l.Burst, 10),
				"tokens are added one by one": "0s",

				"`true` for `fixed_window`, else `false`": strconv.FormatBool(a == engine.FixedWindow),
			}
			want, isText := texts[p.Default()]
			if !isText {
				want = strings.Trim(p.Default(), "`")
			}
			if got := p.Text(&l); got != want {
				t.Errorf("%s under %s is %s without the key, want %s", p, a, got, want)
			}
		}
	}
}
