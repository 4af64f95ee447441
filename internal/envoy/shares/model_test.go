package shares_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/sharestest"
)

// The model consists of a bucket in strict mode, a store, one or two clients, and the possible events in an interval of reports. A
// breadth-first search visits every state that any order of such intervals reaches. In each state, the hits that clients have admitted in
// this window, and those that they may still admit in it, must have been leased from the store before. So no window admits more than its
// limit.
//
// In each interval
//   - a client uses everything that it may, as soon as possible, or nothing;
//   - its messages take no time, or nearly the maximum, or its stream breaks and they are lost;
//   - RLS callers take half of the hits left in the store, or nothing.
//
// The simulation covers usage in between, and messages that take half as long.

const (
	modelWindow   = 30 * second
	modelInterval = 5 * second
	modelHits     = 90
)

// modelClient is the state of a client.
type modelClient struct {
	envoy  sharestest.Bucket
	open   bool
	known  bool // it has reported
	inbox  []simMessage
	report *shares.Usage // in progress, late
}

// modelState is the complete state of the model, at the beginning of an interval.
type modelState struct {
	now      shares.Micros
	bucket   *shares.Bucket
	level    float64 // of the store's bucket
	admitted uint64  // in this window
	granted  uint64  // in this window, to the bucket
	clients  []modelClient
	most     uint64 // maximum in any window
	history  string
}

// modelChoice determines the events of a client in an interval.
type modelChoice struct {
	uses   bool
	stream string
}

var modelChoices = []modelChoice{
	{true, "prompt"}, {true, "slow"}, {true, "broken"}, {false, "prompt"}, {false, "slow"},
}

func (s *modelState) clone() *modelState {
	c := *s
	c.bucket = s.bucket.Clone()
	c.clients = nil
	for _, m := range s.clients {
		m.inbox = append([]simMessage(nil), m.inbox...)
		c.clients = append(c.clients, m)
	}
	return &c
}

func (s *modelState) key() string {
	var k strings.Builder
	fmt.Fprintf(&k, "%d %d %.3f %d %d %s", s.now%modelWindow, len(s.clients), s.level, s.admitted, s.granted, s.bucket.Key())
	for i := range s.clients {
		c := &s.clients[i]
		e := c.envoy
		fmt.Fprintf(&k, "|%v %v %v %.6f %.6f %v", c.open, c.known, e.InForce(s.now), e.Tokens(s.now), e.Rate(s.now), c.report)
		for _, m := range c.inbox {
			fmt.Fprintf(&k, " %d %v", m.at-s.now, m.action.Assignment)
		}
	}
	return k.String()
}

// play simulates an interval, and returns the number of hits by which clients may exceed those leased.
func (s *modelState) play(choices []modelChoice, take bool) (excess float64) {
	if take {
		s.level -= float64(uint64(s.level / 2))
	}
	s.history += fmt.Sprintf("\n%v take %v: %v", s.now/second, take, choices)
	for i := range s.clients {
		c := &s.clients[i]
		if choices[i].stream == "broken" && c.open {
			c.open, c.inbox, c.report = false, nil, nil
			s.bucket.Leave(s.now, name(i))
		}
	}
	const step = second / 2
	for range modelInterval / step {
		for i := range s.clients {
			s.client(i, choices[i])
		}
		s.serve(choices)
		excess = max(excess, float64(s.admitted+s.possible())-float64(s.granted))
		s.now += step
		if s.now%modelWindow == 0 {
			s.level, s.admitted, s.granted = modelHits, 0, 0
		}
	}
	for i := range s.clients {
		s.tick(i, choices[i])
	}
	return excess
}

// possible returns the hits that clients may still admit in this window.
func (s *modelState) possible() (sum uint64) {
	ends := (s.now/modelWindow + 1) * modelWindow
	for i := range s.clients {
		c := s.clients[i]
		for t := s.now; t < ends; t += second / 2 {
			for len(c.inbox) > 0 && c.inbox[0].at <= t {
				c.receive(t)
			}
			sum += c.envoy.Request(t, 1000)
		}
	}
	return sum
}

// receive applies the first message in progress.
func (c *modelClient) receive(now shares.Micros) {
	c.envoy.Receive(now, c.inbox[0].action.Assignment)
	c.inbox = c.inbox[1:]
}

