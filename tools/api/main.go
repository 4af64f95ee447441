// Command api maintains the text files in the directory api, which list what users rely on: the exported names of pkg/, the
// variables, the metrics, the keys of rules, and the HTTP paths of the admin API. A line grants something to users or, if
// it begins with "only", restricts it. So a removed line or a new restriction may break users, and other changes are
// compatible. The Protocol Buffers are next to them, for buf.
//
// It adds compatible changes, and rejects breaking ones unless -break is set. Its test, which make test runs, fails if a
// file differs from the code. docs/upgrade.md describes the guarantees, api/README.md how to change the files.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// list is one of the files.
type list struct {
	name  string // of the file
	about string // description of the lines, as the header of the file
	lines func(repository string) ([]string, error)
}

func lists() []list {
	return []list{
		{"pkg.txt", "the exported names of the packages below pkg that are not experimental, and their types", packageLines},
		{"settings.txt", "the variables of the server: default, and what each takes", settingLines},
		{"metrics.txt", "the metrics: name in Prometheus, type, labels, and name in statsd", metricLines},
		{"rules.txt", "the keys of files of rules, by what they are in, and what each takes", ruleLines},
		{"admin-http.txt", "the methods of the admin API over HTTP", pathLines},
	}
}

func main() {
	repository := flag.String("C", "../..", "the directory of the repository")
	breaking := flag.Bool("break", false, "write what breaks, too")
	flag.Parse()
	if err := run(os.Stdout, lists(), *repository, filepath.Join(*repository, "api"), *breaking); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run updates the files in dir that differ from the code. If a change would break users, it writes none, unless breaking is
// set.
func run(out io.Writer, all []list, repository, dir string, breaking bool) error {
	changes := make([]change, len(all))
	var broken []string
	for i, l := range all {
		var err error
		if changes[i], err = l.changed(repository, dir); err != nil {
			return fmt.Errorf("api/%s: %w", l.name, err)
		}
		if len(changes[i].breaks) > 0 {
			broken = append(broken, "api/"+l.name+"\n"+strings.Join(changes[i].breaks, "\n"))
		}
	}
	if broken != nil && !breaking {
		return fmt.Errorf("%s\n%s", strings.Join(broken, "\n"), advice)
	}
	for i, l := range all {
		if changes[i].none() {
			continue
		}
		if _, err := fmt.Fprintf(out, "api/%s\n%s\n", l.name, changes[i]); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, l.name), l.text(changes[i].now), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// advice explains how to handle breaking changes.
const advice = `This may break those who rely on it. api/README.md says what to do instead, and how to accept it: make api BREAK=1.`

func (l list) text(lines []string) []byte {
	return []byte("# Written by make api: " + l.about + ".\n" + strings.Join(lines, "\n") + "\n")
}

// changed compares a file with the code.
func (l list) changed(repository, dir string) (change, error) {
	now, err := l.lines(repository)
	if err != nil {
		return change{}, err
	}
	slices.Sort(now)
	now = slices.Compact(now)
	raw, err := os.ReadFile(filepath.Join(dir, l.name))
	if errors.Is(err, fs.ErrNotExist) {
		return change{now: now, others: []string{"it is new"}}, nil
	}
	if err != nil {
		return change{}, err
	}
	var before []string
	for line := range strings.Lines(string(raw)) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "# ") {
			before = append(before, line)
		}
	}
	return compare(before, now), nil
}

// change is the difference between a file and the code.
type change struct {
	now    []string // the new lines
	breaks []string // in the form of a diff
	others []string // compatible changes in the same form
}

// compare separates breaking from compatible changes. A restriction of something new, such as the minimum of a new key,
// breaks no user.
func compare(before, now []string) change {
	c := change{now: now}
	words := fresh(before, now)
	for _, line := range before {
		switch {
		case slices.Contains(now, line):
		case strings.HasPrefix(line, "only "):
			c.others = append(c.others, "- "+line)
		default:
			c.breaks = append(c.breaks, "- "+line)
		}
	}
	for _, line := range now {
		switch {
		case slices.Contains(before, line):
		case strings.HasPrefix(line, "only ") && !about(line, words):
			c.breaks = append(c.breaks, "+ "+line)
		default:
			c.others = append(c.others, "+ "+line)
		}
	}
	return c
}

// about reports whether a restriction affects something with one of the words. A restriction that requires a key affects the
// place, not the key: a file without the key breaks even if the key is new.
func about(line string, words []string) bool {
	of, _, _ := strings.Cut(line, demands)
	return slices.ContainsFunc(wordsOf(of), func(w string) bool { return slices.Contains(words, w) })
}

// fresh returns the words of granted lines that were in no line before.
func fresh(before, now []string) []string {
	var known, words []string
	for _, line := range before {
		known = append(known, wordsOf(line)...)
	}
	for _, line := range now {
		if !strings.HasPrefix(line, "only ") {
			words = append(words, wordsOf(line)...)
		}
	}
	return slices.DeleteFunc(words, func(w string) bool { return slices.Contains(known, w) })
}

// wordsOf returns the names in a line.
func wordsOf(line string) []string {
	return strings.FieldsFunc(line, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })
}

func (c change) none() bool { return len(c.breaks)+len(c.others) == 0 }

func (c change) String() string {
	return strings.Join(append(slices.Clone(c.breaks), c.others...), "\n")
}
