package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/replicated"
)

// Bounds of one call, so that Redis is not kept from decisions for more than a millisecond.
const (
	registerReads  = 150   // entries, of some 4 µs each
	registerWrites = 50    // entries, of some 13 µs each
	registerBytes  = 48000 // after which no further entry is written: the largest one has 20 KB

	registerMost = 3 // times as many entries are read as there may be: under the names of two secrets, and put back by several replicas
)

// Register is short texts under keys that all replicas share, beside the counters of the main deployment. It has a connection of its
// own, which is opened when it is needed, so that a long queue of operations does not delay it. Its methods must not be called
// concurrently.
type Register struct {
	aside

	most   int    // entries there may be
	atOnce int    // entries read or written in one call at most: fewer after an error, since the link may be slow
	here   string // what Changes was last called with as the name of this process
	unread string // a key that was found to hold what no server writes, and that the next Changes is to name
}

// OpenRegister returns the register of b with a name, such as controls, and room for so many entries. There is none without scripts, with
// [ReferenceKeys].
func (b *Backend) OpenRegister(name string, most int) (*Register, error) {
	a, err := b.aside("register", name, ":entries", ":changed", ":ends", ":tags", ":here", ":secret")
	if err != nil {
		return nil, err
	}
	return &Register{aside: a, most: most, atOnce: registerReads}, nil
}

var errRegisterReply = errors.New("redis: a reply of register.lua is not understood")

// Changes returns what is new since a revision. Unless self is empty, it is the name of this process among the replicas from now on.
func (r *Register) Changes(ctx context.Context, since replicated.Revision, self string) (c replicated.Changes, err error) {
	reply, err := r.call(ctx, "changes", strconv.FormatInt(since.Number, 10), since.Tag, strconv.Itoa(r.atOnce), self, r.here,
		strconv.Itoa(registerMost*r.most))
	if r.adapt(err); err != nil {
		return c, err
	}
	if self != "" {
		r.here = self
	}
	fields, ok := reply.Val().([]any)
	if !ok || len(fields) != 6 {
		return c, errRegisterReply
	}
	known, _ := fields[0].(int64)
	number, _ := fields[1].(string)
	tag, _ := fields[2].(string)
	now, _ := fields[3].(string)
	more, _ := fields[4].(int64)
	texts, ok := fields[5].([]any)
	c = replicated.Changes{Known: known == 1, Revision: replicated.Revision{Tag: tag}, More: more == 1, Entries: make([]replicated.Entry, 0, len(texts)/2)}
	var err2 error
	c.Revision.Number, err = strconv.ParseInt(number, 10, 64)
	c.Now, err2 = strconv.ParseInt(now, 10, 64)
	if err != nil || err2 != nil || !ok {
		return c, errRegisterReply
	}
	for i := 0; i+1 < len(texts); i += 2 {
		key, _ := texts[i].(string)
		text, _ := texts[i+1].(string)
		if e, err := parseEntry(key, text); err == nil {
			c.Entries = append(c.Entries, e)
		} else { // what no script wrote must not hide the others
			c.Unread = append(c.Unread, r.keys[0]+" "+key)
		}
	}
	if r.unread != "" {
		c.Unread, r.unread = append(c.Unread, r.unread), ""
	}
	return c, nil
}

// parseEntry reads an entry as register.lua has it.
func parseEntry(key, text string) (e replicated.Entry, err error) {
	parts := strings.SplitN(text, " ", 3)
	if len(parts) != 3 {
		return e, errRegisterReply
	}
	e.Key, e.Text = key, parts[2]
	var err2 error
	e.Made, err = strconv.ParseInt(parts[0], 10, 64)
	e.Expires, err2 = strconv.ParseInt(parts[1], 10, 64)
	if max(e.Made, e.Expires) > int64(latest) { // no change would be later
		err = errRegisterReply
	}
	return e, errors.Join(err, err2)
}

// adapt lets the next call have fewer entries after an error, and more after none.
func (r *Register) adapt(err error) {
	if err != nil {
		r.atOnce = max(1, r.atOnce/4)
	} else {
		r.atOnce = min(registerReads, 2*r.atOnce)
	}
}

// Put implements [replicated.Store].
func (r *Register) Put(ctx context.Context, since replicated.Revision, entries []replicated.Entry, again bool) (replicated.Revision, error) {
	for len(entries) > 0 {
		args, n := r.page(since, entries, again)
		reply, err := r.call(ctx, args...)
		if r.adapt(err); err != nil {
			return since, err
		}
		switch tag, ok := reply.Val().(string); {
		case !ok:
			return since, errRegisterReply
		case tag == "full":
			return since, replicated.ErrFull
		case tag == "behind":
			return since, replicated.ErrBehind
		default:
			since.Tag = tag
		}
		entries = entries[n:]
	}
	return since, nil
}

// page returns the arguments of a call that stores the first n entries.
func (r *Register) page(since replicated.Revision, entries []replicated.Entry, again bool) (args []any, n int) {
	how, most := "new", r.most
	if again {
		how, most = "again", 0
	}
	args = []any{"put", strconv.FormatInt(since.Number, 10), since.Tag, rand.Text()[:12], strconv.Itoa(most)}
	for size := 0; n < len(entries) && n < min(r.atOnce, registerWrites) && size < registerBytes; n++ {
		e := &entries[n]
		if e.Made == 0 {
			args = append(args, e.Key, "gone", "0", "")
			continue
		}
		args = append(args, e.Key, how, strconv.FormatInt(e.Expires, 10), fmt.Sprintf("%d %d %s", e.Made, e.Expires, e.Text))
		size += len(e.Key) + len(e.Text)
	}
	return args, n
}

// Secret returns the secret that all replicas share. If there is none yet it is the one that is offered.
func (r *Register) Secret(ctx context.Context, offered []byte) ([]byte, error) {
	reply, err := r.call(ctx, "secret", offered)
	if err != nil {
		return nil, err
	}
	secret, ok := reply.Val().(string)
	if !ok || secret == "" {
		return nil, fmt.Errorf("redis: %s is not what a server writes: delete it", r.keys[5])
	}
	return []byte(secret), nil
}

// Replicas returns the names that Changes was called with in the last 5 seconds, the latest last.
func (r *Register) Replicas(ctx context.Context) ([]string, error) {
	reply, err := r.call(ctx, "here")
	if err != nil {
		return nil, err
	}
	all, ok := reply.Val().([]any)
	if !ok {
		r.unread = r.keys[4]
		return nil, errRegisterReply
	}
	names := make([]string, 0, len(all))
	for _, name := range all {
		text, _ := name.(string)
		names = append(names, text)
	}
	return names, nil
}

// Leave takes this process off the replicas, and closes the connection.
func (r *Register) Leave(ctx context.Context) {
	if r.link != nil && r.here != "" {
		_, _ = r.call(ctx, "leave", r.here) // else it is taken off later
	}
	r.hangUp()
}
