package main

import (
	"context"
	"fmt"
	"net"
	"time"
)

// trouble is a fault of the long run.
type trouble struct {
	name string
	do   func(ctx context.Context, round int) error
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

// onMaster sends a command to the master.
func (k *soak) onMaster(ctx context.Context, args ...any) error {
	m, err := k.redis.master(ctx)
	if err != nil {
		return err
	}
	return m.Do(ctx, args...).Err()
}

func (k *soak) scriptFlush(ctx context.Context, _ int) error {
	return k.onMaster(ctx, "SCRIPT", "FLUSH")
}

func (k *soak) resetAll(ctx context.Context, _ int) error {
	return k.onMaster(ctx, "CLIENT", "KILL", "TYPE", "normal")
}

// latency has Redis answer up to 200 ms late, again and again.
func (k *soak) latency(ctx context.Context, _ int) error {
	for range 4 {
		if err := k.onMaster(ctx, "DEBUG", "SLEEP", "0.2"); err != nil {
			return err
		}
		if err := sleep(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (k *soak) outOfMemory(ctx context.Context, _ int) error {
	m, err := k.redis.master(ctx)
	if err != nil {
		return err
	}
	if err := m.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		return err
	}
	_ = sleep(ctx, time.Second)
	return m.ConfigSet(context.WithoutCancel(ctx), "maxmemory", "0").Err()
}

func (k *soak) reloadGood(_ context.Context, round int) error {
	for _, s := range k.servers {
		if err := s.serve("rules.yaml", soakText(round)); err != nil {
			return err
		}
	}
	return nil
}

func (k *soak) reloadBad(ctx context.Context, round int) error {
	for _, s := range k.servers {
		if err := s.serve("rules.yaml", "domain: d\ndescriptors: [{key: r1, rate_limit: {unit: moon}}]\n"); err != nil {
			return err
		}
	}
	if err := sleep(ctx, time.Second); err != nil {
		return err
	}
	return k.reloadGood(ctx, round)
}

// killServer kills the last server, so that the memory of the others can be followed.
func (k *soak) killServer(ctx context.Context, _ int) error {
	s := k.servers[len(k.servers)-1]
	if s.Died() {
		return fmt.Errorf("%s has ended by itself", s.grpc)
	}
	s.Kill()
	return s.Start(ctx)
}

// lost notes that what Redis counts may be lost from now on, until over is called: a master that comes back counts for those who have not
// heard of the other one yet.
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

// killMaster kills the master, and brings it back as a replica of the next one.
func (k *soak) killMaster(ctx context.Context, _ int) error {
	old, err := k.redis.master(ctx)
	if err != nil {
		return err
	}
	if old.Died() {
		return fmt.Errorf("the master at %s has ended by itself", old.addr)
	}
	defer k.lost()()
	old.Kill()
	if err := k.another(ctx, old); err != nil {
		return err
	}
	if err := old.Start(ctx); err != nil {
		return err
	}
	return k.follow(ctx, old)
}

// hang suspends the master for two seconds. In these another one takes over, unless the sentinels do not agree who leads
// at once, and then this one stays.
func (k *soak) hang(ctx context.Context, _ int) error {
	old, err := k.redis.master(ctx)
	if err != nil {
		return err
	}
	defer k.lost()()
	if err := old.Pause(); err != nil {
		return err
	}
	_ = sleep(ctx, 2*time.Second)
	if err := old.Resume(); err != nil {
		return err
	}
	_ = sleep(ctx, time.Second) // what they have begun, they end
	m, err := k.redis.settled(ctx)
	if err != nil || m == old {
		return err
	}
	k.note("%s takes over from %s", m.addr, old.addr)
	return k.follow(ctx, old)
}

// clockAhead sets the clock of the server that is killed as well a second ahead for two seconds.
func (k *soak) clockAhead(ctx context.Context, _ int) error {
	c, err := k.servers[len(k.servers)-1].clock(ctx)
	if err != nil {
		return err
	}
	if err := c.set(1); err != nil {
		return err
	}
	_ = sleep(ctx, 2*time.Second)
	return c.set(0)
}

// another waits for another master.
func (k *soak) another(ctx context.Context, old *store) error {
	if _, ok := poll(ctx, patience, func() bool {
		m, err := k.redis.master(ctx)
		return err == nil && m != old && m.Do(ctx, "ROLE").Err() == nil
	}); !ok {
		return fmt.Errorf("no master takes over from %s", old.addr)
	}
	return nil
}

// follow makes a node a replica of the master.
func (k *soak) follow(ctx context.Context, n *store) error {
	m, err := k.redis.master(ctx)
	if err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(m.addr)
	if err != nil {
		return err
	}
	return n.Do(ctx, "REPLICAOF", host, port).Err()
}
