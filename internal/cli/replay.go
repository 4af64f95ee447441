package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/internal/replay/recorded"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	rules ruleFlags

	compare         string
	mapping, format string
	plot            string
	held, top       int
	exitCode        bool

	server settings.Settings
}

func (p *program) replayCommand() *cobra.Command {
	var f replayFlags
	cmd := p.outputs(&cobra.Command{
		Use:   "replay --config DIR [--compare DIR] [flags] FILE...",
		Short: "Test rules against recorded traffic",
		Long: `Replay runs recorded requests through the rules in DIR, at their original times, and reports how many
the rules would reject, by rule, descriptor and time. --compare runs them through a second set of
rules and shows the differences. It needs no server and does not wait in real time.

FILE is one of the following. It may be compressed with gzip; - is standard input:

  the output of watch --output json, which needs no other flags
  CSV with a heading: time, domain, one or more columns named descriptor, and optionally hits and
      duration
  a log with fields: JSON, CSV with other columns, or text. --map turns a line into a request: a YAML
      file, or a template with a domain and descriptors, whose values contain %field%

--format is the format of a text log, if it is not the default of Envoy or Istio: nginx, apache,
combined or common, or text with %field% for each field. docs/replay.md lists the fields with several
names, the keys of a mapping file, and the limitations of logs.

` + descriptorHelp + `
` + optionHelp + `

Exit codes: 0, success; 1, error, or no readable line; 2, with --exit-code, requests would be rejected
or, with --compare, the two sets of rules decide differently.`,
		Example: `  ratelimitd replay --config rules --map mapping.yaml access.log
  ratelimitd replay --config main/rules --compare rules --map mapping.yaml --plot replay.html access.log.gz
  ratelimitd replay --config rules --map 'edge user=%jwt.sub% remote_address=%remote_address%' access.json
  ratelimitd replay --config rules --map 'edge user=%user%' --format '%time% %user%' access.log
  ratelimitd replay --config rules --map 'edge remote_address=%remote_address%' --format nginx access.log
  ratelimitd watch --output json | tee seen.json; ratelimitd replay --config rules seen.json`,
		Args: needs("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return p.replay(cmd.Context(), &f, args) },
	}, "text", "json")
	f.add(p, cmd)
	return cmd
}

// add adds the flags to a command.
func (f *replayFlags) add(p *program, cmd *cobra.Command) {
	s, err := settings.Only(p.Environ, "MEMORY_MAX_KEYS", "QUOTA_MODE", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "LOCAL_CACHE_SIZE_IN_BYTES")
	f.rules.add(p, cmd)
	f.server, f.rules.wrong = s, cmp.Or(err, f.rules.wrong)
	flags := cmd.Flags()
	flags.StringVar(&f.rules.config, "config", "", "directory or file of rules (required)")
	flags.StringVar(&f.compare, "compare", "", "directory or file of rules to compare with")
	flags.StringVar(&f.mapping, "map", "", "mapping file or template that turns a log line into a request")
	flags.StringVar(&f.format, "format", "", "format of a text log: nginx, apache, combined or common, or text with %field%")
	flags.StringVar(&f.plot, "plot", "", "file for a plot, .svg or .html")
	f.rules.addTenants(cmd)
	flags.IntVar(&f.held, "held", replay.DefaultHeld, "number of lines to buffer for sorting by time")
	flags.IntVar(&f.top, "top", 10, "number of rules and descriptors to print")
	flags.BoolVar(&f.exitCode, "exit-code", false, "exit with 2 if requests would be rejected, or the sets differ")
}

func (p *program) replay(ctx context.Context, f *replayFlags, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	players, err := p.players(f)
	if err != nil {
		return err
	}
	c := recorded.Config{Format: f.format, Parse: limiterDescriptor}
	if f.mapping != "" {
		if c.Mapping, err = f.parseMapping(); err != nil {
			return err
		}
	}
	stdin := io.Reader(os.Stdin)
	if slices.Contains(args, "-") {
		stdin = untilInterrupt(ctx, stdin)
	}
	files, err := recorded.OpenFiles(args, stdin)
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }() // opened for reading only
	progress, end := progressBar(p.stderr.Raw, files.Progress)
	source := recorded.New(files, c)
	report, err := replay.Run(ctx, source, players, replay.Config{Held: f.held, Progress: progress})
	end()
	read := source.Summary()
	p.readProblems(&read)
	switch {
	case err != nil:
		return err
	case read.Lines == 0:
		return errors.New("the input is empty")
	case report.Requests+report.Calls == 0:
		return fmt.Errorf("none of %d lines could be read: check the format of the log (--format)", read.Lines)
	}
	if err := f.writePlot(report); err != nil {
		return err
	}
	result := replayed{Report: report, Lines: read.Lines, Unread: read.Unread, CutOff: read.Short}
	err = p.show(result, nil, func() { p.replayText(report, f.top) })
	return negativeIf(f.exitCode && differs(report), err)
}

