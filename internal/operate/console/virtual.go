package console

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// compile compiles a rule from its YAML, the keys below key.
func compile(yaml string) (*descriptors.Rule, error) {
	const above = "domain: d\ndescriptors:\n  - key: k\n"
	text := above + "    " + strings.ReplaceAll(strings.TrimRight(yaml, " \n"), "\n", "\n    ") + "\n"
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "rule", Data: []byte(text)}}, descriptors.Options{})
	for _, p := range problems {
		if !p.Warning {
			return nil, fmt.Errorf("line %d: %s", max(p.Line-strings.Count(above, "\n"), 1), p.Text)
		}
	}
	if err != nil {
		return nil, err
	}
	d := set.Domain([]byte("d"))
	if d == nil {
		return nil, errors.New("no rule found")
	}
	m := d.Match([]descriptors.Entry{{Key: []byte("k"), Value: []byte("v")}})
	if m.Rule == nil {
		return nil, errors.New("no limit found: add rate_limit or rate_limits")
	}
	return m.Rule, nil
}

// counter is a counter in virtual time.
type counter struct {
	limits  engine.Limits
	penalty *engine.Penalty
	gate    engine.State
	states  []*engine.State
}

func newCounter(limits engine.Limits, penalty *engine.Penalty) *counter {
	c := &counter{limits: limits, penalty: penalty}
	for range limits {
		c.states = append(c.states, new(engine.State))
	}
	return c
}

// take consumes hits, all or none.
func (c *counter) take(now engine.Micros, hits uint64) engine.Decision {
	t := engine.Take{Cost: hits, Count: 1}
	if c.penalty != nil {
		return c.penalty.Take(&c.gate, c.limits, c.states, now, t)
	}
	return c.limits.Take(c.states, now, t)
}

// virtualStart is the start of virtual time, at the beginning of a day.
const virtualStart = engine.Micros(20_000 * 86_400 * 1_000_000)

// play simulates n requests, spread evenly over a period, on a new counter.
func play(yaml string, n int, over time.Duration) (played, error) {
	rule, err := compile(yaml)
	if err != nil {
		return played{}, err
	}
	var c *counter
	if !rule.Unlimited {
		c = newCounter(rule.RateLimits.Limits(), rule.Penalty)
	}
	var p played
	width := 1000 / float64(n)
	for i := range n {
		after := over / time.Duration(n) * time.Duration(i)
		b := bar{X: fmt.Sprintf("%.2f", float64(i)*width), Width: fmt.Sprintf("%.2f", max(width*0.8, 0.5)), Passed: true}
		says := "passes"
		if c != nil {
			d := c.take(virtualStart+engine.Micros(after/time.Microsecond), 1)
			b.Passed = d.Admitted > 0
			switch {
			case d.Wait > 0 && b.Passed:
				says = "passes after a wait of " + short(d.Wait)
			case d.RetryAfter == engine.Never:
				says = "rejected, can never pass"
			case !b.Passed:
				says = "rejected, retry in " + short(d.RetryAfter)
			}
		}
		b.Label = fmt.Sprintf("request %d, after %s: %s", i+1, short(after), says)
		b.Y, b.Height = "0", "40"
		if b.Passed {
			p.Passed++
		} else {
			b.Y, b.Height = "24", "16"
			if p.Rejected++; p.First == "" {
				p.First = fmt.Sprintf("request %d, after %s", i+1, short(after))
			}
		}
		p.Bars = append(p.Bars, b)
	}
	if rule.Shadow && p.Rejected > 0 {
		p.First += "; it passes because the rule is in shadow mode"
	}
	return p, nil
}

// plot shows the remaining hits over the next window without further requests.
type plot struct {
	Line, Area string // of SVG, in a box of points × chartHeight
	Max        uint64
	Until      string
	Label      string
}

// refills simulates how a counter refills over the next window, from the state in the API. Where this state lacks the
// times of the hits, as for a sliding log, refills assumes that all were consumed last, so the counter may refill
// earlier.
func refills(l *adminv1.Limit, c *adminv1.Counter, now time.Time) *plot {
	limits, err := rulemessage.Limits([]*adminv1.Limit{l})
	if err != nil {
		return nil
	}
	v := newCounter(limits.Limits(), nil)
	most, window := v.limits[0].Capacity(), l.GetWindow().AsDuration()
	start := engine.Micros(now.UnixMicro())
	if spent := most - min(c.GetLeft(), most); spent > 0 {
		when := start
		if reset := c.GetResetAfter().AsDuration(); v.limits[0].BeyondCount() != "" && reset < window && l.GetBurst() == 0 {
			when -= engine.Micros((window - reset) / time.Microsecond)
		}
		v.take(when, spent)
	}
	values := make([]float64, points)
	for i := range values {
		at := start + engine.Micros(window/time.Microsecond)*engine.Micros(i)/(points-1)
		values[i] = float64(v.limits.Peek(v.states, at, engine.Take{Count: 1}).Left)
	}
	line, area := curve(values, float64(most))
	return &plot{
		Line: line, Area: area, Max: most, Until: short(window),
		Label: fmt.Sprintf("Hits left: %d of %d now, full again in %s if none are consumed", c.GetLeft(), most, short(c.GetResetAfter().AsDuration())),
	}
}
