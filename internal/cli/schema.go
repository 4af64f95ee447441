package cli

import (
	"github.com/spf13/cobra"

	"github.com/ratelimitd/ratelimitd/internal/rules/ruleschema"
)

func (p *program) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print a JSON Schema of rule files for editors",
		Long: `Schema prints a JSON Schema (2020-12) of rule files. Editors with YAML language support complete and
check rules if the first line of the file names it:

  # yaml-language-server: $schema=rules.schema.json

The schema finds most errors; ratelimitd check finds all. Keep it outside the directory of the rules,
because the server reads every file there.`,
		Example: `  ratelimitd schema > rules.schema.json`,
		Args:    needsNone,
		RunE: func(*cobra.Command, []string) error {
			p.print(string(ruleschema.Schema()))
			return nil
		},
	}
}
