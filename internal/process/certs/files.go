package certs

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
)

// files is a snapshot of the files.
type files struct {
	cert, key, ca []byte
	err           error // the error of reading a file; the other fields are then incomplete
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
		{s.config.ClientCA, &f.ca, "the client CA"},
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

// digest returns a hash of the contents and the error.
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

// readFile reads a regular file. Other kinds cannot be read repeatedly.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file: use a file in PEM form", path)
	}
	return smallfile.Read(path, smallfile.MaxSize)
}
