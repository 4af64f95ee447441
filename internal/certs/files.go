package certs

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile is the most that a file may hold, in bytes. A bundle of all CAs of a system has a quarter of it.
const maxFile = 1 << 20

// files is what the files held at a time.
type files struct {
	cert, key, ca []byte
	err           error // what could not be read, and then the rest is missing
}

// read reads the files.
func (s *Server) read() (f files) {
	for _, part := range []struct {
		path string
		into *[]byte
		what string
	}{
		{s.config.Cert, &f.cert, "the server's TLS certificate"},
		{s.config.Key, &f.key, "the key of the server's TLS certificate"},
		{s.config.ClientCA, &f.ca, "the CA of clients"},
	} {
		if part.path == "" {
			continue
		}
		if *part.into, f.err = readFile(part.path); f.err != nil {
			f.err = fmt.Errorf("loading %s: %w", part.what, f.err)
			return f
		}
	}
	return f
}

// digest is equal for what is equal.
func (f files) digest() (d digest) {
	h := sha256.New()
	parts := [][]byte{f.cert, f.key, f.ca}
	if f.err != nil {
		parts = append(parts, []byte(f.err.Error()))
	}
	for _, part := range parts {
		h.Write(binary.AppendUvarint(nil, uint64(len(part))))
		h.Write(part)
	}
	return digest(h.Sum(nil))
}

// readFile reads a plain file, which cannot block and has an end.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: is no file: name a file in PEM form", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxFile {
		return nil, fmt.Errorf("%s: is larger than %d bytes: name a file in PEM form", path, maxFile)
	}
	return text, nil
}
