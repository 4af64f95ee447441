package file

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Bounds of what is read; a set that passes one of them is refused.
const (
	MaxFileSize  = descriptors.MaxFileSize // bytes of one file
	MaxTotalSize = 256 << 20               // bytes of all files
	MaxFiles     = 10_000
)

// Layout says which files hold rules: all regular files in a directory and below it, whatever they are called, and files
// that symbolic links lead to. Links to directories are not followed. Names that begin with two dots are passed over,
// because Kubernetes keeps its books under them in the volume of a ConfigMap.
type Layout struct {
	Root         string // RUNTIME_ROOT
	Subdirectory string // RUNTIME_SUBDIRECTORY; may be empty
	AppDirectory string // RUNTIME_APPDIRECTORY; may be empty, then everything below the sub-directory is read
	// WatchRoot reads Root/Subdirectory/AppDirectory, and beside it what begins with its name and a dot, such as config.yaml
	// for the application directory config. Without it the former is read alone.
	WatchRoot      bool
	IgnoreDotFiles bool // pass over names that begin with a dot
}

// Dir is the directory in which the files are looked for.
func (l Layout) Dir() string {
	if l.WatchRoot {
		return filepath.Join(l.Root, l.Subdirectory)
	}
	return filepath.Join(l.Root, l.Subdirectory, l.AppDirectory)
}

// prefix is what the paths below Dir begin with, with dots for slashes as the reference compares them; empty is any.
func (l Layout) prefix() string {
	if !l.WatchRoot || l.AppDirectory == "" {
		return ""
	}
	return strings.ReplaceAll(filepath.ToSlash(filepath.Clean(l.AppDirectory)), "/", ".") + "."
}

// Read reads the files of the layout, in the order of their paths. What cannot be read is among the problems, as is a
// directory without files. Sources are called by their path through Root as it was given, so that it can be opened.
func Read(l Layout) ([]descriptors.Source, descriptors.Problems) {
	s := scan(l)
	return s.sources, s.problems
}

// ReadFile reads one file of rules.
func ReadFile(path string) ([]descriptors.Source, descriptors.Problems) {
	s := &snapshot{}
	_ = s.add(path, path) // one file is not too much
	return s.sources, s.problems
}

// snapshot is what one look at a layout has found.
type snapshot struct {
	sources  []descriptors.Source
	problems descriptors.Problems
	size     int
	dirs     []string // directories that were read, symbolic links resolved
	links    []string // files that symbolic links led to, resolved
}

// digest tells snapshots apart by what they found.
func (s *snapshot) digest() [sha256.Size]byte {
	h := sha256.New()
	for _, src := range s.sources {
		_, _ = fmt.Fprintf(h, "%d %s %d ", len(src.Name), src.Name, len(src.Data)) // a hash takes everything
		h.Write(src.Data)
	}
	for _, p := range s.problems {
		_, _ = fmt.Fprintf(h, "%q ", p.String())
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (s *snapshot) problem(name, format string, args ...any) {
	s.problems = append(s.problems, descriptors.Problem{File: name, Text: fmt.Sprintf(format, args...)})
}

var errTooMuch = errors.New("too much to read")

// scan looks at everything in l.
func scan(l Layout) *snapshot {
	s := &snapshot{}
	dir := l.Dir()
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		s.problem(dir, "%s%s", reason(err), l.hint())
		return s
	}
	err = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
		return s.visit(l, tree{dir, resolved, path}, d, err)
	})
	if err != nil && !errors.Is(err, errTooMuch) {
		s.problem(dir, "%s", reason(err))
	}
	if len(s.sources) == 0 && len(s.problems) == 0 {
		s.problem(dir, "no rules in here: %s", l.expects())
	}
	return s
}

// hint says where a directory comes from that is not there: from variables, unless it was named itself.
func (l Layout) hint() string {
	if l.Subdirectory == "" && l.AppDirectory == "" {
		return ""
	}
	return ": rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY"
}

