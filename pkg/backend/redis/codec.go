package redis

import (
	"github.com/redis/go-redis/v9"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/remote"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// unit is one operation, or several that were merged into one, with the commands that carry it out: one script call or,
// with the reference's keys, an INCRBY and what goes with it.
type unit struct {
	op      *backend.Op // the operation to carry out: the first item's own, or &merged
	merged  backend.Op
	first   *item
	last    *item
	items   int
	sent    []redis.Cmder // the commands that carry it out
	call    call
	command *command // the command in sent, kept for reuse
	err     *remote.Error

	refused *remote.Error // why codec.encode cannot express the operation; nothing is sent then
	hits    uint64        // with the reference's keys: hits to spend or to give back
	at      engine.Micros // with the reference's keys: the time that determines the window
}

// codec turns operations into commands and replies into decisions.
type codec interface {
	// encode sets u.sent to the commands for u.op.
	encode(u *unit)
	// again sets u.sent to the commands for u.op after the server replied to encode's that it does not know the script,
	// or that the key is on another node.
	again(u *unit)
	// more sets u.sent to a second step, which depends on the replies to the first, and reports whether there is one.
	more(u *unit) bool
	// decode fills in u.op from the replies to u.sent. u.err is the first error among them. It returns the error of the
	// operation.
	decode(u *unit) error
	// route returns one of op's keys, which determines the node of a cluster.
	route(op *backend.Op) string
}

// scriptCodec carries out operations by scripts.
type scriptCodec struct {
	encoder  *encoder
	commands []any // that the scripts call, as strings
}

func newScriptCodec(c *Config) (*scriptCodec, error) {
	scripts, err := newScripts()
	if err != nil {
		return nil, err
	}
	s := &scriptCodec{encoder: &encoder{prefix: c.KeyPrefix, jitter: c.ExpirationJitter.Milliseconds(), scripts: scripts, now: c.Now}}
	s.commands = commandsOf(s.texts())
	return s, nil
}

func (s *scriptCodec) encode(u *unit) {
	s.encoder.encode(&u.call, u.op)
	args := u.args("evalsha", &u.call.script.sha)
	for i := range u.call.keys {
		args[3+i] = &u.call.keys[i] // pointers, because converting a string to any allocates
	}
}

func (s *scriptCodec) again(u *unit) {
	args := u.args("eval", u.call.script.text)
	for i, key := range u.call.keys {
		args[3+i] = key // go-redis determines the slot by it
	}
}

// args makes the command that calls the script for u, and returns its arguments, in which the caller has to fill in the
// keys. It reuses u's previous command if that has as many arguments.
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

// more returns false: a script does everything in one step.
func (s *scriptCodec) more(*unit) bool { return false }

func (s *scriptCodec) route(op *backend.Op) string { return s.encoder.route(op) }

// texts returns the scripts' texts, to load on each new connection.
func (s *scriptCodec) texts() []string {
	var texts []string
	for _, script := range s.encoder.scripts.all() {
		texts = append(texts, script.text)
	}
	return texts
}
