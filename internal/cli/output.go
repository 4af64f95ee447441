package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/operate/tenants"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// exitHelp explains the exit codes of commands that query a server.
const exitHelp = `Exit codes: 0, success; 1, error or no answer; 2, negative result.`

// json reports whether to print JSON.
func (p *program) json() bool { return p.form == "json" }

// message is a message of the admin API, encoded by protojson.
type message struct{ proto.Message }

// MarshalJSON implements [json.Marshaler].
func (m message) MarshalJSON() ([]byte, error) {
	return protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(m.Message)
}

// show prints an answer, a message of the admin API or another value, as one line of JSON or by calling text. If err is not nil, it
// only returns err.
func (p *program) show(answer any, err error, text func()) error {
	if err != nil {
		return err
	}
	if !p.json() {
		text()
		return nil
	}
	if m, ok := answer.(proto.Message); ok {
		answer = message{m}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(answer); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	p.print(b.String())
	return nil
}

// jsonArray formats objects, which consist of strings and numbers, as a JSON array with one object a line.
func jsonArray[T any](objects []T) string {
	lines := make([]string, 0, len(objects))
	for _, o := range objects {
		line, _ := json.Marshal(o) // strings and numbers always marshal
		lines = append(lines, string(line))
	}
	return "[" + strings.Join(lines, ",\n ") + "]\n"
}

// problems prints problems to stderr.
func (p *program) problems(all []descriptors.Problem) {
	for _, problem := range all {
		fmt.Fprintln(p.stderr, problem)
	}
}

// tableWidth is the width of a fitted table in columns of a terminal.
const tableWidth = 120

// fit shortens cells, first of the last column and then of the widest ones, until the table is at most [tableWidth]
// wide.
func fit(rows [][]string) [][]string {
	widths, total := make([]int, len(rows[0])), 0
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(plain.Text(cell)))
		}
	}
	for _, w := range widths {
		total += w + 2
	}
	for last := len(widths) - 1; total-2 > tableWidth; total-- {
		if i := slices.Index(widths, slices.Max(widths)); widths[last] > 20 {
			widths[last]--
		} else {
			widths[i]--
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			if text := []rune(plain.Text(cell)); len(text) > widths[i] {
				row[i] = string(text[:widths[i]-1]) + "…"
			}
		}
	}
	return rows
}

// printTable prints a table with a row for each of all, cut to [tableWidth] if cut is set; nothing if all is empty.
func printTable[T any](p *program, cut bool, heading []string, all []T, row func(T) []string) {
	rows := [][]string{heading}
	for _, one := range all {
		rows = append(rows, row(one))
	}
	switch {
	case len(all) == 0:
	case cut:
		p.table(fit(rows))
	default:
		p.table(rows)
	}
}

// cells formats the cells of a row. A slice of numbers becomes one cell for each number.
func cells(all ...any) (row []string) {
	for _, one := range all {
		if numbers, ok := one.([]uint64); ok {
			for _, n := range numbers {
				row = append(row, fmt.Sprint(n))
			}
		} else {
			row = append(row, fmt.Sprint(one))
		}
	}
	return row
}

// table prints rows with aligned columns. The first row is the heading.
func (p *program) table(rows [][]string) {
	p.print(strings.Join(tableLines(rows), "\n") + "\n")
}

// tableLines returns the lines of a table, with cells as by [plain.Text]. Columns of numbers are aligned right. Rows may lack their
// last cells.
func tableLines(rows [][]string) []string {
	widths, numbers, digits := make([]int, len(rows[0])), make([]bool, len(rows[0])), make([]bool, len(rows[0]))
	for i := range numbers {
		numbers[i] = len(rows) > 1
	}
	for n, row := range rows {
		for i, cell := range row {
			cell = plain.Text(cell)
			row[i] = cell
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			numbers[i] = numbers[i] && (n == 0 || cell == "" || isNumber(cell))
			digits[i] = digits[i] || n > 0 && cell != "" && cell != "-"
		}
	}
	var lines []string
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if numbers[i] && digits[i] {
				b.WriteString(pad + cell + "  ")
			} else {
				b.WriteString(cell + pad + "  ")
			}
		}
		lines = append(lines, strings.TrimRight(b.String(), " "))
	}
	return lines
}

func isNumber(cell string) bool {
	digits := strings.TrimLeft(cell, "+-")
	return cell == "-" || len(cell)-len(digits) <= 1 && digits != "" && strings.Trim(digits, "0123456789.") == "" && digits != "."
}

// sprintf is [fmt.Sprintf] with arguments as by [plain.Text]: only format may contain line breaks.
func sprintf(format string, args ...any) string {
	shown := make([]any, len(args))
	for i, arg := range args {
		shown[i] = arg
		switch arg.(type) {
		case string, []byte, error, fmt.Stringer:
			shown[i] = plain.Text(fmt.Sprintf("%s", arg))
		}
	}
	return fmt.Sprintf(format, shown...)
}

// page collects lines of text.
type page struct{ strings.Builder }

// printf adds formatted lines; see [sprintf].
func (b *page) printf(format string, args ...any) { b.WriteString(sprintf(format, args...)) }

// errorText formats an error as by [plain.Text], and joined errors on one line each.
func errorText(err error) string {
	switch err := err.(type) { //nolint:errorlint // a wrapped error is part of its line
	case descriptors.Problems, *tenants.ProblemsError:
		return err.Error() // lines, already as by plain.Text
	case interface{ Unwrap() []error }:
		lines := make([]string, 0, len(err.Unwrap()))
		for _, one := range err.Unwrap() {
			lines = append(lines, errorText(one))
		}
		return strings.Join(lines, "\n")
	}
	return plain.Text(err.Error())
}

// timeText formats a time, as in all commands.
func timeText(t *timestamppb.Timestamp) string { return t.AsTime().Format(time.RFC3339) }

// clockText formats a future time in UTC, with the date unless it is today.
func clockText(t *timestamppb.Timestamp) string {
	at := t.AsTime()
	if at.Format(time.DateOnly) == time.Now().UTC().Format(time.DateOnly) {
		return at.Format("15:04 MST")
	}
	return at.Format("2006-01-02 15:04 MST")
}

// age returns the time since t, as briefly formats it.
func age(t *timestamppb.Timestamp) string { return briefly(time.Since(t.AsTime())) }

// briefly formats a duration in one unit: seconds, minutes, hours, or days. Negative durations are 0s.
func briefly(d time.Duration) string {
	if d > time.Minute {
		d = d.Round(time.Minute)
	}
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= 2*unit.length || unit.name == "m" && d >= unit.length {
			return fmt.Sprintf("%d%s", int(d.Round(unit.length)/unit.length), unit.name)
		}
	}
	return fmt.Sprintf("%ds", int(max(d, 0).Round(time.Second)/time.Second))
}
