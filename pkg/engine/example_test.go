package engine_test

import (
	"fmt"
	"log"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// A bucket of two tokens, one of which comes back every half second. The caller keeps the state and passes the time.
func ExampleLimits_Take() {
	limits := engine.Limits{{Algorithm: engine.TokenBucket, Hits: 2, Window: 1_000_000, Burst: 2, Initial: 2}}
	if err := limits.Validate(); err != nil {
		log.Fatal(err)
	}
	states := []*engine.State{new(engine.State)}
	now := engine.Micros(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
	for range 3 {
		d := limits.Take(states, now, engine.Take{Cost: 1, Count: 1})
		fmt.Println(d.Admitted, "admitted of", d.Left, "left, retry after", d.RetryAfter)
	}
	d := limits.Take(states, now+500_000, engine.Take{Cost: 1, Count: 1})
	fmt.Println("half a second later", d.Admitted)
	// Output:
	// 1 admitted of 2 left, retry after 0s
	// 1 admitted of 1 left, retry after 0s
	// 0 admitted of 0 left, retry after 500ms
	// half a second later 1
}
