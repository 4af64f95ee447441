package main

import (
	"context"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
)

// load calls ShouldRateLimit over raw HTTP/2 frames, which costs much less CPU than a client of grpc-go does. It does as
// Envoy: it keeps a few connections, opens another when one breaks or is to be left, and gives a call up in time.
type load struct {
	addr     string
	requests [][]byte                        // as request returns them
	pick     func(n int) int                 // which request call n of a connection is; in turns, if nil
	conns    int                             // 4, if 0
	rate     float64                         // calls per second in all, however slow the answers are, timed from when they are due; 0 keeps inflight calls open
	inflight int                             // per connection; 16, if 0
	total    int                             // ends after so many calls, each request once, if not 0
	at       func(lane, n int) time.Duration // when call n of a connection is due, instead of rate
	timeout  time.Duration                   // told to the server, and when to give up; 0 waits for ever, and tells nothing
	patience time.Duration                   // when to give up, if longer than timeout, to see how late an answer is
	each     func(outcome)                   // called with each outcome, from several goroutines; they are kept for stop, if nil
}

// envoyTimeout is how long Envoy waits for an answer, unless told otherwise.
const envoyTimeout = 20 * time.Millisecond

// desc returns a descriptor, such as desc("user=ann,path=/x").
func desc(text string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for e := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// ask returns a request, with descriptors as for desc.
func ask(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: domain}
	for _, d := range descriptors {
		r.Descriptors = append(r.Descriptors, desc(d))
	}
	return r
}

// request returns an encoded request, framed as gRPC does.
func request(domain string, descriptors ...string) []byte { return framed(ask(domain, descriptors...)) }

func framed(m proto.Message) []byte {
	const prefix = 5 // not compressed, and a length of four bytes
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), m)
	if err != nil {
		return nil // strings of ours are UTF-8
	}
	n := len(b) - prefix
	b[1], b[2], b[3], b[4] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return b
}

// running is a load that goes on.
type running struct {
	*load

	begin time.Time
	end   context.CancelFunc
	wg    sync.WaitGroup
	lanes []*lane
}

// start begins a load.
func (l load) start(ctx context.Context) *running {
	if l.conns == 0 {
		l.conns = 4
	}
	if l.inflight == 0 {
		l.inflight = 16
	}
	l.patience = max(l.patience, l.timeout)
	if interval := float64(time.Second) * float64(l.conns) / l.rate; l.rate > 0 {
		l.at = func(lane, n int) time.Duration {
			return time.Duration(interval * (float64(n) + float64(lane)/float64(l.conns)))
		}
	}
	ctx, end := context.WithCancel(ctx)
	r := &running{load: &l, begin: time.Now(), end: end}
	for i := range l.conns {
		a := &lane{load: r, n: i, head: headers(l.timeout)}
		a.wake = make(chan struct{}, 1)
		r.lanes = append(r.lanes, a)
		r.wg.Go(func() { a.run(ctx) })
	}
	return r
}

// run begins a load, and ends it after some time, or its total.
func (l load) run(ctx context.Context, d time.Duration) outcomes {
	r := l.start(ctx)
	if l.total > 0 {
		r.wg.Wait()
	}
	if l.total == 0 {
		_ = sleep(ctx, d) // what there is then is returned
	}
	return r.stop()
}

// now returns the time since the load began, as outcomes have it.
func (r *running) now() time.Duration { return time.Since(r.begin) }

// stop ends the load, waits for open calls, for a second at most, and returns all outcomes, unless each took them.
func (r *running) stop() outcomes {
	r.end()
	r.wg.Wait()
	var all outcomes
	for _, a := range r.lanes {
		all = append(all, a.kept...)
	}
	return all
}
