package recorded

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
)

// Files implements [Inputs] for the files of a command line, compressed by gzip or not.
type Files struct {
	names []string
	stdin io.Reader
	open  []*os.File
	read  int64 // bytes, before decompression
	total int64 // size of all files; 0 if unknown
}

// OpenFiles returns the files with these names; - is stdin. It fails if one does not exist or is a directory.
func OpenFiles(names []string, stdin io.Reader) (*Files, error) {
	f := &Files{names: names, stdin: stdin}
	known := true
	for _, name := range names {
		if name == "-" {
			known = false
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			return nil, fmt.Errorf("%s is a directory: pass its files", name)
		}
		known = known && info.Mode().IsRegular()
		f.total += info.Size()
	}
	if !known {
		f.total = 0
	}
	return f, nil
}

// Progress returns the bytes read so far and their total, which is 0 if unknown.
func (f *Files) Progress() (read, total int64) { return f.read, f.total }

// Close closes the files opened so far.
func (f *Files) Close() (err error) {
	for _, open := range f.open {
		err = errors.Join(err, open.Close())
	}
	f.open = nil
	return err
}

// Next implements [Inputs].
func (f *Files) Next() (io.Reader, string, error) {
	if len(f.names) == 0 {
		return nil, "", io.EOF
	}
	name := f.names[0]
	f.names = f.names[1:]
	in := f.stdin
	if name == "-" {
		name = "standard input"
	} else {
		file, err := os.Open(name) //nolint:gosec // the user names it
		if err != nil {
			return nil, "", err
		}
		f.open, in = append(f.open, file), file
	}
	b := bufio.NewReaderSize(counted{in, f}, 1<<16)
	if magic, err := b.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(b)
		if errors.Is(err, io.ErrUnexpectedEOF) { // in its header: reported when it is read, as an end further on is
			return failing{err}, name, nil
		}
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", name, err)
		}
		return z, name, nil
	} else if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", fmt.Errorf("%s: %w", name, err)
	}
	return b, name, nil
}

// counted counts the bytes that are read.
type counted struct {
	io.Reader

	files *Files
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.files.read += int64(n)
	return n, err
}

// failing is a reader that fails.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
