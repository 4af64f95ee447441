package limiter

import (
	"errors"
	"fmt"

	"github.com/ratelimitd/ratelimitd/internal/leaf/count"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// ErrOverload is returned for a shed request: there was no time to ask the backend, and the fallback of one of its rules is an error. It
// wraps ErrBackend.
var ErrOverload = fmt.Errorf("%w: too many concurrent requests, so this one was not sent", ErrBackend)

// fallsBack reports whether d has a fallback other than an error.
func (l *Limiter) fallsBack(d *descriptors.Domain) bool {
	return d.FallsBack || l.config.OnFailure != descriptors.FailError
}

// Foresee reports whether a domain has rules, and whether all their fallbacks are errors, so that a shed request certainly fails.
func (l *Limiter) Foresee(domain []byte) (exists, fails bool) {
	if s := l.rules.Load(); s != nil {
		if d := s.set.Domain(domain); d != nil {
			return true, !l.fallsBack(d)
		}
	}
	return false, false
}

// admit counts r as shed if it is late, and returns an error if no fallback may decide it. A blocked request is not shed: its verdict
// needs no backend.
func (l *Limiter) admit(r *Request, p *Scratch) error {
	if !r.OutOfTime || p.domain == nil || p.blocked {
		return nil
	}
	l.counts.shed(p, shedByProcess)
	if l.fallsBack(p.domain) {
		return nil
	}
	l.counts.backendErrors.Add(1)
	return ErrOverload
}

// shed fails ops with the error of operations that the backend sheds.
func shed(ops []backend.Op) {
	for i := range ops {
		ops[i].Err = backend.ErrShed
	}
}

// Shed is the number of requests that were shed.
type Shed struct {
	Process, Store uint64 // by this process; by the backend
}

// Shed returns the number of requests shed so far.
func (l *Limiter) Shed() Shed {
	return Shed{Process: l.counts.shedAll[shedByProcess].Load(), Store: l.counts.shedAll[shedByStore].Load()}
}

// shedBy identifies the component that shed a request.
type shedBy uint8

const (
	shedByProcess shedBy = iota
	shedByStore
)

// sheds counts the shed requests of a domain, by component.
type sheds [shedByStore + 1]*count.Counter

// shed counts the request of p as shed, at most once: a request whose descriptors are charged together makes several calls.
func (c *counts) shed(p *Scratch, by shedBy) {
	if p.shed {
		return
	}
	p.shed = true
	c.shedOf(p.counts)[by].Add(1)
	c.shedAll[by].Add(1)
}

// shedOf returns the counters of d's shed requests. After maxShedDomains domains, the others share counters.
func (c *counts) shedOf(d *domain) *sheds {
	if n := d.sheds.Load(); n != nil {
		return n
	}
	n := c.sheds.Get([]byte(d.name), c.newSheds)
	d.sheds.Store(n)
	return n
}

// newSheds creates the counters of a domain's shed requests.
func (c *counts) newSheds(domain string) *sheds {
	return &sheds{
		shedByProcess: c.metrics.Count(Sheds, domain, "process"),
		shedByStore:   c.metrics.Count(Sheds, domain, "store"),
	}
}

// storeError returns the error of a request whose operation failed with err.
func storeError(err error) error {
	if errors.Is(err, backend.ErrShed) { // frequent during overload, so do not allocate
		return ErrOverload
	}
	return fmt.Errorf("%w: %w", ErrBackend, err)
}
