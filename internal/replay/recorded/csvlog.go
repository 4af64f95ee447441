package recorded

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
)

// isHeading reports whether a line is the heading of a CSV, which has a column for the time.
func (c *Config) isHeading(line []byte) bool {
	cells, err := appendCells(nil, line)
	names := c.Mapping.field("time").names
	return err == nil && slices.ContainsFunc(cells, func(cell []byte) bool { return slices.Contains(names, string(cell)) })
}

// appendCells appends the cells of a line of CSV.
func appendCells(cells [][]byte, line []byte) ([][]byte, error) {
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

var errColumns = errors.New("the line does not have as many cells as the heading")

// csvParser returns the parser for a CSV: with the mapping, or for one that contains requests.
func (c *Config) csvParser(heading []byte) (*logParser, error) {
	names, err := appendCells(nil, heading)
	if err != nil {
		return nil, err
	}
	r := &record{where: "the heading of the CSV", columns: map[string]int{}, split: func(r *record, line []byte) (err error) {
		if r.values, err = appendCells(r.values[:0], line); err == nil && len(r.values) != len(names) {
			err = errColumns
		}
		return err
	}}
	var described []int
	for i, name := range names {
		r.columns[string(name)] = i
		switch string(name) {
		case "descriptor":
			described = append(described, i)
		case "time", "domain", "hits", "duration":
		default:
			if c.Mapping == nil {
				return nil, fmt.Errorf("column %q: without --map the columns are time, domain, descriptor (one or more), hits and duration", name)
			}
		}
	}
	if c.Mapping != nil {
		return c.mappedParser(r)
	}
	if _, ok := r.columns["domain"]; !ok || described == nil {
		return nil, errors.New("must have the columns time, domain and descriptor, as in the heading time,domain,descriptor; for different columns, use --map")
	}
	p := newLogParser(nil, r)
	p.complete = func(e *replay.Event, r *record) error { return c.completeCSV(e, r, described) }
	return p, nil
}

// completeCSV adds the request that a line of CSV contains, with descriptors in these cells.
func (c *Config) completeCSV(e *replay.Event, r *record, described []int) error {
	q := &limiter.Request{Domain: bytes.Clone(r.get("domain"))}
	for _, i := range described {
		text := strings.TrimSpace(string(r.values[i]))
		if text == "" {
			continue
		}
		d, err := c.Parse(text)
		if err != nil {
			return err
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	if hits := r.get("hits"); len(hits) > 0 {
		n, err := strconv.ParseUint(string(hits), 10, 32)
		if err != nil {
			return fmt.Errorf("hits %q: must be a whole number from 0 to 4294967295", hits)
		}
		q.Hits = uint32(n)
	}
	if len(q.Descriptors) > 0 {
		e.Request = q
		e.Silent = !slices.ContainsFunc(q.Descriptors, func(d limiter.Descriptor) bool { return !d.Negative })
	}
	return nil
}
