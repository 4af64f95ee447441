package enginetest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Call is one operation of a script on a counter.
type Call struct {
	Counter int // number of the counter; counters of a script are independent
	Limits  engine.Limits
	Penalty *engine.Penalty
	Reserve *engine.Reserve
	Verb    string // take, look, give, reset or settle
	Now     engine.Micros
	Take    engine.Take
	Force   bool // for reset
}

// script is a running script.
type script struct {
	t       testing.TB
	decide  func(Call) engine.Decision
	counter Call // current counter; the fields of the operation are unset
	line    string
	words   []string // remaining words of the line
}

// PlayScript returns a script with the decisions of decide. A script consists of paragraphs of commands. The decisions follow each
// command, in lines that begin with two spaces. A line that begins with # is a comment. The commands are
//
//	limit ALGORITHM N per UNIT [OPTION VALUE]…   creates a counter with one limit
//	and ALGORITHM N per UNIT [OPTION VALUE]…     adds a limit to the counter, which makes it a list
//	penalty FOR on exceeded|reached [escalate N max TIME]
//	reserve TIME [return]                        lets takes reserve hits; after TIME they stay consumed, or are refunded
//	now limit …                                  changes the limit, as a reload does, and keeps the counter
//	at TIME take|look|give|settle [COST] [x COUNT] [extra N] [by OWNER] [from TIME] [as RESERVATION]
//	at TIME reset [force]
//	from TIME every TIME until TIME take …       repeats a take, answered by a row of ✓ and ✗
//
// Times are Go durations since [Start], or dates in the format of RFC 3339. A limit with the option "calendar ZONE" prints its windows as
// dates.
func PlayScript(tb testing.TB, text string, decide func(Call) engine.Decision) string {
	tb.Helper()
	s := script{t: tb, decide: decide}
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			continue
		}
		out.WriteString(line)
		s.line, s.words = line, strings.Fields(line)
		if len(s.words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		for _, answer := range s.run() {
			out.WriteString("  " + answer + "\n")
		}
	}
	return out.String()
}

func (s *script) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s: %s", strings.TrimSpace(s.line), fmt.Sprintf(format, args...))
}

// next returns the next word, or "" at the end of the line.
func (s *script) next() string {
	if len(s.words) == 0 {
		return ""
	}
	word := s.words[0]
	s.words = s.words[1:]
	return word
}

// accept consumes the next word if it equals word.
func (s *script) accept(word string) bool {
	if len(s.words) == 0 || s.words[0] != word {
		return false
	}
	s.next()
	return true
}

func (s *script) expect(word string) {
	if !s.accept(word) {
		s.fatalf("want %q before %q", word, strings.Join(s.words, " "))
	}
}

func (s *script) number() uint64 {
	word := s.next()
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		s.fatalf("%q is no number", word)
	}
	return n
}

func (s *script) span() engine.Micros {
	word := s.next()
	d, err := time.ParseDuration(word)
	if err != nil {
		s.fatalf("%q is no time", word)
	}
	return engine.Micros(d / time.Microsecond)
}

// time parses a time.
func (s *script) time() engine.Micros {
	if t, err := time.Parse(time.RFC3339Nano, s.words[0]); err == nil {
		s.next()
		return engine.Micros(t.UnixMicro())
	}
	return Start + s.span()
}

// run runs one command and returns the decisions.
func (s *script) run() []string {
	switch word := s.next(); word {
	case "limit":
		l := s.limit()
		s.counter = Call{Counter: s.counter.Counter + 1, Limits: engine.Limits{l.Prepared()}}
		return rejection(l)
	case "and":
		return s.and()
	case "now":
		s.expect("limit")
		l := s.limit()
		s.counter.Limits = engine.Limits{l}
		return rejection(l)
	case "penalty":
		s.penalty()
		return nil
	case "reserve":
		s.counter.Reserve = &engine.Reserve{TTL: s.span(), Return: s.accept("return")}
		return nil
	case "at":
		return []string{s.operation(s.time())}
	case "from":
		return []string{s.row()}
	default:
		s.fatalf("%q is no command", word)
	}
	return nil
}