// untilInterrupt returns a reader of in that ends at the first SIGINT, so that the requests read so far are reported. The second SIGINT
// ends the process.
func untilInterrupt(ctx context.Context, in io.Reader) io.Reader {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() {
		stop()
		_ = w.Close() // never fails
	})
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // never fails; nil means EOF
	}()
	return r
}

// replayed is the JSON report.
type replayed struct {
	*replay.Report

	Lines  uint64   `json:"lines"`
	Unread uint64   `json:"unparsedLines"`
	CutOff []string `json:"filesCutOff,omitempty"`
}

// check validates the flags.
func (f *replayFlags) check() error {
	switch {
	case f.rules.config == "":
		return errors.New("--config is missing: set it to the rules to test")
	case f.held < 1:
		return fmt.Errorf("--held %d: must be 1 or more", f.held)
	case f.top < 0:
		return fmt.Errorf("--top %d: must be 0 or more", f.top)
	case f.plot != "" && !slices.Contains([]string{".svg", ".html"}, filepath.Ext(f.plot)):
		return fmt.Errorf("--plot %s: the name must end in .svg or .html", f.plot)
	}
	return nil
}

// differs reports whether --exit-code results in exit code 2.
func differs(r *replay.Report) bool {
	if r.Changed != nil {
		return r.Changed.First+r.Changed.Second > 0
	}
	return r.Sets[0].Rejected > 0
}

// players returns a player for each set of rules.
func (p *program) players(f *replayFlags) (all []*replay.Player, _ error) {
	for _, path := range []string{f.rules.config, f.compare} {
		if path == "" {
			continue
		}
		set, warnings, err := f.rules.loadValid(path)
		if err != nil {
			return nil, err
		}
		p.problems(warnings)
		s := replay.Settings{
			MaxKeys:      f.server.Backend.MemoryMaxKeys,
			Quota:        f.server.Decide.Quota,
			StopWhenOver: f.server.Decide.StopWhenOver,
			LocalCache:   f.server.Backend.LocalCache > 0,
		}
		if f.rules.tenants != "" {
			table, wrong := f.rules.tenantTable(set)
			if wrong != nil {
				return nil, wrong
			}
			s.Plans = table.Plans()
		}
		all = append(all, replay.NewPlayer(path, set, s))
	}
	return all, nil
}

// parseMapping parses --map: a file name or a template.
func (f *replayFlags) parseMapping() (m *recorded.Mapping, err error) {
	at := ""
	if _, missing := os.Stat(f.mapping); missing != nil && strings.Contains(f.mapping, "=") {
		m, err = recorded.ParseTemplate(f.mapping, limiterDescriptor)
	} else if text, unread := smallfile.Read(f.mapping, descriptors.MaxFileSize); unread != nil {
		err = unread
	} else {
		at = " " + f.mapping
		m, err = recorded.ParseMapping(text, limiterDescriptor)
	}
	if err != nil {
		return nil, fmt.Errorf("--map%s: %w", at, err)
	}
	return m, nil
}

// writePlot writes the plot to the file that --plot names, if any.
func (f *replayFlags) writePlot(r *replay.Report) error {
	if f.plot == "" {
		return nil
	}
	var b bytes.Buffer
	write := replay.WriteSVG
	if filepath.Ext(f.plot) == ".html" {
		write = replay.WriteHTML
	}
	err := write(&b, r)
	if err == nil {
		err = os.WriteFile(f.plot, b.Bytes(), 0o666) //nolint:gosec // a report, with the rights that the user's umask leaves
	}
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	return nil
}

// readProblems prints how many lines could not be read, by reason.
func (p *program) readProblems(s *recorded.Summary) {
	say := func(n uint64, format string, args ...any) {
		if n > 0 {
			fmt.Fprint(p.stderr, sprintf(format, args...))
		}
	}
	say(s.Unread, "warning: %d of %s could not be read:\n", s.Unread, descriptors.CountText(int(s.Lines), "line"))
	for _, line := range s.First {
		say(s.Unread, "  %s\n", line)
	}
	more := s.Unread - uint64(len(s.First))
	say(more, "  and %d more\n", more)
	for _, name := range s.Short {
		say(1, "warning: %s ends in the middle of its gzip data: it is truncated, or still being written\n", name)
	}
	say(s.Lost, "warning: %d decisions are missing, because watch lost or skipped them\n", s.Lost)
	say(s.Cut, "warning: %d descriptors were truncated by watch, so different ones may be counted as one\n", s.Cut)
}

