package recorded

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
)

// csvLayout is a CSV whose columns have names.
type csvLayout struct{ columns []string }

func isCSVHead(line []byte) bool {
	cells, err := cellsOf(line, nil)
	if err != nil {
		return false
	}
	for _, c := range cells {
		if string(c) == "time" {
			return true
		}
	}
	return false
}

func (l csvLayout) find(want operator) (int, bool) {
	name := want.name
	switch {
	case name == opStart:
		name = "time"
	case name == opDuration:
		name = "duration"
	case want.arg != "":
		return 0, false
	}
	for i, c := range l.columns {
		if c == name {
			return i, true
		}
	}
	return 0, false
}

func (csvLayout) clock(int) (clockFormat, error) { return nil, nil }

func (csvLayout) what() string { return "the first line of the CSV, which names the columns" }

var errColumns = errors.New("the line has not as many cells as the first line")

func (l csvLayout) split(line []byte, values [][]byte) ([][]byte, error) {
	values, err := cellsOf(line, values)
	switch {
	case err != nil:
		return values, err
	case len(values) != len(l.columns):
		return values, errColumns
	}
	for i, v := range values {
		if len(v) == 0 {
			values[i] = nil
		}
	}
	return values, nil
}

// cellsOf appends the cells of a line of CSV.
func cellsOf(line []byte, cells [][]byte) ([][]byte, error) {
	if bytes.IndexByte(line, '"') < 0 {
		for cell := range bytes.SplitSeq(line, []byte(",")) {
			cells = append(cells, bytes.TrimSpace(cell))
		}
		return cells, nil
	}
	r := csv.NewReader(bytes.NewReader(line))
	r.TrimLeadingSpace = true
	words, err := r.Read()
	if err != nil {
		return cells, fmt.Errorf("the line is not CSV: %w", errors.Unwrap(err))
	}
	for _, w := range words {
		cells = append(cells, []byte(w))
	}
	return cells, nil
}

// csvParser makes events of a CSV of times and descriptors.
type csvParser struct {
	layout       csvLayout
	parse        func(string) (limiter.Descriptor, error)
	values       [][]byte
	time, domain int
	hits         int // −1 if there are none
	duration     int // likewise
	descriptors  []int
}

func (c *Config) csvParser(head []byte) (parser, error) { //nolint:ireturn // with a mapping it is a log
	cells, err := cellsOf(head, nil)
	if err != nil {
		return nil, err
	}
	l := csvLayout{}
	for _, c := range cells {
		l.columns = append(l.columns, string(c))
	}
	if c.Mapping != nil {
		return c.logParser(l)
	}
	p := &csvParser{layout: l, parse: c.Parse, time: -1, domain: -1, hits: -1, duration: -1}
	for i, name := range l.columns {
		switch name {
		case "time":
			p.time = i
		case "domain":
			p.domain = i
		case "hits":
			p.hits = i
		case "duration":
			p.duration = i
		case "descriptor":
			p.descriptors = append(p.descriptors, i)
		default:
			return nil, fmt.Errorf("column %q: without --map the columns are time, domain, one or more called descriptor, and maybe hits and duration", name)
		}
	}
	if p.domain < 0 || len(p.descriptors) == 0 {
		return nil, errors.New("want the columns time, domain and descriptor, as in the first line time,domain,descriptor, or --map for others")
	}
	return p, nil
}

func (p *csvParser) rest() *replay.Event { return nil }

func (p *csvParser) event(line []byte) (*replay.Event, error) {
	var err error
	if p.values, err = p.layout.split(line, p.values[:0]); err != nil {
		return nil, err
	}
	e := &replay.Event{Frees: true}
	if e.At, err = parseTime(string(p.values[p.time])); err != nil {
		return nil, err
	}
	r := &limiter.Request{Domain: bytes.Clone(p.values[p.domain])}
	gives := true
	for _, i := range p.descriptors {
		if p.values[i] == nil {
			continue
		}
		d, err := p.parse(strings.TrimSpace(string(p.values[i])))
		if err != nil {
			return nil, err
		}
		gives = gives && d.Negative
		r.Descriptors = append(r.Descriptors, d)
	}
	if p.hits >= 0 && p.values[p.hits] != nil {
		n, err := strconv.ParseUint(string(p.values[p.hits]), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("hits %q: want a whole number from 0 to 4294967295", p.values[p.hits])
		}
		r.Hits = uint32(n)
	}
	if p.duration >= 0 && p.values[p.duration] != nil {
		d, ok := duration(p.values[p.duration])
		if !ok {
			return nil, fmt.Errorf("duration %q: want milliseconds, or a number with a unit such as 1.5s", p.values[p.duration])
		}
		e.End = e.At + d
	}
	if len(r.Descriptors) > 0 {
		e.Request, e.Silent = r, gives
	}
	return e, nil
}
