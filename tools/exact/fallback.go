package main

import (
	"bytes"
	"context"
	_ "embed" // for a script
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Rounds of what replicas share, on each kind of servers.
const (
	fallRounds = 3
	endRounds  = 3
)

const (
	obeyTime = 5 * time.Second        // within which all replicas obey: docs/admin-api.md says one, and this machine may be busy
	lateTime = 400 * time.Millisecond // after its end at which a control still decides because this machine is busy
)

// The plans of tenants, told apart by their numbers.
const (
	usual = 1000
	gold  = 2000
)

const sharedRules = `domain: shared
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 1000000, on_failure: allow}}
  - key: tenant
    plan_of: tenant
    plans:
      default: {unit: year, requests_per_unit: 1000}
      gold: {unit: year, requests_per_unit: 2000}
`

// troupe is replicas that share controls and tenants, in a Redis that loses what it was told last.
type troupe struct {
	*cluster

	ctx   context.Context //nolint:containedctx // of all calls of its scenes
	title string
	calls int
	wrong []string
	round int // names what it is about
}

// playFallbacks plays what docs/admin-api.md says of controls and tenants, on one replica and on three, with and without INFO.
func (c *config) playFallbacks(ctx context.Context, sum *tally) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	played := 0
	for _, info := range []bool{true, false} {
		for _, n := range []int{1, replicas} {
			wg.Go(func() {
				t, err := c.playFallback(ctx, n, info)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed = err
					return
				}
				played++
				sum.calls += t.calls
				sum.found += len(t.wrong)
				for _, w := range t.wrong {
					fmt.Fprintf(c.stdout, "FOUND in what replicas share: %s: %s\n", t.title, w)
				}
			})
		}
	}
	wg.Wait()
	fmt.Fprintf(c.stdout, "%d times controls and tenants of a Redis that falls back: %d findings in all\n", played, sum.found)
	return failed
}

// playFallback plays all scenes on n replicas.
func (c *config) playFallback(ctx context.Context, n int, info bool) (*troupe, error) {
	dir, err := os.MkdirTemp("", "exact")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	args := []string{"--enable-debug-command", "yes"}
	if !info {
		args = append(args, "--rename-command", "INFO", "")
	}
	quiet := *c
	quiet.stderr = withoutChanges{c.stderr}
	cl, err := newCluster(ctx, quiet, dir, args...)
	if err != nil {
		return nil, err
	}
	defer cl.stop()
	for range n {
		if _, err := cl.add(ctx, map[string]string{"shared": sharedRules}, "TENANTS_REDIS=true"); err != nil {
			return nil, err
		}
	}
	t := &troupe{cluster: cl, ctx: ctx, title: fmt.Sprintf("%d replicas, INFO %t", n, info)}
	for name, fall := range map[string]func() error{"restarted from its file": t.restart, "set back": t.setBack} {
		for range fallRounds {
			for _, play := range []func(string, func() error) error{t.lose, t.liftAndLose, t.replaceAndLose} {
				t.round++
				if err := play(name, fall); err != nil {
					return nil, fmt.Errorf("%s: %w", t.title, err)
				}
			}
		}
	}
	for i := range endRounds {
		t.round++
		span := time.Second + time.Duration(i)*350*time.Millisecond
		if err := first(t.changeAfterAhead(), t.endWhileHanging(span)); err != nil { //nolint:contextcheck // t has it
			return nil, fmt.Errorf("%s: %w", t.title, err)
		}
	}
	return t, nil
}

// withoutChanges leaves out of a log the lines about changes by operators, which are there at any level.
type withoutChanges struct{ io.Writer }

// Write implements [io.Writer].
func (w withoutChanges) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if !bytes.Contains(line, []byte("an operator made a change")) && !bytes.Contains(line, []byte("a change failed, and may")) {
			if _, err := w.Writer.Write(line); err != nil {
				return 0, err
			}
		}
	}
	return len(p), nil
}

// save has Redis write what it has to its file.
func (t *troupe) save() error {
	return redisDo(t.ctx, t.addr, "SAVE")
}

// restart kills Redis, and starts it from its file.
func (t *troupe) restart() error {
	t.redis.Kill()
	return t.redis.Start(t.ctx)
}

// setBack has the same process of Redis read its file.
func (t *troupe) setBack() error {
	return redisDo(t.ctx, t.addr, "DEBUG", "RELOAD", "NOSAVE")
}

