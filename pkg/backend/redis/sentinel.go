package redis

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Intervals of queries for the master.
const (
	masterEach  = time.Second
	masterAfter = 250 * time.Millisecond // while the master does not answer
)

// sentinels finds the master. A sentinel may be behind the others, partitioned or wrong. So all are queried, and a server is used only if
// it confirms that it is a master.
type sentinels struct {
	pool   *pool
	dialer *remote.Dialer // shared: unresponsive sentinels must not block queries to others

	mu   sync.Mutex
	used string // last master that was connected to
}

func newSentinels(p *pool) *sentinels {
	return &sentinels{pool: p, dialer: newDialer(p.config, p.target, make(chan struct{}, len(p.target.addrs)))}
}

// opinion is the answer of a sentinel.
type opinion struct {
	master string
	epoch  int64 // of the last known failover; larger is newer
	err    *remote.Error
}

// masters queries all sentinels concurrently, and returns the possible addresses of the master, likeliest first: the answers of the
// sentinels with the newest failover, the most frequent first. Older answers are never used, even if the new master is down, because the
// old master may still count for clients that are partitioned with it.
func (s *sentinels) masters(ctx context.Context) ([]string, error) {
	all := make([]opinion, len(s.pool.target.addrs))
	var wg sync.WaitGroup
	for i, addr := range s.pool.target.addrs {
		wg.Go(func() { all[i] = s.ask(ctx, addr) })
	}
	wg.Wait()
	said := slices.DeleteFunc(slices.Clone(all), func(o opinion) bool { return o.err != nil })
	if len(said) == 0 {
		return nil, all[0].err
	}
	newest := slices.MaxFunc(said, func(a, b opinion) int { return cmp.Compare(a.epoch, b.epoch) }).epoch
	votes := map[string]int{}
	var masters []string
	for _, o := range said {
		if o.epoch < newest {
			continue
		}
		if votes[o.master]++; votes[o.master] == 1 {
			masters = append(masters, o.master)
		}
	}
	slices.SortStableFunc(masters, func(a, b string) int { return votes[b] - votes[a] })
	return masters, nil
}

// found records that the server at addr, presumably the master, is connected.
func (s *sentinels) found(addr string) {
	s.mu.Lock()
	before := s.used
	s.used = addr
	s.mu.Unlock()
	if before != "" && before != addr {
		s.pool.observer.Event(remote.Event{Kind: EventMasterChanged, Node: s.pool.target.master, Detail: addr})
	}
}

// passed reports whether another server than the current one is the master.
func (s *sentinels) passed(masters []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used != "" && !slices.Contains(masters, s.used)
}

// watch renews the connections of n when the sentinels name a new master, because the old one may still answer.
func (s *sentinels) watch(ctx context.Context, n *node) {
	ticker := time.NewTicker(masterAfter)
	defer ticker.Stop()
	for asked := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if time.Since(asked) < masterEach && n.connected() && !n.breaker.Open() {
			continue
		}
		asked = time.Now()
		masters, err := s.masters(ctx)
		if err == nil && s.passed(masters) { // writers that connect report errors
			n.renewed.Add(1)
			n.tick()
			n.reconnect()
		}
	}
}

// ask queries one sentinel.
func (s *sentinels) ask(ctx context.Context, addr string) (o opinion) {
	p := s.pool
	ctx, cancel := context.WithTimeout(ctx, p.config.DialTimeout)
	defer cancel()
	options := p.options(addr)
	options.DB, options.Dialer = 0, s.dialer.Dial
	options.CredentialsProviderContext = func(context.Context) (string, string, error) {
		return credentials(p.config.SentinelAuthFile, p.config.SentinelAuth, p.target.guards)
	}
	c := redis.NewSentinelClient(options)
	defer func() { _ = c.Close() }() // nothing is outstanding
	found, err := c.GetMasterAddrByName(ctx, p.target.master).Result()
	switch {
	case errors.Is(err, redis.Nil):
		err = errors.New("it knows no master with this name")
	case err != nil:
		err = p.greeted(err)
	case len(found) != 2:
		err = errors.New("it did not answer with an address")
	default:
		o.master = net.JoinHostPort(found[0], found[1])
		var more map[string]string
		more, err = c.Master(ctx, p.target.master).Result()
		o.epoch, _ = strconv.ParseInt(more["config-epoch"], 10, 64) // 0 without permission
		if errorReply(err) {
			err = nil
		}
	}
	if err == nil {
		return o
	}
	e := *classify(addr, err)
	if e.Class == ClassNoAuth {
		e.Text += "; the sentinels' password is REDIS_SENTINEL_AUTH, or in their addresses in REDIS_URL, and the master's is REDIS_AUTH " +
			"(for limits per second REDIS_PERSECOND_SENTINEL_AUTH, _URL and _AUTH)"
	}
	e.Text = "asking the sentinel: " + e.Text
	e.Code = "" // it would look like the master's
	o.err = &e
	return o
}
