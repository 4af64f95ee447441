package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rules/configwatch/file"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulefmt"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) checkCommand() *cobra.Command {
	var (
		flags ruleFlags
		dir   string // the flag of ratelimit_config_check
	)
	cmd := p.outputs(&cobra.Command{
		Use:   "check DIR...",
		Short: "Validate rules",
		Long: `Check reads all files in each DIR and below, as the server does, and prints every error and warning
with its file, line and column. Each DIR, or single file, is a separate set of rules. It reports rules
that BACKEND_TYPE=memcache or REDIS_KEY_FORMAT=reference does not support.

--configmap reads rules from the ConfigMaps in Kubernetes manifests, including lists printed by
kubectl. The ConfigMaps of each namespace form one set; data other than rules is skipped. --overlay also
shows what an overlay changes. --tenants also checks a table of tenants against the plans in the rules.
--envoy also checks an Envoy configuration with the filter ratelimit or rate_limit_quota for settings
that crash Envoy, are invalid, have no effect, or leave requests unlimited; with a DIR, also for domains
and keys that the rules do not have. --clients warns if a limit with rlqs is too low for that many
clients to share. Without a DIR, check reads only these inputs.

The exit code is 1 for errors and 0 otherwise, warnings included.

--output selects a machine-readable format and sends the summaries to stderr: json is an array of objects
with file, line, column, path, severity and message; github annotates pull requests; sarif is a
SARIF 2.1.0 log for code scanning.

With a flag of envoyproxy/ratelimit's ratelimit_config_check (-config_dir, -merge_domain_configs),
or started under that name, it acts as that program.`,
		Example: `  ratelimitd check config/example
  ratelimitd check --merge --strict /srv/runtime_data/current/ratelimit/config
  ratelimitd check --overlay overlay.yaml config/example
  ratelimitd check --configmap examples/kubernetes/ratelimitd.yaml
  ratelimitd check --tenants tenants.csv config/example
  ratelimitd check --envoy envoy.yaml --clients 20 config/example
  ratelimitd check --output sarif config/example > ratelimitd.sarif`,
		Args: unless(append(checkFlags(), "overlay", "tenants", "envoy"), needs("DIR")),
		RunE: func(cmd *cobra.Command, dirs []string) error {
			if given(cmd, checkFlags()) {
				return p.configCheck(&flags, dir)
			}
			if flags.clients < 1 {
				return fmt.Errorf("--clients %d: must be 1 or more", flags.clients)
			}
			if len(dirs) == 0 && flags.overlay == "" && flags.tenants == "" && flags.envoy == "" {
				return needs("DIR")(cmd, dirs)
			}
			return p.check(&flags, dirs)
		},
	}, "text", "json", "github", "sarif")
	flags.add(p, cmd)
	flags.addTenants(cmd)
	cmd.Flags().BoolVar(&flags.configMaps, "configmap", false, "read rules from the ConfigMaps in Kubernetes manifests")
	cmd.Flags().StringVar(&flags.envoy, "envoy", "", "file with an Envoy configuration, or a part of one")
	cmd.Flags().IntVar(&flags.clients, "clients", 1, "number of clients that share a limit with rlqs")
	cmd.Flags().StringVar(&dir, "config_dir", "", "directory to check")
	cmd.Flags().BoolVar(&flags.merge, "merge_domain_configs", flags.merge, "the same as --merge")
	hide(cmd, checkFlags())
	return cmd
}

// check prints the problems of the rules in each of dirs, and a summary of each. Unless the output is text, the summaries go to
// stderr.
func (p *program) check(flags *ruleFlags, dirs []string) error {
	var (
		all  descriptors.Problems
		errs []error
	)
	report := func(problems descriptors.Problems, summary string, err error) {
		errs = append(errs, err)
		if p.form == "text" {
			p.print(problemsText(problems) + summary)
			return
		}
		all = append(all, problems...)
		fmt.Fprint(p.stderr, summary)
	}
	if len(dirs) == 0 {
		dirs = []string{""} // check only the overlay
	}
	for _, dir := range dirs {
		for _, from := range flags.sources(dir) {
			report(flags.checkRules(from))
		}
	}
	if flags.envoy != "" {
		report(checkEnvoy(flags.envoy, flags.strict, flags.sets))
	}
	switch p.form {
	case "json":
		p.print(problemsJSON(all))
	case "github": // GitHub parses each line as a command
		fmt.Fprint(&plain.Writer{Raw: p.stdout.Raw}, problemsGitHub(all))
	case "sarif":
		p.print(problemsSARIF(all))
	}
	return errors.Join(errs...)
}

