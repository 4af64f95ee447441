package recorded

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/ratelimitd/ratelimitd/internal/replay"
)

var errLong = fmt.Errorf("the line is longer than %d bytes", maxLine)

// file is an open file.
type file struct {
	name   string
	in     *bufio.Reader
	line   int    // number of the line read last
	long   []byte // buffer for lines longer than that of in
	parser parser // nil until a line shows the type
	next   *replay.Event
	ended  bool
}

// end completes the last event.
func (f *file) end() {
	f.ended = true
	if f.parser != nil {
		f.next = f.parser.rest()
	}
}

// readLine returns the next line that is not blank, without line ending. It is valid until the next call.
func (f *file) readLine() ([]byte, error) {
	for {
		line, err := f.in.ReadSlice('\n')
		f.line++
		if errors.Is(err, bufio.ErrBufferFull) {
			line, err = f.readLong(line)
		}
		if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
			return nil, err
		}
		if f.line == 1 {
			line = bytes.TrimPrefix(line, []byte("\uFEFF"))
		}
		if line = bytes.TrimRight(line, "\r\n"); len(bytes.TrimSpace(line)) > 0 {
			return line, nil
		}
	}
}

// readLong reads the rest of a line that exceeds the buffer. It skips a line longer than maxLine.
func (f *file) readLong(begin []byte) (line []byte, err error) {
	f.long = append(f.long[:0], begin...)
	for err = bufio.ErrBufferFull; errors.Is(err, bufio.ErrBufferFull); {
		var more []byte
		if more, err = f.in.ReadSlice('\n'); len(f.long) <= maxLine {
			f.long = append(f.long, more...)
		}
	}
	if len(f.long) > maxLine {
		return nil, errLong
	}
	return f.long, err
}