// lose: Redis loses a block and a tenant, and at once others are told to another replica. All replicas obey all of them.
func (t *troupe) lose(how string, fall func() error) error {
	a, b := fmt.Sprint("a", t.round), fmt.Sprint("b", t.round)
	other := t.all[1%len(t.all)]
	if err := first(t.save(), t.block(t.all[0], a, time.Hour), t.set(t.all[0], a), fall(), t.block(other, b, time.Hour), t.set(other, b)); err != nil {
		return err
	}
	for _, name := range []string{a, b} {
		t.obey(fmt.Sprintf("Redis was %s just before %s was blocked; the block of %s", how, b, name), name, false)
		t.on(fmt.Sprintf("Redis was %s just before %s was set; the plan of %s", how, b, name), name, gold)
	}
	return nil
}

// liftAndLose: what was lifted, and a tenant that was taken away, do not return with a Redis that has forgotten it.
func (t *troupe) liftAndLose(how string, fall func() error) error {
	x := fmt.Sprint("x", t.round)
	if err := first(t.block(t.all[0], x, time.Hour), t.set(t.all[0], x), t.save(), t.lift(t.all[0], x), t.unset(t.all[0], x), fall()); err != nil {
		return err
	}
	what := fmt.Sprintf("%s was lifted before Redis was %s; its block", x, how)
	time.Sleep(time.Second)
	t.obey(what, x, true)
	t.on(what+" as a tenant", x, usual)
	return nil
}

// replaceAndLose: a block for long was replaced by one that has ended since. It does not return.
func (t *troupe) replaceAndLose(how string, fall func() error) error {
	x := fmt.Sprint("r", t.round)
	if err := first(t.block(t.all[0], x, 40*time.Second), t.save(), t.block(t.all[0], x, time.Second)); err != nil {
		return err
	}
	time.Sleep(1500 * time.Millisecond)
	what := fmt.Sprintf("a block of %s for 1 s replaced one for 40 s, and ended before Redis was %s; it", x, how)
	t.obey(what, x, true)
	if err := fall(); err != nil {
		return err
	}
	time.Sleep(time.Second)
	t.obey(what, x, true)
	return nil
}

// changeAfterAhead: a block and a tenant are of a Redis whose clock was ahead. One that is empty takes its place, and what is lifted,
// blocked, set and taken away there stays so.
func (t *troupe) changeAfterAhead() error {
	x, y := fmt.Sprint("h", t.round), fmt.Sprint("i", t.round)
	last := t.all[len(t.all)-1]
	if err := first(t.block(t.all[0], x, time.Hour), t.set(t.all[0], x), t.block(t.all[0], y, time.Hour), t.lift(t.all[0], y),
		t.ahead("rl:{controls}"), t.ahead("rl:{tenants}")); err != nil {
		return err
	}
	time.Sleep(time.Second) // within which all replicas learn of it
	if err := first(redisDo(t.ctx, t.addr, "FLUSHALL"), t.lift(last, x), t.unset(last, x), t.block(last, y, time.Hour), t.set(last, y)); err != nil {
		return err
	}
	const what = "after a Redis whose clock was 30 s ahead "
	for range 2 { // at once, and once all that replicas know is in Redis
		t.obey(what+x+" was lifted; it", x, true)
		t.on(what+x+" was taken away; it", x, usual)
		t.obey(what+y+" was blocked; it", y, false)
		t.on(what+y+" was set; it", y, gold)
		time.Sleep(2 * time.Second)
	}
	return nil
}

// ahead has all entries of a register made 30 s later, as by a Redis whose clock is ahead.
func (t *troupe) ahead(register string) error {
	return redisDo(t.ctx, t.addr, "EVAL", aheadScript, "2", register+":entries", register+":changed")
}

//go:embed ahead.lua
var aheadScript string

