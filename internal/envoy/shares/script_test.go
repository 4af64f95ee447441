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

// TestScripts runs testdata/*.txt. A script begins with a limit, followed by events:
//
//	limit fast 100 per 1s burst 200     fast or strict; a token bucket or, without a burst, a fixed window
//	at 0s demand a 150                  client a begins to receive 150 requests per second, evenly
//	at 6s break a                       its stream breaks; it reconnects at its next report
//	at 6s die a                         it dies, and its replica notices
//	at 6s mute a                        it stops reporting, but its stream stays open
//	at 7s restart                       the replica restarts without state; its clients connect at their next reports
//	at 7s renew                         the replica renews all assignments, as before it closes its streams
//	at 7s down, at 8s up                the store fails, and recovers
//	at 9s take 50                       an RLS caller takes hits from the store
//	at 11s jump 1h                      the clock jumps
//	at 12s                              no event
//
// Each line is followed by the output until the next one: reports, assignments, and usage. Clients admit requests without an assignment.
func TestScripts(t *testing.T) {
	t.Parallel()
	goldentest.Scripts(t, *rewrite, playScript)
}

// script is a running script.
type script struct {
	sim   *sim
	out   strings.Builder
	names []string
	part  []float64 // fraction of a request that has not arrived completely
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

// do runs a line.
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

// wait simulates until a time.
func (s *script) wait(until shares.Micros) {
	if until <= s.last {
		return
	}
	s.sim.run(until)
	fmt.Fprintf(&s.out, "  used %.0f a second\n", s.sim.used(s.last, until)*s.sim.limit.rate())
	s.last = until
}
