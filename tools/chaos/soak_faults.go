package main

import (
	"context"
	"time"
)

// trouble is a fault of the long run.
type trouble struct {
	name string
	do   func(ctx context.Context, round int)
}

func (k *soak) kinds() []trouble {
	return []trouble{
		{"SCRIPT FLUSH", k.scriptFlush},
		{"reload good", k.reloadGood},
		{"reload bad", k.reloadBad},
		{"latency 200 ms", k.latency},
		{"reset all", k.resetAll},
		{"OOM 1 s", k.outOfMemory},
		{"kill one server", k.killServer},
		{"kill master", k.killMaster},
		{"hang 2 s", k.hang},
		{"clock + 1 s", k.clockAhead},
	}
}

// master returns the master. It ends the check if there is none.
func (k *soak) master(ctx context.Context) *store {
	m := k.redis.master(ctx)
	if m == nil {
		k.fail("no sentinel knows the master")
	}
	return m
}

// onMaster sends a command to the master.
func (k *soak) onMaster(ctx context.Context, args ...any) {
	k.must(k.master(ctx).Do(ctx, args...).Err())
}

func (k *soak) scriptFlush(ctx context.Context, _ int) {
	k.onMaster(ctx, "SCRIPT", "FLUSH")
}

func (k *soak) resetAll(ctx context.Context, _ int) {
	k.onMaster(ctx, "CLIENT", "KILL", "TYPE", "normal")
}

// latency delays replies of Redis by up to 200 ms, several times.
func (k *soak) latency(ctx context.Context, _ int) {
	for range 4 {
		k.onMaster(ctx, "DEBUG", "SLEEP", "0.2")
		k.sleep(ctx, 500*time.Millisecond)
	}
}

func (k *soak) outOfMemory(ctx context.Context, _ int) {
	m := k.master(ctx)
	k.must(m.ConfigSet(ctx, "maxmemory", "1").Err())
	_ = sleep(ctx, time.Second)
	k.must(m.ConfigSet(context.WithoutCancel(ctx), "maxmemory", "0").Err())
}

func (k *soak) reloadGood(_ context.Context, round int) {
	for _, s := range k.servers {
		s.serve("rules.yaml", soakText(round))
	}
}

func (k *soak) reloadBad(ctx context.Context, round int) {
	for _, s := range k.servers {
		s.serve("rules.yaml", "domain: d\ndescriptors: [{key: r1, rate_limit: {unit: moon}}]\n")
	}
	k.sleep(ctx, time.Second)
	k.reloadGood(ctx, round)
}

// killServer kills the last server, so that the memory of the others can be sampled.
func (k *soak) killServer(ctx context.Context, _ int) {
	s := k.servers[len(k.servers)-1]
	if s.Died() {
		k.fail("%s has ended by itself", s.GRPC)
	}
	s.Kill()
	k.must(s.Start(ctx))
}

// lost records a period in which Redis may lose counters, until over is called: a returning master counts for clients that do not
// know the new one yet.
func (k *soak) lost() (over func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := len(k.failover)
	k.failover = append(k.failover, span{begin: time.Now()})
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.failover[i].end = time.Now()
	}
}

// killMaster kills the master, and restarts it as a replica of its successor.
func (k *soak) killMaster(ctx context.Context, _ int) {
	old := k.master(ctx)
	if old.Died() {
		k.fail("the master at %s has ended by itself", old.addr)
	}
	defer k.lost()()
	old.Kill()
	k.await(ctx, "another master than "+old.addr, func() bool {
		m := k.redis.master(ctx)
		return m != nil && m != old && m.Do(ctx, "ROLE").Err() == nil
	})
	k.must(old.Start(ctx))
	old.follow(ctx, k.master(ctx))
}

// hang suspends the master for two seconds. Another one takes over, unless the sentinels do not elect a leader in time.
func (k *soak) hang(ctx context.Context, _ int) {
	old := k.master(ctx)
	defer k.lost()()
	k.must(old.Pause())
	_ = sleep(ctx, 2*time.Second)
	k.must(old.Resume())
	_ = sleep(ctx, time.Second) // let a failover finish
	if m := k.redis.settled(ctx); m != old {
		k.note("%s takes over from %s", m.addr, old.addr)
		old.follow(ctx, m)
	}
}

// clockAhead sets the clock of the last server, which killServer kills, a second ahead for two seconds.
func (k *soak) clockAhead(ctx context.Context, _ int) {
	c := k.servers[len(k.servers)-1].clock(ctx)
	c.set(1)
	_ = sleep(ctx, 2*time.Second)
	c.set(0)
}
