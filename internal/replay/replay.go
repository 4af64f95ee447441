// Package replay runs recorded requests through one or more sets of rules, in order of their times and in virtual time. It reports
// which requests would be rejected, by which rules, for which descriptors, and when, and how the sets differ.
//
// Decisions come from internal/decide/limiter with in-memory counters, as in a server. Memory is bounded for any recording: a limited
// number of requests is held back for sorting, counters are those of pkg/backend/memory, and only the most frequent descriptors are
// tracked by name.
//
// This package is optional: the core works without it.
package replay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// RecordedDecision is the decision on a request when it was recorded.
type RecordedDecision uint8

// The values of RecordedDecision.
const (
	Unknown RecordedDecision = iota
	Passed
	Rejected
)

// Event is a recorded request.
type Event struct {
	At       engine.Micros
	Request  *limiter.Request // nil if the request has no descriptors, so that Envoy makes no call
	Decision RecordedDecision
	End      engine.Micros    // end of the request; 0 if unknown
	Frees    bool             // the slots of concurrency limits are released at End; otherwise, another event releases them
	AtEnd    *limiter.Request // call at End if the request passes, like with Envoy's apply_on_stream_done; may be nil
	Silent   bool             // a call at the end of a request, which rejects nothing
}

// Source yields events, and then io.EOF.
type Source interface {
	Next() (*Event, error)
}

// DefaultHeld is the default of Config.Held.
const DefaultHeld = 100_000

// Config configures Run. The zero value is valid.
type Config struct {
	Held     int                 // events held back for sorting by time; 0 means DefaultHeld
	Values   int                 // descriptors tracked by name; 0 means 100,000
	Progress func(events uint64) // called every thousand events; may be nil
}

// progressEvery is the number of events between two calls of Config.Progress.
const progressEvery = 1000

// Run runs the events of a source through one or more players, and returns the report.
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
			return nil, fmt.Errorf("reading the recording: %w", err)
		}
		if read++; read%progressEvery == 0 {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if c.Progress != nil {
				c.Progress(read)
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
		p.reach(ctx, math.MaxInt64)
	}
	return t.report(), nil
}

// timeOf converts a virtual time to a time.
func timeOf(at engine.Micros) time.Time { return time.UnixMicro(int64(at)).UTC() }
