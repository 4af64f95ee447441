// Package replay tries rules on recorded requests. It runs the requests through one set of rules or several, in the order of their
// times and on virtual time. It reports which would have been rejected, by which rule, for which descriptors and when, and how the
// sets differ.
//
// Decisions come from internal/decide/limiter with counters in memory, as in a server. Memory is bounded whatever is recorded: a bounded
// number of requests is held back to put them in order, counters are those of pkg/backend/memory, and only the busiest descriptors
// are known by name.
//
// This package is optional: the core works without it.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Then says how a request was decided when it was recorded.
type Then uint8

// The values of Then.
const (
	Unknown Then = iota
	Passed
	Rejected
)

// Event is a recorded request.
type Event struct {
	At      engine.Micros
	Request *limiter.Request // nil if no request would be made, because it has no descriptors
	Then    Then
	End     engine.Micros // when it ended; 0 if that is not known
	Frees   bool          // slots of concurrency limits that it takes are free at its end; otherwise the record has a request that frees them
	Charge  *Charge       // the call at its end; nil if there is none
	Silent  bool          // it is not a request but the call at the end of one, which nothing rejects
}

// Charge is a call that is made when a request ends, such as by apply_on_stream_done of Envoy.
type Charge struct {
	Always *limiter.Request // made in any case; may be nil
	Passed *limiter.Request // made if the request passed, because it depends on the response; may be nil
}

// Source yields events, and then [io.EOF].
type Source interface {
	Next() (*Event, error)
}

// DefaultHeld is how many events are held back to put them in order.
const DefaultHeld = 100_000

// Config says how to run. The zero value works.
type Config struct {
	Held     int         // events that are held back to put them in order; 0 means DefaultHeld
	Values   int         // descriptors that are known by name; 0 means 100,000
	Progress func(Stage) // called every thousand events; may be nil
}

// Stage says how far a run is.
type Stage struct{ Events uint64 }

// progressEvery is how many events there are between two calls of Config.Progress.
const progressEvery = 1000

// Run runs the events of a source through players, of which there is at least one.
func Run(ctx context.Context, from Source, players []*Player, c Config) (*Report, error) {
	if c.Held <= 0 {
		c.Held = DefaultHeld
	}
	if c.Values <= 0 {
		c.Values = 100_000
	}
	t := newTally(players, c.Values)
	var (
		waiting queue[*Event]
		read    uint64
	)
	for {
		e, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading what was recorded: %w", err)
		}
		if read++; read%progressEvery == 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if c.Progress != nil {
				c.Progress(Stage{Events: read})
			}
		}
		waiting.push(e.At, e)
		if waiting.Len() > c.Held {
			t.play(ctx, waiting.pop())
		}
	}
	for waiting.Len() > 0 {
		t.play(ctx, waiting.pop())
	}
	for _, p := range players {
		p.finish(ctx)
	}
	return t.report(), nil
}

// timeOf returns a virtual time as a time.
func timeOf(at engine.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }
