package file

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Limits of the files; a set that exceeds one of them is invalid.
const (
	MaxFileSize  = descriptors.MaxFileSize // bytes of one file
	MaxTotalSize = 256 << 20               // bytes of all files
	MaxFiles     = 10_000
)

// Layout selects the files with rules: all regular files in a directory and below, whatever their names, and targets of
// symbolic links to files. It does not follow links to directories. It ignores names that begin with two dots, which
// Kubernetes uses internally in ConfigMap volumes.
type Layout struct {
	Root         string // RUNTIME_ROOT
	Subdirectory string // RUNTIME_SUBDIRECTORY; may be empty
	AppDirectory string // RUNTIME_APPDIRECTORY; empty selects everything below the sub-directory
	// WatchRoot selects, besides Root/Subdirectory/AppDirectory, everything next to it whose name begins with its name and
	// a dot, such as config.yaml for the application directory config.
	WatchRoot      bool
	IgnoreDotFiles bool // ignore names that begin with a dot

	What string // content of the files, for messages; empty means rules

	// Secrets are files by variable that are never read, through any link.
	Secrets map[string]string
}

func (l Layout) what() string { return cmp.Or(l.What, "rules") }

// Dir returns the directory to search for files.
func (l Layout) Dir() string {
	if l.WatchRoot {
		return filepath.Join(l.Root, l.Subdirectory)
	}
	return filepath.Join(l.Root, l.Subdirectory, l.AppDirectory)
}

// prefix returns the prefix of selected paths below Dir, with dots instead of slashes, as the reference compares them.
// The empty prefix selects all.
func (l Layout) prefix() string {
	if !l.WatchRoot || l.AppDirectory == "" {
		return ""
	}
	return strings.ReplaceAll(filepath.ToSlash(filepath.Clean(l.AppDirectory)), "/", ".") + "."
}

// Read reads the files of the layout in path order. The problems include unreadable files and a directory without
// files. The name of a source is its path below Root as given, so that it can be opened.
func Read(l Layout) ([]descriptors.Source, descriptors.Problems) {
	s := scan(l, false)
	return s.sources, s.problems
}

// ReadFile reads one file of rules.
func ReadFile(path string) ([]descriptors.Source, descriptors.Problems) {
	s := &snapshot{}
	_ = s.add(path, path) // one file never exceeds the total
	return s.sources, s.problems
}

// List lists the files of the layout in path order without reading them. The problems include unreadable directories and a directory
// without files.
func List(l Layout) ([]File, descriptors.Problems) {
	s := scan(l, true)
	return s.files, s.problems
}

// snapshot is the result of one scan of a layout.
type snapshot struct {
	sources  []descriptors.Source
	problems descriptors.Problems
	size     int
	listing  bool                   // list files without reading them
	secrets  map[string]fs.FileInfo // files that must not be read
	files    []File                 // listed files
	dirs     []string               // directories that were read, without symbolic links
	links    []string               // targets of symbolic links to files, without symbolic links
}

