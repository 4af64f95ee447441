package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/smallfile"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/replay"
	"github.com/ratelimitd/ratelimitd/internal/replay/recorded"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	rules ruleFlags

	config, compare string
	mapping, format string
	plot            string
	output          output
	held, top       int
	exitCode        bool

	server settings.Settings
}

func (p *program) replayCommand() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
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
	}
	flagsErr := f.add(p, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if flagsErr != nil {
			return flagsErr
		}
		return p.replay(cmd.Context(), &f, args)
	}
	return cmd
}

// add adds the flags to a command.
func (f *replayFlags) add(p *program, cmd *cobra.Command) error {
	s, err := settings.Only(p.Environ, "MEMORY_MAX_KEYS", "QUOTA_MODE", "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "LOCAL_CACHE_SIZE_IN_BYTES")
	f.server = s
	rulesErr := f.rules.add(p, cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "directory or file of rules (required)")
	flags.StringVar(&f.compare, "compare", "", "directory or file of rules to compare with")
	flags.StringVar(&f.mapping, "map", "", "mapping file or template that turns a log line into a request")
	flags.StringVar(&f.format, "format", "", "format of a text log: nginx, apache, combined or common, or text with %field%")
	flags.StringVar(&f.plot, "plot", "", "file for a plot, .svg or .html")
	f.rules.addTenants(cmd)
	flags.IntVar(&f.held, "held", replay.DefaultHeld, "number of lines to buffer for sorting by time")
	flags.IntVar(&f.top, "top", 10, "number of rules and descriptors to print")
	flags.BoolVar(&f.exitCode, "exit-code", false, "exit with 2 if requests would be rejected, or the sets differ")
	f.output.add(cmd)
	return cmp.Or(err, rulesErr)
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
	progress := newProgress(p.stderr.Raw, files.Progress)
	source := recorded.New(files, c)
	report, err := replay.Run(ctx, source, players, replay.Config{Held: f.held, Progress: progress.show})
	progress.end()
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
	if f.output.json() {
		err = p.printObject(replayed{Report: report, Lines: read.Lines, Unread: read.Unread, CutOff: read.Short})
	} else {
		p.replayText(report, f.top)
	}
	if err == nil && f.exitCode && differs(report) {
		return errNegative
	}
	return err
}

// untilInterrupt returns a reader of in that the first SIGINT ends, so that the requests before it are reported. The second SIGINT ends
// the process.
func untilInterrupt(ctx context.Context, in io.Reader) io.Reader {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() {
		stop()
		_ = w.Close() // never fails
	})
	go func() {
		_, err := io.Copy(w, in)
		_ = w.CloseWithError(err) // never fails; nil is the end
	}()
	return r
}

// replayed is the report in JSON.
type replayed struct {
	*replay.Report

	Lines  uint64   `json:"lines"`
	Unread uint64   `json:"unparsedLines"`
	CutOff []string `json:"filesCutOff,omitempty"`
}

// check validates the flags.
func (f *replayFlags) check() error {
	switch {
	case f.config == "":
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

// differs reports whether --exit-code makes the exit code 2.
func differs(r *replay.Report) bool {
	if r.Changed != nil {
		return r.Changed.First+r.Changed.Second > 0
	}
	return r.Sets[0].Rejected > 0
}

// players returns a player for each set of rules.
func (p *program) players(f *replayFlags) (all []*replay.Player, err error) {
	for _, path := range []string{f.config, f.compare} {
		if path == "" {
			continue
		}
		set, files, problems := f.rules.load(path)
		if set == nil {
			_, err := summarize(path, set, files, problems)
			return nil, errors.Join(problems, err)
		}
		for _, problem := range problems {
			fmt.Fprintln(p.stderr, problem)
		}
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

// parseMapping parses --map: the name of a file, or a template.
func (f *replayFlags) parseMapping() (*recorded.Mapping, error) {
	if _, err := os.Stat(f.mapping); err != nil && strings.Contains(f.mapping, "=") {
		m, err := recorded.ParseTemplate(f.mapping, limiterDescriptor)
		if err != nil {
			return nil, fmt.Errorf("--map: %w", err)
		}
		return m, nil
	}
	text, err := smallfile.Read(f.mapping, descriptors.MaxFileSize)
	if err != nil {
		return nil, fmt.Errorf("--map: %w", err)
	}
	m, err := recorded.ParseMapping(text, limiterDescriptor)
	if err != nil {
		return nil, fmt.Errorf("--map %s: %w", f.mapping, err)
	}
	return m, nil
}

// limiterDescriptor parses a descriptor in the syntax of arguments.
func limiterDescriptor(text string) (limiter.Descriptor, error) {
	d, err := parseDescriptor(text)
	if err != nil {
		return limiter.Descriptor{}, fmt.Errorf("descriptor %q: %w", text, err)
	}
	out := limiter.Descriptor{Entries: d.keys(), Negative: d.give}
	if d.hits != nil {
		out.Hits, out.HasHits = *d.hits, true
	}
	if d.limit != nil {
		out.Override, out.HasOverride = *d.limit, true
	}
	return out, nil
}

// writePlot writes the plot to the file that --plot names, if any.
func (f *replayFlags) writePlot(r *replay.Report) (err error) {
	if f.plot == "" {
		return nil
	}
	file, err := os.Create(f.plot)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	defer func() {
		if closed := file.Close(); closed != nil && err == nil {
			err = fmt.Errorf("--plot: %w", closed)
		}
	}()
	write := func(w io.Writer) error { return replay.WriteSVG(w, r) }
	if filepath.Ext(f.plot) == ".html" {
		write = func(w io.Writer) error { return replay.WriteHTML(w, r) }
	}
	if err := write(file); err != nil {
		return fmt.Errorf("--plot %s: %w", f.plot, err)
	}
	return nil
}
