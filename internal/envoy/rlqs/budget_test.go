package rlqs_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

const hostileRules = `
domain: edge
descriptors:
- key: user
  rate_limit: {unit: second, requests_per_unit: 1000, algorithm: token_bucket, rlqs: true}
`

// crowd is a service on virtual time with clients of several addresses, which have no connections.
type crowd struct {
	*testing.T

	service *rlqs.Service
	clients []*guest
}

// guest is a stream from an address. It counts the actions that it receives.
type guest struct {
	reports chan []byte
	cancel  context.CancelFunc
	count   fleetCount
	why     chan error
}

func startCrowd(t *testing.T, rules string, c rlqs.Config) *crowd {
	t.Helper()
	l := limiter.New(memory.New(memory.Config{}), stats.New(), limiter.Config{Overrides: controls.New(controls.Config{}).Overrides()})
	l.SetRules(rulefiletest.Load(t, rules))
	return &crowd{T: t, service: rlqs.New(l, c)}
}

// open opens a stream from an address.
func (c *crowd) open(address string, md ...string) *guest {
	c.Helper()
	at, err := net.ResolveTCPAddr("tcp", net.JoinHostPort(address, "1234"))
	if err != nil {
		c.Fatal(err)
	}
	g := &guest{reports: make(chan []byte, 1), why: make(chan error, 1)}
	g.count.answers = make([]*rlqspb.RateLimitQuotaResponse, 1000) // so that no more are kept
	ctx := metadata.NewIncomingContext(peer.NewContext(c.Context(), &peer.Peer{Addr: at}), metadata.Pairs(md...))
	ctx, g.cancel = context.WithCancel(ctx)
	go func() {
		defer g.cancel()
		g.why <- c.service.StreamRateLimitQuotas(&fleetStream{ctx: ctx, reports: g.reports, count: &g.count}) //nolint:contextcheck // the stream has it
	}()
	c.clients = append(c.clients, g)
	return g
}

// users returns a report of n buckets with the given number of requests each.
func users(requests uint64, prefix string, from, n int) []byte {
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: "edge"}
	for i := range n {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: bucket("user", fmt.Sprint(prefix, from+i)), NumRequestsAllowed: requests,
		})
	}
	text, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return text
}

// send sends a report, unless the previous one has not been read yet.
func (g *guest) send(report []byte) {
	select {
	case g.reports <- report:
	default: // the last one has not been read
	}
}

// ended returns the error of the stream if it has ended, or nil.
func (g *guest) ended() error {
	select {
	case err := <-g.why:
		g.why <- err
		return err
	default:
		return nil
	}
}

// answered counts the clients of an address, each with its own bucket and five seconds apart, that get an assignment in time.
func (c *crowd) answered(address string, clients int) (n int) {
	c.Helper()
	for i := range clients {
		g := c.open(address)
		g.send(users(1, "innocent", i, 1))
		time.Sleep(5 * time.Second)
		if g.count.actions.Load() > 0 && g.ended() == nil {
			n++
		}
	}
	return n
}

// end ends all streams, and checks that no address remains charged.
func (c *crowd) end() {
	c.Helper()
	for _, g := range c.clients {
		g.cancel()
		close(g.reports)
		<-g.why //nolint:errcheck // any error is the end of its context, or earlier
	}
	time.Sleep(time.Minute)
	if n := c.service.Memory(); n != 0 {
		c.Errorf("%d bytes are charged in the end, want 0", n)
	}
	c.service.Drain()
	c.service.Wait()
}

// live returns the size of live objects in bytes.
func live() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse) //nolint:gosec // less than 2^63
}

// TestMemory checks that many streams of one address with the same many buckets stay within the maximum memory, and leave room for
// others.
func TestMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 4 << 20
		c := startCrowd(t, hostileRules, rlqs.Config{Memory: most, AddressShare: 0.25})
		report := users(1, "made-up", 0, 200)
		var hostile []*guest
		for range 40 { // 11 MB
			hostile = append(hostile, c.open("192.0.2.1"))
		}
		answered := 0
		for range 14 {
			for i, g := range hostile {
				if g.ended() != nil {
					hostile[i] = c.open("192.0.2.1")
				}
				hostile[i].send(report)
			}
			answered += c.answered("192.0.2.2", 1)
			if n := c.service.Memory(); n > most {
				t.Errorf("%d bytes are charged, want %d at most", n, most)
			}
		}
		if answered != 14 {
			t.Errorf("%d of 14 clients of another address were answered", answered)
		}
		c.end()
	})
}

// TestStreams checks that nearly idle streams of one address may take all memory until clients of other addresses come.
func TestStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCrowd(t, hostileRules, rlqs.Config{Memory: 20 << 20, AddressShare: 0.25})
		for range 400 {
			c.open("2001:db8::1").send(users(0, "", 0, 0))
		}
		time.Sleep(time.Second)
		if _, n, _ := c.service.Counts(); n < 300 || n > 320 {
			t.Errorf("one address has %d streams, want 320 at most, and nearly as many", n)
		}
		var err error
		for range 50 { // of the same network
			g := c.open("2001:db8::2")
			time.Sleep(10 * time.Millisecond)
			err = g.ended()
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a client of the same network ended with %v, want ResourceExhausted", err)
		}
		if n := c.answered("2001:db8:0:1::1", 14); n != 14 {
			t.Errorf("%d of 14 clients of another network were answered", n)
		}
		c.end()
	})
}

