package limiter_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/internal/process/stats"
	"github.com/ratelimitd/ratelimitd/internal/testkit/goldentest"
	"github.com/ratelimitd/ratelimitd/pkg/backend"
	"github.com/ratelimitd/ratelimitd/pkg/backend/memory"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

var rewrite = flag.Bool("rewrite", false, "write what happens into the scripts under testdata")

// TestScripts runs the scripts in testdata. A script is a list of stanzas, separated by empty lines: a command, its input on the
// following lines, ----, and the expected output. The commands are the methods of script.
func TestScripts(t *testing.T) {
	goldentest.Scripts(t, *rewrite, func(t *testing.T, text string) string {
		t.Helper()
		s := &script{t: t}
		s.settings(nil, "")
		var out []string
		for stanza := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
			out = append(out, s.play(strings.TrimSpace(stanza)))
		}
		return withoutIDs(strings.Join(out, "\n\n") + "\n")
	})
}

// controlID matches the random ID of a control in names and metrics.
var controlID = regexp.MustCompile(`\b(block:|allow:|limit:|__control=)[0-9a-f]{16}\b`)

// withoutIDs removes the IDs of controls from text, and sorts their metrics.
func withoutIDs(text string) string {
	lines := strings.Split(controlID.ReplaceAllString(text, "${1}ID"), "\n")
	for i := range lines {
		end := i
		for end < len(lines) && strings.Contains(lines[end], "__control=ID") {
			end++
		}
		slices.Sort(lines[i:end])
	}
	return strings.Join(lines, "\n")
}

// script is a limiter with its own clock.
type script struct {
	t       *testing.T
	now     engine.Micros
	fault   *faulty
	stats   *stats.Registry
	limiter *limiter.Limiter
	tenant  *tenants.Tenants
	control *controls.Controls
	scratch limiter.Scratch
	ids     []string // IDs of reservations, in order of creation
}

// play runs a stanza and returns it with its output. Comments are unchanged.
func (s *script) play(stanza string) string {
	comments, rest := "", stanza
	for strings.HasPrefix(rest, "#") {
		line, after, _ := strings.Cut(rest, "\n")
		comments += line + "\n"
		rest = after
	}
	if rest == "" {
		return strings.TrimSuffix(comments, "\n")
	}
	input, _, _ := strings.Cut(rest, "\n----")
	command, body, _ := strings.Cut(input, "\n")
	words := strings.Fields(command)
	run := map[string]func([]string, string) string{
		"settings": s.settings,
		"rules":    s.rules,
		"decide":   s.decide,
		"advance":  s.advance,
		"explain":  s.explain,
		"peek":     s.peek,
		"reset":    s.reset,
		"stats":    s.counts,
		"fault":    s.faults,
		"control":  s.controls,
		"grant":    s.grant,
		"tenants":  s.tenants,
		"why":      s.why,
	}[words[0]]
	if run == nil {
		s.t.Fatalf("no such command: %s", command)
	}
	return comments + input + "\n----\n" + strings.TrimSuffix(run(words[1:], body), "\n")
}

// settings [shadow] [quota] [stop] [cache] [near=R] [series=N] [fail=POLICY]: restarts with these settings, half a minute into an hour.
func (s *script) settings(words []string, _ string) string {
	var c limiter.Config
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "shadow":
			c.Shadow = true
		case "quota":
			c.Quota = true
		case "stop":
			c.StopWhenOver = true
		case "cache":
			c.LocalCache = true
		case "near":
			c.NearLimitRatio = float32(s.float(value))
		case "series":
			c.MetricMaxSeries = int(s.number(value))
		case "fail":
			var ok bool
			if c.OnFailure, ok = descriptors.ParseOnFailure(value); !ok {
				s.t.Fatalf("no such policy: %s", value)
			}
		default:
			s.t.Fatalf("no such setting: %s", w)
		}
	}
	s.now = engine.Micros(30 * time.Second / time.Microsecond)
	clock := memory.Config{Now: func() engine.Micros { return s.now }}
	s.fault = &faulty{Backend: memory.New(clock)}
	c.Local = memory.New(clock)
	s.stats = stats.New()
	s.control = controls.New(controls.Config{})
	s.tenant = tenants.New(tenants.Config{Files: true})
	c.Overrides, c.Plans = s.control.Overrides(), s.tenant.Plans()
	c.Reservations = new(limiter.Sealer)
	c.Reservations.SetKeys([]byte("the key of this deployment"))
	s.limiter = limiter.New(s.fault, s.stats, c)
	return "ok"
}

