package recorded

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

var (
	errNoMapping = errors.New("--map is missing: to turn log lines into requests, set it to a file, or a template such as " +
		"'edge remote_address=%remote_address% user=%user%'")
	errNoTime = errors.New("the line does not contain the time of the request")
)

// errUnknownType means that a line does not reveal the type of its file, such as server output before the access log.
var errUnknownType = errors.New("the line is neither JSON nor in the default format of Envoy or Istio, and --format is missing: set it to " + formatNames)

// parser returns the parser for a file whose first matching line is first, and whether the line is only a heading. It fails with
// errUnknownType or errNotFormat if the line does not match.
func (c *Config) parser(first []byte, s *Summary) (p parser, heading bool, err error) { //nolint:ireturn // the type of the file decides
	switch object := bytes.TrimSpace(first)[0] == '{'; {
	case c.Format != "":
		p, err = c.textParser(first, errNotFormat, formatsOf(c.Format)...)
		return p, false, err
	case object && isWatch(first):
		return &watchParser{summary: s}, false, nil
	case object && !json.Valid(first):
		return nil, false, errUnknownType
	case object:
		p, err = c.mappedParser(&record{split: splitJSON})
		return p, false, err
	case c.isHeading(first):
		p, err = c.csvParser(first)
		return p, true, err
	}
	p, err = c.textParser(first, errUnknownType, envoyFormat, istioFormat)
	return p, false, err
}

// textParser returns the parser for the first matching format, or the error misfit.
func (c *Config) textParser(line []byte, misfit error, formats ...string) (*logParser, error) {
	if c.Mapping == nil {
		return nil, errNoMapping
	}
	for _, text := range formats {
		f, err := parseFormat(text)
		if err != nil {
			return nil, fmt.Errorf("the format of the log: %w", err)
		}
		r := &record{where: "the format of the log", columns: f.columns(), split: f.split}
		if r.split(r, line) == nil {
			return c.mappedParser(r)
		}
	}
	return nil, misfit
}

// logParser turns lines with fields into events.
type logParser struct {
	record *record
	frees  bool // see replay.Event.Frees
	// complete adds the request to an event.
	complete func(e *replay.Event, r *record) error

	time, duration, decided, flags, code *field
}

// mappedParser returns a parser that uses the mapping.
func (c *Config) mappedParser(r *record) (*logParser, error) {
	m := c.Mapping
	if m == nil {
		return nil, errNoMapping
	}
	for _, f := range append(m.used, m.field("time")) {
		if err := r.needs(f); err != nil {
			return nil, err
		}
	}
	p := newLogParser(m, r)
	p.frees, p.complete = !m.refunds(), m.complete
	return p, nil
}

func newLogParser(m *Mapping, r *record) *logParser {
	return &logParser{
		record: r, frees: true, time: m.field("time"), duration: m.field("duration"), decided: m.field("decided_at"),
		flags: m.field("response_flags"), code: m.field("response_code"),
	}
}

func (p *logParser) rest() *replay.Event { return nil }

func (p *logParser) event(line []byte) (*replay.Event, error) {
	r := p.record
	if err := r.split(r, line); err != nil {
		return nil, err
	}
	at := p.time.value(r)
	if at == nil {
		return nil, errNoTime
	}
	start, err := parseTime(string(at))
	if err != nil {
		return nil, err
	}
	e := &replay.Event{At: start, Frees: p.frees, Decision: p.then()}
	if v := p.decided.value(r); v != nil {
		if e.At, err = parseTime(string(v)); err != nil {
			return nil, err
		}
	}
	if v := p.duration.value(r); v != nil {
		d, ok := duration(v)
		if !ok {
			return nil, fmt.Errorf("duration %.40q: must be milliseconds, or a number with a unit such as 1.5s", v)
		}
		e.End = start + d
	}
	if err := p.complete(e, r); err != nil {
		return nil, err
	}
	return e, nil
}

// then returns whether the request was rejected when it was recorded.
func (p *logParser) then() replay.RecordedDecision {
	flags, code := p.flags.raw(p.record), p.code.raw(p.record)
	rejected := flags == nil && string(code) == "429"
	for flag := range bytes.SplitSeq(flags, []byte(",")) {
		rejected = rejected || string(flag) == "RL" || string(flag) == "RateLimited"
	}
	switch {
	case rejected:
		return replay.Rejected
	case flags == nil && code == nil:
		return replay.Unknown
	}
	return replay.Passed
}

// duration parses milliseconds, or a number with a unit such as 1.5s.
func duration(text []byte) (engine.Micros, bool) {
	const most = 100 * 365 * 24 * time.Hour
	if ms, err := strconv.ParseFloat(string(text), 64); err == nil {
		if ms < 0 || math.IsNaN(ms) || ms > float64(most/time.Millisecond) {
			return 0, false
		}
		return engine.Micros(ms * 1000), true
	}
	d, err := time.ParseDuration(string(text))
	return engine.Micros(d.Microseconds()), err == nil && d >= 0 && d <= most
}
