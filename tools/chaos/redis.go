package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// store is a Redis of the check.
type store struct {
	*process
	*redis.Client

	addr string
}

// redis starts a Redis without persistence, with options such as "--maxmemory", "1mb". Its port stays the same when it is
// killed and started again.
func (e *env) redis(ctx context.Context, options ...string) (*store, error) {
	port, err := e.ports.Free(ctx)
	if err != nil {
		return nil, err
	}
	r, err := e.redisAt(port, options...)
	if err != nil {
		return nil, err
	}
	return r, r.Start(ctx)
}

// redisAt returns a Redis that is not started yet.
func (e *env) redisAt(port string, options ...string) (*store, error) {
	dir := filepath.Join(e.dir, "redis"+port)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	args := append([]string{
		"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir,
		"--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0",
	}, options...)
	p, err := e.process("redis", e.config.redis, args...)
	if err != nil {
		return nil, err
	}
	r := &store{process: p, addr: "127.0.0.1:" + port}
	r.Client = redis.NewClient(&redis.Options{Addr: r.addr, DisableIdentity: true, Protocol: 2})
	e.atEnd(func() { _ = r.Close() })
	r.Ready = func(ctx context.Context) error {
		if err := r.Ping(ctx).Err(); err != nil && !strings.HasPrefix(err.Error(), "NOAUTH") {
			return err
		}
		return nil
	}
	return r, nil
}

// sentinels is a master with replicas, and the sentinels that watch it.
type sentinels struct {
	nodes []*store // the first is the master at first
	all   []*store
	url   string // REDIS_URL, for REDIS_TYPE=sentinel
}

// sentinel starts a master with replicas, and three sentinels that take it for down after half a second.
func (e *env) sentinel(ctx context.Context, replicas int) (*sentinels, error) {
	const quorum, watchers = 2, 3
	s := &sentinels{url: "mymaster"}
	for range 1 + replicas {
		var options []string
		if len(s.nodes) > 0 {
			options = []string{"--replicaof", strings.Replace(s.nodes[0].addr, ":", " ", 1)}
		}
		r, err := e.redis(ctx, options...)
		if err != nil {
			return nil, err
		}
		s.nodes = append(s.nodes, r)
	}
	for range watchers {
		port, err := e.ports.Free(ctx)
		if err != nil {
			return nil, err
		}
		conf := filepath.Join(e.dir, "sentinel"+port+".conf")
		text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor mymaster %s %d\nsentinel down-after-milliseconds mymaster 500\n"+
			"sentinel failover-timeout mymaster 2000\nsentinel parallel-syncs mymaster 1\n",
			port, e.dir, strings.Replace(s.nodes[0].addr, ":", " ", 1), quorum)
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil, err
		}
		p, err := e.process("sentinel", e.config.redis, conf, "--sentinel")
		if err != nil {
			return nil, err
		}
		r := &store{process: p, addr: "127.0.0.1:" + port}
		r.Client = redis.NewClient(&redis.Options{Addr: r.addr, DisableIdentity: true, Protocol: 2})
		e.atEnd(func() { _ = r.Close() })
		r.Ready = func(ctx context.Context) error { return r.Ping(ctx).Err() }
		if err := r.Start(ctx); err != nil {
			return nil, err
		}
		s.all = append(s.all, r)
		s.url += "," + r.addr
	}
	knows := fmt.Sprintf("slaves=%d,sentinels=%d", replicas, watchers)
	for _, w := range s.all {
		if _, ok := poll(ctx, patience, func() bool {
			info, err := w.Info(ctx, "sentinel").Result()
			return err == nil && strings.Contains(info, knows)
		}); !ok {
			return nil, fmt.Errorf("the sentinel at %s does not get to know %s", w.addr, knows)
		}
	}
	return s, nil
}

// master returns the node that the sentinels take for the master.
func (s *sentinels) master(ctx context.Context) (*store, error) {
	for _, w := range s.all {
		at, err := w.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster").StringSlice()
		if err != nil {
			continue
		}
		for _, n := range s.nodes {
			if n.addr == strings.Join(at, ":") {
				return n, nil
			}
		}
	}
	return nil, fmt.Errorf("no sentinel knows the master")
}

