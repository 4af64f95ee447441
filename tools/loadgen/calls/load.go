// Package calls calls ShouldRateLimit over raw HTTP/2 frames, which costs much less processor time than a client of grpc-go
// does, so that what is measured has the machine to itself as far as possible. It also calls a proxy over HTTP/1.1.
//
// A load does as Envoy does: it keeps a few connections, opens another one when one breaks or is to be left, and gives a
// call up in time. It is an open loop where calls are due at given times, however slow the answers are, and counts from
// then: a server that stalls does not slow its measurement down. Otherwise it is a closed loop, which keeps a number of
// calls open.
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

// Load says what to call, and how.
type Load struct {
	Network  string                          // "tcp", if empty, or "unix"
	Addr     string                          // of the server
	Requests [][]byte                        // as Frame returns them
	Pick     func(conn, n int) int           // which request call n of a connection is; in turns, if nil
	Conns    int                             // 4, if 0
	At       func(conn, n int) time.Duration // open loop: when call n of a connection is due; n follows n-1
	Inflight int                             // closed loop: calls that are open on each connection; 16, if 0
	Total    int                             // closed loop: ends after so many calls, if not 0
	Timeout  time.Duration                   // told to the server, and when to give up; 0 waits without end, and tells nothing
	Patience time.Duration                   // when to give up, if longer than Timeout, to see how late an answer is
	Each     func(conn int, o Outcome)       // takes the outcomes, from several goroutines
	HTTP     bool                            // closed loop over HTTP/1.1, one call at a time; Requests are as Get returns them
}

// Kind is how a call ended.
type Kind uint8

// How calls end.
const (
	OK        Kind = iota
	OverLimit      // rejected
	Unknown        // answered with code UNKNOWN, which Envoy lets pass
	Failed         // ended in a gRPC error
	Late           // not answered in time, and given up, as Envoy does
	Lost           // the connection broke, or there was none, or the load was over
	Reset          // the server reset the call, instead of answering
	Kinds          // how many there are
)

// String returns what to call it in a line of a log.
func (k Kind) String() string {
	return [...]string{"OK", "OVER_LIMIT", "UNKNOWN", "failed", "late", "lost", "reset"}[k]
}

// Outcome is how a call ended, and when.
type Outcome struct {
	Due  time.Duration // when it should have begun, since the load began
	Took time.Duration // from then to the answer
	Lag  time.Duration // of the load itself, of which its processor was busy with something else
	What int32         // index of the request
	Kind Kind
	Code codes.Code // of what failed
}

// Evenly returns times for an open loop of so many calls a second in all, one connection after the other.
func Evenly(rate float64, conns int) func(conn, n int) time.Duration {
	interval := float64(time.Second) * float64(conns) / rate
	return func(conn, n int) time.Duration {
		return time.Duration(interval * (float64(n) + float64(conn)/float64(conns)))
	}
}

// Descriptor returns a descriptor, such as Descriptor("user=ann,path=/x").
func Descriptor(text string) *commonv3.RateLimitDescriptor {
	d := &commonv3.RateLimitDescriptor{}
	for e := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// Request returns a request, with descriptors as for Descriptor.
func Request(domain string, descriptors ...string) *rlsv3.RateLimitRequest {
	r := &rlsv3.RateLimitRequest{Domain: domain}
	for _, d := range descriptors {
		r.Descriptors = append(r.Descriptors, Descriptor(d))
	}
	return r
}

// Numbered returns a request for each key number, framed. A template has descriptors between '|', entries between ',',
// and '%d' where the number goes, as a domain may.
func Numbered(domain, template string, keys int) [][]byte {
	all := make([][]byte, keys)
	for k := range all {
		numbered := strings.NewReplacer("%d", strconv.Itoa(k))
		all[k] = Frame(Request(numbered.Replace(domain), strings.Split(numbered.Replace(template), "|")...))
	}
	return all
}

// Largest is the most bytes that a frame has room for, with HTTP/2's default of SETTINGS_MAX_FRAME_SIZE.
const Largest = 16384

// Frame returns a message as gRPC sends it; nil if a string is not UTF-8.
func Frame(m proto.Message) []byte {
	const prefix = 5 // not compressed, and a length of four bytes
	b, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), m)
	if err != nil {
		return nil
	}
	n := len(b) - prefix
	b[1], b[2], b[3], b[4] = byte(n>>24), byte(n>>16), byte(n>>8), byte(n)
	return b
}

// Running is a load that goes on.
type Running struct {
	Load

	begin time.Time
	end   context.CancelFunc
	wg    sync.WaitGroup
}

// Start begins a load. Its connections are opened meanwhile.
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

// Began returns when the load began.
func (r *Running) Began() time.Time { return r.begin }

// Wait waits until a load with a total is over.
func (r *Running) Wait() { r.wg.Wait() }

// Stop ends the load, and waits for open calls, for a second at most.
func (r *Running) Stop() {
	r.end()
	r.wg.Wait()
}

// what returns which request call n of a connection is. In turns, connections begin at different ones.
func (r *Running) what(conn, n int) int {
	if r.Pick != nil {
		return r.Pick(conn, n)
	}
	return (conn + n*r.Conns) % len(r.Requests)
}

// now returns the time since the load began, as outcomes have it.
func (r *Running) now() time.Duration { return time.Since(r.begin) }
