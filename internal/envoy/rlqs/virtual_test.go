package rlqs_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rlqspb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/envoy/rlqs"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/rulefiletest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
)

// virtual is a service with one stream, on virtual time.
type virtual struct {
	*testing.T

	controls *controls.Controls
	service  *rlqs.Service
	reports  chan []byte
	count    fleetCount
	why      chan error // receives the error of the ended stream
	cancel   context.CancelFunc
}

func startVirtual(t *testing.T, b backend.Backend, c rlqs.Config) *virtual {
	t.Helper()
	v := &virtual{T: t, controls: controls.New(controls.Config{}), reports: make(chan []byte, 100), why: make(chan error, 1)}
	l := limiter.New(b, stats.New(), limiter.Config{Overrides: v.controls.Overrides()})
	l.SetRules(rulefiletest.Load(t, rules))
	v.service = rlqs.New(l, c)
	var ctx context.Context
	ctx, v.cancel = context.WithCancel(t.Context())
	go func() {
		v.why <- v.service.StreamRateLimitQuotas(&fleetStream{ctx: ctx, reports: v.reports, count: &v.count}) //nolint:contextcheck // the stream has it
	}()
	return v
}

// report reports the given number of allowed requests for each bucket.
func (v *virtual) report(requests uint64, ids ...*rlqspb.BucketId) {
	v.Helper()
	m := &rlqspb.RateLimitQuotaUsageReports{Domain: "edge"}
	for _, id := range ids {
		u := &rlqspb.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: id, NumRequestsAllowed: requests}
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, u)
	}
	text, err := proto.Marshal(m)
	if err != nil {
		v.Fatal(err)
	}
	v.reports <- text
}

// end closes the stream, unless it has already ended, and returns its error.
func (v *virtual) end() error {
	close(v.reports)
	err := <-v.why
	v.cancel()
	v.service.Drain()
	v.service.Wait()
	return err
}

// abandons returns the number of actions that abandoned a bucket.
func (v *virtual) abandons() (n int) {
	v.count.mu.Lock()
	defer v.count.mu.Unlock()
	for _, m := range v.count.answers {
		for _, a := range m.GetBucketAction() {
			if a.GetAbandonAction() != nil {
				n++
			}
		}
	}
	return n
}

// services returns n bucket IDs.
func services(n int) (ids []*rlqspb.BucketId) {
	for i := range n {
		ids = append(ids, bucket("service", fmt.Sprint(i)))
	}
	return ids
}

// TestTooManyBuckets checks that a client that reports too many buckets is served the maximum number. It is told to abandon the others
// only while it does not use them.
func TestTooManyBuckets(t *testing.T) {
	t.Parallel()
	for requests := range uint64(2) {
		synctest.Test(t, func(t *testing.T) {
			v := startVirtual(t, memory.New(memory.Config{}), rlqs.Config{})
			for range 3 {
				v.report(requests, services(3001)...)
				time.Sleep(5 * time.Second)
			}
			if n, _, buckets := v.service.Counts(); buckets != 1000 || n.Unserved != 3*2001 {
				t.Errorf("%d buckets, %d reports of others, want 1000 and 3*2001", buckets, n.Unserved)
			}
			if n := v.abandons(); (n > 0) != (requests == 0) {
				t.Errorf("with %d requests each it is told to forget %d buckets", requests, n)
			}
			if err := v.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestNotDivided checks that a client is told to abandon a bucket without rlqs only while it does not use it.
func TestNotDivided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := startVirtual(t, memory.New(memory.Config{}), rlqs.Config{})
		for _, x := range []struct {
			requests uint64
			want     int
		}{{1, 0}, {1, 0}, {0, 1}} {
			v.report(x.requests, bucket("service", "asked"))
			time.Sleep(5 * time.Second)
			if n := v.abandons(); n != x.want {
				t.Errorf("it is told %d times, want %d", n, x.want)
			}
		}
		if err := v.end(); err != nil {
			t.Error(err)
		}
	})
}

// TestUsualReports checks that a new bucket does not wait because many others were reported normally.
func TestUsualReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		v := startVirtual(t, memory.New(memory.Config{}), rlqs.Config{})
		for range 2 {
			v.report(0, services(900)...)
			time.Sleep(5 * time.Second)
		}
		v.report(0, services(900)...)
		v.report(0, bucket("service", "shop"))
		time.Sleep(10 * time.Millisecond)
		if _, _, n := v.service.Counts(); n != 901 {
			t.Errorf("%d buckets, want 901", n)
		}
		if err := v.end(); err != nil {
			t.Error(err)
		}
	})
}