// endWhileHanging: a control ends in time while Redis hangs.
func (t *troupe) endWhileHanging(span time.Duration) error {
	x := fmt.Sprint("e", t.round)
	if err := t.block(t.all[0], x, span); err != nil {
		return err
	}
	end := time.Now().Add(span) // or a little before
	t.obey("the block of "+x, x, false)
	if err := t.redis.Pause(); err != nil {
		return err
	}
	var wg sync.WaitGroup
	late := make([]time.Duration, len(t.all))
	for i, r := range t.all {
		wg.Go(func() {
			for sent := time.Now(); sent.Before(end.Add(2 * time.Second)); sent = time.Now() {
				if s, err := t.ask(r, "k", x); err == nil && s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
					late[i] = sent.Sub(end)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	wg.Wait()
	for i, after := range late {
		if after > lateTime {
			t.finds("replica %d obeyed the block of %s for %v after its end, while Redis hung", i+1, x, after)
		}
	}
	return t.redis.Resume()
}

// first returns the first error.
func first(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *troupe) finds(format string, args ...any) {
	t.wrong = append(t.wrong, fmt.Sprintf(format, args...))
}

// block blocks a value as soon as the replica can ask Redis. The answer was OK then.
func (t *troupe) block(r *replica, value string, span time.Duration) error {
	return t.change(func(ctx context.Context) error {
		_, err := r.admin.Block(ctx, &adminv1.BlockRequest{Domain: "shared", Entries: entry(value), For: durationpb.New(span)})
		return err
	})
}

func (t *troupe) lift(r *replica, value string) error {
	return t.change(func(ctx context.Context) error {
		all, err := r.admin.ListControls(ctx, &adminv1.ListControlsRequest{PageSize: 500})
		if err != nil {
			return err
		}
		for _, c := range all.GetControls() {
			if c.GetEntries()[0].GetValue() == value {
				_, err := r.admin.Lift(ctx, &adminv1.LiftRequest{Ids: []string{c.GetId()}})
				return err
			}
		}
		return fmt.Errorf("no block of %s", value)
	})
}

// set puts a tenant on gold.
func (t *troupe) set(r *replica, tenant string) error {
	return t.change(func(ctx context.Context) error {
		_, err := r.admin.SetTenant(ctx, &adminv1.SetTenantRequest{Tenant: &adminv1.Tenant{Tenant: tenant, Plan: "gold"}})
		return err
	})
}

func (t *troupe) unset(r *replica, tenant string) error {
	return t.change(func(ctx context.Context) error {
		_, err := r.admin.UnsetTenant(ctx, &adminv1.UnsetTenantRequest{Tenant: tenant})
		return err
	})
}

// change tries again for as long as Redis cannot be asked.
func (t *troupe) change(f func(context.Context) error) error {
	end := time.Now().Add(redisTime)
	for {
		ctx, cancel := context.WithTimeout(t.ctx, redisTime)
		err := f(ctx)
		cancel()
		t.calls++
		if err == nil || time.Now().After(end) || t.ctx.Err() != nil {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func entry(value string) []*adminv1.Entry { return []*adminv1.Entry{{Key: "k", Value: value}} }

// ask asks a replica for one hit.
func (t *troupe) ask(r *replica, key, value string) (*rlsv3.RateLimitResponse_DescriptorStatus, error) {
	ctx, cancel := context.WithTimeout(t.ctx, redisTime)
	defer cancel()
	d := &commonv3.RateLimitDescriptor{Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: key, Value: value}}}
	resp, err := r.rls.ShouldRateLimit(ctx, &rlsv3.RateLimitRequest{Domain: "shared", Descriptors: []*commonv3.RateLimitDescriptor{d}})
	if err != nil || len(resp.GetStatuses()) != 1 {
		return nil, fmt.Errorf("answered %v: %w", resp, err)
	}
	return resp.GetStatuses()[0], nil
}

// obey checks that soon a value passes on all replicas, or none.
func (t *troupe) obey(what, value string, passes bool) {
	t.soon(what, func(r *replica) (string, bool) {
		s, err := t.ask(r, "k", value)
		return fmt.Sprintf("passes: %t (%v), want %t", s.GetCode() == rlsv3.RateLimitResponse_OK, err, passes),
			err == nil && (s.GetCode() == rlsv3.RateLimitResponse_OK) == passes
	})
}

// on checks that soon a tenant has a number on all replicas.
func (t *troupe) on(what, tenant string, number uint32) {
	t.soon(what, func(r *replica) (string, bool) {
		s, err := t.ask(r, "tenant", tenant)
		n := s.GetCurrentLimit().GetRequestsPerUnit()
		return fmt.Sprintf("has %d (%v), want %d", n, err, number), err == nil && n == number
	})
}

// soon checks that soon f says so of all replicas.
func (t *troupe) soon(what string, f func(*replica) (string, bool)) {
	end := time.Now().Add(obeyTime)
	for i, r := range t.all {
		for {
			text, ok := f(r)
			t.calls++
			if ok {
				break
			}
			if time.Now().After(end) {
				t.finds("%s, on replica %d: %s", what, i+1, text)
				break
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
}
