package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// packed is a key, or numbers in the format of Lua's struct library. It is written to Redis without a copy.
type packed struct{ b []byte }

// MarshalBinary implements encoding.BinaryMarshaler for go-redis.
func (p *packed) MarshalBinary() ([]byte, error) { return p.b, nil }

// num appends integers that a double holds exactly.
func (p *packed) num(ns ...uint64) {
	for _, n := range ns {
		p.float(float64(n))
	}
}

func (p *packed) float(f float64) {
	p.b = binary.LittleEndian.AppendUint64(p.b, math.Float64bits(f))
}

func (p *packed) flag(set bool) {
	if set {
		p.b = append(p.b, 1)
	} else {
		p.b = append(p.b, 0)
	}
}

// scriptCodec carries out operations by scripts. It is safe for concurrent use.
type scriptCodec struct {
	prefix string               // before every key
	jitter int64                // maximum random addition to the lifetime of keys, in ms
	now    func() engine.Micros // replaces the clock of Redis; nil except in tests
	clock  func() engine.Micros // replaces the clock of this process, which selects calendar edges; nil except in tests
	script *script
	alone  *script // for a single common take of a window
	nonce  atomic.Uint64
}

func newScriptCodec(c *Config) (*scriptCodec, error) {
	script, err := newScript(scriptFiles)
	if err != nil {
		return nil, err
	}
	alone, err := newScript(aloneFile)
	if err != nil {
		return nil, err
	}
	s := &scriptCodec{prefix: c.KeyPrefix, jitter: c.ExpirationJitter.Milliseconds(), script: script, alone: alone, now: c.Now}
	s.nonce.Store(rand.Uint64())
	return s, nil
}

// here returns the time on this process's clock.
func (s *scriptCodec) here() engine.Micros {
	switch {
	case s.clock != nil:
		return s.clock()
	case s.now != nil:
		return s.now()
	}
	return engine.Micros(time.Now().UnixMicro())
}

// injectedSlack is added to the lifetime of keys, in ms, if a clock is injected, because that clock may be slower than the one by which
// Redis expires keys.
const injectedSlack = 3_600_000

// latest is the latest time that the engine handles.
const latest engine.Micros = 1 << 52

// gather assigns items to groups of operations that share a description and run one after the other. An item is in a later group than the
// previous item on the same key, or after it in a group that keeps the order.
func (cs *calls) gather(items []*item) {
	if cs.groups == nil {
		cs.groups = map[string]int{}
	}
	clear(cs.groups)
	groups := 0
	for _, it := range items {
		it.kind = kindOf(&it.op)
		cs.shared.b = append(cs.shared.b[:0], byte(it.kind))
		cs.shared.common(it)
		least := 1
		if it.after != nil {
			least = it.after.group
			if it.kind != kindOther {
				least++
			}
		}
		if it.group = cs.groups[string(cs.shared.b)]; it.group < least {
			groups++
			it.group = groups
			cs.groups[string(cs.shared.b)] = groups
		}
	}
	slices.SortStableFunc(items, func(a, b *item) int { return a.group - b.group })
}

// encode adds calls for items, in the format of batch.lua.
func (s *scriptCodec) encode(cs *calls, items []*item, together bool) {
	var c *call
	group, head := 0, 0 // of c, and the position in c.args of its number of operations
	cs.gather(items)
	for _, it := range items {
		weight := weight(&it.op)
		if c == nil || !together || c.weight+weight > maxWeight {
			if c != nil {
				s.finish(c)
			}
			c, group = s.begin(cs), 0
		}
		if it.group != group {
			group = it.group
			c.args.b = append(c.args.b, byte(it.kind))
			head = len(c.args.b)
			c.args.b = binary.LittleEndian.AppendUint32(c.args.b, 0)
			c.args.common(it)
		}
		c.weight += weight
		c.items = append(c.items, it)
		n := binary.LittleEndian.Uint32(c.args.b[head:])
		binary.LittleEndian.PutUint32(c.args.b[head:], n+1)
		s.keys(c, &it.op)
		if it.kind == kindOther {
			s.other(&c.args, &it.op)
		}
	}
	if c != nil {
		if len(items) == 1 && fitsAlone(items[0]) {
			c.script = s.alone
		}
		s.finish(c)
	}
}

// common appends the shared description of a group.
func (p *packed) common(it *item) {
	if it.kind != kindOther {
		p.num(it.op.Take.Cost, it.op.Take.Count)
		p.limit(&it.op.Limits[0], nil)
	}
}

// begin returns a call without operations.
func (s *scriptCodec) begin(cs *calls) *call {
	c := cs.next()
	c.keys, c.weight, c.script = c.keys[:0], 0, s.script
	c.nonce = s.nonce.Add(1)
	c.args.b = binary.LittleEndian.AppendUint64(c.args.b[:0], c.nonce)
	c.args.num(s.slack())
	return c
}

// keys adds the keys of op.
func (s *scriptCodec) keys(c *call, op *backend.Op) {
	for i := range op.Limits {
		c.addKey(s, op, op.Limits[i].Slot(), "")
	}
	if op.Penalty != nil {
		c.addKey(s, op, engine.GateSlot, "")
	}
	if op.Reserve != nil {
		slot := op.Limits[0].Slot().Reserved()
		c.addKey(s, op, slot, "")
		c.addKey(s, op, slot, "s")
		if op.Reserve.Repeats {
			c.addKey(s, op, slot, "e")
		}
	}
}

