package memcached

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// item is an operation in progress and its result. It holds copies of its inputs, because the caller may return before the item is
// decided.
type item struct {
	at     int // index of its op
	mode   backend.Mode
	take   engine.Take
	limit  [1]engine.Limit
	now    engine.Micros
	key    string
	hits   uint64        // to add or to subtract; 0 for a check
	lasts  time.Duration // lifetime of a new counter
	result engine.Decision
	err    *remote.Error
}

// fits returns an error if memcached cannot execute op.
func (b *Backend) fits(op *backend.Op) *remote.Error {
	reference := b.config.KeyFormat == ReferenceKeys
	switch l := op.Limits; {
	case len(l) != 1 || op.Penalty != nil || l[0].BeyondCount() != "" || l[0].Listed || l[0].Window <= 0:
		return errFixedOnly
	case reference && l[0].Window%1e6 != 0:
		return errWhole
	case reference && len(op.Name) == 0:
		return errNoName
	}
	return nil
}

// newItem returns an item for op, for which fits has returned nil.
func (b *Backend) newItem(at int, op *backend.Op, now engine.Micros) *item {
	it := &item{at: at, mode: op.Mode, take: op.Take, limit: [1]engine.Limit{op.Limits[0]}, now: now}
	d := windowOf(it.limits(), now)
	start := engine.Micros(d.Window)
	it.key = b.config.keyOf(op, start)
	it.lasts = time.Duration(now-start)*time.Microsecond + d.ResetAfter + granularity
	if j := b.config.ExpirationJitter; j > 0 {
		it.lasts += rand.N(j)
	}
	switch it.mode {
	case backend.Take:
		it.hits = engine.Times(it.take.Cost, wanted(&it.take))
	case backend.Refund:
		if it.take.Window == 0 || it.take.Window >= d.Window {
			it.hits = min(engine.Times(it.take.Cost, it.take.Count), mostRefunded)
		}
	case backend.Peek, backend.Reset, backend.ForceReset, backend.Settle:
	}
	return it
}

// peeks reports whether it only reads the counter.
func (it *item) peeks() bool { return it.hits == 0 && !it.mode.Resets() }

// mostRefunded limits the hits of a refund. A counter at its maximum may have lost hits, so the refund is undone. In between, the counter
// still exceeds every limit.
const mostRefunded = engine.MaxHits - engine.MaxLimit

// windowOf returns a decision whose Window contains now and whose ResetAfter is the time until it ends.
func windowOf(l engine.Limits, now engine.Micros) engine.Decision {
	return l.Peek(states(new(engine.State)), now, engine.Take{})
}

// granularity is added to lifetimes: memcached's clock ticks once a second, and expiry counts from the last tick.
const granularity = 2 * time.Second

// expiration returns the expiry of a key written now, in memcached's format: up to thirty days, in seconds from now; beyond that, in
// seconds since the epoch on the clock of memcached's machine, which may be ahead. The latter has 31 bits, until January 2038. A later
// expiry becomes 0, which means never, because a window that loses its counter would start over. The key contains the start of the
// window, so the counter is not read after the window.
func expiration(now time.Time, lasts time.Duration) int32 {
	const (
		longest = 30 * 24 * time.Hour
		ahead   = time.Minute
	)
	if lasts <= longest {
		return int32((lasts + time.Second - 1) / time.Second)
	}
	if at := now.Add(lasts+ahead).Unix() + 1; at <= math.MaxInt32 {
		return int32(at)
	}
	return 0
}

func (it *item) limits() engine.Limits { return it.limit[:] }

func states(s *engine.State) []*engine.State { return []*engine.State{s} }

// counted returns the state of a counter with the given number of hits in the current window.
func (it *item) counted(hits uint64) []*engine.State {
	s := states(new(engine.State))
	it.limits().Take(s, it.now, engine.Take{Cost: min(hits, engine.MaxHits), Count: 1}) // rejected hits count too
	return s
}

// decideTake decides a take whose hits were added to a counter with the value before. It returns the hits to subtract: those of Extra
// that were not admitted, and those beyond the range of a counter.
func (it *item) decideTake(before uint64) (undo uint64) {
	it.result = it.limits().Take(it.counted(before), it.now, it.take)
	spent := engine.Times(it.take.Cost, it.take.Count)
	if it.result.Admitted > min(it.take.Count, engine.MaxHits) {
		spent = engine.Times(it.take.Cost, it.result.Admitted)
	}
	spent = min(spent, it.hits)
	had := min(before, engine.MaxHits)
	return it.hits - min(spent, engine.MaxHits-had)
}

// decideAt decides an op that adds nothing, on a counter with the value count.
func (it *item) decideAt(count uint64) {
	l, s := it.limits(), it.counted(count)
	switch it.mode {
	case backend.Take, backend.Peek:
		it.result = l.Peek(s, it.now, it.take)
	case backend.Refund: // the hits were refunded before
		it.result = l.Refund(s, it.now, engine.Take{Count: it.take.Count})
	case backend.Reset, backend.ForceReset:
		it.result = l.Reset(s, it.now)
	case backend.Settle: // rules with reservations are invalid with memcached
	}
}

// wanted returns the number of requests of t, including Extra.
func wanted(t *engine.Take) uint64 {
	n := min(t.Count, engine.MaxHits)
	return n + min(t.Extra, engine.MaxHits-n)
}
