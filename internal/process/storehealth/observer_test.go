package storehealth

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// observed returns an observer with its log and health.
func observed(p Policy) (o *Observer, log *bytes.Buffer, h *health.Tracker) {
	log, h = new(bytes.Buffer), health.NewTracker()
	return Observe(Config{Name: "redis", Policy: p}, slog.New(slog.NewTextHandler(log, nil)), stats.New(), h), log, h
}

// TestBreakerInTheLog: a breaker that opens and probes many times is logged as open twice, ten seconds apart, and as closed once.
func TestBreakerInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, log, h := observed(Policy{})
		o.Connected(2)
		o.batch(remote.Batch{Node: "a:1", Ops: 1})
		if why := o.NotReady(); why != "" {
			t.Errorf("not ready with a working Redis: %s", why)
		}
		for range 60 { // 15 s in total
			o.breaker("a:1", "open")
			time.Sleep(250 * time.Millisecond)
			o.breaker("a:1", "half-open")
		}
		if o.NotReady() == "" {
			t.Error("ready with an open breaker on the only node")
		}
		if c := h.Components()[0]; !h.OK() || !c.Degraded || !strings.Contains(c.LastError, "a:1") {
			t.Errorf("with an open breaker health is %t, and redis %+v; want it degraded, with the node", h.OK(), c)
		}
		o.breaker("a:1", "closed")
		if c := h.Components()[0]; !c.OK {
			t.Errorf("redis after the breaker has closed: %+v", c)
		}
		if why := o.NotReady(); why != "" {
			t.Errorf("not ready after the breaker has closed: %s", why)
		}
		if open, closed := strings.Count(log.String(), "the backend is failing"), strings.Count(log.String(), "answers again"); open != 2 || closed != 1 {
			t.Errorf("%d lines about opening and %d about closing, want 2 and 1:\n%s", open, closed, log)
		}
		if !strings.Contains(log.String(), "omitted=39") {
			t.Errorf("the log lacks the number of omitted lines:\n%s", log)
		}
	})
}

// TestNodeGone: a removed node is not reported as open indefinitely, and does not count for readiness until it returns.
func TestNodeGone(t *testing.T) {
	t.Parallel()
	o, log, _ := observed(Policy{})
	o.Connected(2)
	state := func(node string) float64 { return o.number(node) }
	for _, node := range []string{"a:1", "b:1"} {
		o.breaker(node, "closed")
		o.breaker(node, "open")
	}
	if o.NotReady() == "" || state("a:1") != 2 {
		t.Errorf("ready with open breakers on both nodes; state of the first %v", state("a:1"))
	}
	o.breaker("a:1", "gone")
	if o.NotReady() == "" || state("a:1") != 0 {
		t.Errorf("ready with an open breaker on the only node; state of the removed one %v", state("a:1"))
	}
	o.breaker("a:1", "closed")
	if why := o.NotReady(); why != "" {
		t.Errorf("not ready after a node has returned: %s", why)
	}
	if strings.Contains(log.String(), "answers again") {
		t.Errorf("the log reports that a removed node answers again:\n%s", log)
	}
}

// TestHealthOfRedis: health after a first connection, its loss, and a failed connection attempt.
func TestHealthOfRedis(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		policy Policy
		want   [4]bool // at first, connected, lost, connection failed
		ready  [4]bool
	}{ // Redis is OK only while connected, regardless of health
		{"by default", Policy{}, [4]bool{false, true, true, true}, [4]bool{false, true, false, false}},
		{
			"following connections",
			Policy{Follows: true},
			[4]bool{false, true, false, false},
			[4]bool{false, true, false, false},
		},
		{
			"optional",
			Policy{Follows: true, Optional: true},
			[4]bool{true, true, true, true},
			[4]bool{true, true, true, true},
		},
	} {
		o, _, h := observed(tt.policy)
		for i, step := range []func(){
			func() {},
			func() { o.Connected(1) },
			func() { o.Connected(0) },
			func() {
				o.event(remote.Event{Kind: remote.EventConnectFailed, Node: "a:1", Err: errors.New("no route")})
			},
		} {
			step()
			if got := h.OK(); got != tt.want[i] {
				t.Errorf("%s, step %d: health is %v, want %v", tt.name, i, got, tt.want[i])
			}
			if c := h.Components()[0]; c.OK != (i == 1) || c.Degraded != (tt.want[i] && i != 1) {
				t.Errorf("%s, step %d: redis is %+v", tt.name, i, c)
			}
			if got := o.NotReady() == ""; got != tt.ready[i] {
				t.Errorf("%s, step %d: ready is %v (%s), want %v", tt.name, i, got, o.NotReady(), tt.ready[i])
			}
		}
		if last := h.Components()[0].LastError; !strings.Contains(last, "no route") {
			t.Errorf("%s: the last error is %q, want the reason", tt.name, last)
		}
	}
}
