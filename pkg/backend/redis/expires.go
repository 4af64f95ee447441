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
	maxExpires  = 10_000                 // keys; each outage leaves a batch per writer
	expireAgain = 100 * time.Millisecond // after an attempt that failed
	expireLate  = 500 * time.Millisecond // for so long a key that is not there may still come
	expireFor   = 10 * time.Minute       // for so long an attempt is made again although there are error replies
)

// pendingExpires holds the EXPIREs that may not have been carried out although their INCRBYs may have been: a connection that
// breaks between the two leaves a key that never expires. They are sent again until Redis has answered, which is
// harmless however often it happens. It is safe for concurrent use; a nil one holds none.
type pendingExpires struct {
	mu   sync.Mutex
	keys map[string]pendingExpire
	next time.Time // when to try again
}

// pendingExpire is one of them.
type pendingExpire struct {
	seconds any       // for which the key is to be kept
	since   time.Time // when the connection was cut
}

// note notes the EXPIREs of calls that have been sent, if they may not have been carried out.
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

// sentExpire is one on its way.
type sentExpire struct {
	redis.Cmder

	since time.Time
}

// take returns what is pending, if it is time to send it, as commands that the caller must pass to back.
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

// back takes back what was sent without effect, for later. A key that is not there may still come: what a server has received
// over a connection that was cut it may carry out after what comes over the next one.
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

// notDone matches those replies that begin with ERR and with which Redis fails a command on a counter. Others may be of
// a proxy, which answers so for a server that it has lost: Twemproxy with "ERR Connection reset by peer" and the like.
var notDone = regexp.MustCompile(`^ERR (?:value is not|increment or decrement|invalid expire|wrong number|max number|This instance|(?i:un(?:known|supported) command))`)

// undone reports whether c has got an error reply that says that it was not carried out.
func undone(c redis.Cmder) bool {
	if !errorReply(c.Err()) {
		return false
	}
	code, _, _ := strings.Cut(c.Err().Error(), " ")
	return code != "ERR" && strings.ToUpper(code) == code || notDone.MatchString(c.Err().Error())
}

// final reports whether c has got a reply, other than that it has to be sent elsewhere, or that of a proxy which does not
// know what became of it.
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

// sendExpires sends those that are pending.
func (w *writer) sendExpires(ctx context.Context) {
	p := w.node.pool
	for all := p.expires.take(); len(all) > 0; all = p.expires.take() { //nolint:contextcheck // go-redis stores the context of a command, but does not use it
		commands := make([]redis.Cmder, len(all))
		for i := range all {
			commands[i] = all[i].Cmder
		}
		bounded, cancel := context.WithTimeout(ctx, p.opTimeout())
		switch {
		case p.cluster != nil: // by now the keys may be on other nodes
			pipe := p.cluster.client.Pipeline()
			_ = pipe.BatchProcess(bounded, commands...) // only collects
			_, _ = pipe.Exec(bounded)                   // each command has its own error
		case w.link == nil:
		case w.exec(bounded, commands, true) != nil:
			w.hangUp()
		}
		cancel()
		p.expires.back(all)
	}
}

// sendLastExpires sends what is pending at the end, over a new connection if need be, for as long as a key may still come.
func (w *writer) sendLastExpires(ctx context.Context) {
	o := w.node.pool.expires
	if o == nil || w.heard.IsZero() { // it has sent none
		return
	}
	for begun := time.Now(); o.due() && time.Since(begun) <= expireLate; time.Sleep(expireLate / 10) {
		if w.link == nil && w.node.pool.cluster == nil {
			_ = w.open(ctx) // nothing more can be done
		}
		w.sendExpires(ctx)
	}
}

// due makes it time to send what is pending, and reports whether that is anything.
func (o *pendingExpires) due() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next = time.Time{}
	return len(o.keys) > 0
}
