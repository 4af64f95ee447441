package redis

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// The fields of a script's reply, each a double. Fields missing at the end are 0.
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
)

// decode fills in op.Decision from the reply to op's call. A reply that no script could give is an error and leaves op
// unchanged: wrong numbers must not become decisions.
func decode(op *backend.Op, reply any) error {
	text, ok := reply.(string)
	if !ok {
		return fmt.Errorf("a script replied %T, want a string", reply)
	}
	if len(text)%8 != 0 || len(text) < 8*(fieldReset+1) || len(text) > 8*fields {
		return fmt.Errorf("a script replied %d bytes, want %d to %d doubles", len(text), fieldReset+1, fields)
	}
	var n [fields]uint64
	for i := range len(text) / 8 {
		f := math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[8*i : 8*i+8])))
		n[i] = uint64(f)
		if !(f >= 0 && f <= engine.MaxHits) || float64(n[i]) != f {
			return fmt.Errorf("a script replied %v as field %d, want an integer from 0 to 2^53 - 1", f, i)
		}
	}
	if err := check(op, &n); err != nil {
		return err
	}
	op.Decision = engine.Decision{
		Admitted:   n[fieldAdmitted],
		Left:       n[fieldLeft],
		Strictest:  int(n[fieldStrictest]),
		ResetAfter: time.Duration(n[fieldReset]) * time.Microsecond,
		RetryAfter: time.Duration(n[fieldRetry]) * time.Microsecond,
		Renewed:    n[fieldRenewed],
		Wait:       time.Duration(n[fieldWait]) * time.Microsecond,
		Window:     int64(n[fieldWindow]),
		Penalty:    time.Duration(n[fieldPenalty]) * time.Microsecond,
	}
	if op.Mode == backend.Give {
		op.Decision.Admitted = op.Take.Count
	}
	return nil
}

// check returns an error if the reply cannot be a decision on op.
func check(op *backend.Op, n *[fields]uint64) error {
	if n[fieldStrictest] >= uint64(len(op.Limits)) {
		return fmt.Errorf("a script replied that limit %d of %d is the strictest", n[fieldStrictest], len(op.Limits))
	}
	l := &op.Limits[n[fieldStrictest]]
	if most := max(l.Hits, l.Burst); n[fieldLeft] > most {
		return fmt.Errorf("a script replied that %d hits are left of %d", n[fieldLeft], most)
	}
	most := op.Take.Count + min(op.Take.Extra, math.MaxUint64-op.Take.Count)
	switch op.Mode {
	case backend.Give, backend.Reset:
		most = 1
	case backend.Take, backend.Look:
	}
	if n[fieldAdmitted] > most {
		return fmt.Errorf("a script replied that %d of %d were admitted", n[fieldAdmitted], most)
	}
	return nil
}
