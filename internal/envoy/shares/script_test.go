package shares_test

import (
	"bufio"
	"flag"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/envoy/shares"
	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the answers in testdata/*.txt")

// TestScripts plays testdata/*.txt. A script begins with a limit, and then says what happens when:
//
//	limit fast 100 per 1s burst 200     a token bucket; without a burst it is a fixed window; strict, or fast
//	at 0s demand a 150                  client a begins to receive 150 requests a second, evenly
//	at 6s break a                       its stream breaks: it connects again at its next report
//	at 6s die a                         it is gone, and its replica sees that
//	at 6s mute a                        it reports no longer, though its stream is open
//	at 7s restart                       the replica starts again without state; its clients connect at their next reports
//	at 7s renew                         the replica renews all assignments, as it does before it closes its streams
//	at 7s down, at 8s up                the store
//	at 9s take 50                       a caller of RLS takes hits from the store
//	at 11s jump 1h                      the clock jumps
//	at 12s                              nothing happens
//
// Below each line stands what came of it until the next one: reports, what the clients are told, and what was used. Clients
// allow what they have no assignment for.
func TestScripts(t *testing.T) {
	t.Parallel()
	goldentest.Scripts(t, *rewrite, playScript)
}

// script is a script under way.
type script struct {
	sim   *sim
	out   strings.Builder
	names []string
	part  []float64 // of a request that has not come whole
	last  shares.Micros
}

func playScript(t *testing.T, text string) string {
	t.Helper()
	t.Parallel()
	s := &script{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "  ") {
			continue
		}
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "at" {
			s.wait(scriptStart + span(t, words[1]))
		}
		fmt.Fprintln(&s.out, line)
		if len(words) > 0 && words[0] != "#" {
			s.do(t, words)
		}
	}
	return s.out.String()
}

const scriptStart = 600 * second

func span(t *testing.T, text string) shares.Micros {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return shares.Micros(d.Microseconds())
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// do plays a line.
func (s *script) do(t *testing.T, words []string) {
	t.Helper()
	if words[0] == "limit" {
		s.begin(t, words)
		return
	}
	if len(words) < 3 {
		return
	}
	r := s.sim.replicas[len(s.sim.replicas)-1]
	switch words[2] {
	case "demand":
		s.client(words[3]).demand = float64(number(t, words[4]))
	case "break":
		c := s.client(words[3])
		c.open, c.inbox = false, nil
		r.bucket.Leave(s.sim.now+r.skew, c.client.ID)
	case "die":
		c := s.client(words[3])
		c.alive = false
		r.bucket.Leave(s.sim.now+r.skew, c.client.ID)
	case "mute":
		s.client(words[3]).reports = math.MaxInt64
	case "restart":
		r.dead = true
		s.sim.replicas = append(s.sim.replicas, s.sim.newReplica())
		for _, c := range s.sim.clients {
			c.open, c.inbox = false, nil
		}
	case "renew":
		for _, a := range r.bucket.Renew(s.sim.now+r.skew, "") {
			s.sim.send(r, a)
		}
	case "take":
		s.sim.store.take(s.sim.now, number(t, words[3]))
	case "down", "up":
		s.sim.store.down = words[2] == "down"
	case "jump":
		r.skew += span(t, words[3])
	}
}

func (s *script) begin(t *testing.T, words []string) {
	t.Helper()
	l := simLimit{Limit: shares.Limit{Hits: number(t, words[2]), Window: span(t, words[4])}}
	if words[1] == "strict" {
		l.mode = shares.Strict
	}
	if len(words) > 5 {
		l.Burst = number(t, words[6])
		l.Overdraft = l.mode == shares.Fast
	}
	s.sim, s.names, s.part = newSim(0, l, 0, 0), nil, nil
	s.sim.delay = func() shares.Micros { return 0 }
	s.sim.arrive = func(i int, mean float64) uint64 {
		s.part[i] += mean
		n := uint64(s.part[i] + 1e-9)
		s.part[i] -= float64(n)
		return n
	}
	s.sim.seen = func(i int, what string) {
		fmt.Fprintf(&s.out, "  %v %s %s\n", time.Duration(s.sim.now-scriptStart)*time.Microsecond, s.names[i], what)
	}
	s.last = s.sim.now
}

// client returns a client by name.
func (s *script) client(name string) *simClient {
	i := slices.Index(s.names, name)
	if i < 0 {
		s.names = append(s.names, name)
		s.part = append(s.part, 0)
		s.sim.join()
		i = len(s.names) - 1
	}
	return s.sim.clients[i]
}

// wait plays until a time.
func (s *script) wait(until shares.Micros) {
	if until <= s.last {
		return
	}
	s.sim.run(until)
	fmt.Fprintf(&s.out, "  used %.0f a second\n", s.sim.used(s.last, until)*s.sim.limit.rate())
	s.last = until
}
