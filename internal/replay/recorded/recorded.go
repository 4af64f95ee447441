// Package recorded reads recorded requests from log files, for internal/replay.
//
// # Files
//
// The first line that fits decides the type of a file. Two types contain requests:
//
//   - the output of ratelimitd watch --output json, where each request is one or more consecutive lines
//   - CSV with the columns time, domain, descriptor (one or more) and optionally hits and duration
//
// Three types contain fields, which a [Mapping] turns into requests:
//
//   - JSON: a.b is the member b of the object a
//   - CSV: a column is a field, and one of them is the time
//   - text: a format contains %name% for each field and %% for a percent sign. A field ends where the text after it first occurs. The
//     formats of Envoy and Istio are defaults; those of nginx and Apache have names.
//
// A field that is absent, null, empty or "-" is missing. The fields time, duration, response_flags, response_code, decided_at,
// remote_address (without port) and path are also found under other common names; a mapping can define them. Every line needs a time:
// RFC 3339, as in Apache, or a number since 1970. A line was rejected if response_flags contains RL or, without flags, if response_code
// is 429.
//
// # Mappings
//
// A mapping is a domain and a list of descriptors, all of which apply to each line. The values of a descriptor's entries contain
// constants and %field%. A descriptor with a missing field is left out, and so is one whose conditions are not met: regular expressions
// that fields must match (when), or must not match (unless). The hits may come from a field, and a descriptor may be charged when the
// request ends, if the request passes (at_end). A mapping can also define fields: other fields, or the part of one that matches a regular
// expression. [ParseTemplate] reads a mapping of one line without conditions, [ParseMapping] a file in YAML.
//
// # Errors and bounds
//
// A line that cannot be read is counted, the first five are reported with file and line, and reading continues. Reading fails if a
// mapping is missing, has an error (reported with its line), or uses a field that the text format or the CSV does not have. A line has at
// most 1 MiB, a format 64 KiB. Files are read as streams and merged by time; gzip is detected.
//
// This package is optional: the core works without it.
package recorded

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/replay"
)

// Config configures a Reader. The zero value reads only files that contain requests; those in CSV need Parse.
type Config struct {
	Format  string   // text format or its name; empty detects the type
	Mapping *Mapping // nil if the files contain requests
	Parse   Parse
}

// Parse parses a descriptor in the syntax of commands.
type Parse func(text string) (limiter.Descriptor, error)

// Bounds.
const (
	maxLine   = 1 << 20  // bytes
	maxFormat = 64 << 10 // bytes
	buffered  = 64 << 10 // bytes per file
	maxFirst  = 5        // unreadable lines in Summary.First
)

// Summary describes the lines read so far.
type Summary struct {
	Lines  uint64   // lines, without blank ones and CSV headings
	Unread uint64   // lines that could not be read
	First  []string // the first of these, as file:line: reason
	Cut    uint64   // decisions of watch with truncated entries
	Lost   uint64   // decisions that watch lost or skipped
	Short  []string // gzip files that end early: truncated, or still being written
}

// Reader is a [replay.Source] that merges several files by time. A file out of order stays out of order. Use [New].
type Reader struct {
	config  Config
	inputs  Inputs
	files   []*file // files with a next event
	opened  bool
	summary Summary
}

// Inputs lists the files to read.
type Inputs interface {
	// Next returns the next file and its name, or io.EOF.
	Next() (io.Reader, string, error)
}

// parser turns lines into events.
type parser interface {
	// event returns an event that is complete with this line, or nil. It does not keep line.
	event(line []byte) (*replay.Event, error)
	// rest returns the event that the end of the file completes, or nil.
	rest() *replay.Event
}

// New returns a Reader of inputs.
func New(inputs Inputs, c Config) *Reader { return &Reader{config: c, inputs: inputs} }

// Summary describes the lines read so far.
func (r *Reader) Summary() Summary { return r.summary }

// Next returns the earliest of the files' next events, or io.EOF.
func (r *Reader) Next() (*replay.Event, error) {
	if !r.opened {
		r.opened = true
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
	if err := r.advance(f); err != nil {
		return nil, err
	}
	if f.next == nil {
		r.files = slices.Delete(r.files, first, first+1)
	}
	return e, nil
}

// open opens all files and reads the first event of each.
func (r *Reader) open() error {
	for {
		in, name, err := r.inputs.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		f := &file{name: name, in: bufio.NewReaderSize(in, buffered)}
		if err := r.advance(f); err != nil {
			return err
		}
		if f.next != nil {
			r.files = append(r.files, f)
		}
	}
}

// advance reads the next event of a file into f.next, nil at the end.
func (r *Reader) advance(f *file) error {
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
			r.skip(f, err)
		case err != nil:
			return fmt.Errorf("%s: %w", f.name, err)
		default:
			if err := r.line(f, line); err != nil {
				return fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	return nil
}

// line reads a line. It fails if the rest of the file would fail too.
func (r *Reader) line(f *file, line []byte) (err error) {
	if f.parser == nil {
		p, heading, err := r.config.parser(line, &r.summary)
		if errors.Is(err, errUnknownType) || errors.Is(err, errNotFormat) {
			r.skip(f, err)
			return nil
		}
		if err != nil {
			return err
		}
		if f.parser = p; heading {
			return nil
		}
	}
	if f.next, err = f.parser.event(line); err != nil {
		r.skip(f, err)
		return nil
	}
	r.summary.Lines++
	return nil
}

// skip counts the present line of a file as unreadable.
func (r *Reader) skip(f *file, err error) {
	r.summary.Lines++
	r.summary.Unread++
	if len(r.summary.First) < maxFirst {
		r.summary.First = append(r.summary.First, fmt.Sprintf("%s:%d: %v", f.name, f.line, err))
	}
}
