package redis

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Bounds on pending EXPIREs.
const (
	maxExpires  = 10_000                 // keys; each outage adds a batch per writer
	expireAgain = 100 * time.Millisecond // delay after a failed attempt
	expireLate  = 500 * time.Millisecond // time for which a missing key may still appear
	expireFor   = 10 * time.Minute       // time for which attempts continue despite error replies
)

// pendingExpires holds EXPIREs that may have been lost although their INCRBYs took effect. A connection that breaks between the two
// leaves a key that never expires. The EXPIREs are resent until Redis answers, which is harmless any number of times. It is safe for
// concurrent use. A nil pendingExpires is empty.
type pendingExpires struct {
	mu   sync.Mutex
	keys map[string]pendingExpire
	next time.Time // time of the next attempt
}

// pendingExpire is a pending EXPIRE.
type pendingExpire struct {
	seconds any       // lifetime of the key
	since   time.Time // time when the connection was lost
}

// note adds the EXPIREs of sent calls that may have been lost.
func (o *pendingExpires) note(calls []*call) {
	if o == nil {
		return
	}
	for _, c := range calls {
		if len(c.sent) == 2 && !undone(c.sent[0]) && !final(c.sent[1]) {
			o.mu.Lock()
			o.add(c.sent[1], time.Now())
			o.mu.Unlock()
		}
	}
}

// add adds an EXPIRE. o.mu must be held.
func (o *pendingExpires) add(expire redis.Cmder, since time.Time) {
	key, _ := expire.Args()[1].(string)
	if o.keys == nil {
		o.keys = map[string]pendingExpire{}
	}
	if len(o.keys) < maxExpires {
		o.keys[key] = pendingExpire{expire.Args()[2], since}
	}
}

// sentExpire is an EXPIRE in progress.
type sentExpire struct {
	redis.Cmder

	since time.Time
}

// take returns pending EXPIREs as commands if an attempt is due. The caller must pass them to back.
func (o *pendingExpires) take() (all []sentExpire) {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.keys) == 0 || time.Now().Before(o.next) {
		return nil
	}
	for key, d := range o.keys {
		all = append(all, sentExpire{newCommand("expire", key, d.seconds), d.since})
		delete(o.keys, key)
		if len(all) == maxCommands {
			break
		}
	}
	return all
}

// back returns EXPIREs without effect to the pending ones. A missing key may still appear: a server may process data of a broken
// connection after that of the next one.
func (o *pendingExpires) back(all []sentExpire) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range all {
		missing := c.Err() == nil && c.Cmder.(*command).Val() == int64(0)
		late := errorReply(c.Err()) && time.Since(c.since) > expireFor
		if !final(c.Cmder) && !late || missing && time.Since(c.since) < expireLate {
			o.add(c.Cmder, c.since)
			o.next = time.Now().Add(expireAgain)
		}
	}
}

func errorReply(err error) bool {
	_, ok := errors.AsType[redis.Error](err)
	return ok
}

// notDone matches replies with the code ERR that Redis itself returns for a failed command on a counter. Other ERR replies may come from
// a proxy that has lost its server, such as Twemproxy's "ERR Connection reset by peer".
var notDone = regexp.MustCompile(`^ERR (?:value is not|increment or decrement|invalid expire|wrong number|max number|This instance|(?i:un(?:known|supported) command))`)

// undone reports whether c has an error reply that guarantees that it was not executed.
func undone(c redis.Cmder) bool {
	if !errorReply(c.Err()) {
		return false
	}
	code, _, _ := strings.Cut(c.Err().Error(), " ")
	return code != "ERR" && strings.ToUpper(code) == code || notDone.MatchString(c.Err().Error())
}

// final reports whether c has a conclusive reply: neither a redirection, nor one of a proxy that does not know the result.
func final(c redis.Cmder) bool {
	if err := c.Err(); err == nil {
		return c.(*command).Val() != nil
	} else if !undone(c) {
		return false
	}
	switch classify("", c.Err()).Code {
	case "MOVED", "ASK", "TRYAGAIN":
		return false
	}
	return true
}

// sendExpires sends pending EXPIREs.
func (w *writer) sendExpires(ctx context.Context) {
	p := w.node.pool
	for all := p.expires.take(); len(all) > 0; all = p.expires.take() { //nolint:contextcheck // go-redis stores the context of a command, but does not use it
		commands := make([]redis.Cmder, len(all))
		for i := range all {
			commands[i] = all[i].Cmder
		}
		bounded, cancel := context.WithTimeout(ctx, p.opTimeout())
		switch {
		case p.cluster != nil: // the keys may have moved to other nodes
			pipe := p.cluster.client.Pipeline()
			_ = pipe.BatchProcess(bounded, commands...) // only buffers
			_, _ = pipe.Exec(bounded)                   // each command has its own error
		case w.link == nil:
		case w.exec(bounded, commands, true) != nil:
			w.hangUp()
		}
		cancel()
		p.expires.back(all)
	}
}

// sendLastExpires sends pending EXPIREs at the end, over a new connection if necessary, as long as a key may still appear.
func (w *writer) sendLastExpires(ctx context.Context) {
	o := w.node.pool.expires
	if o == nil || w.heard.IsZero() { // it has sent none
		return
	}
	for begun := time.Now(); o.due() && time.Since(begun) <= expireLate; time.Sleep(expireLate / 10) {
		if w.link == nil && w.node.pool.cluster == nil {
			_ = w.open(ctx) // errors cannot be handled any more
		}
		w.sendExpires(ctx)
	}
}

// due makes an attempt due, and reports whether anything is pending.
func (o *pendingExpires) due() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next = time.Time{}
	return len(o.keys) > 0
}
