package limiter

import (
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// ErrOverload is the error of a request that was shed: there was no time to ask the backend about it, and the fallback of one of
// its rules is an error. It wraps ErrBackend.
var ErrOverload = fmt.Errorf("%w: too many requests at once, so this one was not sent", ErrBackend)

// fallsBack reports whether a fallback other than an error may decide a request for d.
func (l *Limiter) fallsBack(d *descriptors.Domain) bool {
	return d.FallsBack || l.config.OnFailure != descriptors.FailError
}

// Foresee reports whether there are rules for a domain, and whether all of their fallbacks are errors, so that a request for which
// there is no time fails in any case.
func (l *Limiter) Foresee(domain []byte) (known, fails bool) {
	if s := l.rules.Load(); s != nil {
		if d := s.set.Domain(domain); d != nil {
			return true, !l.fallsBack(d)
		}
	}
	return false, false
}

// admit counts r as shed if it is late, and returns an error if no fallback may decide it. A request that a control blocks needs no
// time.
func (l *Limiter) admit(r *Request, p *Scratch) error {
	if !r.Late || p.domain == nil || p.blocked {
		return nil
	}
	l.counts.shed(p, shedByProcess)
	if l.fallsBack(p.domain) {
		return nil
	}
	l.counts.backendErrors.Add(1)
	return ErrOverload
}

// shed fails ops as the backend fails those for which it has no time.
func shed(ops []backend.Op) {
	for i := range ops {
		ops[i].Err = backend.ErrShed
	}
}

// Shed is how many requests have been shed.
type Shed struct {
	Process, Store uint64 // because this process, or the backend, had no time for them
}

// Shed returns how many requests have been shed so far.
func (l *Limiter) Shed() Shed {
	return Shed{Process: l.counts.shedAll[shedByProcess].Load(), Store: l.counts.shedAll[shedByStore].Load()}
}

// shedBy says what had no time for a request that was shed.
type shedBy uint8

const (
	shedByProcess shedBy = iota
	shedByStore
)

// sheds counts the requests of a domain that were shed, by reason.
type sheds [shedByStore + 1]*count.Counter

// shed counts the request of p as shed, once: if its descriptors are charged together, it may ask the backend several times.
func (c *counts) shed(p *Scratch, by shedBy) {
	if p.shed {
		return
	}
	p.shed = true
	c.shedOf(p.counts)[by].Add(1)
	c.shedAll[by].Add(1)
}

// shedOf returns the counters of the shed requests of d: series of its own or, once there are too many of them, the common ones of
// all other domains.
func (c *counts) shedOf(d *domain) *sheds {
	if known := d.sheds.Load(); known != nil {
		return known
	}
	known := c.sheds.Get([]byte(d.name), c.newSheds)
	d.sheds.Store(known)
	return known
}

func (c *counts) newSheds(domain string) *sheds {
	return &sheds{
		shedByProcess: c.metrics.Count(Sheds, domain, "process"),
		shedByStore:   c.metrics.Count(Sheds, domain, "store"),
	}
}

// storeError returns the error of a request whose operation failed with err.
func storeError(err error) error {
	if errors.Is(err, backend.ErrShed) { // the usual one in an overload: it costs nothing
		return ErrOverload
	}
	return fmt.Errorf("%w: %w", ErrBackend, err)
}
