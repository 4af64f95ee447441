package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (p *program) helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "help [COMMAND]",
		Short:   "Show help for a command",
		Example: "  ratelimitd help call",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range cmd.Root().Commands() {
				if len(args) == 0 && c.IsAvailableCommand() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil || found == cmd.Root() && len(rest) > 0:
				return noCommand(cmd.Root(), args)
			case len(rest) > 0:
				return fmt.Errorf("%s takes one command, but got %q after %q: see %s --help", cmd.CommandPath(), rest[0], found.Name(), found.CommandPath())
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}
