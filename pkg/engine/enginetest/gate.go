package enginetest

import (
	"math/big"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// gate is the state of a penalty.
type gate struct {
	end, length, until engine.Micros
}

// left returns the remaining time of the penalty.
func (g *gate) left(now engine.Micros) time.Duration {
	if now >= g.until {
		return 0
	}
	return span(min(g.end-now, g.length))
}

func (g *gate) runs(now engine.Micros) bool { return g.left(now) > 0 }

// settle makes a penalty from the future begin now.
func (g *gate) settle(now engine.Micros) {
	if future := g.end - now - g.length; future > 0 {
		g.end -= future
		g.until -= future
	}
}

// reject turns the counter's decision into the gate's rejection.
func (g *gate) reject(d engine.Decision, now engine.Micros) engine.Decision {
	d.Admitted, d.Left, d.Wait, d.Renewed = 0, 0, 0, 0
	d.Penalty = g.left(now)
	d.RetryAfter = max(d.RetryAfter, d.Penalty)
	return d
}

// start starts a penalty.
func (g *gate) start(p *engine.Penalty, now engine.Micros) {
	length := p.For
	if p.Escalate > 1 && now < g.until {
		grown := new(big.Int).Mul(big.NewInt(int64(g.length)), big.NewInt(int64(p.Escalate)))
		length = p.Max
		if grown.Cmp(big.NewInt(int64(p.Max))) < 0 {
			length = max(p.For, engine.Micros(grown.Int64()))
		}
	}
	*g = gate{end: now + length, length: length, until: now + length}
	if p.Escalate > 1 {
		g.until += p.Max
	}
}
