package descriptors

import (
	"errors"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// ownKey is one of our own keys of a limit, and its value.
type ownKey struct {
	k string
	value
}

// value is what a key is given: a text, or the number that stands for a number or a flag.
type value struct {
	text

	n uint64
}

// own returns one of our own keys of a limit, or nil if it is absent.
func (l *rawLimit) own(k string) *ownKey {
	if i := slices.IndexFunc(l.owns, func(o ownKey) bool { return o.k == k }); i >= 0 {
		return &l.owns[i]
	}
	return nil
}

// written is a key of a descriptor that is present in a file, and where.
type written struct {
	k  string
	at mark
}

// written lists the keys that are present; a nil p has none.
func (p *rawPolicy) written() (out []written) {
	if p == nil {
		return nil
	}
	for _, w := range []written{
		{kwOnFailure, p.onFailure.at},
		{kwPenalty, p.penaltyAt},
		{kwHolder, p.holder.at},
		{kwLease, p.lease.at},
		{kwHeaders, p.headers.at},
		{kwReserve, p.reserveAt},
	} {
		if w.at.present() {
			out = append(out, w)
		}
	}
	return out
}

// item checks one limit. If ok is false the item's Limit must not be used.
func (c *compiler) item(l *rawLimit, path string, listed bool) (item RateLimit, ok bool) {
	item = RateLimit{RequestsPerUnit: uint32(l.requests.n), Multiplier: 1, Name: l.name.s}
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
			c.fail(l.unit.or(l.at), path, "invalid rate limit unit '%s': want %s", Shorten(l.unit.s), unitNames)
		}
		return item, false
	}
	item.Unit = unit
	multiplier := l.own(kwUnitMultiplier)
	if multiplier != nil && !multiplier.broken {
		item.Multiplier = uint32(multiplier.n)
	}
	window := unit.window(item.Multiplier)
	if window == 0 {
		c.fail(multiplier.at, path, "unit_multiplier %d: want 1 to %d for the unit %s", item.Multiplier, maxWindow/unit.Length(), strings.ToLower(unit.String()))
		return item, false
	}
	item.Limit = engine.Limit{Hits: l.requests.n, Window: window, Listed: listed}
	before := c.failures
	known := c.algorithm(l, &item.Limit, path)
	for p := range engine.Parameters() {
		own := l.own(p.String())
		if known && p.TakenBy(item.Limit.Algorithm) {
			p.Set(&item.Limit, p.Usual(&item.Limit))
		}
		if own != nil && (!known || c.means(own, p, &item.Limit, path)) {
			c.parameter(own, p, &item.Limit, path)
		}
	}
	c.calendar(l, &item, path)
	if known {
		c.validate(l, &item.Limit, path)
	}
	item.Limit = item.Limit.Prepared()
	return item, c.failures == before
}

func (c *compiler) unlimited(l *rawLimit, path string, unit Unit, listed bool) {
	switch {
	case listed:
		c.fail(l.unlimited.at, path, "unlimited is in an item of rate_limits: it belongs in rate_limit, alone")
	case unit != UnitUnknown:
		where := l.unit.at
		if l.unlimited.at.overlaid() { // which made it unlimited
			where = l.unlimited.at
		}
		c.fail(where, path, "should not specify rate limit unit when unlimited")
	case l.unit.s != "":
		c.warn(l.unit.at, path, "unit '%s' has no effect when unlimited", Shorten(l.unit.s))
	}
	for _, o := range l.owns {
		c.fail(o.at, path, "%s does not apply when unlimited", o.k)
	}
}

// algorithm reads the algorithm. It returns false if that is not known.
func (c *compiler) algorithm(l *rawLimit, limit *engine.Limit, path string) bool {
	own := l.own(kwAlgorithm)
	if own == nil {
		return true
	}
	a, err := engine.ParseAlgorithm(own.s)
	if err != nil && !own.broken {
		c.fail(own.at, path, "unknown algorithm '%s': want %s", Shorten(own.s), engine.AlgorithmNames())
	}
	limit.Algorithm = a
	return err == nil && !own.broken
}

// means reports whether a parameter means something for a limit, and reports an error if not.
func (c *compiler) means(own *ownKey, p engine.Parameter, l *engine.Limit, path string) bool {
	if !p.TakenBy(l.Algorithm) {
		c.fail(own.at, path, "%s does not apply to %s: it belongs to %s", p, l.Algorithm, algorithmList(p.Takers()))
		return false
	}
	if l.Listed && p.Single() {
		c.fail(own.at, path, "%s does not apply in rate_limits: all limits of a list admit together, and what is refused is not counted", p)
		return false
	}
	return true
}

func algorithmList(all []engine.Algorithm) string {
	names := make([]string, len(all))
	for i, a := range all {
		names[i] = a.String()
	}
	return strings.Join(names, ", ")
}

// parameter sets a parameter, except those that make a calendar. A value that the parameter does not take is broken.
func (c *compiler) parameter(own *ownKey, p engine.Parameter, l *engine.Limit, path string) {
	if own.broken {
		return
	}
	v := own.n
	switch p.Kind() {
	case engine.KindTime:
		span := c.duration(own.k, own.text, path)
		v, own.broken = uint64(span), span == 0
	case engine.KindWord:
		word, ok := p.Word(own.s)
		if !ok {
			c.fail(own.at, path, "unknown %s '%s': want %s", p, Shorten(own.s), p.Accepts())
		}
		v, own.broken = word, !ok
	case engine.KindNumber, engine.KindFlag, engine.KindZone:
	}
	if !own.broken {
		p.Set(l, v)
	}
}

// validate reports everything that the engine finds wrong with a limit, except what follows from a value that could not
// be read, as that has been reported.
func (c *compiler) validate(raw *rawLimit, l *engine.Limit, path string) {
	var errs engine.FieldErrors
	if !raw.requests.at.present() && c.misread || !errors.As(l.Validate(), &errs) {
		return
	}
	broken := func(k string) bool { o := raw.own(k); return o != nil && o.broken }
	for _, err := range errs {
		if !broken(err.Field) && !broken(err.Beside) {
			c.fail(raw.where(err.Field), path, "%v", err)
		}
	}
}

// where returns the place of a key of a limit, or of the limit itself if the key is absent.
func (l *rawLimit) where(k string) mark {
	if o := l.own(k); o != nil {
		return o.at
	}
	if k == kwRequestsPerUnit && l.requests.at.present() {
		return l.requests.at
	}
	return l.at
}
