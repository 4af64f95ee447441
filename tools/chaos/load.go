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

// load calls ShouldRateLimit like Envoy, with tools/loadgen.
type load struct {
	addr     string
	requests [][]byte                        // encoded by request; used in turn
	conns    int                             // 0 means 4
	rate     float64                         // total calls per second; latency counts from the due time; 0 keeps inflight calls open instead
	inflight int                             // per connection; 0 means 16
	total    int                             // number of calls after which the load ends, each request once; 0 means no end
	at       func(lane, n int) time.Duration // due time of call n of a connection; overrides rate
	timeout  time.Duration                   // deadline sent to the server, after which the client gives up; 0 means no deadline
	patience time.Duration                   // when to give up, if longer than timeout, to measure late answers
	each     func(outcome)                   // receives each outcome, concurrently; nil collects outcomes for stop
}

// envoyTimeout is Envoy's default timeout.
const envoyTimeout = 20 * time.Millisecond

// desc parses a descriptor, such as desc("user=ann,path=/x").
func desc(text string) *commonv3.RateLimitDescriptor { return calls.Descriptor(text) }

// ask returns a request with descriptors in the syntax of desc.
func ask(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	return calls.Request(domain, descriptors...)
}

// request returns an encoded request in a gRPC frame.
func request(domain string, descriptors ...string) []byte { return framed(ask(domain, descriptors...)) }

func framed(m proto.Message) []byte { return calls.Frame(m) }

// running is a started load.
type running struct {
	*calls.Running

	lanes []lane
}

// lane holds the outcomes of one connection, or of consecutive ones, in lots. Growing one slice would copy it and delay calls.
type lane struct {
	mu   sync.Mutex
	lots []outcomes
}

// lotSize is the number of outcomes in a lot.
const lotSize = 4096

// keep adds an outcome.
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

// start starts a load.
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

// run runs a load for d, or until its total.
func (l load) run(ctx context.Context, d time.Duration) outcomes {
	r := l.start(ctx)
	if l.total > 0 {
		r.Wait()
	}
	if l.total == 0 {
		_ = sleep(ctx, d) // returns early if ctx ends
	}
	return r.stop()
}

// now returns the time since the load began, as in outcome.due.
func (r *running) now() time.Duration { return time.Since(r.Began()) }

// stop ends the load, waits up to a second for open calls, and returns the outcomes unless each received them.
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
