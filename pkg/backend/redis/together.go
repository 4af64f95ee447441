package redis

import (
	"context"
	_ "embed" // for a script
	"errors"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// whoami is the script that finds out which process runs scripts.
//
//go:embed whoami.lua
var whoami string

// trials is with how many keys it is tried: of several servers behind a proxy all but one would have to be without luck.
const trials = 16

// together reports whether one call may have several keys. That needs one server: a proxy before several would send a
// call to one of them, by its first key, and each would count for itself.
func (n *node) together() bool { return n.alone.Load() && !n.apart.Load() }

// identify finds out whether there is one server at the other end of l. It is one that sentinels have named, and one that
// runs the scripts for all keys, says that it stands alone, and is the one that has said who it is.
func (n *node) identify(ctx context.Context, l *link) error {
	p := n.pool
	codec, scripts := p.codec.(*scriptCodec)
	switch {
	case !scripts || p.cluster != nil:
		return nil
	case p.sentinels != nil, l.server.run == "":
		n.alone.Store(p.sentinels != nil)
		return nil
	}
	cmds := make([]redis.Cmder, trials)
	for i := range cmds {
		cmds[i] = newCommand("eval", whoami, "1", codec.prefix+"rl:{"+strconv.Itoa(i)+"}") //nolint:contextcheck // go-redis keeps the context, and does not look at it
	}
	if err := l.exec(ctx, cmds); err != nil {
		return err
	}
	alone := true
	for _, c := range cmds {
		alone = alone && c.(*command).Val() == l.server.run
	}
	n.alone.Store(alone)
	return nil
}

// send sends commands whose replies tell to what they are replies, or are errors. If it returns an error, no reply can be
// trusted and l must be closed.
func (l *link) send(ctx context.Context, commands []redis.Cmder) error {
	_ = l.pipe.BatchProcess(ctx, commands...) // only collects
	_, _ = l.pipe.Exec(ctx)                   // each command has its own error
	for _, c := range commands {
		if err := c.Err(); err != nil {
			if _, reply := errors.AsType[redis.Error](err); !reply {
				return err
			}
		}
	}
	return nil
}
