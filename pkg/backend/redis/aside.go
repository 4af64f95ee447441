package redis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// aside calls a script of what all replicas share beside the counters of the main deployment. It has a connection of its
// own, which is opened when it is needed, so that a long queue of operations does not delay it. Its methods must not be
// called concurrently.
type aside struct {
	pool    *pool
	script  *script
	keys    []string // all of one slot
	link    *link    // nil if there is no connection
	renewed int64    // of the node, when link was opened
}

// aside returns what calls a script, with the keys rl:{name} and these suffixes. There is none without scripts, with
// [ReferenceKeys].
func (b *Backend) aside(script, name string, suffixes ...string) (aside, error) {
	if b.main.config.KeyFormat != OurKeys {
		return aside{}, fmt.Errorf("redis: %s need scripts, which the key format rules out", script)
	}
	s, err := newScript(script)
	if err != nil {
		return aside{}, err
	}
	a := aside{pool: b.main, script: s}
	for _, suffix := range suffixes {
		a.keys = append(a.keys, b.main.config.KeyPrefix+"rl:{"+name+"}"+suffix)
	}
	return a, nil
}

func (a *aside) hangUp() {
	if a.link != nil {
		a.link.close()
		a.link = nil
	}
}

// call calls the script. What changes something is sent twice only where nothing has been changed.
func (a *aside) call(ctx context.Context, args ...any) (*command, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*a.pool.opTimeout())
	defer cancel()
	for tries := 0; ; tries++ {
		reply, e := a.try(ctx, args)
		if e == nil {
			return reply, nil
		}
		if tries > 0 || ctx.Err() != nil || !a.elsewhere(ctx, e) {
			return nil, a.pool.advised(e)
		}
	}
}

// elsewhere reports whether e says that nothing was changed, and that another connection may lead to where it can be.
func (a *aside) elsewhere(ctx context.Context, e *remote.Error) bool {
	switch e.Code {
	case "NOAUTH": // nothing but the connection is wrong
		return true
	case "READONLY", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN":
		if c := a.pool.cluster; c != nil {
			c.trouble.Store(true)
			c.client.ReloadState(context.WithoutCancel(ctx))
		}
		return true
	}
	return false
}

// try calls the script once, over a connection that may have to be opened.
func (a *aside) try(ctx context.Context, args []any) (*command, *remote.Error) {
	addr, e := a.connect(ctx)
	if e != nil {
		return nil, e
	}
	all := make([]any, 0, 3+len(a.keys)+len(args))
	all = append(all, "evalsha", a.script.sha, len(a.keys))
	for _, key := range a.keys {
		all = append(all, key)
	}
	c := newCommand(append(all, args...)...) //nolint:contextcheck // go-redis stores the context, but does not use it
	err := a.exec(ctx, c)
	if err == nil && c.Err() != nil && classify(addr, c.Err()).Code == "NOSCRIPT" {
		c.Reset()
		c.Args()[0], c.Args()[1] = "eval", a.script.text
		err = a.exec(ctx, c)
	}
	if err != nil {
		a.hangUp()
		return nil, classify(addr, err)
	}
	if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
		e := classify(addr, err)
		switch e.Code {
		case "NOPERM", "OOM":
		default: // such as READONLY: it may be better at the next address
			a.hangUp()
		}
		return nil, e
	}
	return c, nil
}

func (a *aside) exec(ctx context.Context, c *command) error {
	return a.link.Exec(ctx, []redis.Cmder{c})
}

// connect returns the address that a is connected to.
func (a *aside) connect(ctx context.Context) (string, *remote.Error) {
	p := a.pool
	if l := a.link; l != nil {
		if time.Now().Before(l.ends) && (p.one == nil || p.one.renewed.Load() == a.renewed) {
			return l.addr, nil
		}
		a.hangUp()
	}
	n, e := p.one, (*remote.Error)(nil)
	if n != nil {
		a.renewed = n.renewed.Load()
	} else if n, e = p.cluster.route(ctx, a.keys[0]); e != nil {
		return "", e
	}
	l, e := n.open(ctx)
	if e != nil {
		return "", p.advised(e)
	}
	a.link = l
	return l.addr, nil
}
