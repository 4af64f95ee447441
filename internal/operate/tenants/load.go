package tenants

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// maxProblems is the maximum number of problems kept from a load; others are counted.
const maxProblems = 20

var (
	errNoName = errors.New("a tenant without a name: use the value that descriptors have")
	errNoPlan = errors.New("a tenant without a plan: use the name of a plan, such as default")
)

// Problem is an error in a file.
type Problem struct {
	File string
	Line int // 0 for the whole file
	Text string
}

// String returns the problem on one line, as file:line: text, safe for terminals.
func (p Problem) String() string {
	return descriptors.Problem{File: p.File, Line: p.Line, Text: p.Text}.String()
}

// ProblemsError describes invalid files: the first problems, and the number of others. It contains no tenants' names.
type ProblemsError struct {
	First []Problem
	More  int
}

// Error returns the problems, one a line.
func (p *ProblemsError) Error() string {
	lines := make([]string, len(p.First))
	for i, one := range p.First {
		lines[i] = one.String()
	}
	if p.More > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", p.More))
	}
	return strings.Join(lines, "\n")
}

// Bared returns the problems without content of the files.
func (p *ProblemsError) Bared() *ProblemsError {
	bared := &ProblemsError{slices.Clone(p.First), p.More}
	for i := range bared.First {
		if one := &bared.First[i]; one.Line > 0 {
			one.Text = "the line is invalid: see the log"
		}
	}
	return bared
}

// Add adds a problem.
func (p *ProblemsError) Add(file string, line int, text string) {
	if len(p.First) == maxProblems {
		p.More++
		return
	}
	p.First = append(p.First, Problem{file, line, text})
}

// Input is a file of tenants. Its lines are CSV, tenant,plan[,requests_per_unit[,until]], or JSON objects with the same names. The
// first character that is not blank selects the format.
type Input struct {
	Name string
	io.Reader
}

// Row is a row of a file.
type Row struct {
	Tenant   string  `json:"tenant,omitempty"`
	Raw      []byte  `json:"raw_tenant,omitempty"` // a name that is not UTF-8, in base64, instead of tenant
	Plan     string  `json:"plan"`
	Requests *uint64 `json:"requests_per_unit,omitempty"`
	Until    string  `json:"until,omitempty"` // RFC 3339
}

// Name returns the tenant's name.
func (r *Row) Name() string { return cmp.Or(string(r.Raw), r.Tenant) }

// Entry returns the entry of a row, without validating it.
func (r *Row) Entry() (e plans.Entry, err error) {
	e.Plan = r.Plan
	if r.Requests != nil {
		e.Requests, e.Numbered = *r.Requests, true
	}
	if r.Until != "" {
		if e.Until, err = time.Parse(time.RFC3339, r.Until); err != nil || e.Until.Unix() <= 0 {
			return e, fmt.Errorf("until '%s': want a time such as 2030-01-31T00:00:00Z", descriptors.Shorten(r.Until))
		}
	}
	return e, nil
}

// ReadRows calls each with each row of a file and its line number, until each returns false. It calls wrong for each unreadable
// line.
func ReadRows(in Input, each func(line int, r *Row) bool, wrong func(line int, text string)) {
	b := bufio.NewReaderSize(in, 64<<10)
	if bom, err := b.Peek(3); err == nil && string(bom) == "\ufeff" {
		_, _ = b.Discard(3) // the byte order mark
	}
	line := 1
	for {
		c, err := b.ReadByte()
		switch {
		case err == io.EOF:
			return
		case err != nil:
			wrong(0, err.Error())
			return
		case c == '\n':
			line++
			continue
		case c == ' ' || c == '\t' || c == '\r':
			continue
		}
		_ = b.UnreadByte() // it was just read
		if c == '{' {
			readJSON(b, line, each, wrong)
		} else {
			readCSV(b, line-1, each, wrong)
		}
		return
	}
}

