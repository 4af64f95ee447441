package descriptors

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/plain"
)

// Problem is an error or a warning about a source.
type Problem struct {
	File         string
	Line, Column int    // from 1; 0 if the problem concerns the file as a whole
	Domain       string // that the source is about; empty if that is not known, or it is about several
	Path         string // in the tree, such as shop.user_u1; may be empty
	Text         string // what is wrong, and what would be accepted
	Warning      bool
}

// String returns the problem on one line, file:line:column: path: text, of characters that a terminal shows.
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

// Problems is a list of problems; it is the error that Load returns.
type Problems []Problem //nolint:errname // primarily a list; an error only if one of its elements is

// shownErrors bounds the text of [Problems.Error], which goes to a log; the list itself is complete.
const shownErrors = 100

// Error returns one line per error, without the warnings. It shows at most the first hundred.
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

// Failed reports whether one of the problems is an error.
func (p Problems) Failed() bool {
	return slices.ContainsFunc(p, func(q Problem) bool { return !q.Warning })
}

// mark is a position in a source. The zero mark means that the thing is absent, and a negative line that it is present
// in a source without lines. The column of what an overlay says holds the number of its file too; see overlayShift.
type mark struct{ line, column int32 }

func (m mark) present() bool { return m.line != 0 }

// number returns the line, from 1, or 0 if there are no lines.
func (m mark) number() int { return int(max(m.line, 0)) }

// in returns the position for messages: file:line:column, or the name of the source alone if it has no lines.
func (m mark) in(file string) string {
	if m.line <= 0 {
		return file
	}
	return fmt.Sprintf("%s:%d:%d", file, m.line, m.col())
}

// col returns the column, from 1, or 0 if there are none.
func (m mark) col() int { return int(m.column & (1<<overlayShift - 1)) }

// overlaid reports whether m is in an overlay.
func (m mark) overlaid() bool { return m.column>>overlayShift > 0 }

// report collects the problems of one source.
type report struct {
	file     string
	domain   string // that it is about; empty until it is read
	strict   bool
	overlays []string // the files of the overlay
	indent   int      // of the source's text in its file
	problems Problems
	failures int // how many of them are errors whatever strict is
}

func (r *report) fail(at mark, path, format string, args ...any) {
	r.failures++
	r.add(at, path, fmt.Sprintf(format, args...), false)
}

func (r *report) warn(at mark, path, format string, args ...any) {
	r.add(at, path, fmt.Sprintf(format, args...), !r.strict)
}

func (r *report) add(at mark, path, text string, warning bool) {
	column := at.col()
	if column > 0 && !at.overlaid() {
		column += r.indent
	}
	r.problems = append(r.problems, Problem{
		File: r.fileOf(at), Line: at.number(), Column: column,
		Path: path, Text: text, Warning: warning,
	})
}

// fileOf returns the name of the source that says what is at a mark.
func (r *report) fileOf(at mark) string {
	if i := int(at.column >> overlayShift); i > 0 && i <= len(r.overlays) {
		return r.overlays[i-1]
	}
	return r.file
}

// sort orders the problems of a source by line and column, those of an overlay last; those at one position stay in the order in which they were
// found.
func (r *report) sort() {
	foreign := func(p Problem) int {
		if p.File == r.file {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(r.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(foreign(a), foreign(b)), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
