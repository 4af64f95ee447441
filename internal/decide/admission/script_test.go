package admission

import (
	"flag"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
)

var rewrite = flag.Bool("rewrite", false, "write what rounds do into testdata")

// script is a core with virtual time, controlled by a file in testdata. A line is one of
//
//	limit N                          sets the maximum number of calls in flight
//	at TIME                          sets the time
//	call DOMAIN PATIENCE [xN] [cost=N] [nofallback] [from=SOURCE]
//	round LAP [inflight=N]           runs a round; the next line lists the verdicts
//
// Calls are numbered from 1.
type script struct {
	core    core
	now     time.Duration
	calls   int
	names   map[*waiting]int
	sources map[string]*Source
}

func TestScripts(t *testing.T) { goldentest.Scripts(t, *rewrite, run) }

// run runs a script and returns it with the output of its lines.
func run(t *testing.T, text string) string {
	t.Helper()
	s := newScript()
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "= ") {
			continue
		}
		out.WriteString(line)
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" {
			if len(words) == 0 { // new scenario
				s = newScript()
			}
			continue
		}
		if says := s.do(t, words); says != "" {
			out.WriteString("= " + says + "\n")
		}
	}
	return out.String()
}

func newScript() *script {
	return &script{core: newCore(), names: map[*waiting]int{}, sources: map[string]*Source{}}
}

func (s *script) do(t *testing.T, words []string) string {
	t.Helper()
	switch words[0] {
	case "limit":
		s.core.limit.calls = number(t, words[1])
	case "at":
		s.now = duration(t, words[1])
	case "call":
		return s.call(t, words[1:])
	case "round":
		return s.round(t, words[1:])
	default:
		t.Fatalf("unknown line: %q", words)
	}
	return ""
}

func (s *script) call(t *testing.T, words []string) string {
	t.Helper()
	h := fnv.New32a()
	_, _ = h.Write([]byte(words[0]))
	c, times := Call{Domain: h.Sum32(), Cost: 1}, 1
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "cost":
			c.Cost = number(t, value)
		case "size":
			c.Size = number(t, value)
		case "nofallback":
			c.NoFallback = true
		case "from":
			if s.sources[value] == nil {
				s.sources[value] = new(Source)
			}
			c.Source = s.sources[value]
		default:
			times = number(t, strings.TrimPrefix(word, "x"))
		}
	}
	closed := 0
	for range times {
		if c.Source != nil && !s.core.letIn(c.Source) {
			closed++
			continue
		}
		w := &waiting{Call: c, turn: make(chan Verdict, 1)}
		if !s.core.enqueue(s.now, s.now+duration(t, words[1]), w) {
			closed++
			continue
		}
		s.calls++
		s.names[w] = s.calls
	}
	if closed > 0 {
		return fmt.Sprintf("%d not received", closed)
	}
	return ""
}

func (s *script) round(t *testing.T, words []string) string {
	t.Helper()
	inFlight := 0
	if len(words) > 1 {
		inFlight = number(t, strings.TrimPrefix(words[1], "inflight="))
	}
	var given [Reject + 1][]string
	state := s.core.round(s.now, duration(t, words[0]), inFlight, func(w *waiting, v Verdict) {
		given[v] = append(given[v], strconv.Itoa(s.names[w]))
	})
	var parts []string
	for v, name := range []string{"proceed", "fallback", "reject"} {
		if given[v] != nil {
			parts = append(parts, name+" "+strings.Join(given[v], " "))
		}
	}
	return strings.Join(append(parts, fmt.Sprintf("%s, %d wait, limit %d", []string{"drained", "working", "blocked"}[state],
		s.core.queue.calls, s.core.limit.calls)), "; ")
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
