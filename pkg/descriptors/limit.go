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
	item = RateLimit{RequestsPerUnit: saturated(l.Requests.N), Multiplier: 1, Name: l.Name.Value}
	for _, r := range l.Replaces {
		item.Replaces = append(item.Replaces, r.Value)
	}
	unit := ParseUnit(l.Unit.Value)
	if l.Unlimited.On {
		c.unlimited(l, path, unit, listed)
		item.RequestsPerUnit = 0
		return item, false
	}
	c.withoutNumber(l, path)
	before := c.Failures
	item.Unit = unit
	multiplier := l.Own(rulefile.KeyUnitMultiplier)
	if multiplier != nil && !multiplier.Broken {
		item.Multiplier = uint32(multiplier.N)
	}
	window := unit.window(item.Multiplier)
	switch {
	case window > 0 || l.Unit.Broken:
	case unit == UnitUnknown:
		c.Fail(l.Unit.Or(l.At), path, "invalid rate limit unit '%s': want %s", plain.Shorten(l.Unit.Value), rulefile.UnitNames)
	default:
		c.Fail(multiplier.At, path,
			"unit_multiplier %d: want 1 to %d for the unit %s", item.Multiplier, rulefile.MaxWindow/unit.Length(), strings.ToLower(unit.String()))
	}
	item.Limit = engine.Limit{Hits: l.Requests.N, Window: window, Listed: listed}
	known := c.algorithm(l, &item.Limit, path)
	for p := range engine.Parameters() {
		own := l.Own(p.String())
		if known && p.TakenBy(item.Limit.Algorithm) {
			p.Set(&item.Limit, usual(p, l, &item.Limit))
		}
		if own != nil && (!known || c.means(own, p, &item.Limit, path)) {
			c.parameter(own, p, &item.Limit, path)
		}
	}
	if window == 0 {
		return item, false
	}
	c.calendar(l, &item, path)
	if known {
		c.validate(l, &item.Limit, path)
	}
	item.Limit = item.Limit.Prepared()
	return item, c.Failures == before
}

// unlimited validates a limit with unlimited: true.
func (c *compiler) unlimited(l *rulefile.Limit, path string, unit Unit, listed bool) {
	switch {
	case listed:
		c.Fail(l.Unlimited.At, path, "unlimited is in an item of rate_limits: it belongs in rate_limit, without other keys")
	case unit != UnitUnknown:
		where := l.Unit.At
		if l.Unlimited.At.Overlaid() { // the overlay made it unlimited
			where = l.Unlimited.At
		}
		c.Fail(where, path, "should not specify rate limit unit when unlimited")
	case l.Unit.Value != "":
		c.Warn(l.Unit.At, path, "unit '%s' has no effect when unlimited", plain.Shorten(l.Unit.Value))
	}
	for _, o := range l.Owns {
		c.Fail(o.At, path, "%s does not apply when unlimited", o.Key)
	}
}

// algorithm parses the algorithm. It returns false if it is invalid.
func (c *compiler) algorithm(l *rulefile.Limit, limit *engine.Limit, path string) bool {
	own := l.Own(rulefile.KeyAlgorithm)
	if own == nil {
		return true
	}
	a, err := engine.ParseAlgorithm(own.Value)
	if err != nil && !own.Broken {
		c.Fail(own.At, path, "unknown algorithm '%s': want %s", plain.Shorten(own.Value), engine.AlgorithmNames())
	}
	limit.Algorithm = a
	return err == nil && !own.Broken
}

// means reports whether a parameter applies to a limit, and reports an error if it does not.
func (c *compiler) means(own *rulefile.Own, p engine.Parameter, l *engine.Limit, path string) bool {
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
func (c *compiler) parameter(own *rulefile.Own, p engine.Parameter, l *engine.Limit, path string) {
	if own.Broken {
		return
	}
	v := own.N
	switch p.Kind() {
	case engine.KindTime:
		span := c.duration(own.Key, own.Text, path)
		v, own.Broken = uint64(span), span == 0
	case engine.KindWord:
		word, ok := p.Word(own.Value)
		if !ok {
			c.Fail(own.At, path, "unknown %s '%s': want %s", p, plain.Shorten(own.Value), p.Accepts())
		}
		v, own.Broken = word, !ok
	case engine.KindNumber, engine.KindFlag, engine.KindZone:
	}
	if !own.Broken {
		p.Set(l, v)
	}
}

// validate reports the engine's errors for a limit, except those that may follow from values that have already been reported as invalid.
func (c *compiler) validate(raw *rulefile.Limit, l *engine.Limit, path string) {
	var errs engine.FieldErrors
	if !raw.Requests.At.Present() && c.misread || !errors.As(l.Validate(), &errs) {
		return
	}
	broken := func(k string) bool { o := raw.Own(k); return o != nil && o.Broken }
	for _, err := range errs {
		if !broken(err.Field) && !broken(err.Beside) {
			c.Fail(raw.Where(err.Field), path, "%v", err)
		}
	}
}