// digest returns a hash of the snapshot.
func (s *snapshot) digest() [sha256.Size]byte {
	h := sha256.New()
	for _, src := range s.sources {
		_, _ = fmt.Fprintf(h, "%d %s %d ", len(src.Name), src.Name, len(src.Data)) // a hash never fails
		h.Write(src.Data)
	}
	for _, f := range s.files {
		_, _ = fmt.Fprintf(h, "%q %q %d %d ", f.Name, f.Path, f.info.Size(), f.info.ModTime().UnixNano())
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

// File is a listed regular file.
type File struct {
	Name string // path as given, for messages
	Path string // without symbolic links

	info fs.FileInfo
}

// Open opens the file. Opening never blocks.
func (f *File) Open() (*os.File, error) {
	return smallfile.Open(f.Path)
}

// Path returns the layout of a single file, or of a directory and everything below.
func Path(path string) Layout {
	path = filepath.Clean(path)
	return Layout{Root: filepath.Dir(path), AppDirectory: filepath.Base(path)}
}

// scan reads or lists everything in l.
func scan(l Layout, listing bool) *snapshot {
	s := &snapshot{listing: listing, secrets: map[string]fs.FileInfo{}}
	dir := l.Dir()
	for variable, path := range l.Secrets {
		if info, err := os.Stat(path); err == nil {
			s.secrets[variable] = info
		}
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		s.problem(dir, "%s%s", reason(err), l.hint(listing))
		return s
	}
	err = filepath.WalkDir(resolved, func(path string, d fs.DirEntry, err error) error {
		return s.visit(l, tree{dir, resolved, path}, d, err)
	})
	if err != nil && !errors.Is(err, errTooMuch) {
		s.problem(dir, "%s", reason(err))
	}
	if len(s.sources)+len(s.files) == 0 && len(s.problems) == 0 {
		s.problem(dir, "no %s here: %s", l.what(), l.expects())
	}
	return s
}

// hint names the variables of a missing directory, unless the directory was given directly.
func (l Layout) hint(listing bool) string {
	if listing || l.Subdirectory == "" && l.AppDirectory == "" {
		return ""
	}
	return ": rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY"
}

func (l Layout) expects() string {
	if l.WatchRoot && strings.HasPrefix(l.AppDirectory, "/") {
		return fmt.Sprintf("with RUNTIME_WATCH_ROOT=true RUNTIME_APPDIRECTORY is a name in this directory, and %s begins with a slash: write %s",
			l.AppDirectory, strings.TrimLeft(l.AppDirectory, "/"))
	}
	if l.WatchRoot {
		return fmt.Sprintf("files are looked for below %s, and next to it as %s*", filepath.Join(l.Dir(), l.AppDirectory), l.prefix())
	}
	return "the directory has no files"
}

// tree is a path below a directory, and the directory as given and without symbolic links.
type tree struct{ dir, resolved, path string }

// rel returns the path within the directory, with slashes.
func (t tree) rel() string {
	rel, err := filepath.Rel(t.resolved, t.path)
	if err != nil {
		return t.path // impossible, because both are absolute or neither is
	}
	return filepath.ToSlash(rel)
}

// name returns the path below the directory as given.
func (t tree) name() string { return filepath.Join(t.dir, t.rel()) }

// visit handles one path of a walk.
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
	if rel == "." { // Root is a file: a link to it may be replaced
		s.links = append(s.links, t.path)
		if dir, err := filepath.EvalSymlinks(filepath.Dir(t.dir)); err == nil {
			s.dirs = append(s.dirs, dir)
		}
	}
	return s.add(t.name(), t.path)
}

// follow records the target of a symbolic link to a file. It returns true for other links, which the walk skips.
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

// add reads the file at path as a source with this name. An error means that the total is too large, and ends the walk.
func (s *snapshot) add(name, path string) error {
	if s.listing {
		return s.list(name, path)
	}
	data, err := s.read(path)
	if err != nil {
		s.problem(name, "%s", reason(err))
		return nil
	}
	s.size += len(data)
	s.sources = append(s.sources, descriptors.Source{Name: name, Data: data})
	if s.size > MaxTotalSize || len(s.sources) > MaxFiles {
		s.problem(name, "too many rules including this file: at most %d files with %d bytes in total are read", MaxFiles, MaxTotalSize)
		return errTooMuch
	}
	return nil
}

// list adds the file at path to the listed ones.
func (s *snapshot) list(name, path string) error {
	target, err := filepath.EvalSymlinks(path)
	var info fs.FileInfo
	if err == nil {
		info, err = os.Stat(target)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		err = s.secret(info)
	}
	if err != nil {
		s.problem(name, "%s", reason(err))
		return nil
	}
	s.files = append(s.files, File{Name: name, Path: target, info: info})
	if len(s.files) > MaxFiles {
		s.problem(name, "too many files including this one: at most %d are read", MaxFiles)
		return errTooMuch
	}
	return nil
}

// waitForContent is the timeout of reading. Regular files have all content, but some special files that appear regular, such as
// /proc/kmsg, wait for it.
const waitForContent = 100 * time.Millisecond

// read reads a regular file of limited size. It opens no other files and never blocks, neither for opening, as with a
// named pipe without a writer, nor for content.
func (s *snapshot) read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = readable(info)
	}
	if err != nil {
		return nil, err
	}
	f, err := smallfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()      // opened for reading only
	if info, err = f.Stat(); err == nil { // it may have been replaced in the meantime
		err = errors.Join(readable(info), s.secret(info))
	}
	if err != nil {
		return nil, err
	}
	data, err := smallfile.ReadAll(f, MaxFileSize, waitForContent)
	switch {
	case errors.Is(err, smallfile.ErrSlow):
		err = errors.New("its content arrives bit by bit: not a file of rules")
	case errors.Is(err, smallfile.ErrTooLarge):
		err = tooLarge(int64(len(data)))
	case err == nil && pem.Match(data):
		err = errors.New("a key or a certificate in PEM form, not a file of rules")
	}
	return data, err
}

// pem matches the beginning of a PEM key or certificate.
var pem = regexp.MustCompile(`(?m)^-----BEGIN [A-Z0-9 ]+-----`)

// secret returns an error if a file is one of the secrets.
func (s *snapshot) secret(info fs.FileInfo) error {
	for _, variable := range slices.Sorted(maps.Keys(s.secrets)) {
		if os.SameFile(info, s.secrets[variable]) {
			return fmt.Errorf("this is the file of %s, which holds a secret", variable)
		}
	}
	return nil
}

func tooLarge(size int64) error {
	return fmt.Errorf("%d bytes: a file of rules may have at most %d", size, MaxFileSize)
}

// readable returns an error if the kind or size of a file is not acceptable.
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

// reason returns the text of an error without the path.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}
