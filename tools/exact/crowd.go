package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rlqstest"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/tools/exact/proof"
)

// crowd is all clients of one limit: fake Envoys, which decide locally, and callers, which request each hit. It records their
// requests.
type crowd struct {
	domain, key string // the descriptor has this key with the value v

	mu     sync.Mutex
	all    sync.WaitGroup
	envoys int
	calls  int // by callers
	hits   []hit
	events []event // of Envoys
}

// callers is the client number of all callers.
const callers = -1

// hit is the requests at one time.
type hit struct {
	from, to proof.Micros // times of the request and of the decision
	who      int          // index of an Envoy, or callers
	admitted int64
	rejected int64
	free     bool // the Envoy had no assignment
}

// envoy is a fake Envoy with the report interval of a real one.
type envoy struct {
	*rlqstest.Client

	who      int
	reported chan struct{} // buffers one report
}

// envoy starts an Envoy on a replica, with a number of requests per second. Without an assignment it allows them, like a real
// Envoy.
func (w *crowd) envoy(ctx context.Context, demand float64, r *replica) *envoy {
	e := &envoy{who: w.envoys, reported: make(chan struct{}, 1)}
	w.envoys++
	e.Client = rlqstest.New(w.domain, w.key, "v", rlqstest.Config{
		Every: rlqstest.EnvoyEvery, Watch: func(x rlqstest.Event) { w.watch(e, &x) },
	})
	w.all.Go(func() { e.Run(ctx, demand, r.conn) })
	return e
}

// watch records an event of an Envoy.
func (w *crowd) watch(e *envoy, x *rlqstest.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := proof.Micros(x.At.UnixMicro())
	note := func(format string, args ...any) {
		w.events = append(w.events, event{at, fmt.Sprintf("Envoy %d ", e.who+1) + fmt.Sprintf(format, args...)})
	}
	switch x.What {
	case rlqstest.Decided:
		w.hits = append(w.hits, hit{at, at, e.who, int64(x.Allowed), int64(x.Denied), !x.InForce})
	case rlqstest.Reported:
		note("reports %d allowed, %d denied", x.Allowed, x.Denied)
		select {
		case e.reported <- struct{}{}:
		default:
		}
	case rlqstest.Assigned:
		note("is told %s", assignmentText(x.Assignment))
	case rlqstest.Ended:
		note("has no stream any more: %v", x.Err)
	}
}

// assignmentText formats an assignment.
func assignmentText(a shares.Assignment) string {
	if a.Kind != shares.TokenBucket {
		return fmt.Sprintf("%v for %d s", a.Kind, a.TTL)
	}
	return fmt.Sprintf("%.2f a second, %d tokens, for %d s", float64(a.TokensPerFill)/float64(a.FillInterval), a.MaxTokens, a.TTL)
}

// callEvery is the interval between batches of calls to one replica.
const callEvery = 5 * time.Millisecond

// call starts callers that request demand hits per second from a replica until ctx ends.
func (w *crowd) call(ctx context.Context, demand float64, r *replica) {
	w.all.Go(func() {
		tick := time.NewTicker(callEvery)
		defer tick.Stop()
		last, rest := time.Now(), 0.0
		for ctx.Err() == nil {
			<-tick.C
			at := time.Now()
			rest += demand * at.Sub(last).Seconds()
			last = at
			for ; rest >= 1; rest-- {
				w.all.Go(func() { w.ask(ctx, r, 1) })
			}
		}
	})
}

// ask requests hits from a replica. Without an answer, they may have been admitted and are not counted.
func (w *crowd) ask(ctx context.Context, r *replica, hits uint64) {
	h := hit{from: now(), who: callers}
	resp, err := r.rls.ShouldRateLimit(ctx, w.request(hits))
	h.to = now() + 1 // now rounds down
	switch {
	case err != nil:
		return
	case resp.GetOverallCode() == rlsv3.RateLimitResponse_OK:
		h.admitted = int64(hits)
	default:
		h.rejected = int64(hits)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hits = append(w.hits, h)
	w.calls++
}

func (w *crowd) request(hits uint64) *rlsv3.RateLimitRequest {
	entries := []*commonv3.RateLimitDescriptor_Entry{{Key: w.key, Value: "v"}}
	return &rlsv3.RateLimitRequest{
		Domain: w.domain, Descriptors: []*commonv3.RateLimitDescriptor{{Entries: entries, HitsAddend: wrapperspb.UInt64(hits)}},
	}
}

// count is a sum of hits.
type count struct{ admitted, rejected, free int64 } // free ones were admitted without an assignment

// count sums the requests of selected clients that began at from or later and were decided before to.
func (w *crowd) count(from, to proof.Micros, of func(who int) bool) (c count) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.hits {
		switch {
		case h.from < from || h.to >= to || !of(h.who):
			continue
		case h.free:
			c.free += h.admitted
		default:
			c.admitted += h.admitted
		}
		c.rejected += h.rejected
	}
	return c
}

// last returns the time of the last hit before to that an assignment admitted, or from.
func (w *crowd) last(from, to proof.Micros) proof.Micros {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := from
	for _, h := range w.hits {
		if h.admitted > 0 && !h.free && h.to < to {
			last = max(last, h.to)
		}
	}
	return last
}

func anyone(int) bool      { return true }
func anEnvoy(who int) bool { return who != callers }
func aCaller(who int) bool { return who == callers }

// limited returns the hits that count against the limit, which excludes free ones.
func (w *crowd) limited() []hit {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.hits), func(h hit) bool { return h.free })
}

// traceEvery is the period of a line of a trace.
const traceEvery = proof.Micros(1_000_000)

// trace returns a history between two times: admitted and rejected requests, and reports and assignments of Envoys. Times are
// relative to from.
func (w *crowd) trace(from, to proof.Micros) []string {
	var lines []string
	w.mu.Lock()
	events := slices.Clone(w.events)
	w.mu.Unlock()
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for at := from; at < to; at += traceEvery {
		for _, e := range events {
			if e.at >= at && e.at < at+traceEvery {
				lines = append(lines, fmt.Sprintf("%s s  %s", seconds(e.at-from), e.text))
			}
		}
		var text strings.Builder
		fmt.Fprintf(&text, "%s s  admitted (and rejected) in the second before:", seconds(at+traceEvery-from))
		for who := range w.envoys {
			c := w.count(at, at+traceEvery, func(x int) bool { return x == who })
			fmt.Fprintf(&text, " Envoy %d %d (%d),", who+1, c.admitted+c.free, c.rejected)
		}
		c := w.count(at, at+traceEvery, aCaller)
		fmt.Fprintf(&text, " callers %d (%d)", c.admitted, c.rejected)
		lines = append(lines, text.String())
	}
	return lines
}