// control block|allow|limit DOMAIN k=v,k=v|- [below] [to=N/UNIT[*M]] [of=NAME]: puts a control in force for an hour. control lift: ends
// all controls.
func (s *script) controls(words []string, _ string) string {
	if words[0] == "lift" {
		for _, c := range s.control.List(s.t.Context()) {
			if _, err := s.control.Lift(s.t.Context(), []string{c.ID}, false); err != nil {
				s.t.Fatal(err)
			}
		}
		return "ok"
	}
	w := &override.Control{Kind: map[string]override.Kind{"block": override.Block, "allow": override.Allow, "limit": override.Limit}[words[0]], Domain: words[1]}
	for _, e := range entries(words[2]) {
		w.Entries = append(w.Entries, override.Entry{Key: string(e.Key), Value: string(e.Value)})
	}
	for _, word := range words[3:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "below":
			w.Below = true
		case "to":
			w.To = s.override(value)
		case "of":
			w.LimitName = value
		default:
			s.t.Fatalf("no such word: %s", word)
		}
	}
	if _, err := s.control.Set(s.t.Context(), w, time.Hour, false); err != nil {
		return fmt.Sprint("error: ", err)
	}
	return "ok"
}

// grant DOMAIN k=v,k=v HITS [dry]: refunds hits.
func (s *script) grant(words []string, _ string) string {
	before, after, err := s.limiter.Grant(s.t.Context(), words[0], entries(words[1]), s.number(words[2]), len(words) > 3)
	if err != nil {
		return fmt.Sprint("error: ", err)
	}
	return fmt.Sprintf("left %d, before %d", after.Decision.Left, before.Decision.Left)
}

// override parses N/UNIT[*M].
func (s *script) override(text string) descriptors.Override {
	number, unit, _ := strings.Cut(text, "/")
	unit, multiplier, _ := strings.Cut(unit, "*")
	o := descriptors.Override{RequestsPerUnit: uint32(s.number(number)), Unit: descriptors.ParseUnit(unit)}
	if multiplier != "" {
		o.Multiplier = uint32(s.number(multiplier))
	}
	return o
}

// rules: loads the following file.
func (s *script) rules(_ []string, body string) string {
	set, problems, err := descriptors.Load([]descriptors.Source{{Name: "rules.yaml", Data: []byte(body)}}, descriptors.Options{})
	if err != nil {
		return problems.Error()
	}
	s.limiter.SetRules(set)
	s.tenant.SetPlans(set.PlanNames())
	return "ok"
}

// tenants: replaces the table of tenants by the following file.
func (s *script) tenants(_ []string, body string) string {
	if err := s.tenant.Load([]tenants.Input{{Name: "tenants.csv", Reader: strings.NewReader(body)}}); err != nil {
		return err.Error()
	}
	return "ok"
}

// why DOMAIN: describes how the following descriptor is decided.
func (s *script) why(words []string, body string) string {
	r, _ := s.request(words, body)
	e, err := s.limiter.Explain(s.t.Context(), r)
	if err != nil {
		return fmt.Sprint("error: ", err)
	}
	var b strings.Builder
	for _, step := range e.Descriptors[0].Steps {
		fmt.Fprintln(&b, strings.TrimSpace(step.Entry+" "+step.Text))
	}
	return b.String()
}

// advance DURATION: advances the clock.
func (s *script) advance(words []string, _ string) string {
	d, err := time.ParseDuration(words[0])
	if err != nil {
		s.t.Fatal(err)
	}
	s.now += engine.Micros(d / time.Microsecond)
	return "ok"
}

// fault [calls=N] [TEXT]: makes the store fail with this error, permanently or for the next N calls. Without TEXT, it succeeds again.
func (s *script) faults(words []string, _ string) string {
	s.fault.err, s.fault.calls = nil, -1
	if len(words) > 0 {
		if n, ok := strings.CutPrefix(words[0], "calls="); ok {
			s.fault.calls, words = int(s.number(n)), words[1:]
		}
		s.fault.err = errors.New(strings.Join(words, " "))
	}
	return "ok"
}

