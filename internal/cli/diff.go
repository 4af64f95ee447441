package cli

import (
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

func (p *program) diffCommand() *cobra.Command {
	var (
		flags    ruleFlags
		form     output
		exitCode bool
	)
	cmd := &cobra.Command{
		Use:   "diff [flags] OLD NEW|NEW",
		Short: "Compare rule sets and show the impact",
		Long: `Diff compares the rules in OLD and NEW, each a directory or a file: rules added, removed or changed,
whether their counters are kept or reset, and descriptors that now match another rule. Dangerous
changes come first: limits removed, counters reset, and limits raised.

With only NEW, and --addr or RATELIMITD_ADDR, it compares NEW with the rules of a running server. A
server does not report the keys of domains, metrics, share_threshold, rlqs, or descriptors without a
limit; diff then ignores these.

With --output json it prints an array with an object for each change: path, kind (added, removed,
changed, reached, reordered or domain), effect (opens, resets, raises or other), counters (kept, partly,
reset, or empty where there were none), text and place; with --output markdown a table for a pull
request.

Exit codes: 0, success; 1, error, such as invalid rules; 2, with --exit-code, there are changes.`,
		Example: `  ratelimitd diff main/rules rules
  ratelimitd diff --output markdown --exit-code main/rules rules
  ratelimitd diff --addr 10.0.0.7:8081 rules`,
		Args: cobra.ArbitraryArgs,
	}
	flagsErr := flags.add(p, cmd)
	c := &p.client
	asksServer(cmd)
	form.addForms(cmd, "output format: text, json or markdown", "text", "json", "markdown")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 2 if there are changes")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		takes := exactly("OLD", "NEW")
		there := cmd.Flags().Changed("addr") || c.named && len(args) == 1
		switch {
		case flagsErr != nil:
			return flagsErr
		case there && len(args) == 2:
			return errors.New("--addr and OLD: give one of them, for the rules of a server or for those of a directory")
		case there:
			takes = exactly("NEW")
		}
		if err := takes(cmd, args); err != nil {
			return err
		}
		changes, err := p.changes(cmd.Context(), &flags, c, args)
		if err != nil {
			return err
		}
		rulediff.SortChanges(changes)
		text, err := changeWriters()[form.form](changes)
		if err != nil {
			return err
		}
		p.print(text)
		if exitCode && len(changes) > 0 {
			return errNegative
		}
		return nil
	}
	return cmd
}

// changes returns what differs between the rules in two places, or between those of a server and those in one.
func (p *program) changes(ctx context.Context, flags *ruleFlags, c *client, args []string) ([]rulediff.Change, error) {
	var sets []*descriptors.Set
	for _, path := range args {
		set, files, problems := flags.load(path)
		if set == nil {
			_, err := summarize(path, set, files, problems)
			return nil, errors.Join(problems, err)
		}
		sets = append(sets, set)
	}
	if len(sets) == 2 {
		return rulediff.Between(sets[0], sets[1]), nil
	}
	seen, err := c.listRules(ctx, "")
	if err != nil {
		return nil, err
	}
	return changesSince(seen, sets[0])
}

// changeWriters returns how diff can print changes, by the name of the form.
func changeWriters() map[string]func([]rulediff.Change) (string, error) {
	return map[string]func([]rulediff.Change) (string, error){
		"text":     changesText,
		"json":     changesJSON,
		"markdown": changesMarkdown,
	}
}

// summaryOfChanges returns how many changes there are, and of which effects.
func summaryOfChanges(all []rulediff.Change) string {
	var t rulediff.Tally
	for i := range all {
		t.Count(all[i].Effect)
	}
	return t.String()
}

func changesText(all []rulediff.Change) (string, error) {
	if len(all) == 0 {
		return "no changes\n", nil
	}
	var b page
	for i := range all {
		line := all[i].Path + ": " + all[i].InFull()
		if all[i].Effect == rulediff.Opens || all[i].Effect == rulediff.Raises {
			line += " (" + all[i].Effect.Text() + ")"
		}
		b.printf("%s\n", line)
	}
	return b.String() + summaryOfChanges(all) + "\n", nil
}

// changesJSON returns an array with one object, on one line, for each change. The names of its fields do not change.
func changesJSON(all []rulediff.Change) (string, error) {
	type object struct {
		Path     string `json:"path"`
		Kind     string `json:"kind"`
		Effect   string `json:"effect"`
		Counters string `json:"counters"`
		Text     string `json:"text"`
		Place    string `json:"place"`
	}
	objects := make([]object, len(all))
	for i := range all {
		c := &all[i]
		objects[i] = object{c.Path, string(c.Kind), string(c.Effect), string(c.Counters), c.Text, c.Place}
	}
	return jsonArray(objects)
}

func changesMarkdown(all []rulediff.Change) (string, error) {
	if len(all) == 0 {
		return "The rules do not change.\n", nil
	}
	cell := strings.NewReplacer("\\", "\\\\", "|", "\\|", "*", "\\*", "_", "\\_", "`", "\\`", "<", "&lt;", ">", "&gt;", "&", "&amp;", "[", "\\[", "@", "&#64;")
	var b page
	b.printf("%s.\n\n| | rule | change | where |\n| --- | --- | --- | --- |\n", summaryOfChanges(all))
	for i := range all {
		c := &all[i]
		effect := c.Effect.Text()
		if c.Effect == rulediff.Opens {
			effect = "**" + effect + "**"
		}
		b.printf("| %s | %s | %s | %s |\n", effect, cell.Replace(c.Path), cell.Replace(c.InFull()), cell.Replace(c.Place))
	}
	return b.String(), nil
}
