package engine_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

const (
	second engine.Micros = 1e6
	year                 = 365 * 86_400 * second
)

func bucket(change func(*engine.Limit)) engine.Limit {
	l := engine.Limit{Algorithm: engine.TokenBucket, Hits: 10, Window: second, Burst: 20, Initial: 20}
	change(&l)
	return l
}

func limitOf(a engine.Algorithm, change func(*engine.Limit)) engine.Limit {
	l := engine.Limit{Algorithm: a, Hits: 10, Window: second}
	change(&l)
	return l
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		limit engine.Limit
		want  string // field and a part of the text; empty if the limit is valid
	}{
		"fixed window":           {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.CountRefused = true; l.Align = engine.AlignFirst }), ""},
		"limit 0":                {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Hits = 0 }), ""},
		"limit 2^32-1":           {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Hits = math.MaxUint32 }), ""},
		"limit 2^32":             {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Hits = 1 << 32 }), ""},
		"limit 10^15":            {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Hits = 1e15 }), ""},
		"limit over 10^15":       {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Hits = 1e15 + 1 }), "requests_per_unit: 0 to 1000000000000000"},
		"sliding 2^32":           {limitOf(engine.SlidingWindow, func(l *engine.Limit) { l.Hits = 1 << 32; l.Precision = 1 }), "requests_per_unit: sliding_window takes 0 to 4294967295"},
		"bucket 2^32":            {bucket(func(l *engine.Limit) { l.Hits = 1 << 32 }), "requests_per_unit: token_bucket takes 0 to 4294967295"},
		"window 2^48":            {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Window = 1 << 48 }), ""},
		"window over 2^48":       {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Window = 1<<48 + 1 }), "unit_multiplier: 2^48"},
		"no window":              {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Window = 0 }), "unit_multiplier: from 1 µs"},
		"unknown algorithm":      {limitOf(255, func(*engine.Limit) {}), "algorithm: fixed_window, sliding_window"},
		"unknown alignment":      {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Align = 2 }), "align: clock or first"},
		"aligned log":            {limitOf(engine.SlidingLog, func(l *engine.Limit) { l.Align = engine.AlignFirst }), "align: belongs to fixed_window"},
		"burst of a window":      {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Burst = 1 }), "burst: belongs to token_bucket"},
		"debt of a queue":        {limitOf(engine.LeakyBucket, func(l *engine.Limit) { l.Burst = 1; l.Debt = 1 }), "debt: belongs to token_bucket"},
		"initial of a queue":     {limitOf(engine.LeakyBucket, func(l *engine.Limit) { l.Burst = 1; l.Initial = 1 }), "initial: belongs to token_bucket"},
		"steps of a log":         {limitOf(engine.SlidingLog, func(l *engine.Limit) { l.FillInterval = 1 }), "fill_interval: belongs to token_bucket"},
		"precision of a log":     {limitOf(engine.SlidingLog, func(l *engine.Limit) { l.Precision = 1 }), "precision: belongs to sliding_window"},
		"precision 0":            {limitOf(engine.SlidingWindow, func(*engine.Limit) {}), "precision: 1 to 100"},
		"precision 100":          {limitOf(engine.SlidingWindow, func(l *engine.Limit) { l.Precision = 100 }), ""},
		"precision 101":          {limitOf(engine.SlidingWindow, func(l *engine.Limit) { l.Precision = 101 }), "precision: 1 to 100"},
		"cells under a µs":       {limitOf(engine.SlidingWindow, func(l *engine.Limit) { l.Precision = 11; l.Window = 10 }), "precision: 10 µs"},
		"log of 10,000":          {limitOf(engine.SlidingLog, func(l *engine.Limit) { l.Hits = 10_000 }), ""},
		"log of 10,001":          {limitOf(engine.SlidingLog, func(l *engine.Limit) { l.Hits = 10_001 }), "requests_per_unit: 10000"},
		"10,001 at once":         {limitOf(engine.Concurrency, func(l *engine.Limit) { l.Hits = 10_001 }), "requests_per_unit: 10000"},
		"queue counts rejected":  {limitOf(engine.LeakyBucket, func(l *engine.Limit) { l.Burst = 1; l.CountRefused = true }), "count_refused: leaky_bucket"},
		"slots count refused":    {limitOf(engine.Concurrency, func(l *engine.Limit) { l.CountRefused = true }), "count_refused: concurrency"},
		"list counts rejected":   {limitOf(engine.FixedWindow, func(l *engine.Limit) { l.Listed = true; l.CountRefused = true }), "count_refused: rate_limits"},
		"bucket counts rejected": {bucket(func(l *engine.Limit) { l.CountRefused = true }), ""},
		"debt counts rejected":   {bucket(func(l *engine.Limit) { l.CountRefused = true; l.Debt = 1 }), "count_refused: debt"},
		"debt":                   {bucket(func(l *engine.Limit) { l.Debt = 30 }), ""},
		"debt 2^32":              {bucket(func(l *engine.Limit) { l.Debt = 1 << 32 }), "debt: 4294967295"},
		"burst 0":                {bucket(func(l *engine.Limit) { l.Burst = 0; l.Initial = 0 }), "burst: 1 to 4294967295"},
		"burst 2^32":             {bucket(func(l *engine.Limit) { l.Burst = 1 << 32 }), "burst: 1 to 4294967295"},
		"nothing at all":         {bucket(func(l *engine.Limit) { l.Hits = 0; l.Burst = 0; l.Initial = 0 }), ""},
		"initial over the burst": {bucket(func(l *engine.Limit) { l.Initial = 21 }), "initial: the burst, which is 20"},
		"steps":                  {bucket(func(l *engine.Limit) { l.FillInterval = 300_000 }), ""},
		"steps of half a token":  {bucket(func(l *engine.Limit) { l.FillInterval = 150_000 }), "fill_interval: a multiple of 100000 µs"},
		"steps that are uneven":  {bucket(func(l *engine.Limit) { l.Hits = 3; l.FillInterval = 333_333 }), "fill_interval: a multiple of 1000000 µs"},
		"negative steps":         {bucket(func(l *engine.Limit) { l.FillInterval = -1 }), "fill_interval: from 1 µs"},
		"steps over 2^48":        {bucket(func(l *engine.Limit) { l.FillInterval = 1 << 49 }), "fill_interval: 2^48"},
		"99 years":               {bucket(func(l *engine.Limit) { l.Hits = 1; l.Window = year; l.Burst = 99 }), ""},
		"101 years":              {bucket(func(l *engine.Limit) { l.Hits = 1; l.Window = year; l.Burst = 101 }), "burst: 100 years"},
		"101 years to pay off":   {bucket(func(l *engine.Limit) { l.Hits = 1; l.Window = year; l.Debt = 81 }), "burst: 100 years"},
		"too long for words":     {bucket(func(l *engine.Limit) { l.Hits = 1; l.Window = 1 << 48; l.Burst = math.MaxUint32 }), "burst: 100 years"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.limit.Validate()
			if c.want == "" {
				if err != nil {
					t.Fatalf("rejected: %v", err)
				}
				return
			}
			field, part, _ := strings.Cut(c.want, ": ")
			var f *engine.FieldError
			if !errors.As(err, &f) || f.Field != field || !strings.Contains(err.Error(), part) {
				t.Fatalf("got %v, want %s … %s", err, field, part)
			}
		})
	}
}