// decide DOMAIN [hits=N] [times=N]: sends a request with the following descriptors, one per line: k=v,k=v [hits=N] [give]
// [limit=N/UNIT[*M]]. The value #N is the ID of the N-th reservation.
func (s *script) decide(words []string, body string) string {
	r, times := s.request(words, body)
	var b strings.Builder
	for range times {
		v, err := s.limiter.Decide(s.t.Context(), r, &s.scratch)
		if err != nil {
			fmt.Fprintln(&b, "error:", err)
			continue
		}
		b.WriteString(code(v.Over))
		if v.Header >= 0 {
			fmt.Fprintf(&b, " (headers of %d)", v.Header)
		}
		b.WriteByte('\n')
		for i := range v.Statuses {
			fmt.Fprintf(&b, "  %d: %s\n", i, statusText(&v.Statuses[i]))
		}
		for _, g := range v.Groups {
			fmt.Fprintf(&b, "  group of %d: %s remaining %d\n", g.First, code(g.Over), g.Remaining)
		}
		if v.Reservation != "" {
			s.ids = append(s.ids, v.Reservation)
			fmt.Fprintf(&b, "  reservation #%d\n", len(s.ids))
		}
	}
	return b.String()
}

func code(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}

func statusText(st *limiter.Status) string {
	words := []string{code(st.Over)}
	if st.Control != nil {
		words[0] += " by " + st.RuleName()
	}
	switch {
	case st.Control != nil && st.Control.Kind == override.Block: // whose times are on another clock
		words = append(words, fmt.Sprintf("of %d/%v", st.RateLimit.RequestsPerUnit, st.RateLimit.Unit))
	case st.Unlimited():
		words = append(words, fmt.Sprint("unlimited, remaining ", st.Remaining))
	case st.RateLimit == nil:
		words = append(words, st.Outcome.String())
	default:
		limit := fmt.Sprintf("of %d/%v", st.RateLimit.RequestsPerUnit, st.RateLimit.Unit)
		if st.RateLimit.Multiplier != 1 {
			limit += fmt.Sprint("*", st.RateLimit.Multiplier)
		}
		words = append(words, fmt.Sprint("remaining ", st.Remaining), limit, fmt.Sprint("reset ", time.Duration(st.ResetSeconds())*time.Second))
		if st.RateLimit.Name != "" {
			words = append(words, "name "+st.RateLimit.Name)
		}
		if st.Override {
			words = append(words, "override")
		}
		if st.Exceeded() && !st.Over {
			words = append(words, "shadowed")
		}
		if st.Decision.Wait > 0 {
			words = append(words, fmt.Sprint("wait ", st.Decision.Wait))
		}
		if st.Decision.Penalty > 0 {
			words = append(words, fmt.Sprint("penalty ", st.Decision.Penalty))
		}
		if st.Decision.Reserved > 0 {
			words = append(words, fmt.Sprint("reserved ", st.Decision.Reserved))
		}
		if st.Decision.Difference != 0 {
			words = append(words, fmt.Sprintf("settled %+d", st.Decision.Difference))
		}
	}
	return strings.Join(words, " ")
}

func (s *script) request(words []string, body string) (r *limiter.Request, times int) {
	r, times = &limiter.Request{Domain: []byte(words[0])}, 1
	if words[0] == `""` {
		r.Domain = nil
	}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "hits":
			r.Hits = uint32(s.number(value))
		case "times":
			times = int(s.number(value))
		default:
			s.t.Fatalf("no such word: %s", w)
		}
	}
	for line := range strings.Lines(body) {
		r.Descriptors = append(r.Descriptors, s.descriptor(strings.Fields(line)))
	}
	return r, times
}

func (s *script) descriptor(words []string) limiter.Descriptor {
	d := limiter.Descriptor{Entries: entries(words[0])}
	for i := range d.Entries {
		if n, ok := strings.CutPrefix(string(d.Entries[i].Value), "#"); ok {
			d.Entries[i].Value = []byte(s.ids[s.number(n)-1])
		}
	}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "hits":
			d.Hits, d.HasHits = s.number(value), true
		case "give":
			d.Negative = true
		case "limit":
			d.HasOverride, d.Override = true, s.override(value)
		default:
			s.t.Fatalf("no such word: %s", w)
		}
	}
	return d
}

// entries parses k=v,k=v, or - for none.
func entries(text string) (out []descriptors.Entry) {
	if text == "-" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		k, v, _ := strings.Cut(pair, "=")
		out = append(out, descriptors.Entry{Key: []byte(k), Value: []byte(v)})
	}
	return out
}

func (s *script) number(text string) uint64 {
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *script) float(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// faulty is a backend with injected failures.
type faulty struct {
	backend.Backend
	err   error
	calls int // number of calls that will fail; all if negative
}

func (f *faulty) Apply(ctx context.Context, ops []backend.Op) {
	if f.err == nil || f.calls == 0 {
		f.Backend.Apply(ctx, ops)
		return
	}
	f.calls--
	for i := range ops {
		ops[i].Err = f.err
	}
}
