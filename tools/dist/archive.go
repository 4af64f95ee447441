package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sumsFile lists the SHA-256 of each other file of a release in the format of sha256sum.
const sumsFile = "SHA256SUMS"

// file is a file of an archive.
type file struct {
	name    string
	data    []byte
	program bool   // executable
	link    string // target of a symbolic link
}

// pack returns a tar archive of files in name order, all with the given time and without a particular owner.
func pack(files []file, at time.Time) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	made := map[string]bool{".": true}
	for _, f := range files {
		if err := makeParents(w, path.Dir(f.name), made, at); err != nil {
			return nil, err
		}
		h := tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)), Mode: 0o644, ModTime: at, Format: tar.FormatPAX}
		if f.program {
			h.Mode = 0o755
		}
		if f.link != "" {
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// makeParents writes each parent directory of a file once.
func makeParents(w *tar.Writer, dir string, made map[string]bool, at time.Time) error {
	if made[dir] {
		return nil
	}
	if err := makeParents(w, path.Dir(dir), made, at); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at, Format: tar.FormatPAX})
}

// compressed compresses data with gzip.
func compressed(data []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	err = w.Close()
	return out.Bytes(), err
}

// archives writes an archive for each platform.
func (r *release) archives(_ context.Context, out string) error {
	shared := append(slices.Clone(r.manuals), file{name: "THIRD_PARTY_LICENSES", data: texts(r.licences)})
	for as, from := range map[string]string{
		"README.md":                   "tools/dist/README.md",
		"LICENSE":                     "LICENSE",
		"CHANGELOG.md":                "CHANGELOG.md",
		"config/example/example.yaml": "config/example/example.yaml",
		"config/reference.yaml":       "config/reference.yaml",
		"systemd/" + unitFile:         "tools/dist/" + unitFile,
		"systemd/ratelimitd.conf":     "tools/dist/ratelimitd.conf",
	} {
		data, err := os.ReadFile(filepath.Join(r.src, from))
		if err != nil {
			return err
		}
		shared = append(shared, file{name: as, data: data})
	}
	for _, p := range r.programs {
		binary, err := os.ReadFile(p.path)
		if err != nil {
			return err
		}
		base := fmt.Sprintf("%s_%s_%s_%s", name, r.version, p.os, p.arch)
		files := append(slices.Clone(shared), file{name: name, data: binary, program: true})
		for i := range files {
			files[i].name = base + "/" + files[i].name
		}
		packed, err := pack(files, r.time)
		if err != nil {
			return err
		}
		if packed, err = compressed(packed); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, base+".tar.gz"), packed, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// unitFile is the systemd unit of the server.
const unitFile = "ratelimitd.service"

// sums writes the checksums of the files in out.
func sums(_ context.Context, out string) error {
	entries, err := os.ReadDir(out)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(data), e.Name())
	}
	return os.WriteFile(filepath.Join(out, sumsFile), []byte(list.String()), 0o644)
}
