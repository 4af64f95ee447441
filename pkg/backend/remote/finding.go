package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Finding is what was found out about one thing that a store must have before servers can rely on it.
type Finding struct {
	Node   string `json:"node"` // the server; empty if it is about the store as a whole
	Check  string `json:"check"`
	Result Result `json:"result"`
	Text   string `json:"text"` // what was found and, unless that is right, what to do
}

// Result is what a [Finding] amounts to.
type Result string

// The results.
const (
	Right   Result = "ok"
	Doubt   Result = "warning" // limits may be wrong at times, or it could not be found out
	Failure Result = "error"   // decisions fail, or limits are wrong
)

// Of a trial.
const (
	trialKeys = 16              // so many counters are tried, since they may lie on different servers
	trialHits = 10              // their limit
	trialFor  = 5 * time.Second // how long connections are waited for
	trialEach = 50 * time.Millisecond
)

// Try runs b, by its run, for a moment, and has it count hits on counters of its own, which it removes.
func Try(ctx context.Context, b backend.Backend, run func(context.Context) error) Finding {
	ctx, stop := context.WithTimeout(ctx, trialFor)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { _ = run(ctx) }) // if it fails, the operations report why
	ops := make([]backend.Op, trialKeys)
	for i := range ops {
		ops[i].Key = backend.Key(fmt.Appendf(nil, "%016x", rand.Uint64()))
		ops[i].Name = fmt.Appendf(nil, "check-store_%s_", ops[i].Key[:])
		ops[i].Limits = engine.Limits{{Algorithm: engine.FixedWindow, Hits: trialHits, Window: 24 * 3600e6, CountRefused: true}}
	}
	apply := func(mode backend.Mode, left uint64) error { // left before it, unless that is 0
		for i := range ops {
			ops[i].Mode, ops[i].Take = mode, engine.Take{Cost: 1, Count: 1}
		}
		b.Apply(ctx, ops)
		for i := range ops {
			switch {
			case ops[i].Err != nil:
				return ops[i].Err
			case left > 0 && ops[i].Decision.Left != left:
				return errWrong
			}
		}
		return nil
	}
	for apply(backend.Peek, trialHits) != nil && ctx.Err() == nil { // connections are being opened
		time.Sleep(trialEach)
	}
	begun := time.Now()
	err := apply(backend.Take, trialHits)
	took := time.Since(begun).Round(10 * time.Microsecond)
	if err = errors.Join(err, apply(backend.Peek, trialHits-1), apply(backend.Reset, 0)); err != nil {
		return Finding{"", "round trip", Failure, err.Error()}
	}
	return Finding{"", "round trip", Right, fmt.Sprintf("%d counters were counted, in %v, read and removed", trialKeys, took)}
}

var errWrong = errors.New("a counter is wrong: the store loses what is written, or another program writes there")
