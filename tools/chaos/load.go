package main

import (
	"context"
	"slices"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
	"google.golang.org/protobuf/proto"
)

// load calls ShouldRateLimit as Envoy does, by tools/loadgen.
type load struct {
	addr     string
	requests [][]byte                        // as request returns them; in turns
	conns    int                             // 4, if 0
	rate     float64                         // calls per second in all, however slow the answers are, timed from when they are due; 0 keeps inflight calls open
	inflight int                             // per connection; 16, if 0
	total    int                             // ends after so many calls, each request once, if not 0
	at       func(lane, n int) time.Duration // when call n of a connection is due, instead of rate
	timeout  time.Duration                   // told to the server, and when to give up; 0 waits without end, and sends no deadline
	patience time.Duration                   // when to give up, if longer than timeout, to see how late an answer is
	each     func(outcome)                   // called with each outcome, from several goroutines; they are kept for stop, if nil
}

// envoyTimeout is how long Envoy waits for an answer, unless told otherwise.
const envoyTimeout = 20 * time.Millisecond

// desc returns a descriptor, such as desc("user=ann,path=/x").
func desc(text string) *commonv3.RateLimitDescriptor { return calls.Descriptor(text) }

// ask returns a request, with descriptors as for desc.
func ask(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	return calls.Request(domain, descriptors...)
}

// request returns an encoded request, framed as gRPC does.
func request(domain string, descriptors ...string) []byte { return framed(ask(domain, descriptors...)) }

func framed(m proto.Message) []byte { return calls.Frame(m) }

// running is a load that goes on.
type running struct {
	*calls.Running

	lanes []lane
}

// lane has the outcomes of one connection, or of some that followed each other, in lots: a slice that grows is copied, and meanwhile
// calls are sent late.
type lane struct {
	mu   sync.Mutex
	lots []outcomes
}

// lotSize is how many outcomes a lot has.
const lotSize = 4096

// keep keeps an outcome.
func (a *lane) keep(o outcome) {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.lots) - 1
	if last < 0 || len(a.lots[last]) == lotSize {
		a.lots = append(a.lots, make(outcomes, 0, lotSize))
		last++
	}
	a.lots[last] = append(a.lots[last], o)
}

// start begins a load.
func (l load) start(ctx context.Context) *running {
	if l.conns == 0 {
		l.conns = 4
	}
	r := &running{lanes: make([]lane, l.conns)}
	at := l.at
	if l.rate > 0 {
		at = calls.Evenly(l.rate, l.conns)
	}
	r.Running = calls.Load{
		Addr: l.addr, Requests: l.requests, Conns: l.conns, At: at, Inflight: l.inflight, Total: l.total,
		Timeout: l.timeout, Patience: l.patience,
		Each: func(conn int, o calls.Outcome) {
			one := outcome{due: o.Due, took: o.Took, lag: o.Lag, what: o.What, kind: o.Kind, code: o.Code}
			if l.each != nil {
				l.each(one)
				return
			}
			r.lanes[conn].keep(one)
		},
	}.Start(ctx)
	return r
}

// run begins a load, and ends it after some time, or its total.
func (l load) run(ctx context.Context, d time.Duration) outcomes {
	r := l.start(ctx)
	if l.total > 0 {
		r.Wait()
	}
	if l.total == 0 {
		_ = sleep(ctx, d) // what there is then is returned
	}
	return r.stop()
}

// now returns the time since the load began, as outcomes have it.
func (r *running) now() time.Duration { return time.Since(r.Began()) }

// stop ends the load, waits for open calls, for a second at most, and returns all outcomes, unless each took them.
func (r *running) stop() outcomes {
	r.Stop()
	var lots []outcomes
	for i := range r.lanes {
		r.lanes[i].mu.Lock()
		lots = append(lots, r.lanes[i].lots...)
		r.lanes[i].mu.Unlock()
	}
	return slices.Concat(lots...)
}
