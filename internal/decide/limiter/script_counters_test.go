package limiter_test

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
)

// explain DOMAIN [hits=N]: explains the request with the following descriptors.
func (s *script) explain(words []string, body string) string {
	r, _ := s.request(words, body)
	e, err := s.limiter.Explain(s.t.Context(), r)
	if err != nil {
		return fmt.Sprint("error: ", err)
	}
	var b strings.Builder
	b.WriteString(code(e.Over))
	if !e.DomainKnown {
		b.WriteString(", no rules for the domain")
	}
	if e.Together {
		b.WriteString(", charged together")
	}
	b.WriteByte('\n')
	for i := range e.Descriptors {
		x := &e.Descriptors[i]
		fmt.Fprintf(&b, "  %d: %s\n", i, statusText(&x.Status))
		for _, step := range x.Steps { // other tests cover their texts
			if step.Text == "" {
				s.t.Errorf("the step of %s has no text", step.Entry)
			}
			fmt.Fprintf(&b, "     step %s\n", step.Entry)
		}
		if x.Rule != nil {
			fmt.Fprintf(&b, "     %s at %s:%d\n", x.Rule.Path, x.Rule.File, x.Rule.Line)
		}
		if x.Counter != "" {
			fmt.Fprintf(&b, "     hits %d, counter %s\n", x.Effective.Hits, x.Counter)
		}
		if x.Err != nil {
			fmt.Fprintf(&b, "     fallback %v: %v\n", x.Effective.OnFailure, x.Err)
		}
		if x.Holder != "" {
			fmt.Fprintf(&b, "     holder %s\n", x.Holder)
		}
		if x.Effective.Ineffective.Override != nil {
			fmt.Fprintf(&b, "     override ignored: %v\n", x.Effective.Ineffective.Override)
		}
	}
	return b.String()
}

// peek DOMAIN: prints the counter of the following descriptor.
func (s *script) peek(words []string, body string) string {
	return counterText(s.limiter.Peek(s.t.Context(), words[0], entries(body)))
}

// reset DOMAIN [force]: resets the counter of the following descriptor.
func (s *script) reset(words []string, body string) string {
	return counterText(s.limiter.Reset(s.t.Context(), words[0], entries(body), len(words) > 1))
}

func counterText(c *limiter.Counter, err error) string {
	if err != nil {
		return fmt.Sprint("error: ", err)
	}
	text := fmt.Sprintf("%s %s left %d of %d, whole in %v", c.Rule.Path, c.Name, c.Decision.Left,
		c.RateLimits.At(c.Decision.Strictest).RequestsPerUnit, c.Decision.ResetAfter)
	if c.Rejects {
		text += ", rejects"
	}
	if c.Decision.Penalty > 0 {
		text += fmt.Sprint(", penalty ", c.Decision.Penalty)
	}
	return text
}

// stats: prints the metrics so far.
func (s *script) counts(words []string, _ string) string {
	var b bytes.Buffer
	if err := s.stats.WriteText(&b); err != nil {
		s.t.Fatal(err)
	}
	counted := make(map[string]string)
	for line := range strings.Lines(b.String()) {
		if name, n, _ := strings.Cut(line, ": "); n != "0\n" && strings.Contains(name, strings.Join(words, " ")) {
			name = strings.TrimPrefix(strings.TrimPrefix(name, "ratelimit.service."), "rate_limit.")
			at := max(strings.LastIndexByte(name, '.'), 0)
			counted[name[:at]] += " " + strings.TrimPrefix(name[at:], ".") + " " + strings.TrimSpace(n)
		}
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		out.WriteString(strings.TrimSpace(name+":"+counted[name]) + "\n")
	}
	return out.String()
}
