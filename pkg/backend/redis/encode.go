package redis

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// call is the script call for one op: EVALSHA script.sha len(keys) keys… args…. It is valid until it is encoded again.
type call struct {
	script *script
	keys   []string
	args   []any // the packed arguments and, in tests, the time

	packed packed
	key    []byte // scratch
}

// packed holds numbers in the format of Lua's struct library, as scripts unpack them: mostly doubles, and bytes for
// flags. It is written to Redis without being copied.
type packed struct{ b []byte }

// MarshalBinary returns the bytes for go-redis to write.
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

// words appends integers below 2^32.
func (p *packed) words(ns ...uint64) {
	for _, n := range ns {
		p.b = binary.LittleEndian.AppendUint32(p.b, uint32(n))
	}
}

func (p *packed) flag(set bool) {
	if set {
		p.b = append(p.b, 1)
	} else {
		p.b = append(p.b, 0)
	}
}

// encoder turns ops into calls of scripts. It is safe for concurrent use.
type encoder struct {
	prefix  string               // before every key
	jitter  int64                // keys are kept for up to this many ms longer than needed, at random
	now     func() engine.Micros // overrides the clock of Redis; nil except in tests
	clock   func() engine.Micros // overrides the clock of this process, by which calendar edges are chosen; nil except in tests
	scripts *scripts
}

// here returns the time by the clock of this process.
func (e *encoder) here() engine.Micros {
	switch {
	case e.clock != nil:
		return e.clock()
	case e.now != nil:
		return e.now()
	}
	return engine.Micros(time.Now().UnixMicro())
}

// injectedSlack is how much longer keys are kept if a clock is injected, in ms: that clock may run slower than the one
// by which Redis expires keys.
const injectedSlack = 3_600_000

// encode makes c the call for op, and reuses c's memory. The head of each script documents its arguments.
func (e *encoder) encode(c *call, op *backend.Op) {
	c.keys, c.packed.b = c.keys[:0], c.packed.b[:0]
	c.script = e.pick(op)
	name := e.base(c.key[:0], op)
	for i := range op.Limits {
		c.keys = append(c.keys, string(append(name, op.Limits[i].Slot().String()...)))
	}
	if op.Penalty != nil {
		c.keys = append(c.keys, string(append(name, engine.GateSlot.String()...)))
	}
	c.key = name

	slack := e.slack()
	if c.script == e.scripts.limits || !c.packed.quick(op, slack) {
		c.packed.ask(op, slack)
		for i := range op.Limits {
			c.packed.limit(&op.Limits[i], e)
		}
		c.packed.owner(op.Take.Owner)
	}
	c.args = append(c.args[:0], &c.packed)
	if e.now != nil {
		c.args = append(c.args, strconv.FormatInt(int64(min(max(e.now(), 0), latest)), 10))
	}
}

// latest is the last time that the engine handles.
const latest engine.Micros = 1 << 52

// route returns a key in the cluster slot of all of op's keys.
func (e *encoder) route(op *backend.Op) string { return string(e.base(nil, op)) }

// base appends the common beginning of all keys of op to b. Clients influence nothing of it but a hash.
func (e *encoder) base(b []byte, op *backend.Op) []byte {
	b = append(b, e.prefix...)
	b = append(b, "rl:{"...)
	b = base64.RawURLEncoding.AppendEncode(b, op.Key[:])
	return append(b, '}')
}

// pick returns the script for op.
func (e *encoder) pick(op *backend.Op) *script {
	if len(op.Limits) != 1 || op.Penalty != nil {
		return e.scripts.limits
	}
	return e.scripts.single[familyOf(&op.Limits[0])]
}

// slack returns how much longer than needed a key is kept, in ms.
func (e *encoder) slack() uint64 {
	slack := uint64(0)
	if e.jitter > 0 {
		slack = uint64(rand.Int64N(e.jitter + 1))
	}
	if e.now != nil {
		slack += injectedSlack
	}
	return slack
}

// mode is the mode argument of scripts.
type mode uint8

const (
	modeTake  mode = iota
	modeAsk        // take for a cost of 0: see whether a cost of 1 would be admitted
	modeLook       // and write nothing
	modeProbe      // look for a cost of 0
	modeGive
	modeReset
	modeForce // reset even while a penalty runs
)

func modeOf(op *backend.Op) mode {
	switch op.Mode {
	case backend.Give:
		return modeGive
	case backend.Reset:
		if op.Force {
			return modeForce
		}
		return modeReset
	case backend.Look:
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

// ask appends the arguments that ask.lua describes, up to and including the penalty, if there is one.
func (p *packed) ask(op *backend.Op, slack uint64) {
	t, m := &op.Take, modeOf(op)
	count := min(t.Count, engine.MaxHits)
	want := count + min(t.Extra, engine.MaxHits-count)
	if m == modeTake && op.Penalty != nil {
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
	}
	p.num(slack)
	p.b = append(p.b, byte(m))
	p.flag(op.Penalty != nil)
	if x := op.Penalty; x != nil {
		p.num(uint64(x.For), uint64(x.Max), uint64(x.Escalate))
		p.flag(x.On == engine.OnReached)
	}
}

// owner appends a hash of the owner's name, which has a fixed length, or nothing if there is no owner.
func (p *packed) owner(name string) {
	if name != "" {
		sum := sha256.Sum256([]byte(name))
		p.b = append(p.b, sum[:16]...)
	}
}
