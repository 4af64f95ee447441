// Package smallfile reads the files named in settings and flags. It takes bounded time and memory even for a device without an end or a
// named pipe without a writer.
//
// This package is part of the core.
package smallfile

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// MaxSize is the maximum size in bytes of a file with certificates or a password. A bundle of all of a system's CAs has a quarter of it.
const MaxSize = 1 << 20

// patience is the maximum time for the content of a pipe or device, such as the output of a command that asks a vault.
const patience = 10 * time.Second

// Errors of [ReadAll]. They do not contain the name of the file.
var (
	ErrTooLarge = errors.New("the file is too large")
	ErrSlow     = errors.New("its content did not arrive in time")
)

// Read returns the content of a file of at most most bytes. The file may be a pipe or a device. Errors contain its name.
func Read(name string, most int) ([]byte, error) {
	f, err := Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened read-only
	text, err := ReadAll(f, most, patience)
	info, _ := f.Stat() // never fails for an open file
	switch {
	case err == nil && len(text) == 0 && info != nil && info.Mode()&os.ModeNamedPipe != 0:
		return nil, fmt.Errorf("%s is a named pipe without a writer", name)
	case errors.Is(err, ErrTooLarge):
		return nil, fmt.Errorf("%s holds more than %d bytes", name, most)
	case errors.Is(err, ErrSlow):
		return nil, fmt.Errorf("%s is a pipe or a device, and its content did not arrive within %s", name, patience)
	}
	return text, err
}

// Open opens a file for reading. It does not block, even for a named pipe without a writer.
func Open(name string) (*os.File, error) { return os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) }

// ReadAll reads the rest of a file opened with [Open], at most most bytes. It returns [ErrTooLarge] if there are more, and [ErrSlow]
// after patience.
func ReadAll(f *os.File, most int, patience time.Duration) ([]byte, error) {
	if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil && !errors.Is(err, os.ErrNoDeadline) { // a file on a disk has none
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, int64(most)+1))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EAGAIN):
		return nil, ErrSlow
	case err == nil && len(text) > most:
		return text, ErrTooLarge
	}
	return text, err
}

// KeyPair reads a certificate and its key from PEM files.
func KeyPair(cert, key string) (tls.Certificate, error) {
	c, err := Read(cert, MaxSize)
	if err != nil {
		return tls.Certificate{}, err
	}
	k, err := Read(key, MaxSize)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(c, k)
}
