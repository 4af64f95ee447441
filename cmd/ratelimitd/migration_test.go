package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/ratelimitd/ratelimitd/internal/testkit"
	"github.com/ratelimitd/ratelimitd/internal/testkit/certstest"
	"github.com/ratelimitd/ratelimitd/internal/testkit/redistest"
)

// migrationDoc is the document that these tests play.
const migrationDoc = repository + "/docs/migrate.md"

// TestMigration plays docs/migrate.md, block by block. The script in testdata/migration says what happens around the
// blocks; its command doc plays the next one, which must hold the given text, and doc end checks that all were played:
//
//	yaml     a file, whose name is in its first line
//	sh       variables of what is started from there on
//	console  commands, and what they print
//	text     lines that are somewhere in the page of the given URL
func TestMigration(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(migrationDoc)
	testkit.Check(t, err)
	p := scripts(t, "testdata/migration")
	doc := &document{blocks: regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$").FindAllStringSubmatch(string(raw), -1)}
	p.Cmds["doc"] = doc.play
	testscript.Run(t, p)
}

// document is a document in Markdown that is played.
type document struct{ blocks [][]string }

func (d *document) play(ts *testscript.TestScript, _ bool, args []string) {
	if args[0] == "end" {
		if len(d.blocks) > 0 {
			ts.Fatalf("%d blocks were not played, the next is\n%s", len(d.blocks), d.blocks[0][0])
		}
		return
	}
	if len(d.blocks) == 0 {
		ts.Fatalf("there is no further block")
	}
	kind, text := d.blocks[0][1], d.blocks[0][2]
	if !strings.Contains(text, args[0]) {
		ts.Fatalf("the next block does not hold %q:\n%s", args[0], text)
	}
	d.blocks = d.blocks[1:]
	switch kind {
	case "yaml":
		name, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		ts.Check(os.MkdirAll(filepath.Dir(ts.MkAbs(name)), 0o700))
		whole := ts.MkAbs("whole.yaml") // a server may be reading the file
		ts.Check(os.WriteFile(whole, []byte(text), 0o600))
		ts.Check(os.Rename(whole, ts.MkAbs(name)))
	case "sh":
		for line := range strings.Lines(text) {
			name, value, set := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
			if !set {
				name = strings.TrimPrefix(name, "unset ")
			}
			ts.Setenv(name, value)
		}
	case "console":
		for _, step := range regexp.MustCompile(`(?m)^\$ `).Split(text, -1)[1:] {
			command, output, _ := strings.Cut(step, "\n")
			console(ts, command, output)
		}
	case "text":
		_, page := askPage(ts, http.MethodGet, args[1], "")
		for line := range strings.Lines(text) {
			if !strings.Contains("\n"+page, "\n"+line) {
				ts.Fatalf("%s does not have %s:\n%s", args[1], line, page)
			}
		}
	default:
		ts.Fatalf("a block of kind %q is not played", kind)
	}
}

// console runs a command with the wrappers of the script, which know the addresses, and compares what it prints. A
// number of ten digits at the end of a word is the start of the present day.
func console(ts *testscript.TestScript, command, want string) {
	today := regexp.MustCompile(`_\d{10}\b`)
	start := fmt.Sprintf("_%d", time.Now().Unix()/86400*86400)
	ts.Logf("$ %s", command)
	err := ts.Exec("sh", "-c", `PATH="$WORK/wrappers:$PATH"; `+today.ReplaceAllString(command, start))
	got := ts.ReadFile("stdout")
	if err != nil {
		ts.Fatalf("%s: %v\n%s%s", command, err, got, ts.ReadFile("stderr"))
	}
	if diff := cmp.Diff(volatile(today.ReplaceAllString(want, start)), volatile(got)); diff != "" {
		ts.Fatalf("%s prints something else (-document +got):\n%s", command, diff)
	}
}

// changes are those of the table in docs/migrate.md: rules before and after a change of each kind.
var changes = map[string][]struct{ before, after string }{
	"`requests_per_unit` or `burst`": {
		{window("year", ""), "key: k, rate_limit: {unit: year, requests_per_unit: 50}"},
		{window("year", "algorithm: sliding_log"), "key: k, rate_limit: {unit: year, requests_per_unit: 50, algorithm: sliding_log}"},
		{bucket(""), "key: k, rate_limit: {unit: year, requests_per_unit: 50, burst: 50, algorithm: token_bucket}"},
	},
	"`unit` or `unit_multiplier` of a window": {
		{window("year", ""), window("month", "")},
		{window("year", ""), window("year", "unit_multiplier: 2")},
		{window("year", "algorithm: sliding_window"), window("month", "algorithm: sliding_window")},
	},
	"`unit` or `unit_multiplier` of a bucket, a log or slots": {
		{window("year", "algorithm: token_bucket"), window("month", "algorithm: token_bucket")},
		{window("year", "algorithm: leaky_bucket"), window("year", "algorithm: leaky_bucket, unit_multiplier: 2")},
		{window("year", "algorithm: sliding_log"), window("month", "algorithm: sliding_log")},
		{window("year", "algorithm: concurrency"), window("month", "algorithm: concurrency")},
	},
	"`algorithm`": {{window("year", ""), window("year", "algorithm: sliding_window")}, {window("year", ""), bucket("")}},
	"`precision`": {{window("year", "algorithm: sliding_window, precision: 2"), window("year", "algorithm: sliding_window, precision: 3")}},
	"`calendar` or `timezone`": {
		{window("year", ""), window("year", "calendar: true")},
		{window("year", "calendar: true"), window("year", "calendar: true, timezone: Asia/Tokyo")},
	},
	"`share_threshold`": {
		{"key: k, value: 'v*', rate_limit: {unit: year, requests_per_unit: 100}", "key: k, value: 'v*', share_threshold: true, rate_limit: {unit: year, requests_per_unit: 100}"},
	},
	"a window from `rate_limit` to an item of `rate_limits`": {
		{window("year", "count_refused: false"), "key: k, rate_limits: [{unit: year, requests_per_unit: 100}]"},
	},
	"a bucket, a log or slots from `rate_limit` to an item of `rate_limits`": {
		{bucket(""), "key: k, rate_limits: [{unit: year, requests_per_unit: 100, algorithm: token_bucket}]"},
		{window("year", "algorithm: sliding_log"), "key: k, rate_limits: [{unit: year, requests_per_unit: 100, algorithm: sliding_log}]"},
		{window("year", "algorithm: concurrency"), "key: k, rate_limits: [{unit: year, requests_per_unit: 100, algorithm: concurrency}]"},
	},
	"`name`, `shadow_mode`, `on_failure`, `penalty` or the place of a rule": {
		{window("year", ""), "key: k, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 100, name: n, on_failure: allow, penalty: {for: 1m, on: exceeded}}"},
	},
	"from `key: user` to `key: user` with a `value`": {{window("year", ""), "key: k, value: v, rate_limit: {unit: year, requests_per_unit: 100}"}},
	"the domain's name": {{window("year", ""), "domain"}},
}

// window is a descriptor with a limit of 100 in one unit, and more keys.
func window(unit, more string) string {
	return strings.ReplaceAll(fmt.Sprintf("key: k, rate_limit: {unit: %s, requests_per_unit: 100, %s}", unit, more), ", }", "}")
}

func bucket(more string) string {
	return strings.ReplaceAll(window("year", "algorithm: token_bucket, "+more), ", }", "}")
}

// TestMigrationTable: each row of docs/migrate.md on what starts from zero says what a server does with a real Redis: with
// the rules before the change it counts ten hits, and with those after the change it knows of them or does not.
func TestMigrationTable(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(migrationDoc)
	testkit.Check(t, err)
	_, table, _ := strings.Cut(string(raw), "\n| you change | its counters |\n| --- | --- |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := strings.Split(strings.TrimSpace(table), "\n")
	if len(rows) != len(changes) {
		t.Errorf("the document has %d rows, this test %d", len(rows), len(changes))
	}
	type played struct {
		change, outcome string
		domain, renamed string
	}
	var all []played
	var before, after strings.Builder
	for _, row := range rows {
		cells := strings.Split(row, " | ")
		change, outcome := strings.TrimPrefix(cells[0], "| "), cells[1]
		if len(changes[change]) == 0 {
			t.Errorf("this test does not play %s", change)
		}
		for _, c := range changes[change] {
			p := played{change, outcome, fmt.Sprint("d", len(all)), fmt.Sprint("d", len(all))}
			if c.after == "domain" {
				c.after, p.renamed = c.before, "other"
			}
			all = append(all, p)
			fmt.Fprintf(&before, "---\ndomain: %s\ndescriptors: [{%s}]\n", p.domain, c.before)
			fmt.Fprintf(&after, "---\ndomain: %s\ndescriptors: [{%s}]\n", p.renamed, c.after)
		}
	}
	db := redistest.Start(t)
	ask := func(d *daemon, domain string, hits uint32) *rlsv3.RateLimitResponse_DescriptorStatus {
		answer := decide(t, d.client(), &rlsv3.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: descriptorsOf("k=v")})
		return answer.GetStatuses()[0]
	}
	d := startDaemon(t, db, "", "REDIS_OP_TIMEOUT=10s", dirOf(t, before.String()))
	d.ready()
	for _, p := range all {
		if left := ask(d, p.domain, 10).GetLimitRemaining(); left != 90 {
			t.Errorf("%s: %d left after 10 of 100", p.change, left)
		}
	}
	d.stop()
	d = startDaemon(t, db, "", "REDIS_OP_TIMEOUT=10s", dirOf(t, after.String()))
	d.ready()
	for _, p := range all {
		s := ask(d, p.renamed, 1)
		fresh := s.GetLimitRemaining() == s.GetCurrentLimit().GetRequestsPerUnit()-1
		if want := strings.HasPrefix(p.outcome, "start from zero"); fresh != want || !want && !strings.HasPrefix(p.outcome, "carry on") {
			t.Errorf("%s in %s: the document says %q; %d are left of %d", p.change, p.domain, p.outcome, s.GetLimitRemaining(), s.GetCurrentLimit().GetRequestsPerUnit())
		}
	}
}

// dirOf writes rules, each a document, to files of a directory, and returns the variable that names it.
func dirOf(t *testing.T, rules string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range strings.Split(rules, "---\n")[1:] {
		certstest.Write(t, filepath.Join(dir, fmt.Sprintf("r%d.yaml", i)), []byte(text))
	}
	return "RUNTIME_ROOT=" + dir
}