// readCSV reads the rest of a file after before lines.
func readCSV(b io.Reader, before int, each func(int, *Row) bool, wrong func(int, string)) {
	in := &recordReader{from: b}
	r := csv.NewReader(in)
	r.FieldsPerRecord, r.ReuseRecord, r.Comment, r.TrimLeadingSpace = -1, true, '#', true
	last := before
	for first := true; ; first = false {
		in.begin = r.InputOffset()
		record, err := r.Read()
		var parse *csv.ParseError
		switch {
		case err == io.EOF:
			return
		case errors.Is(err, errLong):
			wrong(last+1, err.Error()+"; the rest was not read")
			return
		case errors.As(err, &parse):
			wrong(before+parse.Line, parse.Err.Error()+": want tenant,plan[,requests_per_unit[,until]]")
			return
		case err != nil:
			wrong(0, err.Error())
			return
		}
		line, _ := r.FieldPos(0)
		line += before
		last = line
		switch {
		case first && len(record) > 1 && record[0] == "tenant" && record[1] == "plan":
			continue // the heading
		case len(record) < 2 || len(record) > 4:
			wrong(line, fmt.Sprintf("%d columns: want tenant,plan[,requests_per_unit[,until]]", len(record)))
			continue
		}
		row := Row{Tenant: record[0], Plan: record[1]}
		if len(record) > 2 && record[2] != "" {
			n, err := strconv.ParseUint(record[2], 10, 64)
			if err != nil {
				wrong(line, fmt.Sprintf("requests_per_unit '%s': want a number from 0 to %d, or nothing", descriptors.Shorten(record[2]), descriptors.MaxRequestsPerUnit))
				continue
			}
			row.Requests = &n
		}
		if len(record) > 3 {
			row.Until = record[3]
		}
		if !each(line, &row) {
			return
		}
	}
}

// maxRow is the maximum size of a row in bytes, including comments above it.
const maxRow = 4 << 20

var errLong = errors.New("a row of more than 4 MiB: is a closing quote missing?")

// recordReader reads at most maxRow bytes of a row. A stray quote would otherwise make one row of the rest of the file.
type recordReader struct {
	from        io.Reader
	begin, read int64
}

// Read implements [io.Reader].
func (r *recordReader) Read(p []byte) (int, error) {
	if r.read-r.begin > maxRow {
		return 0, errLong
	}
	n, err := r.from.Read(p)
	r.read += int64(n)
	return n, err
}

// readJSON reads lines of JSON of at most 64 KiB, starting at the given line number.
func readJSON(b *bufio.Reader, line int, each func(int, *Row) bool, wrong func(int, string)) {
	const want = `: write one object on each line, such as {"tenant": "acme", "plan": "gold", "requests_per_unit": 500, "until": "2030-01-31T00:00:00Z"}`
	for ; ; line++ {
		text, end := b.ReadSlice('\n')
		switch {
		case errors.Is(end, bufio.ErrBufferFull):
			wrong(line, "the line has more than 64 KiB"+want)
			return
		case end != nil && end != io.EOF:
			wrong(0, end.Error())
			return
		}
		var row Row
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		switch err := d.Decode(&row); {
		case err == io.EOF: // an empty line
		case err != nil:
			wrong(line, strings.TrimPrefix(err.Error(), "json: ")+want)
		case d.More():
			wrong(line, "more than one object on the line"+want)
		case !each(line, &row):
			return
		}
		if end != nil {
			return
		}
	}
}