// TestFullDomain checks that one address may take all buckets of a domain until clients of other addresses come.
func TestFullDomain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCrowd(t, hostileRules, rlqs.Config{AddressShare: 0.25})
		for i := range 12 {
			c.open("192.0.2.1").send(users(1, "made-up", 1000*i, 1000))
		}
		for range 6 { // reports that waited for two seconds are repeated
			time.Sleep(2100 * time.Millisecond)
			for i := range 12 {
				c.clients[i].send(users(1, "made-up", 1000*i, 1000))
			}
		}
		if _, _, n := c.service.Counts(); n != 10_000 {
			t.Errorf("%d buckets, want 10000", n)
		}
		if n := c.answered("192.0.2.2", 2); n != 2 {
			t.Errorf("%d of 2 clients of another address were answered", n)
		}
		c.end()
	})
}

// TestNewBuckets checks that an address creates at most a thousand buckets per second, regardless of its number of streams.
func TestNewBuckets(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCrowd(t, hostileRules, rlqs.Config{AddressShare: 0.25})
		sent := 0
		for range 2 * 5 { // a second has five rounds
			var round []*guest
			for range 16 {
				g := c.open("192.0.2.1")
				g.send(users(1, "new", sent, 900))
				round = append(round, g)
				sent += 900
			}
			time.Sleep(200 * time.Millisecond)
			for _, g := range round {
				g.cancel()
			}
		}
		if _, _, n := c.service.Counts(); n > 2250 || n < 200 {
			t.Errorf("%d buckets of %d that were reported within 2 s, want 200 to 2250", n, sent)
		}
		if n := c.answered("192.0.2.2", 1); n != 1 {
			t.Error("a client of another address is not answered")
		}
		c.end()
	})
}

// TestEmptyReports checks that a stream of empty reports is read at most ten thousand times per second.
func TestEmptyReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCrowd(t, hostileRules, rlqs.Config{})
		g := c.open("192.0.2.1")
		report, stop := users(0, "", 0, 0), time.After(10*time.Second)
		for sent := 0; ; sent++ {
			select {
			case g.reports <- report:
				continue
			case <-stop:
			}
			if sent > 103_000 {
				t.Errorf("%d reports were taken in 10 s, want 103000 at most", sent)
			}
			break
		}
		c.end()
	})
}

// TestManyMessages checks that an Envoy that meets 900 buckets and sends a message for each is served within a second.
func TestManyMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCrowd(t, hostileRules, rlqs.Config{AddressShare: 0.25})
		g := c.open("192.0.2.1")
		for i := range 900 {
			g.reports <- users(1, "", i, 1)
		}
		time.Sleep(200 * time.Millisecond)
		if _, _, n := c.service.Counts(); n != 900 || g.count.actions.Load() < 800 {
			t.Errorf("%d buckets, %d assignments, want 900", n, g.count.actions.Load())
		}
		c.end()
	})
}

// TestSharedBucket checks that a bucket that is evicted because the address of its first client has too much is served again for another
// address.
func TestSharedBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startCrowd(t, hostileRules, rlqs.Config{Memory: 1 << 20, AddressShare: 0.25})
		c.open("192.0.2.1").send(users(1, "", 0, 110))
		time.Sleep(time.Second)
		honest := c.open("192.0.2.2") // its stream and its holder make room for themselves
		for range 5 {
			before := honest.count.actions.Load()
			c.clients[0].send(users(1, "", 0, 110))
			honest.send(users(1, "", 0, 5))
			time.Sleep(5 * time.Second)
			if n := honest.count.actions.Load() - before; n < 5 {
				t.Errorf("%d assignments in an interval, want 5", n)
			}
		}
		c.end()
	})
}

// TestEstimates checks that the charged memory is at least the growth of the heap, within 5 %, and exceeds it by at most a quarter.
func TestEstimates(t *testing.T) {
	for name, x := range map[string]struct{ rules, prefix string }{
		"short ids":      {hostileRules, ""},
		"long ids":       {hostileRules, strings.Repeat("x", 1000)},
		"ids to quote":   {hostileRules, strings.Repeat("\x00", 1000)},
		"strict windows": {"{domain: edge, descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 1000000, rlqs: true}}]}", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := startCrowd(t, x.rules, rlqs.Config{})
			for range 10 {
				c.open("192.0.2.1")
			}
			time.Sleep(time.Second)
			check := func(what string, n, heap, charged int) {
				t.Helper()
				heap, charged = (live()-heap)/n, charged/n
				t.Logf("%s: a %s takes %d bytes, and %d are charged", name, what, heap, charged)
				if !raceEnabled && charged < heap*95/100 || charged > heap*125/100 {
					t.Errorf("%s: a %s takes %d bytes, and %d are charged", name, what, heap, charged)
				}
			}
			grown := func(what string, n int, report func(stream int) []byte) {
				t.Helper()
				heap, charged := live(), c.service.Memory()
				for range 3 {
					for i, g := range c.clients {
						g.send(report(i))
					}
					time.Sleep(5 * time.Second)
				}
				check(what, n, heap, c.service.Memory()-charged)
			}
			grown("bucket with a holder", 1000, func(stream int) []byte { return users(1, x.prefix, 100*stream, 100) })
			grown("holder", 9000, func(int) []byte { return users(1, x.prefix, 0, 1000) })

			text, heap, charged := users(1, x.prefix, 0, 1000), live(), 0
			var reports [20]rlqspb.RateLimitQuotaUsageReports
			for i := range reports {
				if err := proto.Unmarshal(text, &reports[i]); err != nil {
					t.Fatal(err)
				}
				charged += rlqs.ReportBytes(&reports[i])
			}
			check("usage in a report", 1000*len(reports), heap, charged)
			runtime.KeepAlive(&reports)
			c.end()
		})
	}
}
