package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) checkCommand() *cobra.Command {
	var (
		flags ruleFlags
		dir   string // of ratelimit_config_check
		form  output
	)
	cmd := &cobra.Command{
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
	}
	flagsErr := flags.add(p, cmd)
	flags.addTenants(cmd)
	cmd.Flags().BoolVar(&flags.configMaps, "configmap", false, "read rules from the ConfigMaps in Kubernetes manifests")
	cmd.Flags().StringVar(&flags.envoy, "envoy", "", "file with an Envoy configuration, or a part of one")
	cmd.Flags().IntVar(&flags.clients, "clients", 1, "number of clients that share a limit with rlqs")
	form.addForms(cmd, "output format: text, json, github or sarif", "text", "json", "github", "sarif")
	cmd.Flags().StringVar(&dir, "config_dir", "", "directory to check")
	cmd.Flags().BoolVar(&flags.merge, "merge_domain_configs", flags.merge, "the same as --merge")
	hide(cmd, checkFlags())
	cmd.RunE = func(cmd *cobra.Command, dirs []string) error {
		if flagsErr != nil {
			return flagsErr
		}
		if given(cmd, checkFlags()) {
			return p.configCheck(&flags, dir)
		}
		if flags.clients < 1 {
			return fmt.Errorf("--clients %d: must be 1 or more", flags.clients)
		}
		if len(dirs) == 0 && flags.overlay == "" && flags.tenants == "" && flags.envoy == "" {
			return needs("DIR")(cmd, dirs)
		}
		return p.check(&flags, form.form, dirs)
	}
	return cmd
}

