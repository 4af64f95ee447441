package redis

import (
	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// call carries out operations: one script call for any number of them or, with the reference's keys, the commands for one operation. It
// is reused.
type call struct {
	items  []*item
	sent   []redis.Cmder // commands; none if unsent is set
	err    *remote.Error // the first error among the replies
	unsent *remote.Error

	// With scripts:
	script *script
	keys   []packed
	args   packed
	nonce  uint64 // comes back first in the reply; 0 if it does not, so that the replies need a fence
	weight int    // cost in Redis, in µs
}

// calls holds the calls of a batch and the memory to build them.
type calls struct {
	all    []*call
	groups map[string]int // number of the last group, by kind and shared description
	shared packed
}

// next returns another call.
func (cs *calls) next() *call {
	if n := len(cs.all); n < cap(cs.all) && cs.all[:n+1][n] != nil {
		cs.all = cs.all[:n+1]
	} else {
		cs.all = append(cs.all, new(call))
	}
	c := cs.all[len(cs.all)-1]
	c.items, c.sent, c.err, c.unsent, c.nonce = c.items[:0], c.sent[:0], nil, nil, 0
	return c
}

// codec converts operations to calls, and replies to decisions.
type codec interface {
	// encode adds calls for items, each of which represents the items merged into it. Operations on one key stay in order. together
	// allows several keys in one call.
	encode(cs *calls, items []*item, together bool)
	// again sets c.sent to the commands for c.items after the reply in c.err, which guarantees that nothing was done: the server does not
	// know the script, the key is on another node, or the script cannot decide.
	again(c *call)
	// more sets c.sent to a second step, which depends on the replies to the first one, and reports whether there is one.
	more(c *call) bool
	// decode sets the decision or the error of each of c.items, from the replies to c.sent or from c.err.
	decode(c *call, node string)
	// route returns one of op's keys, which determines the node of a cluster.
	route(op *backend.Op) string
}

// fail sets the error of all items of c.
func (c *call) fail(e *remote.Error) {
	for _, it := range c.items {
		it.err = e
	}
}

// unanswered appends the commands of c without a reply. A command with a reply may have counted, and must not be resent.
func (c *call) unanswered(cmds []redis.Cmder) []redis.Cmder {
	for _, s := range c.sent {
		if s := s.(*command); s.Err() == nil && s.Val() == nil {
			cmds = append(cmds, s)
		}
	}
	return cmds
}
