package descriptors

import (
	"errors"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// item validates a limit. If ok is false, the item's Limit must not be used.
func (c *compiler) item(l *rulefile.Limit, path string, listed bool) (item RateLimit, ok bool) {
	requests, written := l.Get(rulefile.KeyRequestsPerUnit).N, l.Get(rulefile.KeyUnit)
	item = RateLimit{RequestsPerUnit: saturated(requests), Multiplier: 1, Name: l.Get(rulefile.KeyName).Value}
	for _, r := range l.Replaces {
		item.Replaces = append(item.Replaces, r.Value)
	}
	unit := ParseUnit(written.Value)
	if l.Get(rulefile.KeyUnlimited).On() {
		c.unlimited(l, path, unit, listed)
		item.RequestsPerUnit = 0
		return item, false
	}
	c.withoutNumber(l, path)
	before := c.Failures
	item.Unit = unit
	multiplier := l.Get(rulefile.KeyUnitMultiplier)
	if multiplier.Valid() {
		item.Multiplier = uint32(multiplier.N)
	}
	window := unit.window(item.Multiplier)
	switch {
	case window > 0 || written.Broken:
	case unit == UnitUnknown:
		c.Fail(written.Or(l.At), path, "invalid rate limit unit '%s': want %s", plain.Shorten(written.Value), rulefile.UnitNames)
	default:
		c.Fail(multiplier.At, path,
			"unit_multiplier %d: want 1 to %d for the unit %s", item.Multiplier, rulefile.MaxWindow/unit.Length(), strings.ToLower(unit.String()))
	}
	item.Limit = engine.Limit{Hits: requests, Window: window, Listed: listed}
	known := c.algorithm(l, &item.Limit, path)
	for p := range engine.Parameters() {
		own := l.Get(p.String())
		if known && p.TakenBy(item.Limit.Algorithm) {
			p.Set(&item.Limit, usual(p, l, &item.Limit))
		}
		if own.At.Present() && (!known || c.means(own, p, &item.Limit, path)) {
			c.parameter(own, l, p, &item.Limit, path)
		}
	}
	if window == 0 {
		return item, false
	}
	c.calendar(l, &item, path)
	c.forever(l, &item, path)
	if known {
		c.validate(l, &item.Limit, path)
	}
	item.Limit = item.Limit.Prepared()
	return item, c.Failures == before
}

// unlimited validates a limit with unlimited: true.
func (c *compiler) unlimited(l *rulefile.Limit, path string, unit Unit, listed bool) {
	switch written, unlimited := l.Get(rulefile.KeyUnit), l.Get(rulefile.KeyUnlimited); {
	case listed:
		c.Fail(unlimited.At, path, "unlimited is in an item of rate_limits: it belongs in rate_limit, without other keys")
	case unit != UnitUnknown:
		where := written.At
		if unlimited.At.Overlaid() { // the overlay made it unlimited
			where = unlimited.At
		}
		c.Fail(where, path, "should not specify rate limit unit when unlimited")
	case written.Value != "":
		c.Warn(written.At, path, "unit '%s' has no effect when unlimited", plain.Shorten(written.Value))
	}
	for _, f := range l.In(rulefile.InItem) {
		if f.Where&rulefile.InIgnored == 0 { // an extension
			c.Fail(f.At, path, "%s does not apply when unlimited", f.Name)
		}
	}
}

// algorithm parses the algorithm. It returns false if it is invalid.
func (c *compiler) algorithm(l *rulefile.Limit, limit *engine.Limit, path string) bool {
	own := l.Get(rulefile.KeyAlgorithm)
	if !own.At.Present() {
		return true
	}
	limit.Algorithm, _ = engine.ParseAlgorithm(own.Value)
	return c.word(own, "", path)
}

// means reports whether a parameter applies to a limit, and reports an error if it does not.
func (c *compiler) means(own rulefile.Field, p engine.Parameter, l *engine.Limit, path string) bool {
	if !p.TakenBy(l.Algorithm) {
		c.Fail(own.At, path, "%s does not apply to %s: it belongs to %s", p, l.Algorithm, rulefile.AlgorithmList(p.Takers()))
		return false
	}
	if l.Listed && p.Single() {
		c.Fail(own.At, path, "%s does not apply in rate_limits: all limits of a list admit together, and rejected hits are not counted", p)
		return false
	}
	return true
}

// parameter sets a parameter, except those of a calendar. It marks an invalid value as broken.
func (c *compiler) parameter(own rulefile.Field, raw *rulefile.Limit, p engine.Parameter, l *engine.Limit, path string) {
	if own.Broken {
		return
	}
	v := own.N
	switch p.Kind() {
	case engine.KindTime:
		span := c.duration(own, path)
		v, own.Broken = uint64(span), span == 0
	case engine.KindWord:
		v, _ = p.Word(own.Value)
		own.Broken = !c.word(own, "", path)
	case engine.KindNumber, engine.KindFlag, engine.KindZone:
	}
	if own.Broken {
		raw.Break(own.Name)
	} else {
		p.Set(l, v)
	}
}

// validate reports the engine's errors for a limit, except those that may follow from values that have already been reported as invalid.
func (c *compiler) validate(raw *rulefile.Limit, l *engine.Limit, path string) {
	var errs engine.FieldErrors
	if !raw.Get(rulefile.KeyRequestsPerUnit).Valid() && c.misread || !errors.As(l.Validate(), &errs) {
		return
	}
	for _, err := range errs {
		if field := raw.Get(err.Field); !field.Broken && !raw.Get(err.Beside).Broken {
			c.Fail(field.Or(raw.At), path, "%v", err)
		}
	}
}
