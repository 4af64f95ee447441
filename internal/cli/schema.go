package cli

import (
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/ruleschema"
)

func (p *program) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON Schema of the rules, for editors",
		Long: `Schema prints a JSON Schema (2020-12) of files of rules: their keys with what they mean, the
values they take, and what goes with which algorithm. Editors that know YAML's language server
complete and check rules with it, when the first line of the file names it:

  # yaml-language-server: $schema=rules.schema.json

It rejects what the server rejects as far as such a schema can say that; ratelimitd check says the
rest. Keep it out of the directory of the rules, of which the server reads every file.`,
		Example: `  ratelimitd schema > rules.schema.json`,
		Args:    needsNone,
		RunE: func(*cobra.Command, []string) error {
			p.print(string(ruleschema.Schema()))
			return nil
		},
	}
}