// checkRules returns the problems of rules, or of only the overlay, and of the table of tenants, with a summary.
func (f *ruleFlags) checkRules(from ruleSource) (problems descriptors.Problems, summary string, err error) {
	set, problems := f.compile(from)
	if from.name == "" {
		set = nil // without rules, there are no plans to compare with
	}
	switch {
	case from.name != "":
		summary, err = summarize(from.name, set, from.files, problems)
		if set != nil {
			f.sets = append(f.sets, set)
			summary = overlaid(set) + summary
		}
	case f.overlay != "": // only an overlay was given
		if err = failures(f.overlay, problems); !problems.Failed() {
			err, summary = nil, sprintf("%s: ok, an overlay, %s\n", f.overlay, descriptors.CountText(countWarnings(problems), "warning"))
		}
	}
	tenants, wrong := f.checkTenants(set)
	if wrong.Failed() {
		err = errors.Join(err, failures(f.tenants, wrong))
	}
	return append(problems, wrong...), from.skipped + summary + tenants, err
}

// failures returns an error that counts the errors in a file.
func failures(path string, problems descriptors.Problems) error {
	return fmt.Errorf("%s: %s", path, descriptors.CountText(len(problems)-countWarnings(problems), "error"))
}

// summarize returns a line that describes the rules in dir, or an error that counts their errors.
func summarize(dir string, set *descriptors.Set, files []descriptors.Source, problems descriptors.Problems) (string, error) {
	in := descriptors.CountText(len(files), "file")
	if set == nil {
		return "", fmt.Errorf("%w in %s", failures(dir, problems), in)
	}
	rules := 0
	for range set.Rules() {
		rules++
	}
	return sprintf("%s: ok, %s in %s, %s\n", dir, descriptors.CountText(rules, "rule"), in, descriptors.CountText(countWarnings(problems), "warning")), nil
}

// overlaid returns a line for each rule and each domain that an overlay changes.
func overlaid(set *descriptors.Set) string {
	var b page
	for _, o := range set.Overlaid() {
		b.printf("%s: changes %s: %s\n", o.Place, o.Path, o.Keys)
	}
	return b.String()
}

func countWarnings(problems descriptors.Problems) (n int) {
	for _, problem := range problems {
		if problem.Warning {
			n++
		}
	}
	return n
}

func problemsText(all descriptors.Problems) string {
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintln(&b, p)
	}
	return b.String()
}

// problemsJSON returns a JSON array with one object a line for each problem. The names of the fields are stable.
func problemsJSON(all descriptors.Problems) string {
	type problem struct {
		File     string `json:"file"`
		Line     int    `json:"line"`     // from 1; 0 for a problem of the whole file
		Column   int    `json:"column"`   // from 1; 0 as for Line
		Path     string `json:"path"`     // in the tree of rules; may be empty
		Severity string `json:"severity"` // error or warning
		Message  string `json:"message"`
	}
	objects := make([]problem, len(all))
	for i, p := range all {
		objects[i] = problem{p.File, p.Line, p.Column, p.Path, severity(p), p.Text}
	}
	return jsonArray(objects)
}

func severity(p descriptors.Problem) string {
	if p.Warning {
		return "warning"
	}
	return "error"
}

// problemsGitHub formats problems as workflow commands, which GitHub Actions shows beside the lines of a pull request.
func problemsGitHub(all descriptors.Problems) string {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	for _, p := range all {
		fmt.Fprintf(&b, "::%s file=%s", severity(p), property.Replace(filepath.ToSlash(p.File)))
		if p.Line > 0 {
			fmt.Fprintf(&b, ",line=%d", p.Line)
		}
		if p.Column > 0 {
			fmt.Fprintf(&b, ",col=%d", p.Column)
		}
		if p.Path != "" {
			fmt.Fprintf(&b, ",title=%s", property.Replace(p.Path))
		}
		fmt.Fprintf(&b, "::%s\n", data.Replace(p.Text))
	}
	return b.String()
}

