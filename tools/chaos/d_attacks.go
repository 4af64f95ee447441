package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ratelimitd/ratelimitd/tools/loadgen/calls"
	"golang.org/x/net/http2"
)

// attack is the behavior of a hostile client until ctx ends.
type attack struct {
	name string
	do   func(ctx context.Context, s target)
}

// target has the addresses to attack.
type target struct{ grpc, http string }

// attackOf runs one attack until ctx ends. It runs in a separate process, as on a separate machine: in the good client's process
// it would delay that client.
func attackOf(ctx context.Context, name string, args []string) error {
	if len(args) != 2 {
		return errors.New("want the addresses of gRPC and of HTTP")
	}
	for _, a := range attackList() {
		if a.name == name {
			a.do(ctx, target{grpc: args[0], http: args[1]})
			return nil
		}
	}
	return fmt.Errorf("there is no attack named %q", name)
}

const attackTime = 2500 * time.Millisecond

func attackList() []attack {
	head, one := calls.Headers(0), request("d", "k=attack")
	frames := func(n int, write func(fr *http2.Framer, i uint32) error) func(context.Context, target) {
		return func(ctx context.Context, s target) {
			crowdOf(n, func() { framesUntil(ctx, s.grpc, write) })
		}
	}
	text := func(n int, say func(ctx context.Context, c net.Conn)) func(context.Context, target) {
		return func(ctx context.Context, s target) { crowdOf(n, func() { converse(ctx, s.http, say) }) }
	}
	return []attack{
		{"rapid reset", frames(2, func(fr *http2.Framer, i uint32) error {
			err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndHeaders: true})
			return errors.Join(err, fr.WriteData(2*i+1, true, one), fr.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		})},
		{"CONTINUATION flood", frames(2, func(fr *http2.Framer, i uint32) error {
			if i == 0 {
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head})
			}
			return fr.WriteContinuation(1, false, []byte{0x00, 1, 'x', 1, 'y'})
		})},
		{"16 MiB of headers", frames(2, func(fr *http2.Framer, i uint32) error {
			const each, all = 16 << 10, 16 << 20
			switch n := int(i) * each; {
			case i == 0: // then a header named x; 4 bytes of 7 bits each encode the length of its value
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: append(slices.Clone(head), 0, 1, 'x', 0x7f, 0x81, 0xff, 0xff, 0x07)})
			case n > all:
				return io.EOF
			default:
				return fr.WriteContinuation(1, n == all, bytes.Repeat([]byte{'v'}, each))
			}
		})},
		{"ping flood", frames(2, func(fr *http2.Framer, i uint32) error { return fr.WritePing(false, [8]byte{byte(i)}) })},
		{"SETTINGS flood", frames(2, func(fr *http2.Framer, _ uint32) error { return fr.WriteSettings() })},
		{"DATA frames of a byte", frames(4, func(fr *http2.Framer, i uint32) error {
			const each = 60_000 // bytes permitted before a window update
			stream := 2*(i/each) + 1
			if i%each == 0 {
				err := fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head, EndHeaders: true})
				return errors.Join(err, fr.WriteData(stream, false, []byte{0, 0, 0x10, 0, 0}))
			}
			return fr.WriteData(stream, false, []byte{0})
		})},
		{"headers without a message", func(ctx context.Context, s target) {
			const conns, calls = 20, 1000
			crowdOf(conns, func() {
				framesUntil(ctx, s.grpc, func(fr *http2.Framer, i uint32) error {
					if i >= calls {
						return sleep(ctx, attackTime)
					}
					return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndHeaders: true})
				})
			})
		}},
		{"1,000 idle connections", func(ctx context.Context, s target) {
			crowdOf(1000, func() { converse(ctx, s.grpc, func(ctx context.Context, _ net.Conn) { _ = sleep(ctx, attackTime) }) })
		}},
		{"/json without end, 12 concurrent", text(12, func(ctx context.Context, c net.Conn) {
			_, err := io.WriteString(c, "POST /json HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{\"descriptors\":[\r\n")
			chunk := "c000\r\n" + strings.Repeat("{},", 0x4000) + "\r\n"
			for ctx.Err() == nil && err == nil {
				_, err = io.WriteString(c, chunk)
			}
		})},
		{"slow and endless HTTP headers, 200 concurrent", text(200, func(ctx context.Context, c net.Conn) {
			_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n")
			for ctx.Err() == nil && err == nil {
				line := make([]byte, 16)
				_, _ = rand.Read(line) // never fails
				_, err = io.WriteString(c, "X-"+hex.EncodeToString(line)+": 1\r\n")
				_ = sleep(ctx, 5*time.Millisecond)
			}
		})},
	}
}