func TestValidatePenalty(t *testing.T) {
	ok := engine.Penalty{For: second, Max: second, Escalate: 1}
	if err := ok.Validate(); err != nil {
		t.Error(err)
	}
	for field, p := range map[string]engine.Penalty{
		"for":      {For: 0, Max: second, Escalate: 1},
		"max":      {For: 2 * second, Max: second, Escalate: 1},
		"on":       {For: second, Max: second, Escalate: 1, On: 2},
		"escalate": {For: second, Max: second},
	} {
		var f *engine.FieldError
		if err := p.Validate(); !errors.As(err, &f) || f.Field != field {
			t.Errorf("%+v: got %v, want what is wrong with %s", p, err, field)
		}
	}
}

func TestSlot(t *testing.T) {
	seen := map[string]engine.Limit{}
	for _, l := range []engine.Limit{
		{Algorithm: engine.FixedWindow, Window: second},
		{Algorithm: engine.FixedWindow, Window: 60 * second},
		{Algorithm: engine.FixedWindow, Window: 1 << 48},
		{Algorithm: engine.SlidingWindow, Window: second, Precision: 1},
		{Algorithm: engine.SlidingWindow, Window: second, Precision: 100},
		{Algorithm: engine.SlidingLog, Window: second},
		{Algorithm: engine.SlidingLog, Window: second, Listed: true},
		{Algorithm: engine.SlidingLog, Window: 60 * second, Listed: true},
		{Algorithm: engine.TokenBucket, Window: second},
		{Algorithm: engine.LeakyBucket, Window: second},
		{Algorithm: engine.Concurrency, Window: second},
		{Algorithm: engine.Concurrency, Window: 1 << 48, Listed: true},
	} {
		name := l.Slot().String()
		if other, taken := seen[name]; taken {
			t.Errorf("%+v and %+v are both called %s", l, other, name)
		}
		seen[name] = l
		if name == engine.GateSlot.String() || l.Slot() == engine.GateSlot {
			t.Errorf("%+v has the slot of a penalty", l)
		}
	}
	for want, l := range map[string]engine.Limit{
		"f60000000":    {Algorithm: engine.FixedWindow, Window: 60 * second, Hits: 7, Listed: true, Align: engine.AlignFirst},
		"w60000000/10": {Algorithm: engine.SlidingWindow, Window: 60 * second, Precision: 10},
		"b":            {Algorithm: engine.TokenBucket, Window: 60 * second, Burst: 7},
		"b1000000":     {Algorithm: engine.TokenBucket, Window: second, Listed: true},
		"s":            {Algorithm: engine.SlidingLog, Window: second},
	} {
		if got := l.Slot().String(); got != want {
			t.Errorf("%+v is called %s, want %s", l, got, want)
		}
	}
}