// problemsSARIF returns a SARIF 2.1.0 log with one run. Problems of a whole file are reported on its first line, because code scanning
// ignores results without a line.
func problemsSARIF(all descriptors.Problems) string {
	text := func(s string) object { return object{"text": s} }
	results := []object{}
	for _, p := range all {
		rule := map[bool]string{false: "invalid", true: "suspicious"}[p.Warning]
		uri := url.URL{Path: filepath.ToSlash(p.File)}
		region := object{"startLine": max(p.Line, 1)}
		put(region, "startColumn", p.Column)
		at := object{"physicalLocation": object{"artifactLocation": object{"uri": uri.String()}, "region": region}}
		if p.Path != "" {
			at["logicalLocations"] = []object{{"fullyQualifiedName": p.Path}}
		}
		results = append(results, object{"ruleId": rule, "level": severity(p), "message": text(p.Text), "locations": []object{at}})
	}
	driver := object{"name": "ratelimitd", "version": release(), "rules": []object{
		{"id": "invalid", "shortDescription": text("Invalid rules")},
		{"id": "suspicious", "shortDescription": text("Valid rules that may not do what was intended")},
	}}
	log, _ := json.MarshalIndent(object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{"tool": object{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}},
	}, "", "  ") // strings and numbers always marshal
	return string(log) + "\n"
}

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
				f.path(arg)
			}
			return f.outcome()
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "list unformatted files without changing them; exit with 1 if any are found")
	return cmd
}

// formatting formats rule files, and counts the results.
type formatting struct {
	*program

	check               bool
	failed, unformatted int // numbers of files with errors, and of files that are not formatted
}

func (f *formatting) outcome() error {
	var errs []error
	if f.failed > 0 {
		errs = append(errs, fmt.Errorf("not changed: %s", descriptors.CountText(f.failed, "file")))
	}
	if f.check && f.unformatted > 0 {
		errs = append(errs, fmt.Errorf("not formatted: %s; run ratelimitd fmt", descriptors.CountText(f.unformatted, "file")))
	}
	return errors.Join(errs...)
}

func (f *formatting) fail(problems ...descriptors.Problem) {
	f.failed++
	f.problems(problems)
}

// format formats a source and, unless f.check is set, writes the result to standard output or to a file whose text
// changed.
func (f *formatting) format(s descriptors.Source) {
	out, problems := rulefmt.Format(s)
	changed, isFile := !bytes.Equal(out, s.Data), s.Name != "-"
	var err error
	switch {
	case len(problems) > 0 || f.check:
	case !isFile:
		_, err = f.stdout.Raw.Write(out)
	case changed:
		err = replaceFile(s.Name, out)
	}
	switch {
	case len(problems) > 0:
		f.fail(problems...)
	case err != nil:
		f.fail(descriptors.Problem{File: s.Name, Text: reason(err)})
	case changed && (f.check || isFile):
		f.unformatted++
		f.printf("%s\n", s.Name)
	}
}

// path formats a file, standard input (-), or all files of a directory.
func (f *formatting) path(path string) {
	if path == "-" {
		data, err := io.ReadAll(io.LimitReader(os.Stdin, file.MaxFileSize+1))
		if err != nil {
			f.fail(descriptors.Problem{File: path, Text: err.Error()})
			return
		}
		f.format(descriptors.Source{Name: path, Data: data})
		return
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.IsDir():
		f.file(path)
	case err == nil:
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

func (f *formatting) file(path string) {
	read, problems := file.ReadFile(path)
	if len(problems) > 0 {
		f.fail(problems...)
		return
	}
	f.format(read[0])
}

// reason returns the text of a file system error without the path.
func reason(err error) string {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err.Error()
	}
	return err.Error()
}

// replaceFile replaces a file atomically and keeps its mode. It follows symbolic links.
func replaceFile(path string, data []byte) (err error) {
	path, err = filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	// The name begins with two dots, so that a server that watches the directory ignores the file.
	f, err := os.CreateTemp(filepath.Dir(path), "..fmt-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = cmp.Or(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // return the original error
	}
	return err
}
