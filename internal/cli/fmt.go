package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) fmtCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt [flags] FILE|DIR...",
		Short: "Format rule files",
		Long: `Fmt orders the keys of rules, indents by two spaces, and collapses blank lines. It keeps comments,
anchors, aliases, quotes and the meaning of the file. Text in braces or brackets stays on its line up
to 120 characters. In a DIR, it formats .yaml and .yml files, also in subdirectories; - formats
standard input to standard output.

It prints the names of changed files. --check prints the names of unformatted files and changes
nothing. Files with invalid YAML, or several documents, are reported and not changed.

Exit codes: 0, success; 1, error, or with --check, unformatted files.`,
		Example: `  ratelimitd fmt config/example
  ratelimitd fmt --check config/example
  ratelimitd fmt - < rules.yaml`,
		Args: needs("FILE|DIR"),
		RunE: func(_ *cobra.Command, args []string) error {
			f := formatting{program: p, check: check}
			for _, arg := range args {
				if arg == "-" {
					f.stdin()
				} else {
					f.path(arg)
				}
			}
			return f.outcome()
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "list unformatted files without changing them; exit with 1 if any are found")
	return cmd
}

// formatting formats files.
type formatting struct {
	*program

	check        bool
	failed, ugly int // files with errors, and those that are not formatted
}

func (f *formatting) outcome() error {
	var errs []error
	if f.failed > 0 {
		errs = append(errs, fmt.Errorf("not changed: %s", descriptors.CountText(f.failed, "file")))
	}
	if f.check && f.ugly > 0 {
		errs = append(errs, fmt.Errorf("not formatted: %s; run ratelimitd fmt", descriptors.CountText(f.ugly, "file")))
	}
	return errors.Join(errs...)
}

func (f *formatting) fail(problems ...descriptors.Problem) {
	f.failed++
	for _, problem := range problems {
		fmt.Fprintln(f.stderr, problem)
	}
}

func (f *formatting) stdin() {
	data, err := io.ReadAll(io.LimitReader(os.Stdin, file.MaxFileSize+1))
	if err != nil {
		f.fail(descriptors.Problem{File: "-", Text: err.Error()})
		return
	}
	f.format(descriptors.Source{Name: "-", Data: data}, func(out []byte) error {
		_, err := f.stdout.Raw.Write(out)
		return err
	})
}

// format formats a source. It writes a file only if that changes it, and standard output always.
func (f *formatting) format(s descriptors.Source, write func([]byte) error) {
	out, problems := rulefmt.Format(s)
	changed, isFile := !bytes.Equal(out, s.Data), s.Name != "-"
	var err error
	if len(problems) == 0 && !f.check && (changed || !isFile) {
		err = write(out)
	}
	switch {
	case len(problems) > 0:
		f.fail(problems...)
	case err != nil:
		f.fail(descriptors.Problem{File: s.Name, Text: reason(err)})
	case changed && (f.check || isFile):
		f.ugly++
		f.printf("%s\n", s.Name)
	}
}

// path formats a file, or those of a directory.
func (f *formatting) path(path string) {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		f.file(path)
		return
	}
	if err == nil {
		err = filepath.WalkDir(path, func(name string, d os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			ext := strings.ToLower(filepath.Ext(name))
			hidden := strings.HasPrefix(d.Name(), ".") && name != path
			switch {
			case d.IsDir() && hidden:
				return filepath.SkipDir
			case d.Type().IsRegular() && !hidden && (ext == ".yaml" || ext == ".yml"):
				f.file(name)
			}
			return nil
		})
	}
	if err != nil {
		f.fail(descriptors.Problem{File: path, Text: reason(err)})
	}
}

// reason returns an error of the file system without its path.
func reason(err error) string {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

func (f *formatting) file(path string) {
	read, problems := file.ReadFile(path)
	if len(problems) > 0 {
		f.fail(problems...)
		return
	}
	f.format(read[0], func(out []byte) error { return replaceFile(path, out) })
}

// replaceFile writes a file with the mode of the one that it replaces, all of it or nothing. Of a link it replaces what the
// link leads to.
func replaceFile(path string, data []byte) (err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	// Its name begins with two dots, so that a server that watches the directory does not read it.
	f, err := os.CreateTemp(filepath.Dir(path), "..fmt-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the error that led here says more
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(info.Mode().Perm())
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	return err
}
