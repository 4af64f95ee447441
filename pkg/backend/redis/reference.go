package redis

import (
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Errors of ops that the reference's keys do not support.
var (
	errFixedOnly = store.Failed(remote.Other, "", "REDIS_KEY_FORMAT=reference keeps one fixed_window of whole seconds per descriptor; "+
		"other algorithms, rate_limits and penalties work without REDIS_KEY_FORMAT")
	errNoName = store.Failed(remote.Other, "", "REDIS_KEY_FORMAT=reference needs the name of the counter, and there is none")
	errNumber = errors.New("a counter is not a number")
)

// referenceCodec counts like envoyproxy/ratelimit, with its keys: by an INCRBY and an EXPIRE each time, without scripts. This process's
// clock determines the window, which begins at a whole second. Rejected hits always count, regardless of the rule.
//
// A refund takes two steps, because a counter must not become negative: it is read first. If another replica refunds in between, the
// counter may fall below zero, which counts as zero.
type referenceCodec struct {
	prefix string
	jitter int64 // seconds
	now    func() engine.Micros
}

func newReferenceCodec(c *Config) *referenceCodec {
	r := &referenceCodec{prefix: c.KeyPrefix, jitter: int64(c.ExpirationJitter / time.Second), now: c.Now}
	if r.now == nil {
		r.now = func() engine.Micros { return engine.Micros(time.Now().UnixMicro()) }
	}
	return r
}

// fits returns the reason why this format does not support op, or nil.
func (r *referenceCodec) fits(op *backend.Op) *remote.Error {
	if len(op.Limits) != 1 || op.Penalty != nil {
		return errFixedOnly
	}
	switch l := &op.Limits[0]; {
	case l.BeyondCount() != "" || l.Listed || l.Window <= 0 || l.Window%1e6 != 0:
		return errFixedOnly
	case len(op.Name) == 0:
		return errNoName
	}
	return nil
}

// window returns op's window at now, in seconds.
func (r *referenceCodec) window(op *backend.Op, now engine.Micros) (start, end int64) {
	first, last := op.Limits[0].WindowAt(now)
	return int64(first / 1e6), int64(last / 1e6)
}

// expiry returns the lifetime of a counter in seconds: a window's length from its last hit or, for calendar windows, the rest of the
// window.
func (r *referenceCodec) expiry(op *backend.Op, now engine.Micros) int64 {
	start, end := r.window(op, now)
	if op.Limits[0].Calendar != nil {
		start = int64(now / 1e6)
	}
	if r.jitter > 0 {
		end += rand.Int64N(r.jitter)
	}
	return end - start
}

func (r *referenceCodec) key(op *backend.Op, start int64) string {
	b := make([]byte, 0, len(r.prefix)+len(op.Name)+20)
	b = append(append(b, r.prefix...), op.Name...)
	return string(strconv.AppendInt(b, start, 10))
}

func (r *referenceCodec) encode(cs *calls, items []*item, _ bool) {
	for _, it := range items {
		c := cs.next()
		c.items = append(c.items, it)
		if c.unsent = r.fits(&it.op); c.unsent == nil {
			c.sent = r.commands(c.sent, it)
		}
	}
}

// commands appends the commands of an item.
func (r *referenceCodec) commands(sent []redis.Cmder, it *item) []redis.Cmder {
	it.at = r.now()
	start, _ := r.window(&it.op, it.at)
	key := r.key(&it.op, start)
	hits := min(min(it.op.Take.Cost, engine.MaxHits)*min(it.op.Take.Count, 1), engine.MaxHits)
	if n := it.op.Take.Count; hits > 0 && n > 1 {
		hits = min(n, engine.MaxHits/hits) * hits
	}
	it.hits = hits
	switch {
	case it.op.Mode.Resets():
		return append(sent, newCommand("expire", key, 0)) // deletes it, and is allowed even without the permission for DEL
	case spends(&it.op) && hits > 0:
		return append(sent, newCommand("incrby", key, hits), newCommand("expire", key, r.expiry(&it.op, it.at)))
	}
	return append(sent, newCommand("get", key)) // a check, and the first step of a refund
}

// mostCounted is the largest count that cannot overflow by adding hits. A larger count may have lost hits, so a refund could open the
// window, and nothing is refunded.
const mostCounted = math.MaxInt64 - engine.MaxHits

// more sets c.sent to the second step of a refund, if it is needed. It refunds at most the count. If the counter has expired since it was
// read, this step creates a new one, which would never expire without the EXPIRE.
func (r *referenceCodec) more(c *call) bool {
	it := c.items[0]
	if it.op.Mode != backend.Refund || c.unsent != nil || c.err != nil {
		return false
	}
	if start, _ := r.window(&it.op, it.at); it.op.Take.Window > 0 && it.op.Take.Window/1e6 < start {
		return false // the hits belong to a window that has ended
	}
	count, err := count(c.sent[0])
	if err != nil || count == 0 || count > mostCounted || it.hits == 0 {
		return false
	}
	key := c.sent[0].Args()[1]
	c.sent = append(c.sent[:0], newCommand("incrby", key, -int64(min(count, it.hits))), newCommand("expire", key, r.expiry(&it.op, it.at)))
	return true
}

// again keeps the commands and resets the failed ones for resending. There are no scripts that the server might not know.
func (r *referenceCodec) again(c *call) {
	for _, s := range c.sent {
		if s := s.(*command); s.Err() != nil {
			s.Reset()
		}
	}
}

func (r *referenceCodec) decode(c *call, node string) {
	c.items[0].err = nil
	if err := r.decide(c, c.items[0]); err != nil {
		c.items[0].err = store.Wrap(node, err)
	}
}

// decide sets the decision of the item of c, or returns its error.
func (r *referenceCodec) decide(c *call, it *item) error {
	if c.unsent != nil {
		return c.unsent
	}
	// If INCRBY would overflow, the counter is far above every limit.
	full := c.err != nil && strings.Contains(c.err.Text, "would overflow")
	if c.err != nil && !full {
		return c.err
	}
	op := &it.op
	var after uint64
	var err error
	if full {
		after = math.MaxInt64
	} else if !op.Mode.Resets() {
		if after, err = count(c.sent[0]); err != nil {
			return err
		}
	}
	limit := op.Limits[0].Hits
	start, end := r.window(op, it.at)
	d := engine.Decision{Window: start * 1e6, ResetAfter: time.Duration(end*1e6-int64(it.at)) * time.Microsecond}
	before := after
	if spends(op) && !full {
		before -= min(before, it.hits)
	}
	if before < limit {
		d.Left = limit - before
	}
	switch op.Mode {
	case backend.Refund:
		d.Admitted = op.Take.Count
	case backend.Reset, backend.ForceReset:
		d.Admitted = 1
	case backend.Settle: // rules with reservations are invalid here
	case backend.Take, backend.Peek:
		cost := max(op.Take.Cost, 1)
		d.Admitted = min(op.Take.Count, d.Left/cost)
		if op.Take.Cost == 0 && before <= limit { // as in the reference, admitted at the limit but not above it
			d.Admitted = op.Take.Count
		} else if op.Take.Cost == 0 {
			d.Admitted = 0
		}
		if d.Admitted < op.Take.Count {
			d.RetryAfter = retryFixed(&op.Limits[0], op.Take.Cost, d.ResetAfter)
		}
	}
	op.Decision = d
	return nil
}

// count returns the value of a counter from the reply to c.
func count(c redis.Cmder) (uint64, error) {
	var n int64
	switch v := c.(*command).Val().(type) {
	case nil:
	case int64:
		n = v
	case string:
		parsed, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0, errNumber
		}
		n = parsed
	default:
		return 0, errNumber
	}
	return uint64(max(n, 0)), nil
}

func (r *referenceCodec) route(op *backend.Op) string {
	start, _ := r.window(op, r.now())
	return r.key(op, start)
}