// replayText prints a report as text: totals, rules, and the top descriptors of each.
func (p *program) replayText(r *replay.Report, top int) {
	took := r.To.Sub(r.From)
	p.printf("%s from %s to %s (%s)\n", descriptors.CountText(int(r.Requests), "request"), dayText(r.From), dayText(r.To), descriptors.SpanText(took.Truncate(time.Second)))
	for _, note := range notes(r) {
		p.printf("note: %s\n", note)
	}
	p.printf("\n")
	rows := [][]string{{"RULES", "REQUESTS", "REJECTED", "%", "DESCRIPTORS", "SHADOWED", "NO LIMIT", "FAILED", "MOST REJECTED"}}
	for i := range r.Sets {
		s := &r.Sets[i]
		rows = append(rows, cells(
			s.Rules, r.Requests, s.Rejected, percent(s.Rejected, r.Requests), affected(r, i), s.Shadowed, s.NoLimit, s.Failed, peak(r, i),
		))
	}
	p.table(rows)
	p.replayChanges(r)
	p.replayRules(r, top)
	p.replayValues(r, top)
}

// replayChanges compares the rejections of the two sets, and of each set with the recorded ones.
func (p *program) replayChanges(r *replay.Report) {
	if c := r.Changed; c != nil {
		p.printf("\nrejected by both: %d; only by %s: %d; only by %s: %d\n", c.Both, r.Sets[0].Rules, c.First, r.Sets[1].Rules, c.Second)
	}
	if r.Recorded == nil {
		return
	}
	p.printf("\nwhen recorded, %d of %d were rejected by a limit\n", r.Recorded.Rejected, r.Recorded.Requests)
	for i := range r.Sets {
		s := &r.Sets[i]
		p.printf("%s rejects %d that passed, and admits %d that were rejected\n", s.Rules, s.NewlyRejected, s.NewlyPassed)
	}
}

func (p *program) replayRules(r *replay.Report, top int) {
	heading := append([]string{"RULE", "ASKED"}, rejectedHeading(r)...)
	if len(r.Sets) > 1 {
		heading = append(heading, "DIFFERENCE")
	} else {
		heading = append(heading, "%", "SHADOWED")
	}
	rows := [][]string{append(heading, "FIRST", "LAST", "PLACE")}
	for _, rule := range r.Rules[:min(top, len(r.Rules))] {
		rows = append(rows, ruleRow(&rule))
		for _, l := range rule.Limits {
			rows = append(rows, cells("  "+l.Limit, "", l.Rejected))
		}
	}
	p.replayTable(rows, len(r.Rules)-top, "more rule")
}

// replayTable prints a table that has rows, and the number of omitted rows.
func (p *program) replayTable(rows [][]string, more int, thing string) {
	if len(rows) > 1 {
		p.printf("\n")
		p.table(rows)
	}
	if more > 0 {
		p.printf("and %s; see --top\n", descriptors.CountText(more, thing))
	}
}

// rejectedHeading returns the headings of the columns of rejections, one for each set.
func rejectedHeading(r *replay.Report) []string {
	if len(r.Sets) == 1 {
		return []string{"REJECTED"}
	}
	var all []string
	for i := range r.Sets {
		all = append(all, "BY "+r.Sets[i].Rules)
	}
	return all
}

func ruleRow(rule *replay.Rule) []string {
	asked := slices.Max(rule.Requested)
	row := cells(rule.Path, asked, rule.Rejected)
	if len(rule.Rejected) > 1 {
		row = append(row, fmt.Sprintf("%+d", int64(rule.Rejected[1])-int64(rule.Rejected[0])))
	} else {
		row = append(row, percent(rule.Rejected[0], asked), fmt.Sprint(rule.Shadowed[0]))
	}
	first, last, place := "", "", ""
	var from, to time.Time
	for i := range rule.Rejected {
		if t := rule.First[i]; t != nil && (from.IsZero() || t.Before(from)) {
			from, first = *t, dayText(*t)
		}
		if t := rule.Last[i]; t != nil && t.After(to) {
			to, last = *t, dayText(*t)
		}
		if rule.Places[i] != "" {
			place = rule.Places[i]
		}
	}
	return append(row, first, last, place)
}

