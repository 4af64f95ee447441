// Package calls calls ShouldRateLimit over raw HTTP/2 frames. This takes much less processor time than a grpc-go client, so
// that most of the machine is left to the measured server. The package also calls a proxy over HTTP/1.1.
//
// A load behaves like Envoy: it keeps a few connections, replaces a connection that breaks or drains, and cancels calls at
// their timeout. In an open loop, calls are due at given times regardless of the answers, and latencies count from then, so
// a stalling server does not slow down its own measurement. A closed loop keeps a number of calls open.
package calls

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Load describes the calls to make.
type Load struct {
	Network  string                          // "tcp" (default) or "unix"
	Addr     string                          // of the server
	Requests [][]byte                        // from Frame
	Pick     func(conn, n int) int           // returns the index in Requests of a connection's call n; nil alternates
	Conns    int                             // number of connections; 0 means 4
	At       func(conn, n int) time.Duration // open loop: due time of a connection's call n; called with increasing n
	Inflight int                             // closed loop: open calls on each connection; 0 means 16
	Total    int                             // closed loop: number of calls; 0 means unlimited
	Timeout  time.Duration                   // timeout of calls, sent to the server; 0 means none
	Patience time.Duration                   // time until calls are cancelled, if longer than Timeout, to measure late answers
	Each     func(conn int, o Outcome)       // receives outcomes, from several goroutines
	HTTP     bool                            // closed loop over HTTP/1.1 with one open call; Requests are from Get
}

// Kind is the way a call ended.
type Kind uint8

// The ways calls end.
const (
	OK        Kind = iota
	OverLimit      // rejected
	Unknown        // answered with code UNKNOWN, which Envoy admits
	Failed         // ended with a gRPC error
	Late           // cancelled after the timeout, as by Envoy
	Lost           // no connection, a broken one, or the load ended
	Reset          // reset by the server without an answer
	Kinds          // number of kinds
)

// String returns the name of the kind for logs.
func (k Kind) String() string {
	return [...]string{"OK", "OVER_LIMIT", "UNKNOWN", "failed", "late", "lost", "reset"}[k]
}

// Outcome is the result of a call.
type Outcome struct {
	Due  time.Duration // time when the call was due, since the load began
	Took time.Duration // time from Due to the answer
	Lag  time.Duration // delay of sending, caused by the load's own processor
	What int32         // index of the request
	Kind Kind
	Code codes.Code // code of a failed call
}

// Evenly returns due times for an open loop with a total rate per second, alternating between connections.
func Evenly(rate float64, conns int) func(conn, n int) time.Duration {
	interval := float64(time.Second) * float64(conns) / rate
	return func(conn, n int) time.Duration {
		return time.Duration(interval * (float64(n) + float64(conn)/float64(conns)))
	}
}

// Descriptor parses a descriptor such as user=ann,path=/x.
func Descriptor(text string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for e := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// Request returns a request with descriptors in the syntax of Descriptor.
func Request(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: domain}
	for _, d := range descriptors {
		r.Descriptors = append(r.Descriptors, Descriptor(d))
	}
	return r
}

// Numbered returns a framed request for each key number. A template has descriptors separated by '|', entries separated
// by ',', and '%d' for the number, which a domain may also contain.
func Numbered(domain, template string, keys int) [][]byte {
	all := make([][]byte, keys)
	for k := range all {
		numbered := strings.NewReplacer("%d", strconv.Itoa(k))
		all[k] = Frame(Request(numbered.Replace(domain), strings.Split(numbered.Replace(template), "|")...))
	}
	return all
}

// Largest is the maximum payload of a frame in bytes, HTTP/2's default SETTINGS_MAX_FRAME_SIZE.
const Largest = 16384

// Frame encodes a message like gRPC; nil if a string is not UTF-8.
func Frame(m proto.Message) []byte {
	const prefix = 5 // not compressed, and four bytes of length
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), m)
	if err != nil {
		return nil
	}
	n := len(b) - prefix
	b[1], b[2], b[3], b[4] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return b
}

// Running is a load in progress.
type Running struct {
	Load

	begin time.Time
	end   context.CancelFunc
	wg    sync.WaitGroup
}

// Start starts a load. Its connections open in the background.
func (l Load) Start(ctx context.Context) *Running {
	if l.Network == "" {
		l.Network = "tcp"
	}
	if l.Conns == 0 {
		l.Conns = 4
	}
	if l.Inflight == 0 {
		l.Inflight = 16
	}
	l.Patience = max(l.Patience, l.Timeout)
	ctx, end := context.WithCancel(ctx)
	r := &Running{Load: l, begin: time.Now(), end: end}
	for i := range l.Conns {
		if l.HTTP {
			c := &caller{load: r, n: i}
			r.wg.Go(func() { c.run(ctx) })
			continue
		}
		a := &lane{load: r, n: i, wake: make(chan struct{}, 1)}
		r.wg.Go(func() { a.run(ctx) })
	}
	return r
}

// Began returns the start of the load.
func (r *Running) Began() time.Time { return r.begin }

// Wait waits for the end of a load with a total.
func (r *Running) Wait() { r.wg.Wait() }

// Stop ends the load, and waits for open calls for at most a second.
func (r *Running) Stop() {
	r.end()
	r.wg.Wait()
}

// what returns the request index of a connection's call n. Without Pick, connections alternate with different offsets.
func (r *Running) what(conn, n int) int {
	if r.Pick != nil {
		return r.Pick(conn, n)
	}
	return (conn + n*r.Conns) % len(r.Requests)
}

// now returns the time since the load began.
func (r *Running) now() time.Duration { return time.Since(r.begin) }
