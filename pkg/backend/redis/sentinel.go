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

// How often sentinels are asked for the master.
const (
	masterEach  = time.Second
	masterAfter = 250 * time.Millisecond // while the master does not answer
)

// sentinels know where the master is. One of them may be behind the others, cut off or wrong: so all are asked, and what
// they name is believed only once it says that it is a master.
type sentinels struct {
	pool   *pool
	dialer *remote.Dialer // for all at once: those that do not answer must not keep the others from being asked

	mu   sync.Mutex
	used string // the master that was connected to last
}

func newSentinels(p *pool) *sentinels {
	return &sentinels{pool: p, dialer: newDialer(p.config, p.target, make(chan struct{}, len(p.target.addrs)))}
}

// opinion is what a sentinel says.
type opinion struct {
	master string
	epoch  int64 // of the last failover that it knows of: a larger number is newer knowledge
	err    *remote.Error
}

// masters asks all sentinels at once, and returns the addresses that may be the master's, the likeliest first: what those sentinels say that know of the
// newest failover. If they disagree, what most of them say comes first. Older knowledge is not used, even if the new
// master is down: the old one may go on to count for those who are cut off with it.
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

// found notes that the server at addr is connected to, and is the master as far as is known.
func (s *sentinels) found(addr string) {
	s.mu.Lock()
	before := s.used
	s.used = addr
	s.mu.Unlock()
	if before != "" && before != addr {
		s.pool.observer.Event(remote.Event{Kind: EventMasterChanged, Node: s.pool.target.master, Detail: addr})
	}
}

// passed reports whether another server than the one in use is the master.
func (s *sentinels) passed(masters []string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used != "" && !slices.Contains(masters, s.used)
}

// watch has the connections of n renewed when the sentinels name a new master, since the old one may still answer.
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
		if err == nil && s.passed(masters) { // writers that want to connect report an error
			n.renewed.Add(1)
			n.tick()
			n.reconnect()
		}
	}
}

// ask asks one sentinel.
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
		o.epoch, _ = strconv.ParseInt(more["config-epoch"], 10, 64) // 0 where it may not be asked
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
	e.Code = "" // which would be the master's
	o.err = &e
	return o
}
