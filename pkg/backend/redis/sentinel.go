package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// How often sentinels are asked for the master.
const (
	masterEach  = time.Second
	masterAfter = 250 * time.Millisecond // while the master does not answer
)

// sentinels know where the master is.
type sentinels struct {
	pool *pool

	mu     sync.Mutex
	first  int // index of the sentinel that answered last
	before string
}

func newSentinels(p *pool) *sentinels { return &sentinels{pool: p} }

// master asks the sentinels, one after the other, for the address of the master.
func (s *sentinels) master(ctx context.Context) (string, error) {
	s.mu.Lock()
	first := s.first
	s.mu.Unlock()
	addrs := s.pool.target.addrs
	var failed error
	for i := range addrs {
		at := (first + i) % len(addrs)
		master, err := s.ask(ctx, addrs[at])
		if err == nil {
			s.found(at, master)
			return master, nil
		}
		failed = errors.Join(failed, fmt.Errorf("asking sentinel %s: %w", addrs[at], err))
	}
	return "", failed
}

// found remembers which sentinel answered, and reports a new master.
func (s *sentinels) found(at int, master string) {
	s.mu.Lock()
	before := s.before
	s.first, s.before = at, master
	s.mu.Unlock()
	if before != "" && before != master {
		s.pool.observer.Event(remote.Event{Kind: EventMasterChanged, Node: s.pool.target.master, Detail: master})
	}
}

// watch has the connections of n renewed when the sentinels name a new master, since the old one may still answer.
func (s *sentinels) watch(ctx context.Context, n *node) {
	ticker := time.NewTicker(masterAfter)
	defer ticker.Stop()
	last, asked := "", time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if time.Since(asked) < masterEach && n.connected() && !n.breaker.Open() {
			continue
		}
		asked = time.Now()
		master, err := s.master(ctx)
		if err != nil {
			continue // writers that want to connect report it
		}
		if last != "" && master != last {
			n.renewed.Add(1)
			n.tick()
			n.reconnect()
		}
		last = master
	}
}

func (s *sentinels) ask(ctx context.Context, addr string) (string, error) {
	p := s.pool
	ctx, cancel := context.WithTimeout(ctx, p.config.DialTimeout)
	defer cancel()
	o := p.options(addr)
	o.DB = 0
	var err error
	if o.Username, o.Password, err = p.config.sentinelCredentials(); err != nil {
		return "", err
	}
	o.PoolSize, o.PipelinePoolSize = 1, -1
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return p.dialer.Dial(ctx, network, addr)
	}
	c := redis.NewSentinelClient(o)
	defer func() { _ = c.Close() }() // nothing is outstanding
	found, err := c.GetMasterAddrByName(ctx, p.target.master).Result()
	if errors.Is(err, redis.Nil) {
		return "", errors.New("it knows no master with this name")
	}
	if err != nil {
		return "", p.greeted(err)
	}
	if len(found) != 2 {
		return "", errors.New("it did not answer with an address")
	}
	return net.JoinHostPort(found[0], found[1]), nil
}
