package redis

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// First numbers of answers other than the result of a common take.
const (
	answerDecision = -1
	answerError    = -2
	answerHeld     = -3 // a decision with reservations
)

// Fields of a decision in a reply. Each is a double.
const (
	fieldAdmitted = iota
	fieldLeft
	fieldReset
	fieldRetry
	fieldWindow
	fieldWait
	fieldRenewed
	fieldStrictest
	fieldPenalty
	fields

	fieldReserved = iota - 1
	fieldExpired
	fieldOutcome
	fieldGiven
	fieldCharged
	fieldsHeld
)

// answers is the reply of a script.
type answers struct {
	text   string // rest of the reply
	errors []any
}

// answersTo parses the reply to c, which must not be an error.
func answersTo(c *call) (r answers, ok bool) {
	switch v := c.sent[0].(*command).Val().(type) {
	case string:
		return answers{text: v}, true
	case []any: // some operations failed
		if len(v) > 0 {
			r.text, ok = v[0].(string)
			r.errors = v[1:]
		}
	}
	return r, ok
}

// proves reports whether the reply to c, which is not an error, belongs to c. A call without a nonce needs a fence instead.
func (c *call) proves() bool {
	if c.nonce == 0 {
		return true
	}
	r, ok := answersTo(c)
	return ok && len(r.text) >= 16 && binary.LittleEndian.Uint64([]byte(r.text[:8])) == c.nonce
}

// Errors of replies that no script returns.
var (
	errShort = errors.New("a script returned too little")
	errFew   = errors.New("a script returned too few errors")

	errNotCommon = errors.New("a script found something where it should have decided")
)

// float reads a number.
func (r *answers) float() (f float64, ok bool) {
	if len(r.text) < 8 {
		return 0, false
	}
	f = math.Float64frombits(binary.LittleEndian.Uint64([]byte(r.text[:8])))
	r.text = r.text[8:]
	return f, true
}

// integer returns f if it is an integer from 0 to 2^53 - 1.
func integer(f float64) (uint64, error) {
	n := uint64(f)
	if !(f >= 0 && f <= engine.MaxHits) || float64(n) != f {
		return 0, fmt.Errorf("a script returned %v, want an integer from 0 to 2^53 - 1", f)
	}
	return n, nil
}

func (s *scriptCodec) decode(c *call, node string) {
	if c.err == nil && !c.proves() {
		c.err = classify(node, errBehind)
	}
	if c.err != nil {
		c.fail(c.err)
		return
	}
	r, _ := answersTo(c)
	r.text = r.text[8:]
	f, _ := r.float()
	now, err := integer(f)
	for _, it := range c.items {
		it.err = nil
		if err == nil {
			it.err, err = r.decide(&it.op, now, node)
		}
		if err != nil { // the rest of the reply is invalid too
			it.err = store.Wrap(node, err)
		}
	}
}

// decide sets op.Decision from the next answer, or returns the reason why the operation failed. For an answer that no script returns, it
// returns an error and leaves op unchanged, so that invalid numbers do not become decisions.
func (r *answers) decide(op *backend.Op, now uint64, node string) (*remote.Error, error) {
	f, ok := r.float()
	switch {
	case !ok:
		return nil, errShort
	case f == answerDecision:
		return nil, r.decision(op, fields)
	case f == answerHeld && op.Reserve != nil:
		return nil, r.decision(op, fieldsHeld)
	case f == answerError:
		if len(r.errors) == 0 {
			return nil, errFew
		}
		text, _ := r.errors[0].(string)
		r.errors = r.errors[1:]
		return ofReply(node, text), nil
	}
	found, err := integer(f)
	if err != nil {
		return nil, err
	}
	switch kindOf(op) {
	case kindWindow:
		decideWindow(op, found, now)
		return nil, nil //nolint:nilnil // there is neither error
	case kindBucket:
		return nil, decideBucket(op, found)
	case kindOther:
	}
	return nil, errNotCommon
}

// decision sets op.Decision from a decision of the script.
func (r *answers) decision(op *backend.Op, many int) error {
	var n [fieldsHeld]uint64
	for i := range n[:many] {
		f, ok := r.float()
		if !ok {
			return errShort
		}
		var err error
		if n[i], err = integer(f); err != nil {
			return err
		}
	}
	if err := check(op, &n); err != nil {
		return err
	}
	op.Decision = engine.Decision{
		Admitted:   n[fieldAdmitted],
		Left:       n[fieldLeft],
		Strictest:  int(n[fieldStrictest]),
		ResetAfter: micros(n[fieldReset]),
		RetryAfter: micros(n[fieldRetry]),
		Renewed:    n[fieldRenewed],
		Wait:       micros(n[fieldWait]),
		Window:     int64(n[fieldWindow]),
		Penalty:    micros(n[fieldPenalty]),
	}
	switch d := &op.Decision; op.Mode {
	case backend.Refund:
		d.Admitted = op.Take.Count
	case backend.Settle:
		if many != fieldsHeld || n[fieldOutcome] != uint64(engine.ReservationCharged) {
			d.Admitted = 1
		}
	case backend.Take, backend.Peek, backend.Reset, backend.ForceReset:
	}
	if many == fieldsHeld {
		d := &op.Decision
		d.Reserved, d.Expired = n[fieldReserved], uint32(n[fieldExpired])
		d.Reservation = engine.ReservationOutcome(n[fieldOutcome])
		d.Difference = int64(n[fieldCharged]) - int64(n[fieldGiven])
	}
	return nil
}

// check returns an error if the numbers are not a possible decision on op.
func check(op *backend.Op, n *[fieldsHeld]uint64) error {
	if n[fieldStrictest] >= uint64(len(op.Limits)) {
		return fmt.Errorf("a script returned that limit %d of %d is the strictest", n[fieldStrictest], len(op.Limits))
	}
	l := &op.Limits[n[fieldStrictest]]
	if most := max(l.Hits, l.Burst); n[fieldLeft] > most {
		return fmt.Errorf("a script returned that %d hits are left of %d", n[fieldLeft], most)
	}
	most := op.Take.Count + min(op.Take.Extra, math.MaxUint64-op.Take.Count)
	switch op.Mode {
	case backend.Refund, backend.Reset, backend.ForceReset, backend.Settle:
		most = 1
	case backend.Take, backend.Peek:
	}
	if n[fieldOutcome] > uint64(engine.ReservationCharged) {
		return fmt.Errorf("a script returned that the outcome of a reservation is %d", n[fieldOutcome])
	}
	if n[fieldAdmitted] > most {
		return fmt.Errorf("a script returned that %d of %d were admitted", n[fieldAdmitted], most)
	}
	return nil
}
