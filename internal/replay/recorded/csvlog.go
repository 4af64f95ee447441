package recorded

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
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

func (c *Config) csvParser(head []byte) (*logParser, error) {
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
	p, err := newLogParser(l, true)
	if err == nil {
		p.ask, err = c.bindCSV(l)
	}
	return p, err
}

// bindCSV returns what makes requests of lines that say them themselves.
func (c *Config) bindCSV(l csvLayout) (asker, error) {
	at := map[string][]int{}
	for i, name := range l.columns {
		switch name {
		case "time", "domain", "hits", "duration", "descriptor":
			at[name] = append(at[name], i)
		default:
			return nil, fmt.Errorf("column %q: without --map the columns are time, domain, one or more called descriptor, and maybe hits and duration", name)
		}
	}
	if len(at["domain"]) == 0 || len(at["descriptor"]) == 0 {
		return nil, errors.New("want the columns time, domain and descriptor, as in the first line time,domain,descriptor, or --map for others")
	}
	return func(values [][]byte) (asked, error) {
		r := &limiter.Request{Domain: bytes.Clone(values[at["domain"][0]])}
		if err := c.describe(r, values, at["descriptor"]); err != nil {
			return asked{}, err
		}
		for _, i := range at["hits"] {
			n, err := strconv.ParseUint(cmp.Or(string(values[i]), "0"), 10, 32)
			if err != nil {
				return asked{}, fmt.Errorf("hits %q: want a whole number from 0 to 4294967295", values[i])
			}
			r.Hits = uint32(n)
		}
		for _, i := range at["duration"] {
			if _, ok := duration(values[i]); !ok && values[i] != nil {
				return asked{}, fmt.Errorf("duration %q: want milliseconds, or a number with a unit such as 1.5s", values[i])
			}
		}
		if len(r.Descriptors) == 0 {
			return asked{}, nil
		}
		charges := func(d limiter.Descriptor) bool { return !d.Negative }
		return asked{request: r, silent: !slices.ContainsFunc(r.Descriptors, charges)}, nil
	}, nil
}

// describe adds the descriptors of a line, which are in these cells, to r.
func (c *Config) describe(r *limiter.Request, values [][]byte, cells []int) error {
	for _, i := range cells {
		if values[i] == nil {
			continue
		}
		d, err := c.Parse(strings.TrimSpace(string(values[i])))
		if err != nil {
			return err
		}
		r.Descriptors = append(r.Descriptors, d)
	}
	return nil
}
