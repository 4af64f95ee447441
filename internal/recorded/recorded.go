// Package recorded reads requests that were recorded, for internal/replay: access logs of Envoy, in JSON or as text in a format,
// what `ratelimitd watch --output json` has printed, and CSV. A [Mapping] says how a line of a log becomes a request, as Envoy's
// rate_limits would have it or by a template.
//
// Lines are strangers' texts: one that cannot be read is counted, and reading goes on.
package recorded

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
)

// Config says how to read. The zero value reads what needs no mapping.
type Config struct {
	Format  string         // the format of text logs; empty means that of Mapping, or else DefaultFormat
	JSON    map[string]any // the json_format of logs; nil means that of Mapping, or else the usual names
	Mapping *Mapping       // nil if lines say themselves what is asked
	// Parse parses a descriptor of a CSV, and of a template, as commands write it.
	Parse func(text string) (limiter.Descriptor, error)
}

// Bounds.
const (
	maxLine  = 1 << 20 // bytes
	maxFirst = 5       // lines that could not be read and are told
)

// Summary says what was read.
type Summary struct {
	Lines  uint64   // that are not blank; heads of CSV do not count
	Unread uint64   // of these, that could not be read
	First  []string // the first of these, as file:line: why
	Cut    uint64   // of watch: decisions whose entries were cut
	Lost   uint64   // of watch: decisions that are missing
}

// Reader is a [replay.Source]. The zero value is not usable.
type Reader struct {
	config  Config
	inputs  Inputs
	in      *bufio.Reader
	line    int
	file    string
	parser  parser
	summary Summary
}

// Inputs are the files to read.
type Inputs interface {
	// Next returns the next file and what it is called, or io.EOF.
	Next() (io.Reader, string, error)
}

// parser makes events of lines.
type parser interface {
	// event returns the event of a line; nil if there is none, or not yet. It keeps nothing of line.
	event(line []byte) (*replay.Event, error)
	// rest returns the event of lines that were read; nil if there is none.
	rest() *replay.Event
}

// New returns a reader of files.
func New(inputs Inputs, c Config) *Reader { return &Reader{config: c, inputs: inputs} }

// Summary returns what was read so far.
func (r *Reader) Summary() Summary { return r.summary }

var errLong = fmt.Errorf("the line is longer than %d bytes", maxLine)

// Next returns the next event, or io.EOF. It fails if a file cannot be read, or if the mapping needs what its lines do not have.
func (r *Reader) Next() (*replay.Event, error) {
	for {
		if r.in == nil {
			in, name, err := r.inputs.Next()
			if err != nil {
				return nil, err
			}
			r.in, r.file, r.line, r.parser = bufio.NewReaderSize(in, maxLine), name, 0, nil
		}
		line, err := r.next()
		var e *replay.Event
		switch {
		case errors.Is(err, io.EOF):
			r.in = nil
			if r.parser != nil {
				e = r.parser.rest()
			}
		case errors.Is(err, errLong):
			r.wrong(err)
		case err != nil:
			return nil, fmt.Errorf("%s: %w", r.file, err)
		default:
			if e, err = r.event(line); err != nil {
				return nil, fmt.Errorf("%s: %w", r.file, err)
			}
		}
		if e != nil {
			return e, nil
		}
	}
}

// event returns the event of a line; nil if there is none.
func (r *Reader) event(line []byte) (e *replay.Event, err error) {
	if r.parser == nil {
		var head bool
		if r.parser, head, err = r.config.parser(line, &r.summary); err != nil || head {
			return nil, err
		}
	}
	if e, err = r.parser.event(line); err != nil {
		r.wrong(err)
		return nil, nil
	}
	r.summary.Lines++
	return e, nil
}

// next returns the next line that is not blank, without its end.
func (r *Reader) next() ([]byte, error) {
	for {
		line, err := r.in.ReadSlice('\n')
		r.line++
		if errors.Is(err, bufio.ErrBufferFull) {
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.in.ReadSlice('\n')
			}
			return nil, errLong
		}
		if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		if r.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		}
		if line = bytes.TrimRight(line, "\r\n"); len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

func (r *Reader) wrong(err error) {
	r.summary.Lines++
	r.summary.Unread++
	if len(r.summary.First) < maxFirst {
		r.summary.First = append(r.summary.First, fmt.Sprintf("%s:%d: %v", r.file, r.line, err))
	}
}