func name(i int) string { return string(rune(0x4e00 + i)) }

// client simulates half a second of a client.
func (s *modelState) client(i int, choice modelChoice) {
	c := &s.clients[i]
	for len(c.inbox) > 0 && c.inbox[0].at <= s.now {
		c.receive(s.now)
	}
	if choice.uses {
		n := c.envoy.Request(s.now, 1000)
		s.admitted += n
		s.most = max(s.most, s.admitted)
	}
	if c.report != nil { // a second late
		s.bucket.Report(s.now, shares.Client{ID: name(i), Weight: 1}, *c.report)
		c.report = nil
	}
}

// tick makes the report at the end of an interval.
func (s *modelState) tick(i int, choice modelChoice) {
	c := &s.clients[i]
	if !c.open {
		c.envoy.Report()
		c.open = choice.stream != "broken"
		if c.known || !c.open {
			return
		}
	}
	u := c.envoy.Report()
	usage := shares.Usage{Allowed: u.Allowed, Denied: u.Denied}
	if c.known && choice.stream == "slow" {
		c.report = &usage
		return
	}
	c.known = true
	s.bucket.Report(s.now, shares.Client{ID: name(i), Weight: 1}, usage)
}

// serve simulates half a second of the server.
func (s *modelState) serve(choices []modelChoice) {
	if s.bucket.Next() > s.now {
		return
	}
	if a, ok := s.bucket.Request(s.now); ok {
		granted := min(a.Hits, uint64(s.level))
		s.level -= float64(granted)
		s.level += float64(a.Return)
		s.granted += granted - a.Return
		ends := (s.now/modelWindow + 1) * modelWindow
		s.bucket.Answer(s.now, shares.Answer{Granted: granted, Left: math.Floor(s.level), Ends: ends})
	}
	for _, a := range s.bucket.Actions(s.now) {
		i := int([]rune(a.Client)[0] - 0x4e00)
		c := &s.clients[i]
		if !c.open || choices[i].stream == "broken" {
			continue
		}
		at := s.now
		if choices[i].stream == "slow" {
			at += modelInterval - second
		}
		if n := len(c.inbox); n > 0 {
			at = max(at, c.inbox[n-1].at) // in order
		}
		c.inbox = append(c.inbox, simMessage{at: at, action: a})
	}
}

// TestStrictModel searches all states.
func TestStrictModel(t *testing.T) {
	t.Parallel()
	for clients, depth := range map[int]int{1: 8, 2: 3} {
		if testing.Short() {
			depth--
		}
		limit := shares.Limit{Hits: modelHits, Window: modelWindow}
		begin := &modelState{now: 600 * second, level: modelHits, clients: make([]modelClient, clients)}
		begin.bucket = shares.New(shares.Config{Limit: limit, Mode: shares.Strict}, begin.now)
		for i := range begin.clients {
			begin.clients[i].open = true
			begin.clients[i].envoy.NoAssignment = sharestest.DenyAll
			begin.tick(i, modelChoice{})
		}
		states, steps, most := []*modelState{begin}, 0, uint64(0)
		total := 0
		for range depth {
			seen := map[string]bool{}
			var next []*modelState
			for _, s := range states {
				each(clients, func(choices []modelChoice) {
					for _, take := range []bool{false, true} {
						if take && s.now%modelWindow != modelInterval {
							continue
						}
						n := s.clone()
						steps++
						if x := n.play(choices, take); x > 1e-6 {
							t.Fatalf("%v hits beyond what was leased:%s", x, n.history)
						}
						most = max(most, n.most)
						if k := n.key(); !seen[k] {
							seen[k] = true
							next = append(next, n)
						}
					}
				})
			}
			states = next
			total += len(states)
		}
		t.Logf("%d clients, %d intervals: %d states, %d steps, at most %d of %d hits in a window", clients, depth, total, steps, most, modelHits)
	}
}

// each calls f for every combination of choices.
func each(clients int, f func([]modelChoice)) {
	if clients == 1 {
		for _, c := range modelChoices {
			f([]modelChoice{c})
		}
		return
	}
	for _, c := range modelChoices {
		for _, d := range modelChoices {
			f([]modelChoice{c, d})
		}
	}
}
