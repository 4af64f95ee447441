package redis

import (
	"context"
	"net"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// nodeClient creates the cluster client's client of a node. A node without a known host is at the host that was queried. Redis omits the
// host if configured to (cluster-preferred-endpoint-type unknown-endpoint), and for a node that has never met another one, in CLUSTER
// SLOTS as well as in MOVED and ASK.
func (c *cluster) nodeClient(o *redis.Options) *redis.Client {
	if asked := c.asked.Load(); asked != nil {
		if host, port, err := net.SplitHostPort(o.Addr); err == nil {
			o.Addr = net.JoinHostPort(hostOr(host, *asked), port)
		}
	}
	client := redis.NewClient(o)
	client.AddHook(slotsHook{c, o.Addr})
	return client
}

// hostOr returns host, or asked if host is unknown.
func hostOr(host, asked string) string {
	if host == "" || host == "?" {
		return asked
	}
	return host
}

// slotsHook parses the reply to CLUSTER SLOTS, because go-redis does not support null hosts.
type slotsHook struct {
	cluster *cluster
	addr    string
}

// DialHook implements [redis.Hook].
func (h slotsHook) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook implements [redis.Hook].
func (h slotsHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook implements [redis.Hook].
func (h slotsHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		wanted, ok := cmd.(*redis.ClusterSlotsCmd)
		if !ok {
			return next(ctx, cmd)
		}
		reply := redis.NewCmd(ctx, cmd.Args()...)
		err := next(ctx, reply)
		wanted.SetErr(err)
		if host, _, e := net.SplitHostPort(h.addr); err == nil && e == nil {
			wanted.SetVal(slotsOf(reply.Val(), host))
			h.cluster.asked.Store(&host)
		}
		return err
	}
}

// slotsOf parses the reply to CLUSTER SLOTS of the node at the host asked.
func slotsOf(reply any, asked string) (all []redis.ClusterSlot) {
	ranges, _ := reply.([]any)
	for _, r := range ranges {
		fields, _ := r.([]any)
		if len(fields) < 2 {
			continue
		}
		start, _ := fields[0].(int64)
		end, _ := fields[1].(int64)
		slot := redis.ClusterSlot{Start: int(start), End: int(end)}
		for _, f := range fields[2:] {
			if node, _ := f.([]any); len(node) >= 2 {
				host, _ := node[0].(string)
				port, _ := node[1].(int64)
				slot.Nodes = append(slot.Nodes, redis.ClusterNode{Addr: net.JoinHostPort(hostOr(host, asked), strconv.FormatInt(port, 10))})
			}
		}
		all = append(all, slot)
	}
	return all
}
