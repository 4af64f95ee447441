package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const linearLimit = 250

// answered is the result of an operation.
type answered struct {
	known bool // false if the client gave up
	ok    bool
	left  uint32
}

// counterModel models a fixed window that counts rejected hits and never ends. An operation without an answer may take effect at
// any time after it was sent.
func counterModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return uint64(0) },
		Step: func(state, input, output any) (bool, any) {
			count, cost, t := state.(uint64), input.(uint64), output.(answered)
			after := count + cost
			if !t.known {
				return true, after
			}
			return t.ok == (after <= linearLimit) && uint64(t.left) == linearLimit-min(linearLimit, after), after
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%d hits: %+v", input, output) },
	}
}

func linearizable(ctx context.Context, e *env) {
	const keys, workers, operations = 50, 8, 20_000
	r := e.redis(ctx)
	all := callers(workers, e.startServers(ctx, 3, limited(linearLimit, "year", "lease: off"), "REDIS_URL="+r.addr, patient)...)
	histories := make([][]porcupine.Operation, keys)
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin, unknown := time.Now(), 0
	seeds := make([]uint64, workers)
	for i := range seeds {
		seeds[i] = e.rand.Uint64()
	}
	for w, c := range all {
		random := rand.New(rand.NewPCG(seeds[w], 1))
		wg.Go(func() {
			for range operations / workers {
				op, k := operate(ctx, c, random, keys, begin)
				op.ClientId = w
				mu.Lock()
				histories[k] = append(histories[k], op)
				if !op.Output.(answered).known {
					unknown++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	e.must(ctx.Err())
	violations, unfinished := 0, 0
	for k, h := range histories {
		switch result := porcupine.CheckOperationsTimeout(counterModel(), h, 10*time.Second); result {
		case porcupine.Illegal:
			violations++
			e.note("key %d has no order: %+v", k, h)
		case porcupine.Unknown:
			unfinished++
		case porcupine.Ok:
		}
	}
	share := 100 * float64(unknown) / operations
	e.measured(share >= 2, "%d operations, %d (%.1f %%) without an answer", operations, unknown, share)
	e.measured(violations == 0 && unfinished == 0, "%d keys: %d violations, %d checks without a result", keys, violations, unfinished)
}

// operate makes a call, and gives up early on one in 20.
func operate(ctx context.Context, c rlsv3.RateLimitServiceClient, random *rand.Rand, keys int, begin time.Time) (porcupine.Operation, int) {
	k, cost := random.IntN(keys), uint64(random.IntN(4)) // 0 checks without hits
	if random.IntN(20) == 0 {
		var leave context.CancelFunc
		ctx, leave = context.WithCancel(ctx)
		time.AfterFunc(time.Duration(random.IntN(200))*time.Microsecond, leave)
		defer leave()
	}
	q := ask("d", fmt.Sprintf("k=%d", k))
	q.Descriptors[0].HitsAddend = wrapperspb.UInt64(cost)
	op := porcupine.Operation{Input: cost, Call: time.Since(begin).Nanoseconds()}
	answer, err := c.ShouldRateLimit(ctx, q)
	op.Return = time.Since(begin).Nanoseconds()
	if err != nil {
		op.Return, op.Output = math.MaxInt64, answered{}
		return op, k
	}
	op.Output = answered{known: true, ok: answer.GetOverallCode() == rlsv3.RateLimitResponse_OK, left: answer.GetStatuses()[0].GetLimitRemaining()}
	return op, k
}
