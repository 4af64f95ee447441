// Package recorded reads requests that were recorded, for internal/replay: access logs of Envoy, in JSON or as text in a format,
// what `ratelimitd watch --output json` has printed, and CSV. A [Mapping] says how a line of a log becomes a request, as Envoy's
// rate_limits would have it or by a template.
//
// Lines are strangers' texts: one that cannot be read is counted, and reading goes on.
//
// This package is optional: the core works without it.
package recorded

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
)

// Config says how to read. The zero value reads what needs no mapping.
type Config struct {
	Format  string         // the format of text logs, or its name; empty means that of Mapping, or else DefaultFormat
	JSON    map[string]any // the json_format of logs; nil means that of Mapping, or else the usual names
	Mapping *Mapping       // nil if lines say themselves what is asked
	// Parse parses a descriptor of a CSV, and of a template, as commands write it.
	Parse func(text string) (limiter.Descriptor, error)
}

// Bounds.
const (
	maxLine  = 1 << 20  // bytes
	buffered = 64 << 10 // bytes of each file
	maxFirst = 5        // lines that could not be read and are told
)

// Summary says what was read.
type Summary struct {
	Lines  uint64   // that are not blank; heads of CSV do not count
	Unread uint64   // of these, that could not be read
	First  []string // the first of these, as file:line: why
	Cut    uint64   // of watch: decisions whose entries were cut
	Lost   uint64   // of watch: decisions that are missing
	Short  []string // files that end in the middle of what gzip has compressed: they are cut off, or still being written
}

// Reader is a [replay.Source], which yields the events of several files in the order of their times, as far as each file is in
// order itself. The zero value is not usable.
type Reader struct {
	config  Config
	inputs  Inputs
	files   []*file // that have events left
	begun   bool
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

// Next returns the earliest of the events that are next in the files, or io.EOF. It fails if a file cannot be read, or if the
// mapping needs what its lines do not have.
func (r *Reader) Next() (*replay.Event, error) {
	if !r.begun {
		r.begun = true
		if err := r.open(); err != nil {
			return nil, err
		}
	}
	if len(r.files) == 0 {
		return nil, io.EOF
	}
	first := 0
	for i, f := range r.files {
		if f.next.At < r.files[first].next.At {
			first = i
		}
	}
	f := r.files[first]
	e := f.next
	more, err := r.advance(f)
	if err != nil {
		return nil, err
	}
	if !more {
		r.files = slices.Delete(r.files, first, first+1)
	}
	return e, nil
}

// open opens all files, and reads the first event of each.
func (r *Reader) open() error {
	for {
		in, name, err := r.inputs.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := newFile(in, name)
		more, err := r.advance(f)
		if err != nil {
			return err
		}
		if more {
			r.files = append(r.files, f)
		}
	}
}

// advance reads the next event of a file, and reports whether there is one.
func (r *Reader) advance(f *file) (more bool, err error) {
	f.next = nil
	for f.next == nil && !f.ended {
		line, err := f.readLine()
		switch {
		case errors.Is(err, io.EOF):
			f.end()
		case errors.Is(err, io.ErrUnexpectedEOF):
			r.summary.Short = append(r.summary.Short, f.name)
			f.end()
		case errors.Is(err, errLong):
			r.wrong(f, err)
		case err != nil:
			return false, fmt.Errorf("%s: %w", f.name, err)
		default:
			if f.next, err = r.event(f, line); err != nil {
				return false, fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return f.next != nil, nil
}

// event returns the event of a line; nil if there is none.
func (r *Reader) event(f *file, line []byte) (e *replay.Event, err error) {
	if f.parser == nil {
		p, head, err := r.config.parser(line, &r.summary)
		if errors.Is(err, errStranger) || errors.Is(err, errNotFormat) {
			r.wrong(f, err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if f.parser = p; head {
			return nil, nil
		}
	}
	if e, err = f.parser.event(line); err != nil {
		r.wrong(f, err)
		return nil, nil
	}
	r.summary.Lines++
	return e, nil
}

func (r *Reader) wrong(f *file, err error) {
	r.summary.Lines++
	r.summary.Unread++
	if len(r.summary.First) < maxFirst {
		r.summary.First = append(r.summary.First, fmt.Sprintf("%s:%d: %v", f.name, f.line, err))
	}
}
