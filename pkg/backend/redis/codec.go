package redis

import (
	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// unit is one command as the queue sees it, that is one operation or several that were merged: one script call, or, with
// the reference's keys, an INCRBY and what goes with it.
type unit struct {
	op      *backend.Op // what to ask: the first item's own, or merged
	merged  backend.Op
	first   *item
	last    *item
	items   int
	sent    []redis.Cmder // the commands that ask it
	call    call
	command *command // that of sent, where it is used again
	err     *Error

	refused *Error        // what codec.encode cannot express; nothing is sent
	hits    uint64        // with the reference's keys: what is spent or given back
	at      engine.Micros // with the reference's keys: the time that tells the window
}

// codec turns operations into commands and replies into decisions.
type codec interface {
	// encode sets u.sent to what asks u.op.
	encode(u *unit)
	// again sets u.sent to what asks u.op where encode's commands were answered that the script is not known or that the
	// key is elsewhere.
	again(u *unit)
	// more sets u.sent to a second step, which depends on the replies to the first, where there is one.
	more(u *unit) bool
	// decode fills in u.op from the replies to u.sent, of which u.err is the first that is an error. What it returns is
	// the error of the operation.
	decode(u *unit) error
	// route is a key of op's, by which a cluster tells the node.
	route(op *backend.Op) string
}

// scriptCodec asks by scripts.
type scriptCodec struct{ encoder *encoder }

func newScriptCodec(c *Config) (*scriptCodec, error) {
	scripts, err := newScripts()
	if err != nil {
		return nil, err
	}
	return &scriptCodec{&encoder{prefix: c.KeyPrefix, jitter: c.ExpirationJitter.Milliseconds(), scripts: scripts, now: c.Now}}, nil
}

func (s *scriptCodec) encode(u *unit) {
	s.encoder.encode(&u.call, u.op)
	args := u.args("evalsha", &u.call.script.sha)
	for i := range u.call.keys {
		args[3+i] = &u.call.keys[i] // pointers, because to make an any of a string allocates
	}
}

func (s *scriptCodec) again(u *unit) {
	args := u.args("eval", u.call.script.text)
	for i, key := range u.call.keys {
		args[3+i] = key // by which go-redis tells the slot
	}
}

// args makes a command of the script for u, and returns its arguments, of which the keys are still to be filled in. They
// are written over those of the command before if there are as many.
func (u *unit) args(name, script any) []any {
	n := 3 + len(u.call.keys) + len(u.call.args)
	c := u.command
	if c == nil || len(c.Args()) != n {
		c = newCommand(make([]any, n)...)
		u.command = c
	}
	args := c.Args()
	args[0], args[1], args[2] = name, script, len(u.call.keys)
	copy(args[3+len(u.call.keys):], u.call.args)
	c.reset()
	u.sent = append(u.sent[:0], c)
	return args
}

func (s *scriptCodec) decode(u *unit) error {
	if u.err != nil {
		return u.err
	}
	return decode(u.op, u.sent[0].(*command).Val())
}

// more is nothing: a script does it all in one step.
func (s *scriptCodec) more(*unit) bool { return false }

func (s *scriptCodec) route(op *backend.Op) string { return s.encoder.route(op) }

// texts are the scripts' texts, to load on each new connection.
func (s *scriptCodec) texts() []string {
	var texts []string
	for _, script := range s.encoder.scripts.all() {
		texts = append(texts, script.text)
	}
	return texts
}
