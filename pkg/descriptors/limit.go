package descriptors

import (
	"errors"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Defaults of keys.
const (
	defaultPrecision = 10
	defaultEscalate  = 1
)

const algorithmNames = "fixed_window, sliding_window, sliding_log, token_bucket, leaky_bucket or concurrency"

// written is one of our own keys that is present in a file, and where.
type written struct {
	k  string
	at mark
}

func present(all ...written) (out []written) {
	for _, w := range all {
		if w.at.present() {
			out = append(out, w)
		}
	}
	return out
}

// written lists the keys that are present.
func (p *rawPolicy) written() []written {
	return present(
		written{kwOnFailure, p.onFailure.at}, written{kwPenalty, p.penaltyAt},
		written{kwHolder, p.holder.at}, written{kwLease, p.lease.at},
	)
}

func (e *rawEngine) written() []written {
	return present(
		written{kwAlgorithm, e.algorithm.at}, written{kwUnitMultiplier, e.multiplier.at}, written{kwBurst, e.burst.at},
		written{kwPrecision, e.precision.at}, written{kwDebt, e.debt.at}, written{kwFillInterval, e.fillInterval.at},
		written{kwInitial, e.initial.at}, written{kwAlign, e.align.at}, written{kwCalendar, e.calendar.at}, written{kwTimezone, e.timezone.at},
		written{kwCountRefused, e.countRefused.at},
	)
}

// item checks one limit. If ok is false the item's Limit must not be used.
func (c *compiler) item(l *rawLimit, path string, listed bool) (item Item, ok bool) {
	item = Item{RequestsPerUnit: uint32(l.requests.n), Multiplier: 1, Name: l.name.s}
	for _, r := range l.replaces {
		item.Replaces = append(item.Replaces, r.s)
	}
	unit := ParseUnit(l.unit.s)
	if l.unlimited.on {
		c.unlimited(l, path, unit, listed)
		item.RequestsPerUnit = 0
		return item, false
	}
	c.withoutNumber(l, path)
	if unit == UnitUnknown {
		if !l.unit.broken {
			c.fail(l.unit.or(l.at), path, "invalid rate limit unit '%s': want %s", shorten(l.unit.s), unitNames)
		}
		return item, false
	}
	item.Unit = unit
	e := l.engine
	if e == nil {
		e = &rawEngine{}
	}
	if e.multiplier.at.present() {
		item.Multiplier = uint32(e.multiplier.n)
	}
	window := unit.window(item.Multiplier)
	if window == 0 {
		c.fail(e.multiplier.at, path, "unit_multiplier %d: want 1 to %d for the unit %s", item.Multiplier, maxWindow/unit.Length(), strings.ToLower(unit.String()))
		return item, false
	}
	item.Limit = engine.Limit{Hits: l.requests.n, Window: window, Listed: listed}
	before := len(c.problems)
	ok = c.engine(e, &item.Limit, path)
	c.calendar(e, &item, path)
	if ok = ok && len(c.problems) == before; ok {
		ok = c.validate(l, e, item.Limit, path)
		item.Limit = item.Limit.Prepared()
	}
	return item, ok
}

func (c *compiler) unlimited(l *rawLimit, path string, unit Unit, listed bool) {
	switch {
	case listed:
		c.fail(l.unlimited.at, path, "unlimited stands in an item of rate_limits: it belongs in rate_limit, alone")
	case unit != UnitUnknown:
		c.fail(l.unit.at, path, "should not specify rate limit unit when unlimited")
	case l.unit.s != "":
		c.warn(l.unit.at, path, "unit '%s' has no effect when unlimited", shorten(l.unit.s))
	}
	if l.engine != nil {
		for _, w := range l.engine.written() {
			c.fail(w.at, path, "%s means nothing when unlimited", w.k)
		}
	}
}

// engine fills in what the algorithm needs. It returns false if it has reported anything.
func (c *compiler) engine(e *rawEngine, l *engine.Limit, path string) bool {
	before := len(c.problems)
	a := engine.FixedWindow
	if e.algorithm.at.present() {
		var err error
		if a, err = engine.ParseAlgorithm(e.algorithm.s); err != nil {
			if !e.algorithm.broken {
				c.fail(e.algorithm.at, path, "unknown algorithm '%s': want %s", shorten(e.algorithm.s), algorithmNames)
			}
			return false
		}
	}
	l.Algorithm = a
	for _, w := range e.written() {
		if takers := takers(w.k); takers != nil && !slices.Contains(takers, a) {
			c.fail(w.at, path, "%s means nothing under %s: it belongs to %s", w.k, a.String(), algorithmList(takers))
		}
	}
	l.CountRefused = a == engine.FixedWindow && !l.Listed
	if e.countRefused.at.present() {
		if l.Listed {
			c.fail(e.countRefused.at, path, "count_refused means nothing in rate_limits: all limits of a list admit together, and what is refused is not counted")
		}
		l.CountRefused = e.countRefused.on
	}
	if a == engine.SlidingWindow {
		l.Precision = uint32(e.precision.or(defaultPrecision))
	}
	if a == engine.TokenBucket || a == engine.LeakyBucket {
		l.Burst = e.burst.or(l.Hits)
	}
	if a == engine.TokenBucket {
		l.Debt = e.debt.n
		l.Initial = e.initial.or(l.Burst)
		l.FillInterval = c.duration(kwFillInterval, e.fillInterval, path)
	}
	c.align(e.align, l, path)
	return len(c.problems) == before
}

func (c *compiler) align(t text, l *engine.Limit, path string) {
	if !t.at.present() || t.broken {
		return
	}
	v, ok := engine.ParamAlign.Word(t.s)
	if !ok {
		c.fail(t.at, path, "unknown align '%s': want %s", shorten(t.s), engine.ParamAlign.Accepts())
	}
	engine.ParamAlign.Set(l, v)
}

// or returns the number, or the default d if it is absent.
func (n number) or(d uint64) uint64 {
	if n.at.present() {
		return n.n
	}
	return d
}

// takers returns the algorithms that use a key; nil means all of them.
func takers(k string) []engine.Algorithm {
	switch k {
	case kwBurst:
		return []engine.Algorithm{engine.TokenBucket, engine.LeakyBucket}
	case kwPrecision:
		return []engine.Algorithm{engine.SlidingWindow}
	case kwDebt, kwFillInterval, kwInitial:
		return []engine.Algorithm{engine.TokenBucket}
	case kwAlign, kwCalendar, kwTimezone:
		return []engine.Algorithm{engine.FixedWindow}
	case kwCountRefused:
		return []engine.Algorithm{engine.FixedWindow, engine.SlidingWindow, engine.SlidingLog, engine.TokenBucket}
	}
	return nil
}

func algorithmList(all []engine.Algorithm) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.String()
	}
	return strings.Join(names, ", ")
}

// validate reports everything that the engine finds wrong with a limit.
func (c *compiler) validate(raw *rawLimit, e *rawEngine, l engine.Limit, path string) bool {
	var errs engine.FieldErrors
	if !errors.As(l.Validate(), &errs) {
		return true
	}
	for _, err := range errs {
		c.fail(raw.where(e, err.Field), path, "%v", err)
	}
	return false
}

// where returns the place of a key of a limit, or of the limit itself if the key is absent.
func (l *rawLimit) where(e *rawEngine, field string) mark {
	for _, w := range append(e.written(), written{kwRequestsPerUnit, l.requests.at}) {
		if w.k == field && w.at.present() {
			return w.at
		}
	}
	return l.at
}
