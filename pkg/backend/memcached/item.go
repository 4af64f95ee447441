package memcached

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// item is one operation in progress: its command and its result. It holds copies of everything that it needs, because the caller
// may give up before it is done.
type item struct {
	at     int // the index of its op
	mode   backend.Mode
	take   engine.Take
	limit  [1]engine.Limit
	now    engine.Micros
	key    string
	hits   uint64        // to add, or to take away; 0 is a check
	lasts  time.Duration // how long a new counter is kept
	result engine.Decision
	err    *remote.Error
}

// fits returns why op is not possible with memcached, or nil.
func (b *Backend) fits(op *backend.Op) *remote.Error {
	if len(op.Limits) != 1 || op.Penalty != nil {
		return errFixedOnly
	}
	switch l := &op.Limits[0]; {
	case l.BeyondCount() != "" || l.Listed || l.Window <= 0:
		return errFixedOnly
	case b.config.KeyFormat == ReferenceKeys && l.Window%1e6 != 0:
		return errWhole
	case b.config.KeyFormat == ReferenceKeys && len(op.Name) == 0:
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
	length := time.Duration(now-start)*time.Microsecond + d.ResetAfter
	it.lasts = length + granularity
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

// looks reports whether it only reads a counter.
func (it *item) looks() bool { return it.hits == 0 && !it.mode.Resets() }

// mostRefunded is the most that one refund takes away from a counter. A counter at its maximum may have lost hits, so the refund adds
// its hits again. In between the counter is still above every limit.
const mostRefunded = engine.MaxHits - math.MaxUint32

// windowOf returns a decision with the Window that contains now and, as ResetAfter, the time until it ends. It leaves
// both to pkg/engine.
func windowOf(l engine.Limits, now engine.Micros) engine.Decision {
	return l.Peek(states(new(engine.State)), now, engine.Take{})
}

// granularity is by how much memcached may drop a key too early: its clock ticks once a second, and expiry counts from
// the last tick.
const granularity = 2 * time.Second

// expiration returns the expiry of a key written now, in memcached's format: in seconds from now up to thirty days, and
// beyond that in seconds since the epoch. The latter is compared with the clock of memcached's machine, which may be
// ahead. It has only 31 bits, enough until January 2038: a key that is to last longer never expires (0), because
// without its counter the window would start again. The window's start is part of the key, so it is not read after
// the window.
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

// counted returns the state of a counter that has counted that many hits in the current window.
func (it *item) counted(hits uint64) []*engine.State {
	s := states(new(engine.State))
	it.limits().Take(s, it.now, engine.Take{Cost: min(hits, engine.MaxHits), Count: 1}) // rejected hits count too, so all of them are counted
	return s
}

// took decides a take whose hits were added to a counter that stood at before. It returns how many of them must be
// taken away again: those of Extra that were not admitted, and what exceeds the range of a counter.
func (it *item) took(before uint64) (undo uint64) {
	it.result = it.limits().Take(it.counted(before), it.now, it.take)
	spent := engine.Times(it.take.Cost, it.take.Count)
	if it.result.Admitted > min(it.take.Count, engine.MaxHits) {
		spent = engine.Times(it.take.Cost, it.result.Admitted)
	}
	spent = min(spent, it.hits)
	had := min(before, engine.MaxHits)
	return it.hits - min(spent, engine.MaxHits-had)
}

// found decides an op that adds nothing, on a counter that now stands at count.
func (it *item) found(count uint64) {
	l, s := it.limits(), it.counted(count)
	switch it.mode {
	case backend.Take, backend.Peek:
		it.result = l.Peek(s, it.now, it.take)
	case backend.Refund: // the hits have been refunded already
		it.result = l.Refund(s, it.now, engine.Take{Count: it.take.Count})
	case backend.Reset, backend.ForceReset:
		it.result = l.Reset(s, it.now)
	case backend.Settle: // rules with reservations are invalid here
	}
}

// wanted returns how many requests t asks for, Extra included.
func wanted(t *engine.Take) uint64 {
	n := min(t.Count, engine.MaxHits)
	return n + min(t.Extra, engine.MaxHits-n)
}
