package redis

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// ask sends the units of the batch and fills in their answers. It returns the worst error.
func (w *writer) ask(ctx context.Context) (worst *remote.Error) {
	codec := w.node.pool.codec
	units := w.units[:w.used]
	for _, u := range units {
		codec.encode(u)
	}
	defer w.node.pool.owed.note(units)
	if e := w.send(ctx, units); e != nil {
		return e
	}
	w.follow(ctx, units)
	if e := w.more(ctx, units); e != nil {
		return e
	}
	for _, u := range units {
		if err := codec.decode(u); err != nil {
			u.err = store.Wrap(w.node.addr, err)
		} else {
			u.err = nil
		}
		if u.err != nil && (worst == nil || !trips(worst)) {
			worst = u.err
		}
	}
	return worst
}

// send sends units over w's connection. An error reply to a unit is stored in its err; a failure of the connection is
// stored in all of them and returned.
func (w *writer) send(ctx context.Context, units []*unit) *remote.Error {
	w.cmds = w.cmds[:0]
	for _, u := range units {
		w.cmds = u.unanswered(w.cmds)
	}
	err := w.exec(ctx, w.cmds)
	if err == nil {
		for _, u := range units {
			u.replied(w.node.addr)
		}
		return nil
	}
	w.hangUp()
	e := classify(w.node.addr, err)
	for _, u := range units {
		u.err = e
	}
	return e
}

// more sends second steps, if there are any.
func (w *writer) more(ctx context.Context, units []*unit) *remote.Error {
	var second []*unit
	for _, u := range units {
		if w.node.pool.codec.more(u) {
			second = append(second, u)
		}
	}
	if len(second) == 0 {
		return nil
	}
	if w.link == nil {
		if e := w.open(ctx); e != nil {
			for _, u := range second {
				u.err = e
			}
			return e
		}
	}
	return w.send(ctx, second)
}

// unanswered appends the commands of u that have no reply yet. One that was answered may have counted, and must not be
// sent again.
func (u *unit) unanswered(cmds []redis.Cmder) []redis.Cmder {
	for _, c := range u.sent {
		if c := c.(*command); c.Err() == nil && c.Val() == nil {
			cmds = append(cmds, c)
		}
	}
	return cmds
}

// replied sets u.err to the first error among the replies, or to nil.
func (u *unit) replied(node string) {
	u.err = nil
	for _, c := range u.sent {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			u.err = classify(node, err)
			return
		}
	}
}

// follow resends what was certainly not counted: with the text of its script if the server does not know the script,
// over another connection if this one leads to a replica, and through the cluster's client if the key is on another
// node.
func (w *writer) follow(ctx context.Context, units []*unit) {
	var here, anew, elsewhere []*unit
	for _, u := range units {
		if u.err == nil {
			continue
		}
		switch u.err.Code {
		case "NOSCRIPT":
			here = append(here, u)
		case "READONLY":
			anew = append(anew, u)
		case "MOVED", "ASK", "TRYAGAIN":
			elsewhere = append(elsewhere, u)
		}
	}
	if len(here)+len(anew)+len(elsewhere) == 0 {
		return
	}
	again := func(units []*unit) {
		for _, u := range units {
			w.node.pool.codec.again(u)
		}
	}
	if len(here) > 0 {
		again(here)
		_ = w.send(ctx, here) // the error is in these units, and does not concern the others
	}
	if len(anew) > 0 {
		w.node.renewed.Add(1)
		w.hangUp()
		if e := w.open(ctx); e == nil && ctx.Err() == nil {
			again(anew)
			_ = w.send(ctx, anew) // the error is in the units
			w.node.repent(anew)
		}
	}
	if len(elsewhere) > 0 {
		w.node.pool.redirect(ctx, w, elsewhere)
	}
}

// repent has the connections of n renewed once more if they still lead to a replica.
func (n *node) repent(units []*unit) {
	for _, u := range units {
		if u.err != nil && u.err.Code == "READONLY" {
			n.renewed.Add(1)
			return
		}
	}
}
