package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (p *program) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long: `Completion prints a script that completes commands, flags and files, and the domains and keys of the
running server.`,
		Example: `  source <(ratelimitd completion bash)      # this shell; bash needs its package bash-completion
  ratelimitd completion bash > /etc/bash_completion.d/ratelimitd
  ratelimitd completion zsh > "${fpath[1]}/_ratelimitd"
  ratelimitd completion fish > ~/.config/fish/completions/ratelimitd.fish`,
		ValidArgs:             []string{"bash", "zsh", "fish"},
		Args:                  needs("the shell"),
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root, shell := cmd.Root(), strings.Join(args, " "); shell {
			case "bash":
				return root.GenBashCompletionV2(p.stdout.Raw, true)
			case "zsh":
				return root.GenZshCompletion(p.stdout.Raw)
			case "fish":
				return root.GenFishCompletion(p.stdout.Raw, true)
			default:
				return fmt.Errorf("completion %s: must be bash, zsh or fish", shell)
			}
		},
	}
}
