package rulefile

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
)

// Problem is an error or a warning about a source.
type Problem struct {
	File         string
	Line, Column int    // from 1; 0 if the problem concerns the whole file
	Domain       string // domain of the source; empty if unknown or ambiguous
	Path         string // path in the tree, such as shop.user_u1; may be empty
	Text         string // the mistake, and the accepted values
	Bare         string // Text without texts from the source; empty if Text has none
	Warning      bool
}

// Bared returns the problems for readers who must not see the sources, which may contain secrets by mistake. It keeps only the position
// and kind of each problem.
func (p Problems) Bared() Problems {
	bared := slices.Clone(p)
	for i := range bared {
		q := &bared[i]
		q.Domain, q.Path, q.Text = "", "", cmp.Or(q.Bare, q.Text)
	}
	return bared
}

// hidden is printed in place of a text from a source.
type hidden struct{}

// Format implements [fmt.Formatter].
func (hidden) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("…")) }

// String formats the problem as one line, file:line:column: path: text, of printable characters.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		b.WriteString(":" + strconv.Itoa(p.Line))
		if p.Column > 0 {
			b.WriteString(":" + strconv.Itoa(p.Column))
		}
	}
	b.WriteString(": ")
	if p.Warning {
		b.WriteString("warning: ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Text)
	return plain.Text(b.String())
}

// Problems is a list of problems. Load returns it as its error.
type Problems []Problem //nolint:errname // primarily a list; an error only if one of its elements is

// shownErrors bounds the text of [Problems.Error], which goes to a log. The list itself is complete.
const shownErrors = 100

// Error returns one line per error, without warnings. It shows at most shownErrors errors.
func (p Problems) Error() string {
	lines := []string{}
	for i := range p {
		if !p[i].Warning {
			lines = append(lines, p[i].String())
		}
	}
	if more := len(lines) - shownErrors; more > 0 {
		lines = append(lines[:shownErrors], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Failed reports whether any problem is an error.
func (p Problems) Failed() bool {
	return slices.ContainsFunc(p, func(q Problem) bool { return !q.Warning })
}

// Mark is a position in a source. The zero Mark means that the element is absent; a negative line means that it is present in a source
// without lines. For an overlay, Column also contains the number of the overlay's file; see OverlayShift.
type Mark struct{ Line, Column int32 }

// Present reports whether the element at the mark is present.
func (m Mark) Present() bool { return m.Line != 0 }

// Number returns the line, from 1, or 0 if the source has no lines.
func (m Mark) Number() int { return int(max(m.Line, 0)) }

// In formats the position for messages: file:line:column, or only the name of the source if it has no lines.
func (m Mark) In(file string) string {
	if m.Line <= 0 {
		return file
	}
	return fmt.Sprintf("%s:%d:%d", file, m.Line, m.Col())
}

// Col returns the column, from 1, or 0 if there is none.
func (m Mark) Col() int { return int(m.Column & (1<<OverlayShift - 1)) }

// Overlaid reports whether m is in an overlay.
func (m Mark) Overlaid() bool { return m.Column>>OverlayShift > 0 }

// Report collects the problems of one source.
type Report struct {
	File     string
	Domain   string // domain of the source; empty until it is read
	Strict   bool
	Overlays []string // the files of the overlay
	Indent   int      // of the source's text in its file
	First    int      // first line of the source in its file, used for problems of the whole source
	Problems Problems // at most maxListed errors and as many warnings, plus one message for each kind that exceeds this
	Found    int      // number of problems
	Failures int      // number of errors, excluding strict warnings
	errors   int      // number of listed errors
	warnings int      // number of listed warnings
}

const (
	maxListed = 10_000 // errors of a source, and warnings: no one reads more, and a file of ten megabytes can have a million
	maxText   = 1000   // bytes of a path, and of a text: a file may repeat a long name in each
)

// full reports whether further errors or further warnings are not listed.
func (r *Report) full() bool { return max(r.errors, r.warnings) > maxListed }

// Fail reports an error.
func (r *Report) Fail(at Mark, path, format string, args ...any) {
	r.Failures++
	r.add(at, path, false, format, args...)
}

// Warn reports a warning. If the report is strict, it is an error.
func (r *Report) Warn(at Mark, path, format string, args ...any) {
	r.add(at, path, !r.Strict, format, args...)
}

// Note reports a warning that is one even if the report is strict.
func (r *Report) Note(at Mark, path, format string, args ...any) {
	r.add(at, path, true, format, args...)
}

// add adds a problem.
func (r *Report) add(at Mark, path string, warning bool, format string, args ...any) {
	r.Found++
	listed, kind := &r.errors, "errors"
	if warning {
		listed, kind = &r.warnings, "warnings"
	}
	if *listed > maxListed {
		return
	}
	if *listed++; *listed > maxListed {
		path, format, args = "", "more than %d %s; the rest are not listed", []any{maxListed, kind}
	}
	bare := make([]any, len(args))
	for i, arg := range args {
		bare[i] = hidden{}
		if where, ok := arg.(Place); ok {
			bare[i] = where
		}
	}
	if at.Number() < r.First && !at.Overlaid() {
		at = Mark{int32(r.First), 1}
	}
	at = r.InFile(at)
	r.Problems = append(r.Problems, Problem{
		File: r.FileOf(at), Line: at.Number(), Column: at.Col(), Path: plain.Cut(path, maxText),
		Text: plain.Cut(fmt.Sprintf(format, args...), maxText), Bare: plain.Cut(fmt.Sprintf(format, bare...), maxText), Warning: warning,
	})
}

// InFile converts a mark in the source to a mark in its file.
func (r *Report) InFile(at Mark) Mark {
	if at.Col() > 0 && !at.Overlaid() {
		at.Column += int32(r.Indent)
	}
	return at
}

// FileOf returns the name of the file that contains a mark.
func (r *Report) FileOf(at Mark) string {
	if i := int(at.Column >> OverlayShift); i > 0 && i <= len(r.Overlays) {
		return r.Overlays[i-1]
	}
	return r.File
}

// Sorted sorts the problems by line and column, overlays last, sets their domain, and returns them. The sort is stable.
func (r *Report) Sorted() Problems {
	foreign := func(p Problem) int {
		if p.File == r.File {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(r.Problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(foreign(a), foreign(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	for i := range r.Problems {
		r.Problems[i].Domain = r.Domain
	}
	return r.Problems
}

// OverlayShift is the position, in bits, of the number of an overlay's file in the column of a mark. Numbers start at 1. Lines are too
// short for columns to collide.
const OverlayShift = 20
