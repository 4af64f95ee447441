package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// redis starts a Redis without persistence, with options such as "--maxmemory", "1mb". It keeps its port across restarts.
func (e *env) redis(ctx context.Context, options ...string) *store {
	r := e.redisAt(e.port(ctx), options...)
	e.must(r.Start(ctx))
	return r
}

// redisAt returns a Redis that is not started.
func (e *env) redisAt(port string, options ...string) *store {
	dir := filepath.Join(e.dir, "redis"+port)
	e.must(os.MkdirAll(dir, 0o700))
	return e.store("redis", port, append([]string{
		"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", dir,
		"--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0",
	}, options...)...)
}

// store returns a Redis or a sentinel that is not started.
func (e *env) store(name, port string, args ...string) *store {
	r := &store{process: e.process(name, e.config.redis, args...), addr: "127.0.0.1:" + port}
	r.Client = redis.NewClient(&redis.Options{Addr: r.addr, DisableIdentity: true, Protocol: 2})
	e.atEnd(func() { _ = r.Close() })
	r.Ready = func(ctx context.Context) error {
		if err := r.Ping(ctx).Err(); err != nil && !strings.HasPrefix(err.Error(), "NOAUTH") {
			return err
		}
		return nil
	}
	return r
}

// follow makes the node a replica of master.
func (r *store) follow(ctx context.Context, master *store) {
	host, port, _ := strings.Cut(master.addr, ":")
	r.e.must(r.Do(ctx, "REPLICAOF", host, port).Err())
}

// sentinels is a master with replicas and sentinels.
type sentinels struct {
	e     *env
	nodes []*store // initially the first is the master
	all   []*store
	url   string // REDIS_URL, for REDIS_TYPE=sentinel
}

// sentinel starts a master with replicas, and three sentinels that declare it down after half a second.
func (e *env) sentinel(ctx context.Context, replicas int) *sentinels {
	const quorum, watchers = 2, 3
	s := &sentinels{e: e, url: "mymaster"}
	for range 1 + replicas {
		var options []string
		if len(s.nodes) > 0 {
			options = []string{"--replicaof", strings.Replace(s.nodes[0].addr, ":", " ", 1)}
		}
		s.nodes = append(s.nodes, e.redis(ctx, options...))
	}
	for range watchers {
		port := e.port(ctx)
		text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor mymaster %s %d\nsentinel down-after-milliseconds mymaster 500\n"+
			"sentinel failover-timeout mymaster 2000\nsentinel parallel-syncs mymaster 1\n",
			port, e.dir, strings.Replace(s.nodes[0].addr, ":", " ", 1), quorum)
		r := e.store("sentinel", port, e.writeFile("sentinel"+port+".conf", []byte(text)), "--sentinel")
		e.must(r.Start(ctx))
		s.all = append(s.all, r)
		s.url += "," + r.addr
	}
	knows := fmt.Sprintf("slaves=%d,sentinels=%d", replicas, watchers)
	for _, w := range s.all {
		e.await(ctx, knows+" at "+w.addr, func() bool { return strings.Contains(w.Info(ctx, "sentinel").Val(), knows) })
	}
	return s
}

// master returns the current master according to the sentinels, or nil if they know none.
func (s *sentinels) master(ctx context.Context) *store {
	for _, w := range s.all {
		at, _ := w.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster").StringSlice()
		for _, n := range s.nodes {
			if n.addr == strings.Join(at, ":") {
				return n
			}
		}
	}
	return nil
}

// shards is a Redis Cluster.
type shards struct {
	e     *env
	nodes []*store // masters, then the replica of each, if any
	url   string   // REDIS_URL, for REDIS_TYPE=cluster
	n     int      // number of masters
}

// slots is the number of slots in a cluster.
const slots = 16384

// cluster starts masters that share the slots evenly, each with a replica if replicated. A node counts as down after half a
// second.
func (e *env) cluster(ctx context.Context, masters int, replicated bool) *shards {
	c := &shards{e: e, n: masters}
	count := masters
	if replicated {
		count *= 2
	}
	var addrs []string
	for range count {
		// By default the port of the bus is 10,000 higher, which may be out of range.
		bus := e.port(ctx)
		r := e.redis(ctx, "--cluster-enabled", "yes", "--cluster-node-timeout", "500", "--cluster-port", bus,
			"--cluster-config-file", "nodes.conf", "--cluster-require-full-coverage", "no")
		c.nodes, addrs = append(c.nodes, r), append(addrs, r.addr)
		host, port, _ := strings.Cut(r.addr, ":")
		e.must(c.nodes[0].Do(ctx, "CLUSTER", "MEET", host, port, bus).Err())
	}
	for i := range masters {
		from, to := i*slots/masters, (i+1)*slots/masters-1
		e.must(c.nodes[i].Do(ctx, "CLUSTER", "ADDSLOTSRANGE", from, to).Err())
	}
	for i := masters; i < count; i++ {
		id, err := c.nodes[i-masters].Do(ctx, "CLUSTER", "MYID").Text()
		e.must(err)
		e.await(ctx, "a replica", func() bool { return c.nodes[i].Do(ctx, "CLUSTER", "REPLICATE", id).Err() == nil })
	}
	c.url = strings.Join(addrs, ",")
	c.settle(ctx)
	return c
}

// settle waits until all nodes agree that the cluster is complete, and replicas are synchronized.
func (c *shards) settle(ctx context.Context) {
	for i, n := range c.nodes {
		c.e.await(ctx, "a whole cluster at "+n.addr, func() bool {
			info, known := n.ClusterInfo(ctx).Val(), n.Do(ctx, "CLUSTER", "NODES").String()
			whole := strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprint("cluster_slots_ok:", slots)) &&
				strings.Count(known, "slave") == len(c.nodes)-c.n
			if i < c.n || !whole {
				return whole
			}
			return strings.Contains(n.Info(ctx, "replication").Val(), "master_link_status:up")
		})
	}
	c.e.sleep(ctx, 100*time.Millisecond)
}

// batch is the number of keys per command or pipeline.
const batch = 1000

// keys returns all keys.
func (r *store) keys(ctx context.Context) (all []string) {
	found := r.Scan(ctx, 0, "", batch).Iterator()
	for found.Next(ctx) {
		all = append(all, found.Val())
	}
	r.e.must(found.Err())
	return all
}

// withoutTTL counts the keys without expiry, and all keys.
func (r *store) withoutTTL(ctx context.Context) (forever, all int) {
	keys := r.keys(ctx)
	for some := range slices.Chunk(keys, batch) {
		pipe := r.Pipeline()
		for _, k := range some {
			pipe.Do(ctx, "PTTL", k)
		}
		ttls, err := pipe.Exec(ctx)
		r.e.must(err)
		for _, t := range ttls {
			forever += boolInt(t.(*redis.Cmd).Val() == int64(-1)) //nolint:forcetypeassert // Do returns it
		}
	}
	return forever, len(keys)
}
