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

var errNoMapping = errors.New("how a line becomes a request is not said: give --map, with the file of Envoy's configuration, or with a template " +
	"such as 'edge remote_address=%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT% user=%REQ(X-USER)%'")

// errStranger is that a line does not tell what a file is, such as those that a server has printed before its access log.
var errStranger = errors.New("the line is neither JSON nor of the default format of Envoy or Istio, and there is no --format, such as " + formatNames)

// parser returns what reads the lines of a file that this one tells, and whether that is only a head. With a format any line
// does; else it fails with errStranger if this one does not.
func (c *Config) parser(first []byte, s *Summary) (p parser, head bool, err error) { //nolint:ireturn // the first line tells which
	format, text := c.JSON, c.Format
	if m := c.Mapping; m != nil && format == nil && text == "" {
		format, text = m.json, m.text
	}
	switch object := bytes.TrimSpace(first)[0] == '{'; {
	case namedFormats(text) != nil:
		if p, err = c.firstParser(first, namedFormats(text)...); errors.Is(err, errStranger) {
			err = errNotFormat
		}
		return p, false, err
	case text != "":
		p, err = c.textParser(text)
		return p, false, err
	case format == nil && object && isWatch(first):
		return newWatchParser(s), false, nil
	case format == nil && !object && isCSVHead(first):
		p, err = c.csvParser(first)
		return p, true, err
	case format == nil && !object:
		p, err = c.firstParser(first, DefaultFormat, istioFormat)
		return p, false, err
	}
	l, err := newJSONLayout(format, first)
	if errors.Is(err, errStranger) {
		return nil, false, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("the JSON format: %w", err)
	}
	p, err = c.logParser(l)
	return p, false, err
}

func (c *Config) textParser(format string) (*logParser, error) {
	f, err := newTextFormat(format)
	if err != nil {
		return nil, fmt.Errorf("the format of the log: %w", err)
	}
	return c.logParser(f)
}

// firstParser returns what reads text in the first of the formats that this line is of.
func (c *Config) firstParser(line []byte, formats ...string) (*logParser, error) {
	if c.Mapping == nil {
		return nil, errNoMapping
	}
	for _, text := range formats {
		f, err := newTextFormat(text)
		if err != nil {
			return nil, err
		}
		if _, err := f.split(line, nil); err == nil {
			return c.logParser(f)
		}
	}
	return nil, errStranger
}

// isWatch reports whether a line is one of `watch --output json`.
func isWatch(line []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return false
	}
	_, outcome := fields["outcome"]
	_, caller := fields["caller"]
	_, lost := fields["lost"]
	_, skipped := fields["skipped"]
	return outcome && caller || lost && skipped
}

// decidedAt is what DECISION_METADATA tells Envoy of the time of a decision.
const decidedAt = "envoy.filters.http.ratelimit:decided_at"

// logParser makes events of a log.
type logParser struct {
	layout layout
	ask    asker
	frees  bool
	values [][]byte

	clock    clockFormat
	start    int
	decided  int // when ratelimitd decided; −1 if there is none
	duration int // likewise
	flags    int // likewise
	code     int // likewise
}

func (c *Config) logParser(l layout) (*logParser, error) {
	if c.Mapping == nil {
		return nil, errNoMapping
	}
	p, err := newLogParser(l, !c.Mapping.ends())
	if err == nil {
		p.ask, err = c.Mapping.bind(l)
	}
	return p, err
}

// newLogParser returns a parser that does not know yet what is asked.
func newLogParser(l layout, frees bool) (p *logParser, err error) {
	p = &logParser{layout: l, frees: frees, decided: -1, duration: -1, flags: -1, code: -1}
	var ok bool
	if p.start, ok = l.find(operator{name: opStart}); !ok {
		return nil, fmt.Errorf("when a request came is not in %s, which needs %%START_TIME%%", l.what())
	}
	for op, into := range map[operator]*int{
		{name: opDuration}: &p.duration, {name: opFlags}: &p.flags, {name: opCode}: &p.code, {name: opMetadata, arg: decidedAt}: &p.decided,
	} {
		if i, ok := l.find(op); ok {
			*into = i
		}
	}
	p.clock, err = l.clock(p.start)
	return p, err
}

func (p *logParser) rest() *replay.Event { return nil }

var errNoTime = errors.New("the line does not have the time at which the request came")

func (p *logParser) event(line []byte) (*replay.Event, error) {
	var err error
	if p.values, err = p.layout.split(line, p.values[:0]); err != nil {
		return nil, err
	}
	if p.values[p.start] == nil {
		return nil, errNoTime
	}
	start, err := p.clock.parse(p.values[p.start])
	e := &replay.Event{At: start, Frees: p.frees}
	if p.decided >= 0 && p.values[p.decided] != nil && err == nil {
		e.At, err = parseTime(string(p.values[p.decided]))
	}
	if err != nil {
		return nil, err
	}
	if p.duration >= 0 {
		if ms, ok := duration(p.values[p.duration]); ok {
			e.End = start + ms
		}
	}
	e.Then = p.then()
	out, err := p.ask(p.values)
	if err != nil {
		return nil, err
	}
	e.Request, e.Silent, e.Charge = out.request, out.silent, out.charge
	if e.Request == nil && e.Charge != nil {
		return p.silent(e), nil
	}
	return e, nil
}

// silent makes a line of which only the call at the end is asked be that call.
func (p *logParser) silent(e *replay.Event) *replay.Event {
	r := e.Charge.Always
	switch {
	case r == nil:
		r = e.Charge.Passed
	case e.Charge.Passed != nil:
		r.Descriptors = append(r.Descriptors, e.Charge.Passed.Descriptors...)
	}
	return &replay.Event{At: max(e.At, e.End), Request: r, Silent: true}
}

// then returns what became of the request: Envoy's flag RL says that it was rejected, and where there are no flags 429 does.
func (p *logParser) then() replay.Then {
	rejected := false
	switch {
	case p.flags >= 0:
		for flag := range bytes.SplitSeq(p.values[p.flags], []byte(",")) {
			rejected = rejected || string(flag) == "RL" || string(flag) == "RateLimited"
		}
	case p.code >= 0 && p.values[p.code] != nil:
		rejected = string(p.values[p.code]) == "429"
	default:
		return replay.Unknown
	}
	if rejected {
		return replay.Rejected
	}
	return replay.Passed
}

// duration parses a number of milliseconds, or one with a unit such as 1.5s.
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