// check prints the problems of the rules in each of dirs, and a summary of each.
func (p *program) check(flags *ruleFlags, form string, dirs []string) error {
	write := problemWriters()[form]
	var (
		all  descriptors.Problems
		errs []error
	)
	if len(dirs) == 0 {
		dirs = []string{""} // of the overlay alone
	}
	out := p.stdout
	if form == "github" { // whose lines are commands
		out = &plain.Writer{Raw: p.stdout.Raw}
	}
	report := func(problems descriptors.Problems, summary string) error {
		if form != "text" { // which has each summary behind its problems
			all = append(all, problems...)
			fmt.Fprint(p.stderr, summary)
			return nil
		}
		if err := write(out, problems); err != nil {
			return err
		}
		p.print(summary)
		return nil
	}
	for _, dir := range dirs {
		for _, from := range flags.sources(dir) {
			problems, summary, err := flags.checkRules(from)
			errs = append(errs, err)
			if err := report(problems, summary); err != nil {
				return err
			}
		}
	}
	if flags.envoy != "" {
		summary, problems := checkEnvoy(flags.envoy, flags.strict, flags.sets)
		if problems.Failed() {
			errs = append(errs, fmt.Errorf("%s: %s", flags.envoy, descriptors.CountText(len(problems)-countWarnings(problems), "error")))
		}
		if err := report(problems, summary); err != nil {
			return err
		}
	}
	if form != "text" {
		if err := write(out, all); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// checkRules returns the problems of rules, or of the overlay alone, and of the table of tenants, with a summary.
func (f *ruleFlags) checkRules(from ruleSource) (problems descriptors.Problems, summary string, err error) {
	dir := from.name
	set, problems := f.compile(from)
	if set != nil && dir != "" {
		f.sets = append(f.sets, set)
	}
	summary, err = summarize(dir, set, from.files, problems)
	switch {
	case dir == "" && f.overlay == "":
		summary, err = "", nil
	case dir == "":
		summary, err = overlayAlone(f.overlay, problems)
	case err == nil:
		summary = overlaid(set) + summary
	}
	if dir == "" {
		set = nil // which has no plans that tenants might be on
	}
	tenants, wrong := f.checkTenants(set)
	if wrong != nil {
		err = errors.Join(err, fmt.Errorf("%s: %s", f.tenants, descriptors.CountText(len(wrong), "error")))
	}
	return append(problems, wrong...), from.skipped + summary + tenants, err
}

// summarize returns a line that says what is in dir; if the rules have an error, the error says so.
func summarize(dir string, set *descriptors.Set, files []descriptors.Source, problems descriptors.Problems) (string, error) {
	warnings := countWarnings(problems)
	if set == nil {
		return "", fmt.Errorf("%s: %s in %s", dir, descriptors.CountText(len(problems)-warnings, "error"), descriptors.CountText(len(files), "file"))
	}
	rules := 0
	for range set.Rules() {
		rules++
	}
	return sprintf("%s: ok, %s in %s, %s\n", dir, descriptors.CountText(rules, "rule"), descriptors.CountText(len(files), "file"), descriptors.CountText(warnings, "warning")), nil
}

// overlaid returns a line for each rule and each domain that an overlay changes.
func overlaid(set *descriptors.Set) string {
	var b page
	for _, o := range set.Overlaid() {
		b.printf("%s: changes %s: %s\n", o.Place, o.Path, o.Keys)
	}
	return b.String()
}

// overlayAlone returns a line that says what is wrong with an overlay, of which nothing is known but the overlay itself.
func overlayAlone(path string, problems descriptors.Problems) (string, error) {
	warnings := countWarnings(problems)
	if problems.Failed() {
		return "", fmt.Errorf("%s: %s", path, descriptors.CountText(len(problems)-warnings, "error"))
	}
	return sprintf("%s: ok, an overlay, %s\n", path, descriptors.CountText(warnings, "warning")), nil
}

func countWarnings(problems descriptors.Problems) (n int) {
	for _, problem := range problems {
		if problem.Warning {
			n++
		}
	}
	return n
}

// problemWriters returns how check can print problems, by the name of the form. Each writes a document, complete also
// without problems, in which every problem has its file.
func problemWriters() map[string]func(io.Writer, descriptors.Problems) error {
	return map[string]func(io.Writer, descriptors.Problems) error{
		"text":   writeText,
		"json":   writeJSON,
		"github": writeGitHub,
		"sarif":  writeSARIF,
	}
}

func writeText(w io.Writer, all descriptors.Problems) error {
	for _, p := range all {
		if _, err := fmt.Fprintln(w, p); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON writes an array with one object, on one line, for each problem. The names of its fields do not change.
func writeJSON(w io.Writer, all descriptors.Problems) error {
	type object struct {
		File     string `json:"file"`
		Line     int    `json:"line"`     // from 1; 0 if the problem is of the file as a whole
		Column   int    `json:"column"`   // the same
		Path     string `json:"path"`     // in the tree of rules; may be empty
		Severity string `json:"severity"` // error or warning
		Message  string `json:"message"`
	}
	objects := make([]object, len(all))
	for i, p := range all {
		objects[i] = object{p.File, p.Line, p.Column, p.Path, severity(p), p.Text}
	}
	text, err := jsonArray(objects)
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	return err
}

func severity(p descriptors.Problem) string {
	if p.Warning {
		return "warning"
	}
	return "error"
}

// writeGitHub writes workflow commands, which GitHub Actions shows beside the lines of a pull request.
func writeGitHub(w io.Writer, all descriptors.Problems) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, p := range all {
		at := "file=" + property.Replace(filepath.ToSlash(p.File))
		if p.Line > 0 {
			at += fmt.Sprintf(",line=%d", p.Line)
		}
		if p.Column > 0 {
			at += fmt.Sprintf(",col=%d", p.Column)
		}
		if p.Path != "" {
			at += ",title=" + property.Replace(p.Path)
		}
		if _, err := fmt.Fprintf(w, "::%s %s::%s\n", severity(p), at, data.Replace(p.Text)); err != nil {
			return err
		}
	}
	return nil
}

// The rules that a result of SARIF can break.
const (
	sarifInvalid    = "invalid"
	sarifSuspicious = "suspicious"
)

// writeSARIF writes a log of SARIF 2.1.0 with one run. What is wrong with a file as a whole is reported on its first line, because code
// scanning takes no result without one.
func writeSARIF(w io.Writer, all descriptors.Problems) error {
	type object map[string]any
	text := func(s string) object { return object{"text": s} }
	results := []object{}
	for _, p := range all {
		rule := sarifInvalid
		if p.Warning {
			rule = sarifSuspicious
		}
		file := url.URL{Path: filepath.ToSlash(p.File)}
		region := object{"startLine": max(p.Line, 1)}
		if p.Column > 0 {
			region["startColumn"] = p.Column
		}
		at := object{"physicalLocation": object{"artifactLocation": object{"uri": file.String()}, "region": region}}
		if p.Path != "" {
			at["logicalLocations"] = []object{{"fullyQualifiedName": p.Path}}
		}
		results = append(results, object{"ruleId": rule, "level": severity(p), "message": text(p.Text), "locations": []object{at}})
	}
	driver := object{"name": "ratelimitd", "version": release(), "rules": []object{
		{"id": sarifInvalid, "shortDescription": text("Invalid rules")},
		{"id": sarifSuspicious, "shortDescription": text("Valid rules that may not do what was intended")},
	}}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(object{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
		"runs": []object{{"tool": object{"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}},
	})
}