// broken is a backend that can be made unavailable.
type broken struct {
	*memory.Backend

	down atomic.Bool
}

func (b *broken) Apply(ctx context.Context, ops []backend.Op) {
	if !b.down.Load() {
		b.Backend.Apply(ctx, ops)
		return
	}
	for i := range ops {
		ops[i].Err = backend.ErrUnsent
	}
}

// TestLiftedWhileDown checks that the action of a control is not repeated after the control is lifted, even if the backend does not
// answer with the limits in force.
func TestLiftedWhileDown(t *testing.T) {
	t.Parallel()
	for _, kind := range []override.Kind{override.Allow, override.Block} {
		synctest.Test(t, func(t *testing.T) {
			store := &broken{Backend: memory.New(memory.Config{})}
			v := startVirtual(t, store, rlqs.Config{})
			made := &override.Control{Kind: kind, Domain: "edge", Entries: []override.Entry{{Key: "service", Value: "shop"}}}
			if _, err := v.controls.Set(t.Context(), made, time.Hour, false); err != nil {
				t.Fatal(err)
			}
			said := func() int64 { // number of actions during an interval
				before := v.count.actions.Load()
				v.report(1, bucket("service", "shop"))
				time.Sleep(5 * time.Second)
				return v.count.actions.Load() - before
			}
			if n := said(); n != 1 {
				t.Errorf("%d answers under the control, want 1", n)
			}
			store.down.Store(true)
			if _, err := v.controls.Lift(t.Context(), []string{made.ID}, false); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			if n := said(); n != 0 {
				t.Errorf("%d answers after it was lifted, want none", n)
			}
			store.down.Store(false)
			if n := said(); n == 0 {
				t.Error("no answer after the store is back")
			}
			if err := v.end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestAge checks that a stream ends at the maximum age, after its assignments were renewed.
func TestAge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const age = 3500 * time.Millisecond
		v := startVirtual(t, memory.New(memory.Config{}), rlqs.Config{MaxAge: age})
		began := time.Now()
		v.report(0, bucket("service", "shop"))
		time.Sleep(age - time.Millisecond)
		before := v.count.actions.Load()
		err := <-v.why
		if took := time.Since(began); took > age+100*time.Millisecond || !strings.Contains(status.Convert(err).Message(), "as old as") {
			t.Errorf("it ends after %v with %v", took, err)
		}
		if n := v.count.actions.Load() - before; before == 0 || n != 1 {
			t.Errorf("%d assignments in the end, after %d before, want 1 after some", n, before)
		}
		v.why <- err
		_ = v.end()
	})
}

// TestSilence checks that a stream without reports ends, earlier if it has buckets.
func TestSilence(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		says func(v *virtual)
		want time.Duration
	}{
		"nothing":   {func(*virtual) {}, 15 * time.Second},
		"a bucket":  {func(v *virtual) { v.report(0, bucket("service", "shop")) }, 15 * time.Second},
		"no bucket": {func(v *virtual) { v.report(0) }, 5 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := startVirtual(t, memory.New(memory.Config{}), rlqs.Config{})
			began := time.Now()
			x.says(v)
			err := <-v.why
			if took := time.Since(began); status.Code(err) != codes.Unavailable || took != x.want {
				t.Errorf("%s: it ends after %v with %v, want %v", name, took, err, x.want)
			}
			v.why <- err
			_ = v.end()
		})
	}
}
