package redis

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// SideChannel calls a script on data that replicas share and that is not a counter, in the main deployment. It opens a connection of its
// own when needed, so that queued operations do not delay it. Call and Close must not be called concurrently.
type SideChannel struct {
	pool    *pool
	script  *script
	prefix  string // of the keys, which share a slot
	link    *link  // nil while there is no connection
	renewed int64  // of the node, when link was opened
}

// SideChannel returns a side channel for the text of a Lua script, whose keys begin with rl:{name}. The server must allow scripts.
func (b *Backend) SideChannel(name, script string) *SideChannel {
	return &SideChannel{pool: b.main, script: scriptOf(script), prefix: b.main.config.KeyPrefix + "rl:{" + name + "}"}
}

// Key returns the key with a suffix.
func (s *SideChannel) Key(suffix string) string { return s.prefix + suffix }

// Close closes the connection. The next call opens another one.
func (s *SideChannel) Close() {
	if s.link != nil {
		s.link.close()
		s.link = nil
	}
}

// Call calls the script with the keys with these suffixes, and returns its reply as a list of nil, int64, string, error and lists. A
// reply that is not a list becomes a list of one. Call repeats a call only if the first one changed nothing.
func (s *SideChannel) Call(ctx context.Context, suffixes []string, args ...any) ([]any, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.pool.opTimeout())
	defer cancel()
	all := make([]any, 0, 3+len(suffixes)+len(args))
	all = append(all, "evalsha", s.script.sha, len(suffixes))
	for _, suffix := range suffixes {
		all = append(all, s.Key(suffix))
	}
	all = append(all, args...)
	for tries := 0; ; tries++ {
		reply, e := s.try(ctx, s.Key(suffixes[0]), all)
		if e == nil {
			return reply, nil
		}
		if tries > 0 || ctx.Err() != nil || !s.elsewhere(ctx, e) {
			return nil, s.pool.advised(e)
		}
	}
}

// elsewhere reports whether e guarantees that nothing changed, and another connection may succeed.
func (s *SideChannel) elsewhere(ctx context.Context, e *remote.Error) bool {
	switch e.Code {
	case "NOAUTH": // only the connection is invalid
		return true
	case "READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN":
		if c := s.pool.cluster; c != nil {
			c.trouble.Store(true)
			c.client.ReloadState(context.WithoutCancel(ctx))
		}
		return true
	}
	return false
}

// try calls the script once, on the node of key. It opens a connection if there is none.
func (s *SideChannel) try(ctx context.Context, key string, args []any) ([]any, *remote.Error) {
	addr, e := s.connect(ctx, key)
	if e != nil {
		return nil, e
	}
	c := newCommand(args...) //nolint:contextcheck // go-redis stores the context, but does not use it
	err := s.exec(ctx, c)
	if err == nil && c.Err() != nil && classify(addr, c.Err()).Code == "NOSCRIPT" {
		c.Reset()
		c.Args()[0], c.Args()[1] = "eval", s.script.text
		err = s.exec(ctx, c)
	}
	if err != nil {
		s.Close()
		return nil, classify(addr, err)
	}
	if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
		e := classify(addr, err)
		switch e.Code {
		case "NOPERM", "OOM":
		default: // such as READONLY: the next address may accept it
			s.Close()
		}
		return nil, e
	}
	if list, ok := c.Val().([]any); ok {
		return list, nil
	}
	return []any{c.Val()}, nil
}

func (s *SideChannel) exec(ctx context.Context, c *command) error {
	return s.link.exec(ctx, []redis.Cmder{c})
}

// connect connects to the node of a key, unless there is a connection, and returns its address.
func (s *SideChannel) connect(ctx context.Context, key string) (string, *remote.Error) {
	p := s.pool
	if l := s.link; l != nil {
		if time.Now().Before(l.ends) && (p.one == nil || p.one.renewed.Load() == s.renewed) {
			return l.addr, nil
		}
		s.Close()
	}
	n, e := p.one, (*remote.Error)(nil)
	if n != nil {
		s.renewed = n.renewed.Load()
	} else if n, e = p.cluster.route(ctx, key); e != nil {
		return "", e
	}
	l, e := n.open(ctx)
	if e != nil {
		return "", p.advised(e)
	}
	s.link = l
	return l.addr, nil
}