func (p *program) replayValues(r *replay.Report, top int) {
	if len(r.Values) == 0 || top == 0 {
		return
	}
	heading := append([]string{"DESCRIPTOR", "ASKED"}, rejectedHeading(r)...)
	rows := [][]string{append(heading, "RULE")}
	for _, v := range r.Values[:min(top, len(r.Values))] {
		rows = append(rows, cells(v.Text, v.Requested, v.Rejected, v.Rule))
	}
	more := len(r.Values) - top
	if more > 0 {
		more += int(r.LeftOff)
	}
	p.replayTable(rows, more, "more descriptor")
}

// affected returns the number of descriptors with rejections under set i.
func affected(r *replay.Report, i int) string {
	text := fmt.Sprint(r.Sets[i].Affected)
	if r.Forgotten && r.Sets[i].Rejected > 0 {
		text = "≥" + text
	}
	return text
}

// notes returns the limitations of a report.
func notes(r *replay.Report) (all []string) {
	add := func(n uint64, format string, args ...any) {
		if n > 0 {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	add(r.Unasked, "without a descriptor, so no request would be sent for them: %s", descriptors.CountText(int(r.Unasked), "request"))
	add(r.Late, "too late to be sorted, and counted at the time of the lines before them: %s; see --held", descriptors.CountText(int(r.Late), "line"))
	for i := range r.Sets {
		s := &r.Sets[i]
		name := s.Rules
		add(s.Unruled, "%s: %s for a domain without rules: %s", name, descriptors.CountText(int(s.Unruled), "request"), s.UnknownDomain)
		add(s.Close, "%s: %s within a second of a boundary, such as the end of a window, where the exact time decides", name, descriptors.CountText(int(s.Close), "request"))
		add(s.Failed, "%s: a server would answer %d requests with an error: %s", name, s.Failed, s.Error)
		add(s.Endless, "%s: no release is recorded for %d concurrency slots, so they are held for as long as their rules allow", name, s.Endless)
		add(s.Hasty, "%s: %d end-of-request calls were made too early, because more than a million were waiting", name, s.Hasty)
		add(s.ForcedOut, "%s: %d counters were evicted and started from zero: raise $MEMORY_MAX_KEYS", name, s.ForcedOut)
	}
	if r.Forgotten {
		all = append(all, "too many descriptors to remember, so some rare ones may be missing")
	}
	return all
}

// peak returns the interval with the most rejections under set i.
func peak(r *replay.Report, i int) string {
	t := &r.Timeline
	if len(t.Rejected[i]) == 0 || slices.Max(t.Rejected[i]) == 0 {
		return ""
	}
	most := slices.Max(t.Rejected[i])
	length, before := time.Duration(t.Seconds)*time.Second, time.Duration(slices.Index(t.Rejected[i], most))
	return fmt.Sprintf("%d in %s from %s", most, descriptors.SpanText(length), dayText(t.Start.Add(before*length)))
}

// percent formats n as a percentage of all.
func percent(n, all uint64) string {
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", 100*float64(n)/float64(all))
}

// dayText formats a time in UTC, to the second.
func dayText(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// progressWidth is the width of the progress bar in characters.
const progressWidth = 30

// progressBar returns functions that show a bar, at most every 200 ms, and remove it. Unless w is a terminal, they write nothing.
func progressBar(w io.Writer, size func() (read, total int64)) (show func(lines uint64), end func()) {
	if !isTerminal(w) {
		w = io.Discard
	}
	began, shown := time.Now(), time.Time{}
	show = func(lines uint64) {
		if now := time.Now(); now.Sub(shown) >= 200*time.Millisecond {
			shown = now
			read, total := size()
			fmt.Fprintf(w, "\r\x1b[K%s", progressText(read, total, lines, now.Sub(began)))
		}
	}
	end = func() {
		if !shown.IsZero() {
			fmt.Fprint(w, "\r\x1b[K")
		}
	}
	return show, end
}

// progressText formats the bar. A total of 0 is unknown, and omits the percentage.
func progressText(read, total int64, lines uint64, took time.Duration) string {
	text := fmt.Sprintf("%d lines, %.0f per second", lines, float64(lines)/max(took.Seconds(), 0.001))
	if total <= 0 || read <= 0 {
		return text
	}
	share := min(float64(read)/float64(total), 1)
	done := int(math.Ceil(share * progressWidth))
	bar := strings.Repeat("#", done) + strings.Repeat(".", progressWidth-done)
	left := time.Duration(float64(took) * (1 - share) / share).Round(time.Second)
	return fmt.Sprintf("[%s] %3.0f %%  %s, %s left", bar, share*100, text, left)
}