func (l Layout) expects() string {
	if l.WatchRoot {
		return fmt.Sprintf("files are looked for below %s, and beside it as %s*", filepath.Join(l.Dir(), l.AppDirectory), l.prefix())
	}
	return "the directory has no files"
}

// tree is a path below a directory, with that directory as it was named and as symbolic links lead to it.
type tree struct{ dir, resolved, path string }

// rel is the path within the directory, with slashes.
func (t tree) rel() string {
	rel, err := filepath.Rel(t.resolved, t.path)
	if err != nil {
		return t.path // both are absolute or both are not, so this does not happen
	}
	return filepath.ToSlash(rel)
}

// name is the path as people know it.
func (t tree) name() string { return filepath.Join(t.dir, t.rel()) }

// visit deals with one path of a walk.
func (s *snapshot) visit(l Layout, t tree, d fs.DirEntry, err error) error {
	if err != nil {
		s.problem(t.name(), "%s", reason(err))
		return nil
	}
	rel := t.rel()
	base := filepath.Base(t.path)
	key := strings.ReplaceAll(rel, "/", ".")
	hidden := rel != "." && (strings.HasPrefix(base, "..") || l.IgnoreDotFiles && strings.HasPrefix(base, "."))
	switch {
	case d.IsDir():
		leads := strings.HasPrefix(key+".", l.prefix()) || strings.HasPrefix(l.prefix(), key+".")
		if rel != "." && (hidden || !leads) {
			return fs.SkipDir
		}
		s.dirs = append(s.dirs, t.path)
		return nil
	case hidden || !strings.HasPrefix(key, l.prefix()):
		return nil
	case d.Type()&fs.ModeSymlink != 0 && s.follow(t):
		return nil
	}
	return s.add(t.name(), t.path)
}

// follow notes where a symbolic link leads. It is true where the link is not to be followed.
func (s *snapshot) follow(t tree) bool {
	target, err := filepath.EvalSymlinks(t.path)
	if err != nil {
		s.problem(t.name(), "%s", reason(err))
		return true
	}
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		s.problems = append(s.problems, descriptors.Problem{
			File: t.name(), Text: "a symbolic link to a directory, which is not followed", Warning: true,
		})
		return true
	}
	s.links = append(s.links, target)
	return false
}

// add reads the file at path under a name. The error ends the walk: there is too much to read.
func (s *snapshot) add(name, path string) error {
	data, err := read(path)
	if err != nil {
		s.problem(name, "%s", reason(err))
		return nil
	}
	s.size += len(data)
	s.sources = append(s.sources, descriptors.Source{Name: name, Data: data})
	if s.size > MaxTotalSize || len(s.sources) > MaxFiles {
		s.problem(name, "too many rules up to here: at most %d files with %d bytes together are read", MaxFiles, MaxTotalSize)
		return errTooMuch
	}
	return nil
}

// read reads a regular file of bounded size. Nothing else is opened, and no open waits: of a named pipe it would wait
// for a writer.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = readable(info)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()      // nothing was written
	if info, err = f.Stat(); err == nil { // it may be another file by now
		err = readable(info)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err == nil && len(data) > MaxFileSize {
		err = tooLarge(int64(len(data)))
	}
	return data, err
}

func tooLarge(size int64) error {
	return fmt.Errorf("%d bytes: a file of rules has at most %d", size, MaxFileSize)
}

// readable says why a file of this kind and size is not read.
func readable(info fs.FileInfo) error {
	mode := info.Mode()
	switch {
	case mode.IsRegular() && info.Size() > MaxFileSize:
		return tooLarge(info.Size())
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		return errors.New("a directory, not a file of rules")
	case mode&fs.ModeNamedPipe != 0:
		return errors.New("a named pipe, not a file of rules")
	case mode&fs.ModeSocket != 0:
		return errors.New("a socket, not a file of rules")
	case mode&fs.ModeDevice != 0:
		return errors.New("a device, not a file of rules")
	default:
		return errors.New("not a regular file")
	}
}

// reason is the text of an error without the path, which is told beside it.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}