// addKey adds the key of op that ends in a slot's name and suffix.
func (c *call) addKey(s *scriptCodec, op *backend.Op, slot engine.Slot, suffix string) {
	if n := len(c.keys); n < cap(c.keys) {
		c.keys = c.keys[:n+1]
	} else {
		c.keys = append(c.keys, packed{})
	}
	k := &c.keys[len(c.keys)-1]
	k.b = append(slot.Append(s.base(k.b[:0], op)), suffix...)
}

// finish builds the command of c.
func (s *scriptCodec) finish(c *call) {
	args := s.command(c, "evalsha", c.script.sha)
	for i := range c.keys {
		args[3+i] = &c.keys[i] // pointers, because converting a string to any allocates
	}
}

func (s *scriptCodec) again(c *call) {
	if c.err.Code != "NOSCRIPT" {
		c.script = s.script // which decides everything
	}
	args := s.command(c, "eval", c.script.text)
	for i := range c.keys {
		args[3+i] = string(c.keys[i].b) // go-redis uses it to determine the slot
	}
}

// command builds the command that calls the script for c, and returns its arguments. The caller must fill in the keys.
func (s *scriptCodec) command(c *call, name, script string) []any {
	n := 3 + len(c.keys)
	args := make([]any, n+1, n+2)
	args[0], args[1], args[2], args[n] = name, script, len(c.keys), &c.args
	if s.now != nil {
		args = append(args, strconv.FormatInt(int64(min(max(s.now(), 0), latest)), 10))
	}
	c.sent = append(c.sent[:0], newCommand(args...))
	return args
}

// more returns false, because a script needs only one step.
func (s *scriptCodec) more(*call) bool { return false }

// route returns a key in the cluster slot of all of op's keys.
func (s *scriptCodec) route(op *backend.Op) string { return string(s.base(nil, op)) }

// base appends the common prefix of all keys of op to b. Of the data of clients, it contains only a hash.
func (s *scriptCodec) base(b []byte, op *backend.Op) []byte {
	b = append(b, s.prefix...)
	b = append(b, "rl:{"...)
	b = base64.RawURLEncoding.AppendEncode(b, op.Key[:])
	return append(b, '}')
}

// slack returns the time that is added to the lifetime of the keys of a call, in ms.
func (s *scriptCodec) slack() uint64 {
	slack := uint64(0)
	if s.jitter > 0 {
		slack = uint64(rand.Int64N(s.jitter + 1))
	}
	if s.now != nil {
		slack += injectedSlack
	}
	return slack
}

// mode is the mode argument of the script.
type mode uint8

const (
	modeTake  mode = iota
	modeAsk        // take of cost 0: check whether a cost of 1 would be admitted
	modeLook       // the same without writing
	modeProbe      // look with cost 0
	modeGive
	modeReset
	modeForce // reset even during a penalty
	modeSettle
)

func modeOf(op *backend.Op) mode {
	switch op.Mode {
	case backend.Refund:
		return modeGive
	case backend.Settle:
		return modeSettle
	case backend.Reset:
		return modeReset
	case backend.ForceReset:
		return modeForce
	case backend.Peek:
		if op.Take.Cost > 0 {
			return modeLook
		}
	case backend.Take:
		if op.Take.Cost > 0 {
			return modeTake
		}
		return modeAsk
	}
	return modeProbe
}

// beside returns the code of op's penalty or reservations.
func beside(op *backend.Op) byte {
	switch {
	case op.Penalty != nil:
		return 1
	case op.Reserve != nil && op.Reserve.Repeats:
		return 3
	case op.Reserve != nil:
		return 2
	}
	return 0
}

// other appends op in the format of penalty.lua.
func (s *scriptCodec) other(p *packed, op *backend.Op) {
	t, m := &op.Take, modeOf(op)
	count := min(t.Count, engine.MaxHits)
	want := count + min(t.Extra, engine.MaxHits-count)
	if m == modeTake && op.Reserve != nil && t.Reservation != (engine.ReservationID{}) {
		count = min(count, 1)
	}
	if m == modeTake && (op.Penalty != nil || op.Reserve != nil) {
		want = count
	}
	switch m {
	case modeTake, modeLook:
		p.num(min(t.Cost, engine.MaxHits), count, want)
	case modeAsk, modeProbe:
		p.num(1, count, count)
	case modeGive:
		p.num(engine.Times(t.Cost, count))
		p.float(float64(min(max(t.Window, -1), engine.MaxHits)))
		p.num(0)
	case modeReset, modeForce:
		p.num(0, 0, 0)
	case modeSettle:
		p.num(min(t.Cost, engine.MaxHits), 0, 0)
	}
	p.b = append(p.b, byte(m), byte(len(op.Limits)), beside(op))
	p.flag(t.Owner != "")
	if x := op.Penalty; x != nil {
		p.num(uint64(x.For), uint64(x.Max), uint64(x.Escalate))
		p.flag(x.On == engine.OnReached)
	} else if r := op.Reserve; r != nil {
		p.num(uint64(r.TTL), uint64(op.Limits[0].Keeps()))
		p.flag(r.Return)
		p.flag(t.Reservation != engine.ReservationID{})
		p.b = append(p.b, t.Reservation[:]...)
	}
	for i := range op.Limits {
		p.b = append(p.b, byte(familyOf(&op.Limits[i])))
		p.limit(&op.Limits[i], s)
	}
	if t.Owner != "" { // a hash, which has a fixed length
		sum := sha256.Sum256([]byte(t.Owner))
		p.b = append(p.b, sum[:16]...)
	}
}
