package cli

import (
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// needs requires an argument for each name, and shows the command's usage if one is missing. More are taken too.
func needs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		missing := names[min(len(args), len(names)):]
		switch len(missing) {
		case 0:
			return nil
		case 1:
			return fmt.Errorf("%s is missing: usage: %s", missing[0], cmd.UseLine())
		}
		return fmt.Errorf("%s are missing: usage: %s", strings.Join(missing, " and "), cmd.UseLine())
	}
}

// atMost takes no more than n arguments.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		return fmt.Errorf("%s: unexpected argument %q: usage: %s", cmd.CommandPath(), args[n], cmd.UseLine())
	}
}

// exactly requires an argument for each name, and takes no more.
func exactly(names ...string) cobra.PositionalArgs {
	return cobra.MatchAll(needs(names...), atMost(len(names)))
}

// needsNone rejects arguments.
func needsNone(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("%s takes no arguments, but got %q: see %[1]s --help", cmd.CommandPath(), args[0])
}

// noCommand rejects arguments of a program, for the first one is no command, and suggests what may have been meant.
func noCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var meant string
	if similar := root.SuggestionsFor(args[0]); len(similar) > 0 {
		meant = "did you mean " + strings.Join(similar, " or ") + "? "
	}
	return fmt.Errorf("unknown command %q: %ssee %s --help", args[0], meant, root.CommandPath())
}

// noFiles keeps the shell from completing the arguments of commands, flags aside, with names of files, unless they say what with.
func noFiles(commands ...*cobra.Command) {
	for _, cmd := range commands {
		if cmd.ValidArgsFunction == nil {
			cmd.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
}

// flagError says what is wrong with the flags of a command.
func flagError(cmd *cobra.Command, err error) error {
	var (
		value   *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		syntax  *pflag.InvalidSyntaxError
		unknown *pflag.NotExistError
		text    = err.Error()
	)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return err
	case errors.As(err, &value):
		text = fmt.Sprintf("--%s %s: %s", value.GetFlag().Name, value.GetValue(), flagTakes(value))
	case errors.As(err, &missing):
		text = fmt.Sprintf("--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &syntax):
		text = syntax.GetSpecifiedFlag() + " is not a flag"
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		text = "unknown flag: -" + unknown.GetSpecifiedShortnames()
	case errors.As(err, &unknown):
		if meant := rulefile.Nearest(unknown.GetSpecifiedName(), flagNames(cmd)); meant != "" {
			text += ": did you mean --" + meant + "?"
			return fmt.Errorf("%s see %s --help", text, cmd.CommandPath())
		}
	}
	return fmt.Errorf("%s: see %s --help", text, cmd.CommandPath())
}

// flagNames yields the names of the flags that the help of a command lists.
func flagNames(cmd *cobra.Command) iter.Seq[string] {
	return func(yield func(string) bool) {
		more := true
		cmd.Flags().VisitAll(func(f *pflag.Flag) { more = more && (f.Hidden || yield(f.Name)) })
	}
}

// usageTemplate lists the global flags in the help of the program only, and refers to them in that of commands that take them.
func usageTemplate(cobras string) string {
	return strings.NewReplacer(
		"\n\nFlags:", "\n\n{{if not .HasParent}}Global flags, for commands that query a server:{{else}}Flags:{{end}}",
		"{{if .HasAvailableInheritedFlags}}\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}",
		`{{if index .Annotations "server"}}`+"\n\nGlobal flags: --addr, --timeout, --tls, --ca, --cert, --key, --token-file;"+
			" see ratelimitd --help{{end}}",
	).Replace(cobras)
}

// flagTakes says what a flag would have taken.
func flagTakes(err *pflag.InvalidValueError) string {
	switch err.GetFlag().Value.Type() {
	case "bool":
		return "must be true or false"
	case "int":
		return "must be a whole number"
	case "uint64":
		return "must be a whole number from 0 to 2^64-1"
	case "uint32":
		return "must be a whole number from 0 to 4294967295"
	case "duration":
		return "must be a duration with a unit, such as 500ms, 5s, 2h or 1d, of at most 290 years"
	}
	return errors.Unwrap(err).Error() // of a flag of our own
}

// spanFlag is a time that a flag gives. It may have days and weeks.
type spanFlag time.Duration

// String implements [pflag.Value].
func (f *spanFlag) String() string {
	if *f == 0 {
		return ""
	}
	return descriptors.SpanText(time.Duration(*f))
}

// Set implements [pflag.Value].
func (f *spanFlag) Set(text string) error {
	d, err := descriptors.ParseSpan(text)
	*f = spanFlag(d)
	return err
}

// Type implements [pflag.Value].
func (*spanFlag) Type() string { return "duration" }

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
