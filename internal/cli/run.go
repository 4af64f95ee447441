package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// flagValue is a flag with its own syntax.
type flagValue struct {
	kind string // shown in the help
	text func() string
	set  func(text string) error
}

// String implements [pflag.Value].
func (f *flagValue) String() string { return f.text() }

// Set implements [pflag.Value].
func (f *flagValue) Set(text string) error { return f.set(text) }

// Type implements [pflag.Value].
func (f *flagValue) Type() string { return f.kind }

// spanVar adds a flag for a duration, which may have days and weeks. Its default is *d.
func spanVar(flags *pflag.FlagSet, d *time.Duration, name, usage string) {
	text := func() string {
		if *d == 0 {
			return ""
		}
		return descriptors.SpanText(*d)
	}
	set := func(text string) (err error) {
		*d, err = descriptors.ParseSpan(text)
		return err
	}
	flags.Var(&flagValue{"duration", text, set}, name, usage)
}

// outputs adds the flag --output with the given forms, the first of which is the default, and returns cmd.
func (p *program) outputs(cmd *cobra.Command, forms ...string) *cobra.Command {
	p.form = forms[0]
	last := len(forms) - 1
	list := strings.Join(forms[:last], ", ") + " or " + forms[last]
	set := func(form string) error {
		if !slices.Contains(forms, form) {
			return errors.New("must be " + list)
		}
		p.form = form
		return nil
	}
	cmd.Flags().VarP(&flagValue{"string", func() string { return p.form }, set}, "output", "o", "output format: "+list)
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp)) // never fails: the flag was added above
	return cmd
}

// queriesServer marks a command that queries a server.
func queriesServer(cmd *cobra.Command) { cmd.Annotations = map[string]string{"server": "true"} }

// rejectServerFlags rejects global flags of a command that queries no server.
func rejectServerFlags(cmd *cobra.Command, _ []string) (err error) {
	cmd.Root().PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Changed && cmd.Annotations["server"] == "" && err == nil {
			err = fmt.Errorf("--%s: %s does not query a server: see %[2]s --help", f.Name, cmd.CommandPath())
		}
	})
	return err
}

// queries makes cmd a command that queries a server and prints its answer as text or JSON.
func (p *program) queries(cmd *cobra.Command) *cobra.Command {
	queriesServer(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	if strings.Contains(cmd.Use, "DOMAIN") {
		cmd.ValidArgsFunction = p.complete
	}
	return p.outputs(cmd, "text", "json")
}

// changeHelp describes the requirements of commands that change a running server.
const changeHelp = `Requires an admin token (--token-file), unless you run it as the server's user on the server's machine
without --addr. If the server's port is not 8081, set GRPC_PORT to that port.`

// changes makes cmd a command that changes a running server.
func (p *program) changes(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&p.reason, "reason", "", "reason for the audit log")
	cmd.Flags().BoolVar(&p.dry, "dry-run", false, "show the effect without changing anything")
	return p.queries(cmd)
}

// each calls do with each descriptor argument after the domain, or with an empty descriptor if there is none.
func each(args []string, do func(*descriptor) error) error {
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	if len(wanted) == 0 {
		wanted = make([]descriptor, 1)
	}
	for i := range wanted {
		if wanted[i].options {
			return fmt.Errorf("descriptor %q: options after a semicolon have no effect on a counter", args[1+i])
		}
		if err := do(&wanted[i]); err != nil {
			return err
		}
	}
	return nil
}

// paged is an answer of a paginated method.
type paged interface {
	proto.Message
	GetNextPageToken() string
}

// allPages calls the server for each page, setting page_token in request, until enough returns true. It appends the pages' lists to
// all, and copies the other fields of the last page.
func allPages[Q proto.Message, A paged](
	ctx context.Context, call func(context.Context, Q, ...grpc.CallOption) (A, error), request Q, all A, enough func() bool,
) error {
	q, m := request.ProtoReflect(), all.ProtoReflect()
	for {
		page, err := call(ctx, request)
		if err != nil {
			return err
		}
		m.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
			if !f.IsList() {
				m.Clear(f)
			}
			return true
		})
		proto.Merge(all, page)
		if page.GetNextPageToken() == "" || enough != nil && enough() {
			return nil
		}
		q.Set(q.Descriptor().Fields().ByName("page_token"), protoreflect.ValueOfString(page.GetNextPageToken()))
	}
}

// negativeIf returns err or, if err is nil and negative is set, errNegative.
func negativeIf(negative bool, err error) error {
	if err == nil && negative {
		return errNegative
	}
	return err
}

// needs requires an argument for each name, or prints the usage. It accepts further arguments.
func needs(names ...string) cobra.PositionalArgs { return takes(math.MaxInt, names...) }

// exactly requires exactly one argument for each name.
func exactly(names ...string) cobra.PositionalArgs { return takes(len(names), names...) }

// takes requires an argument for each name, and accepts at most most arguments.
func takes(most int, names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		missing := names[min(len(args), len(names)):]
		switch {
		case len(missing) == 1:
			return fmt.Errorf("%s is missing: usage: %s", missing[0], cmd.UseLine())
		case len(missing) > 1:
			return fmt.Errorf("%s are missing: usage: %s", strings.Join(missing, " and "), cmd.UseLine())
		case len(args) <= most:
			return nil
		case most == 0:
			return fmt.Errorf("%s takes no arguments, but got %q: see %[1]s --help", cmd.CommandPath(), args[0])
		}
		return fmt.Errorf("%s: unexpected argument %q: usage: %s", cmd.CommandPath(), args[most], cmd.UseLine())
	}
}

// noCommand rejects an unknown command, the first of args, and suggests similar ones.
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

// flagError explains an error in the flags of a command.
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
		var names []string // flags in the help
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		if meant := rulefile.Nearest(unknown.GetSpecifiedName(), slices.Values(names)); meant != "" {
			text += ": did you mean --" + meant + "?"
			return fmt.Errorf("%s see %s --help", text, cmd.CommandPath())
		}
	}
	return fmt.Errorf("%s: see %s --help", text, cmd.CommandPath())
}

// usageTemplate lists the global flags only in the program's help; the help of commands that accept them refers to it.
func usageTemplate(cobras string) string {
	return strings.NewReplacer(
		"\n\nFlags:", "\n\n{{if not .HasParent}}Global flags, for commands that query a server:{{else}}Flags:{{end}}",
		"{{if .HasAvailableInheritedFlags}}\n\nGlobal Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}{{end}}",
		`{{if index .Annotations "server"}}`+"\n\nGlobal flags: --addr, --timeout, --tls, --ca, --cert, --key, --token-file;"+
			" see ratelimitd --help{{end}}",
	).Replace(cobras)
}

// flagTakes describes the values that a flag accepts.
func flagTakes(err *pflag.InvalidValueError) string {
	return cmp.Or(map[string]string{
		"bool":     "must be true or false",
		"int":      "must be a whole number",
		"uint64":   "must be a whole number from 0 to 1000000000000000",
		"uint32":   "must be a whole number from 0 to 4294967295",
		"duration": "must be a duration with a unit, such as 500ms, 5s, 2h or 1d, of at most 290 years",
	}[err.GetFlag().Value.Type()], errors.Unwrap(err).Error()) // a flagValue
}

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