// TestLettersOfSlots checks that slot names of two algorithms differ: each algorithm has its own first letter, and p is a penalty's.
func TestLettersOfSlots(t *testing.T) {
	owners := map[byte]string{engine.GateSlot.String()[0]: "a penalty"}
	for a := range engine.Algorithms() {
		l := engine.Limit{Algorithm: a, Window: second}
		letter := l.Slot().String()[0]
		if other, taken := owners[letter]; taken || letter < 'a' || letter > 'z' {
			t.Errorf("slots of %s begin with %c, which is no letter or that of %q", a, letter, other)
		}
		owners[letter] = a.String()
	}
}

func TestNames(t *testing.T) {
	for a := range engine.Algorithms() {
		if got, err := engine.ParseAlgorithm(a.String()); got != a || err != nil {
			t.Errorf("%v parses as %v, %v", a, got, err)
		}
	}
	for on := engine.OnExceeded; on <= engine.OnReached; on++ {
		if got, err := engine.ParseTrigger(on.String()); got != on || err != nil {
			t.Errorf("%v parses as %v, %v", on, got, err)
		}
	}
	want := `"leaky" is not known; it must be ` + engine.AlgorithmNames()
	if _, err := engine.ParseAlgorithm("leaky"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestPrepared(t *testing.T) {
	l := bucket(func(l *engine.Limit) { l.Hits = 7 })
	p := l.Prepared()
	if !p.Equal(l) || !l.Equal(p) {
		t.Error("a prepared limit is another")
	}
	// Cached values must not outlive the numbers that they derive from.
	p.Hits, p.Window = 3, 60*second
	var a, b engine.State
	got := engine.Limits{p}.Take([]*engine.State{&a}, midnight, engine.Take{Cost: 20, Count: 1})
	want := engine.Limits{bucket(func(l *engine.Limit) { l.Hits, l.Window = 3, 60*second })}.Take([]*engine.State{&b},
		midnight, engine.Take{Cost: 20, Count: 1})
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestState checks Empty and Weight, by which stores decide whether to keep a state and how to count it.
func TestState(t *testing.T) {
	log := engine.Limits{limitOf(engine.SlidingLog, func(l *engine.Limit) { l.Hits = 100 })}
	var s engine.State
	states := []*engine.State{&s}
	if !s.Empty() || s.Weight() != 1 {
		t.Errorf("the zero state is empty %t and weighs %d", s.Empty(), s.Weight())
	}
	log.Peek(states, midnight, engine.Take{Cost: 1, Count: 1})
	if !s.Empty() {
		t.Error("a look leaves something")
	}
	for i := range engine.Micros(33) {
		log.Take(states, midnight+i, engine.Take{Cost: 2, Count: 1})
	}
	if s.Empty() || s.Weight() != 3 || s.Expires() != midnight+32+second {
		t.Errorf("a log of 33 stamps is empty %t, weighs %d and expires at %d", s.Empty(), s.Weight(), s.Expires()-midnight)
	}
	log.Refund(states, midnight+50, engine.Take{Cost: 100, Count: 1})
	if !s.Empty() {
		t.Error("giving all back leaves something")
	}
	log.Take(states, midnight, engine.Take{Cost: 2, Count: 1})
	if log.Reset(states, midnight); !s.Empty() {
		t.Error("a reset leaves something")
	}
}

// TestValidateDoesNotAllocate: Validate runs for each limit in a request.
func TestValidateDoesNotAllocate(t *testing.T) {
	for _, l := range []engine.Limit{
		limitOf(engine.FixedWindow, func(l *engine.Limit) { l.CountRefused = true }),
		bucket(func(l *engine.Limit) { l.Debt = 30 }),
	} {
		if n := testing.AllocsPerRun(100, func() {
			if l.Validate() != nil {
				t.Error("rejected")
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", l.Algorithm, n)
		}
	}
}
