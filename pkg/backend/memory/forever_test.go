package memory_test

import (
	"testing"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	"github.com/ratelimitd/ratelimitd/pkg/engine/enginetest"
)

// TestForever: this backend counts windows that never end too, because on_failure: local uses it while Redis is down.
func TestForever(t *testing.T) {
	t.Parallel()
	now := engine.Micros(1_790_000_000_000_000)
	b := memory.New(memory.Config{Now: func() engine.Micros { return now }})
	l := engine.Limits{{Hits: 3, Window: 1 << 48, Calendar: enginetest.Calendar("UTC", engine.CalendarForever, 1)}}
	for i := range 5 {
		ops := []backend.Op{{Key: backend.Key{1}, Limits: l, Take: engine.Take{Cost: 1, Count: 1}}}
		b.Apply(t.Context(), ops)
		if d := ops[0].Decision; d.Admitted == 1 != (i < 3) || d.ResetAfter != engine.Never || ops[0].Err != nil {
			t.Errorf("%d: %+v, %v", i, d, ops[0].Err)
		}
		now += 1 << 49 // 17 years
	}
}
