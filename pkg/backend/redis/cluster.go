package redis

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// Intervals of refreshes of a cluster's topology.
const (
	refreshEach  = 10 * time.Second
	refreshFor   = time.Second            // timeout of a refresh
	refreshAfter = 500 * time.Millisecond // minimum interval after a sign of a change
)

// cluster tracks the masters of a Redis Cluster. Each is a node with its own writers. go-redis's cluster client handles the topology and
// the redirections MOVED and ASK.
type cluster struct {
	pool    *pool
	client  *redis.ClusterClient
	nodes   atomic.Pointer[map[string]*node] // by address
	unknown atomic.Pointer[remote.Error]     // reason why the masters are unknown; nil if they are known
	trouble atomic.Bool                      // a reply suggests that the topology has changed
	asked   atomic.Pointer[string]           // host that last reported the slots; nil if none has

	mu    sync.Mutex
	wg    sync.WaitGroup
	start func(*node) // nil unless watch is running
}

func newCluster(p *pool) *cluster {
	c := &cluster{pool: p}
	c.nodes.Store(&map[string]*node{})
	c.unknown.Store(store.Failed(remote.Refused, "", "the masters of the cluster are not known yet"))
	o := p.options("")
	least, jitter := p.config.life()
	c.client = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: p.target.addrs, NewClient: c.nodeClient, Protocol: o.Protocol, DisableIdentity: true,
		CredentialsProviderContext: p.credentials, Dialer: p.dialer.Dial,
		MaxRedirects: 3, MaxRetries: -1, MinRetryBackoff: -1, MaxRetryBackoff: -1,
		ContextTimeoutEnabled: true, ReadTimeout: refreshFor, WriteTimeout: refreshFor,
		DialTimeout: o.DialTimeout, DialerRetries: 1, DialerRetryTimeout: dialAgain, PoolTimeout: o.PoolTimeout,
		PoolSize: p.config.PoolSize, MaxActiveConns: p.config.PoolSize, PipelinePoolSize: -1,
		ConnMaxLifetime: least + jitter/2, ConnMaxLifetimeJitter: jitter / 2, // on average
		MaintNotificationsConfig:   o.MaintNotificationsConfig,
		DisableRoutingPolicies:     true,
		ClusterStateReloadInterval: refreshEach,
	})
	return c
}

// route returns the node of the master of key.
func (c *cluster) route(ctx context.Context, key string) (*node, *remote.Error) {
	if e := c.unknown.Load(); e != nil {
		return nil, e
	}
	client, err := c.client.MasterForKey(ctx, key) // does not send a command, because the masters are known
	if err != nil {
		return nil, classify("", err)
	}
	addr := client.Options().Addr
	if n := (*c.nodes.Load())[addr]; n != nil {
		return n, nil
	}
	return c.add(addr), nil
}

// add returns the node of addr. If necessary, it creates and starts one.
func (c *cluster) add(addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := *c.nodes.Load()
	if n := old[addr]; n != nil {
		return n
	}
	n := c.pool.newNode(addr, at(addr))
	nodes := maps.Clone(old)
	nodes[addr] = n
	c.nodes.Store(&nodes)
	if c.start != nil {
		c.start(n)
	}
	return n
}

// watch tracks the masters and runs the writers of all nodes until ctx ends.
func (c *cluster) watch(ctx context.Context) {
	c.mu.Lock()
	c.start = func(n *node) {
		own, cancel := context.WithCancel(ctx)
		n.end = cancel
		n.start(own, &c.wg)
	}
	for _, n := range *c.nodes.Load() {
		c.start(n)
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.start = nil
		c.mu.Unlock()
		c.wg.Wait()
	}()
	var wait remote.Backoff
	next := time.Duration(0)
	for last := (time.Time{}); ; {
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		next = idleLook
		if c.unknown.Load() == nil && time.Since(last) < refreshEach && (!c.trouble.Load() || time.Since(last) < refreshAfter) {
			continue
		}
		c.trouble.Store(false)
		last = time.Now()
		if err := c.refresh(ctx); err == nil {
			wait.Reset()
		} else if c.unknown.Load() != nil {
			e := c.pool.advised(classify("", err))
			c.unknown.Store(e)
			c.pool.observer.Event(remote.Event{Kind: remote.EventConnectFailed, Node: c.pool.target.addrs[0], Err: e})
			next = wait.Next()
		}
	}
}

// refresh looks up the masters, adds nodes for new ones, and stops the nodes of former ones.
func (c *cluster) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, refreshFor)
	defer cancel()
	var mu sync.Mutex
	masters := map[string]bool{}
	err := c.client.ForEachMaster(ctx, func(_ context.Context, client *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[client.Options().Addr] = true
		return nil
	})
	if err != nil {
		return c.pool.greeted(err)
	}
	if len(masters) == 0 {
		return errors.New("the cluster has no masters")
	}
	for addr := range masters {
		c.add(addr)
	}
	c.unknown.Store(nil)
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := maps.Clone(*c.nodes.Load())
	for addr, n := range nodes {
		if !masters[addr] && c.start != nil {
			delete(nodes, addr)
			n.stop(store.Failed(ClassClusterDown, addr, "this node is no longer a master"))
			n.end()
			n.breaker.Retire()
		}
	}
	c.nodes.Store(&nodes)
	return nil
}

// tick makes idle writers check their connections.
func (c *cluster) tick() {
	for _, n := range *c.nodes.Load() {
		n.tick()
		if n.breaker.Open() {
			c.trouble.Store(true)
		}
	}
}

func (c *cluster) close() error {
	for _, n := range *c.nodes.Load() {
		n.stop(errStopped)
	}
	return c.client.Close()
}

// tryAgainAfter is the delay before resending a call whose keys are being moved.
const tryAgainAfter = 5 * time.Millisecond

// redirect resends calls whose keys are on another node, or being moved, through the cluster's client, which follows MOVED and ASK. It
// resends a call that gets TRYAGAIN, because only some of its keys have been moved, once more after a delay.
func (p *pool) redirect(ctx context.Context, w *writer, calls []*call) {
	if p.cluster == nil {
		return // the server is part of a cluster, contrary to the configuration; the error reply shows it
	}
	p.cluster.trouble.Store(true)
	halves := func(c *call) bool { return c.err != nil && c.err.Code == "TRYAGAIN" }
	late := slices.DeleteFunc(slices.Clone(calls), func(c *call) bool { return !halves(c) })
	rest := slices.DeleteFunc(calls, halves)
	p.cluster.send(ctx, w, rest)
	for _, c := range rest {
		if halves(c) {
			late = append(late, c)
		}
	}
	if len(late) == 0 {
		return
	}
	timer := time.NewTimer(tryAgainAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
		p.cluster.send(ctx, w, late)
	case <-ctx.Done():
	}
}

// send resends calls that counted nothing through the cluster's client.
func (c *cluster) send(ctx context.Context, w *writer, calls []*call) {
	if len(calls) == 0 {
		return
	}
	pipe := c.client.Pipeline()
	for _, one := range calls {
		c.pool.codec.again(one)
		_ = pipe.BatchProcess(ctx, one.unanswered(nil)...) // only buffers
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for _, one := range calls {
		one.replied(w.node.addr)
	}
}