// crowdOf calls do n times concurrently.
func crowdOf(n int, do func()) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(do)
	}
	wg.Wait()
}

// converse opens one connection after the other, and calls say for each.
func converse(ctx context.Context, addr string, say func(context.Context, net.Conn)) {
	for ctx.Err() == nil {
		c, err := net.DialTimeout("tcp", addr, dialTime) //nolint:noctx // has its own timeout
		if err != nil {
			_ = sleep(ctx, 20*time.Millisecond)
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		go func() { _, _ = io.Copy(io.Discard, c) }()
		say(ctx, c)
		_ = c.Close()
		stop()
		_ = sleep(ctx, 5*time.Millisecond)
	}
}

// framesUntil writes frames until ctx ends, on one connection after the other. It pauses now and then, so that it does not
// exhaust the processors.
func framesUntil(ctx context.Context, addr string, write func(fr *http2.Framer, i uint32) error) {
	const burst, rest = 50, 10 * time.Millisecond
	converse(ctx, addr, func(ctx context.Context, c net.Conn) {
		out := bufio.NewWriter(c)
		_, _ = out.WriteString(http2.ClientPreface) // the frames report errors
		fr := http2.NewFramer(out, nil)
		fr.AllowIllegalWrites = true
		err := fr.WriteSettings()
		for i := uint32(0); err == nil && i < 1<<30 && ctx.Err() == nil; i++ {
			err = write(fr, i)
			if i%burst == burst-1 {
				err = errors.Join(err, out.Flush(), sleep(ctx, rest))
			}
		}
	})
}

func attacks(ctx context.Context, e *env) {
	self, err := os.Executable()
	e.must(err)
	r := e.redis(ctx)
	s := e.startServer(ctx, limited(4_000_000_000, "hour"), "REDIS_URL="+r.addr)
	good := load{addr: s.GRPC, requests: [][]byte{request("d", "k=good")}, rate: 200, timeout: time.Second, conns: 1}
	// Warm up: the server's heap grows to five times the live size before the first collection.
	load{addr: s.GRPC, requests: good.requests, conns: 2}.run(ctx, 2*time.Second)
	calm := good.run(ctx, 2*time.Second)
	before := s.rss()
	e.note("before: %s, %s", calm, mb(before))
	var slowest time.Duration
	var largest int64
	var errorsSeen int
	var slow, large string
	for _, a := range attackList() {
		peak := s.peakRSS()
		hostile := e.process("attack", self, "-attack", a.name, s.GRPC, s.HTTP)
		e.must(hostile.Launch())
		all := good.run(ctx, attackTime)
		if hostile.Died() {
			e.fail("%s has ended by itself", a.name)
		}
		hostile.Kill()
		more := peak() - before
		e.note("%s: %s, %s more", a.name, all, mb(more))
		if p := all.p(0.99); p > slowest {
			slowest, slow = p, a.name
		}
		if more > largest {
			largest, large = more, a.name
		}
		errorsSeen += len(all) - len(all.of(okay))
		if s.Died() {
			e.fail("%s ends the server", a.name)
		}
	}
	e.measured(slowest <= 50*time.Millisecond, "%d attacks; good client p99 at most %s (%s)", len(attackList()), ms(slowest), slow)
	e.measured(errorsSeen == 0, "%d of its calls failed", errorsSeen)
	e.measured(largest <= 100<<20, "RSS at most +%s (%s)", mb(largest), large)
	rest := good.start(ctx)
	defer rest.stop()
	took, back := poll(ctx, 30*time.Second, func() bool { return s.rss() < before+20<<20 })
	e.measured(back, "back within 20 MB after %.1f s", took.Seconds())
}