func rejection(l engine.Limit) []string {
	if err := l.Validate(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// and adds a limit to the counter.
func (s *script) and() []string {
	l := append(s.counter.Limits, s.limit())
	for i := range l {
		l[i].Listed, l[i].CountRefused = true, false
	}
	s.counter.Counter++
	s.counter.Limits = l
	if err := l.Validate(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// limit parses a limit, beginning with the algorithm's name.
func (s *script) limit() engine.Limit {
	a, err := engine.ParseAlgorithm(s.next())
	if err != nil {
		s.fatalf("%v", err)
	}
	l := engine.Limit{Algorithm: a, Hits: s.number()}
	s.expect("per")
	period := strings.Join(s.words[:min(2, len(s.words))], " ")
	l.Window = s.window()
	given := map[string]engine.Limit{} // by option: a limit with only that parameter set
	for len(s.words) > 0 {
		word := s.next()
		given[word] = s.option(word, period)
	}
	for p := range engine.Parameters() {
		switch with, ok := given[p.String()]; {
		case ok && p == engine.ParamCalendar:
			l.Calendar = with.Calendar
		case ok:
			p.Set(&l, p.Get(&with))
		case p.TakenBy(a):
			p.Set(&l, p.Usual(&l))
		}
	}
	return l
}

// option parses the value of a parameter. period is the window, which was parsed before.
func (s *script) option(word, period string) (l engine.Limit) {
	if word == "calendar" {
		l.Calendar = s.calendar(period)
		return l
	}
	for p := range engine.Parameters() {
		if p.String() != word {
			continue
		}
		switch p.Kind() {
		case engine.KindNumber:
			p.Set(&l, s.number())
		case engine.KindTime:
			p.Set(&l, uint64(s.span()))
		case engine.KindFlag, engine.KindWord:
			v, ok := p.Word(s.next())
			if !ok {
				s.fatalf("%s takes %s", p, p.Accepts())
			}
			p.Set(&l, v)
		case engine.KindZone:
		}
		return l
	}
	s.fatalf("%q is no option", word)
	return l
}

// window parses a unit, a number of units, or a duration.
func (s *script) window() engine.Micros {
	const day = 86400e6
	units := map[string]engine.Micros{
		"second": 1e6, "minute": 60e6, "hour": 3600e6, "day": day, "week": 7 * day, "month": 30 * day, "year": 365 * day,
	}
	every := engine.Micros(1)
	if strings.Trim(s.words[0], "0123456789") == "" {
		every = engine.Micros(s.number())
	}
	if unit, ok := units[s.words[0]]; ok {
		s.next()
		return every * unit
	}
	return s.span()
}

// calendar parses a zone and, after commas, when windows begin: Europe/Berlin,day=15,hour=9. period is the window, which was parsed
// before: day, or 3 month.
func (s *script) calendar(period string) *engine.Calendar {
	units := map[string]engine.CalendarUnit{
		"day": engine.CalendarDay, "week": engine.CalendarWeek, "month": engine.CalendarMonth, "year": engine.CalendarYear,
	}
	first, second, _ := strings.Cut(period, " ")
	every, err := strconv.ParseUint(first, 10, 32)
	if err != nil {
		every, second = 1, first
	}
	words := strings.Split(s.next(), ",")
	var from engine.Begin
	fields := map[string]*uint32{"month": &from.Month, "day": &from.Day, "weekday": &from.Weekday, "hour": &from.Hour}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		n, err := strconv.ParseUint(value, 10, 32)
		if fields[key] == nil || err != nil {
			s.fatalf("%q is no time at which windows begin", word)
		}
		*fields[key] = uint32(n)
	}
	c := Calendar(words[0], units[second], uint32(every)).From(from)
	if c == nil {
		s.fatalf("a %s does not begin at %s", second, from)
	}
	return c
}

func (s *script) penalty() {
	p := &engine.Penalty{For: s.span(), Escalate: 1}
	s.expect("on")
	var err error
	if p.On, err = engine.ParseTrigger(s.next()); err != nil {
		s.fatalf("%v", err)
	}
	p.Max = p.For
	if s.accept("escalate") {
		p.Escalate = uint32(s.number())
		s.expect("max")
		p.Max = s.span()
	}
	if err := p.Validate(); err != nil {
		s.fatalf("%v", err)
	}
	s.counter.Penalty = p
}

// operation parses an operation, runs it, and formats its decision.
func (s *script) operation(now engine.Micros) string {
	c := s.counter
	switch c.Verb, c.Now = s.next(), now; c.Verb {
	case "reset":
		c.Take, c.Force = engine.Take{Count: 1}, s.accept("force")
	case "take", "look", "give", "settle":
		c.Take = s.take()
	default:
		s.fatalf("%q is no call", c.Verb)
	}
	return answer(c.Verb, c.Take, s.decide(c), s.zone())
}

// take parses the arguments of a take.
func (s *script) take() engine.Take {
	k := engine.Take{Cost: 1, Count: 1}
	if len(s.words) > 0 && strings.Trim(s.words[0], "0123456789") == "" {
		k.Cost = s.number()
	}
	for len(s.words) > 0 {
		switch word := s.next(); word {
		case "x":
			k.Count = s.number()
		case "extra":
			k.Extra = s.number()
		case "by":
			k.Owner = s.next()
		case "from":
			k.Window = int64(Start + s.span())
		case "as":
			copy(k.Reservation[:], s.next())
		default:
			s.fatalf("%q is no part of a call", word)
		}
	}
	return k
}

// row repeats a call at regular times.
func (s *script) row() string {
	now := Start + s.span()
	s.expect("every")
	step := s.span()
	s.expect("until")
	until := Start + s.span()
	s.expect("take")
	c := s.counter
	c.Verb, c.Take = "take", s.take()
	var b strings.Builder
	for c.Now = now; c.Now <= until; c.Now += step {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		if s.decide(c).Admitted == c.Take.Count {
			b.WriteString("✓")
		} else {
			b.WriteString("✗")
		}
	}
	return b.String()
}

// answer formats a decision: the admitted number, the hits left, and the times that are not 0. With a zone, it prints the window as a
// date.
func answer(verb string, k engine.Take, d engine.Decision, zone *time.Location) string {
	var b strings.Builder
	left := d.Left
	switch {
	case d.Admitted == k.Count+k.Extra && d.Admitted > 0:
		b.WriteString("✓")
	case d.Admitted == 0:
		b.WriteString("✗")
	default:
		fmt.Fprintf(&b, "✓ %d of %d", d.Admitted, k.Count+k.Extra)
	}
	if verb == "take" && k.Owner == "" {
		left -= min(left, d.Admitted*k.Cost)
	}
	fmt.Fprintf(&b, " %d left", left)
	if d.Strictest > 0 {
		fmt.Fprintf(&b, " of limit %d", d.Strictest+1)
	}
	for _, x := range []struct {
		name string
		d    time.Duration
	}{{"wait", d.Wait}, {"retry", d.RetryAfter}, {"reset", d.ResetAfter}, {"penalty", d.Penalty}} {
		if x.d == engine.Never {
			fmt.Fprintf(&b, ", %s never", x.name)
		} else if x.d > 0 {
			fmt.Fprintf(&b, ", %s %v", x.name, x.d)
		}
	}
	if d.Window > 0 {
		fmt.Fprintf(&b, ", window %s", windowText(zone, d.Window))
	}
	if d.Renewed > 0 {
		fmt.Fprintf(&b, ", %d renewed", d.Renewed)
	}
	if d.Reserved > 0 {
		fmt.Fprintf(&b, ", %d reserved", d.Reserved)
	}
	if d.Difference != 0 {
		fmt.Fprintf(&b, ", difference %d", d.Difference)
	}
	return b.String()
}

// zone returns the zone of the counter's calendar, or nil.
func (s *script) zone() *time.Location {
	for _, l := range s.counter.Limits {
		if l.Calendar != nil {
			return l.Calendar.Location()
		}
	}
	return nil
}

func windowText(zone *time.Location, start int64) string {
	if zone != nil {
		return time.UnixMicro(start).In(zone).Format(time.RFC3339)
	}
	return (time.Duration(start-int64(Start)) * time.Microsecond).String()
}
