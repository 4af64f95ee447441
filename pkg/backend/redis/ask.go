package redis

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
)

// ask sends the operations of the batch and sets their results. It returns the worst error.
func (w *writer) ask(ctx context.Context) (worst *remote.Error) {
	n := w.node
	codec := n.pool.codec
	w.calls.all = w.calls.all[:0]
	codec.encode(&w.calls, w.heads, n.together())
	defer func() { n.pool.expires.note(w.calls.all) }()
	e := w.send(ctx, w.calls.all)
	if e == nil {
		w.follow(ctx, w.calls.all)
		e = w.more(ctx)
	}
	for _, c := range w.calls.all {
		codec.decode(c, n.addr)
	}
	if e != nil {
		return e
	}
	for _, it := range w.heads {
		if it.err != nil && (worst == nil || !trips(worst)) {
			worst = it.err
		}
	}
	return worst
}

// send sends calls over w's connection. It stores an error reply to a call in the call's err. It stores a failure of the connection in
// the err of all calls, and returns it.
func (w *writer) send(ctx context.Context, calls []*call) *remote.Error {
	w.cmds = w.cmds[:0]
	for _, c := range calls {
		w.cmds = c.unanswered(w.cmds)
	}
	err := w.exec(ctx, w.cmds, len(calls) == 0 || calls[0].nonce == 0)
	if err == nil {
		for _, c := range calls {
			c.replied(w.node.addr)
			if c.err == nil && !c.proves() {
				err = errBehind
			}
		}
	}
	if err == nil {
		return nil
	}
	w.hangUp()
	e := classify(w.node.addr, err)
	for _, c := range calls {
		c.err = e
	}
	return e
}

// more sends second steps, if any.
func (w *writer) more(ctx context.Context) *remote.Error {
	var second []*call
	for _, c := range w.calls.all {
		if w.node.pool.codec.more(c) {
			second = append(second, c)
		}
	}
	if len(second) == 0 {
		return nil
	}
	return w.deliver(ctx, second)
}

// deliver is like send, but opens a new connection if there is none.
func (w *writer) deliver(ctx context.Context, calls []*call) *remote.Error {
	if w.link == nil {
		if e := w.open(ctx); e != nil {
			for _, c := range calls {
				c.err = e
			}
			return e
		}
	}
	return w.send(ctx, calls)
}

// replied sets c.err to the first error among the replies, or to nil.
func (c *call) replied(node string) {
	c.err = nil
	for _, s := range c.sent {
		if err := s.Err(); err != nil && !errors.Is(err, redis.Nil) {
			c.err = classify(node, err)
			return
		}
	}
}

// follow resends calls that certainly counted nothing: with the text of a script if the server does not know it, by the general script if
// that for one operation cannot decide, one key at a time if the server rejects several, over a new connection if this one leads to a
// replica or has lost its login, for example because a token expired, and through the cluster's client if the key is on another node.
func (w *writer) follow(ctx context.Context, calls []*call) {
	var here, apart, anew, elsewhere []*call
	for _, c := range calls {
		switch {
		case c.err == nil:
		case c.err.Code == "NOSCRIPT", c.err.Code == codeUndecided:
			here = append(here, c)
		case c.err.Code == "READONLY", c.err.Code == "NOAUTH":
			anew = append(anew, c)
		case c.err.Code == "MOVED", c.err.Code == "ASK", c.err.Code == "TRYAGAIN":
			elsewhere = append(elsewhere, c)
		case divides(c.err) && len(c.items) > 1:
			apart = append(apart, c)
		}
	}
	if len(here)+len(apart)+len(anew)+len(elsewhere) == 0 {
		return
	}
	if suspects := slices.Concat(here, apart, elsewhere); len(suspects) > 0 && suspects[0].nonce != 0 && !w.fence(ctx, suspects) {
		return
	}
	again := func(calls []*call) {
		for _, c := range calls {
			w.node.pool.codec.again(c)
		}
	}
	for len(here) > 0 { // twice if an unknown script, once known, cannot decide
		again(here)
		_ = w.send(ctx, here) // the error is in these calls, and does not affect the others
		here = slices.DeleteFunc(here, func(c *call) bool { return c.err == nil || c.err.Code != codeUndecided })
	}
	if len(apart) > 0 {
		w.split(ctx, apart)
	}
	if len(anew) > 0 {
		w.node.renewed.Add(1)
		w.hangUp()
		if e := w.open(ctx); e == nil && ctx.Err() == nil {
			again(anew)
			_ = w.send(ctx, anew) // the error is in the calls
			w.node.renewIfReadOnly(anew)
		}
	}
	if len(elsewhere) > 0 {
		w.node.pool.redirect(ctx, w, elsewhere)
	}
}

// fence checks that the error replies belong to the calls before anything is resent. This is impossible after READONLY, for which
// go-redis closes the connection, and has no value after NOAUTH.
func (w *writer) fence(ctx context.Context, calls []*call) bool {
	err := w.exec(ctx, nil, true)
	if err == nil {
		return true
	}
	w.hangUp()
	for _, c := range calls {
		c.err = classify(w.node.addr, err)
	}
	return false
}

// divides reports whether a call failed because its keys are on different servers.
func divides(e *remote.Error) bool {
	return e.Code == "CROSSSLOT" || e.Class == remote.Other && strings.Contains(strings.ToLower(e.Text), "same slot")
}

// split sends the operations of calls one by one, now and in the future.
func (w *writer) split(ctx context.Context, calls []*call) {
	w.node.apart.Store(true)
	before := len(w.calls.all)
	for _, c := range calls {
		w.node.pool.codec.encode(&w.calls, c.items, false)
		c.items = c.items[:0]
	}
	_ = w.deliver(ctx, w.calls.all[before:]) // the error is in the calls
}

// renewIfReadOnly renews the connections of n once more if they still lead to a replica.
func (n *node) renewIfReadOnly(calls []*call) {
	for _, c := range calls {
		if c.err != nil && c.err.Code == "READONLY" {
			n.renewed.Add(1)
			return
		}
	}
}
