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

// packedReply packs what a script replies.
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
	if err := decode(&op, packedReply(7, 100, 3, 4, 5, 6, 1, 2, 8)); err != nil {
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

// TestDecodeRefuses: a reply that is out of range gives an error, not a decision.
func TestDecodeRefuses(t *testing.T) {
	const tooMany = 1 << 53
	for name, r := range map[string]any{
		"nothing":                   nil,
		"an integer":                int64(1),
		"too short":                 packedReply(1, 2),
		"too long":                  packedReply(1, 2, 3, 4, 5, 6, 7, 0, 9, 10),
		"no doubles":                packedReply(1, 2, 3) + "x",
		"a fraction":                packedReply(1, 2, 0.5),
		"less than nothing left":    packedReply(1, -1, 3),
		"more left than the limit":  packedReply(1, 101, 3),
		"more admitted than wanted": packedReply(8, 2, 3),
		"no number":                 packedReply(1, 2, math.NaN()),
		"infinity":                  packedReply(1, 2, math.Inf(1)),
		"2^53":                      packedReply(1, 2, tooMany),
		"the strictest is missing":  packedReply(1, 2, 3, 0, 0, 0, 0, 1),
	} {
		op := backend.Op{Limits: engine.Limits{{Hits: 100}}, Take: engine.Take{Cost: 2, Count: 3, Extra: 4}}
		if err := decode(&op, r); err == nil {
			t.Errorf("%s: decode made %+v of it, want an error", name, op.Decision)
		}
		if op.Decision != (engine.Decision{}) {
			t.Errorf("%s: decode left %+v", name, op.Decision)
		}
	}
}
