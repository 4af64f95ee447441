package redis

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// packedReply packs the reply of a script.
func packedReply(ns ...float64) string {
	var b []byte
	for _, n := range ns {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return string(b)
}

func TestDecode(t *testing.T) {
	op := backend.Op{Limits: make(engine.Limits, 3), Take: engine.Take{Cost: 2, Count: 3, Extra: 4}}
	op.Limits[2].Hits = 100
	r := answers{text: packedReply(answerDecision, 7, 100, 3, 4, 5, 6, 1, 2, 8)}
	if _, err := r.decide(&op, 0, ""); err != nil {
		t.Fatal(err)
	}
	want := engine.Decision{
		Admitted: 7, Left: 100, Strictest: 2, ResetAfter: 3 * time.Microsecond, RetryAfter: 4 * time.Microsecond,
		Renewed: 1, Wait: 6 * time.Microsecond, Window: 5, Penalty: 8 * time.Microsecond,
	}
	if diff := cmp.Diff(want, op.Decision); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
}

// TestDecodeInvalid checks that an out-of-range reply is an error, not a decision.
func TestDecodeInvalid(t *testing.T) {
	const tooMany = 1 << 53
	for name, r := range map[string]string{
		"nothing":                   "",
		"too short":                 packedReply(answerDecision, 1, 2),
		"no doubles":                packedReply(answerDecision, 1, 2, 3) + "x",
		"a fraction":                packedReply(answerDecision, 1, 2, 0.5, 0, 0, 0, 0, 0, 0),
		"less than nothing left":    packedReply(answerDecision, 1, -1, 3, 0, 0, 0, 0, 0, 0),
		"more left than the limit":  packedReply(answerDecision, 1, 101, 3, 0, 0, 0, 0, 0, 0),
		"more admitted than wanted": packedReply(answerDecision, 8, 2, 3, 0, 0, 0, 0, 0, 0),
		"no number":                 packedReply(answerDecision, 1, 2, math.NaN(), 0, 0, 0, 0, 0, 0),
		"infinity":                  packedReply(answerDecision, 1, 2, math.Inf(1), 0, 0, 0, 0, 0, 0),
		"2^53":                      packedReply(answerDecision, 1, 2, tooMany, 0, 0, 0, 0, 0, 0),
		"the strictest is missing":  packedReply(answerDecision, 1, 2, 3, 0, 0, 0, 0, 1, 0),
		"an error that is missing":  packedReply(answerError),
		"found by no one":           packedReply(1),
		"no answer":                 packedReply(-3),
	} {
		op := backend.Op{Limits: engine.Limits{{Hits: 100}}, Take: engine.Take{Cost: 2, Count: 3, Extra: 4}}
		a := answers{text: r}
		if _, err := a.decide(&op, 0, ""); err == nil {
			t.Errorf("%s: decode made %+v of it, want an error", name, op.Decision)
		}
		if op.Decision != (engine.Decision{}) {
			t.Errorf("%s: decode left %+v", name, op.Decision)
		}
	}
}