// shards is a Redis Cluster.
type shards struct {
	nodes []*store // masters first, then the replica of each, if they have one
	url   string   // REDIS_URL, for REDIS_TYPE=cluster
	n     int      // masters
}

// slots is how many slots a cluster has.
const slots = 16384

// cluster starts a cluster of masters, each with a replica if replicated, that share the slots evenly, and take a node
// for dead after half a second.
func (e *env) cluster(ctx context.Context, masters int, replicated bool) (*shards, error) {
	c := &shards{n: masters}
	count := masters
	if replicated {
		count *= 2
	}
	var addrs []string
	for range count {
		// The bus has a port of its own, which would be 10,000 higher, and may not exist.
		bus, err := e.ports.Free(ctx)
		if err != nil {
			return nil, err
		}
		r, err := e.redis(ctx, "--cluster-enabled", "yes", "--cluster-node-timeout", "500", "--cluster-port", bus,
			"--cluster-config-file", "nodes.conf", "--cluster-require-full-coverage", "no")
		if err != nil {
			return nil, err
		}
		c.nodes, addrs = append(c.nodes, r), append(addrs, r.addr)
		host, port, _ := strings.Cut(r.addr, ":")
		if err := c.nodes[0].Do(ctx, "CLUSTER", "MEET", host, port, bus).Err(); err != nil {
			return nil, err
		}
	}
	for i := range masters {
		from, to := i*slots/masters, (i+1)*slots/masters-1
		if err := c.nodes[i].Do(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to).Err(); err != nil {
			return nil, err
		}
	}
	for i := masters; i < count; i++ {
		id, err := c.nodes[i-masters].Do(ctx, "CLUSTER", "MYID").Text()
		if err != nil {
			return nil, err
		}
		if _, ok := poll(ctx, patience, func() bool { return c.nodes[i].Do(ctx, "CLUSTER", "REPLICATE", id).Err() == nil }); !ok {
			return nil, fmt.Errorf("%s does not become a replica", c.nodes[i].addr)
		}
	}
	c.url = strings.Join(addrs, ",")
	return c, c.settle(ctx)
}

// settle waits until all nodes agree that the cluster is whole, and replicas are in step.
func (c *shards) settle(ctx context.Context) error {
	for i, n := range c.nodes {
		if _, ok := poll(ctx, patience, func() bool {
			info, err := n.ClusterInfo(ctx).Result()
			known, _ := n.Do(ctx, "CLUSTER", "NODES").Text()
			whole := err == nil && strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprint("cluster_slots_ok:", slots)) &&
				strings.Count(known, "slave") == len(c.nodes)-c.n
			if i < c.n || !whole {
				return whole
			}
			role, err := n.Info(ctx, "replication").Result()
			return err == nil && strings.Contains(role, "master_link_status:up")
		}); !ok {
			return fmt.Errorf("the cluster does not come together: %s", n.addr)
		}
	}
	return sleep(ctx, 100*time.Millisecond)
}

// withoutTTL counts the keys that never expire, and all keys.
func (r *store) withoutTTL(ctx context.Context) (forever, all int, err error) {
	const batch = 1000
	for cursor := uint64(0); ; {
		var keys []string
		if keys, cursor, err = r.Scan(ctx, cursor, "", batch).Result(); err != nil {
			return 0, 0, err
		}
		pipe := r.Pipeline()
		var ttls []*redis.Cmd
		for _, k := range keys {
			ttls = append(ttls, pipe.Do(ctx, "PTTL", k))
		}
		if len(keys) > 0 {
			if _, err := pipe.Exec(ctx); err != nil {
				return 0, 0, err
			}
		}
		for _, t := range ttls {
			if n, err := t.Int64(); err == nil && n == -1 {
				forever++
			}
		}
		if all += len(keys); cursor == 0 {
			return forever, all, nil
		}
	}
}