// Load replaces the table of files. If a file is invalid, the last good table stays, and the error is a *[ProblemsError].
func (t *Tenants) Load(files []Input, unread ...Problem) error {
	t.loading.Lock()
	defer t.loading.Unlock()
	began := time.Now()
	l := loader{table: plans.NewTable(t.seed), planNames: t.planNames.Load(), unknown: map[string]*unknownAt{}, largest: map[string]numberAt{}}
	for _, p := range unread {
		l.problems.Add(p.File, p.Line, p.Text)
	}
	for _, f := range files {
		l.read(f)
	}
	l.unknownPlans()
	status := Status{At: began, Files: len(files), Tenants: l.table.Len()}
	if len(l.problems.First) > 0 {
		status.Err = &l.problems
		t.status.Store(&status)
		t.config.Event(Invalid)
		t.log.Error("the table of tenants is invalid", "problems", len(l.problems.First)+l.problems.More, "serving", t.serving())
		for _, p := range l.problems.First {
			t.log.Error("error in the table of tenants", "problem", p.String())
		}
		return &l.problems
	}
	before := t.tableOf(plans.File)
	t.plans.Store(&plans.Plans{File: l.table, Store: t.tableOf(plans.Store)})
	for _, plan := range slices.Sorted(maps.Keys(l.largest)) {
		at := l.largest[plan]
		if err := t.config.Check(plan, at.requests); err != nil {
			at.Text = err.Error()
			status.Warnings = append(status.Warnings, at.Problem)
			t.log.Warn("warning about the table of tenants", "problem", at.String())
		}
	}
	t.status.Store(&status)
	t.config.Event(Loaded)
	t.log.Info("tenants loaded", "tenants", status.Tenants, "before", before.Len(), "files", len(files), "took", time.Since(began).Round(time.Millisecond))
	return nil
}

func (t *Tenants) serving() string {
	if t.tableOf(plans.File) == nil {
		return "none"
	}
	return "the last good one"
}

// Status is the result of the last load.
type Status struct {
	At      time.Time
	Files   int
	Tenants int
	Err     error // the files' errors, or nil

	Warnings []Problem
}

// Status returns the result of the last load, or nil before the first.
func (t *Tenants) Status() *Status {
	if t == nil {
		return nil
	}
	return t.status.Load()
}

// loader builds a table.
type loader struct {
	table     *plans.Table
	planNames *[]string // plans of the rules; nil before rules are loaded
	unknown   map[string]*unknownAt
	largest   map[string]numberAt // by plan
	problems  ProblemsError
	loaded    int
}

// numberAt is a tenant's own number with its place.
type numberAt struct {
	Problem

	requests uint64
}

// unknownAt is the first place of a plan that no rule has, and its number of occurrences.
type unknownAt struct {
	file  string
	line  int
	times int
}

func (l *loader) read(f Input) {
	wrong := func(line int, text string) { l.problems.Add(f.Name, line, text) }
	ReadRows(f, func(line int, r *Row) bool {
		e, err := r.Entry()
		if err == nil {
			err = errors.Join(ValidateName(r.Name()), Validate(&e))
		}
		switch {
		case err != nil:
			wrong(line, strings.ReplaceAll(err.Error(), "\n", "; "))
			return true
		case l.loaded == MaxTenants:
			wrong(line, fmt.Sprintf("more than %d tenants", MaxTenants))
			return false
		case l.planNames != nil && !slices.Contains(*l.planNames, r.Plan):
			l.unknownPlan(f.Name, line, r.Plan)
			return true
		}
		l.loaded++
		if e.Requests > l.largest[e.Plan].requests {
			l.largest[strings.Clone(e.Plan)] = numberAt{Problem{File: f.Name, Line: line}, e.Requests}
		}
		if l.table.Set(strings.Clone(r.Name()), &e, 0) { // the clone does not retain the whole line
			wrong(line, "this tenant is already listed above or in an earlier file: list each tenant once")
		}
		return true
	}, wrong)
}

func (l *loader) unknownPlan(file string, line int, plan string) {
	u := l.unknown[plan]
	if u == nil {
		if len(l.unknown) == plans.MaxNames {
			return
		}
		u = &unknownAt{file: file, line: line}
		l.unknown[plan] = u
	}
	u.times++
}

func (l *loader) unknownPlans() {
	for plan, u := range l.unknown {
		text := fmt.Sprintf("unknown plan '%s': use one that a rule defines: %s", descriptors.Shorten(plan), cmp.Or(strings.Join(*l.planNames, ", "), "none"))
		if u.times > 1 {
			text += fmt.Sprintf(" (first of %d lines)", u.times)
		}
		l.problems.Add(u.file, u.line, text)
	}
	slices.SortStableFunc(l.problems.First, func(a, b Problem) int {
		if a.File != b.File {
			return strings.Compare(a.File, b.File)
		}
		return a.Line - b.Line
	})
}
