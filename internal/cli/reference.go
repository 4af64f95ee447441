package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"google.golang.org/grpc"

	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
)

// The names of envoyproxy/ratelimit's programs. Started under one of them this program behaves like that one.
const (
	referenceServer = "ratelimit"
	referenceClient = "ratelimit_client"
	referenceCheck  = "ratelimit_config_check"
)

// errPrinted is the outcome of a command that failed and has already printed why.
var errPrinted = errors.New("failed")

// usageError is a mistake in the flags of ratelimit_client or ratelimit_config_check, for which they have an exit code.
type usageError struct{ error }

// usage returns err, a mistake in the flags, as the program that this one was started as has it.
func (p *program) usage(err error) error {
	switch filepath.Base(p.name) {
	case referenceClient, referenceCheck:
		if !errors.Is(err, pflag.ErrHelp) {
			return usageError{err}
		}
	}
	return err
}

// clientFlags returns the flags of ratelimit_client, in the order in which it prints them. With any of them call
// behaves like that program.
func clientFlags() []string {
	return []string{"descriptors", "dial_string", "domain", "grpc-cert-file", "grpc-key-file", "grpc-server-ca-file", "grpc-use-tls", "oltp-protocol"}
}

// checkFlags returns the flags of ratelimit_config_check. With any of them check behaves like that program.
func checkFlags() []string { return []string{"config_dir", "merge_domain_configs"} }

// commandLine translates args, the first of which is the name under which the program was started, to this program's
// commands.
func commandLine(args []string) []string {
	rest := args[1:]
	switch filepath.Base(args[0]) {
	case referenceServer:
		return []string{"serve"} // it ignores its arguments too
	case referenceClient:
		rest = append([]string{"call", "--dial_string=localhost:8081"}, rest...)
	case referenceCheck:
		rest = append([]string{"check", "--config_dir="}, rest...)
	}
	if len(rest) == 0 {
		return rest
	}
	switch rest[0] {
	case "call":
		return twoDashes(rest, clientFlags())
	case "check":
		return twoDashes(rest, checkFlags())
	}
	return rest
}

// twoDashes adds a second dash to the given flags where they have one, as Go programs accept them.
func twoDashes(args, flags []string) []string {
	all := slices.Clone(args)
	for i, arg := range all {
		if arg == "--" {
			break
		}
		name, single := strings.CutPrefix(arg, "-")
		name, _, _ = strings.Cut(name, "=")
		if single && slices.Contains(flags, name) {
			all[i] = "-" + arg
		}
	}
	return all
}

// given reports whether any of the flags was given.
func given(cmd *cobra.Command, flags []string) bool {
	return slices.ContainsFunc(flags, func(name string) bool { return cmd.Flags().Changed(name) })
}

// hide hides flags from the list in the help, whose text mentions them.
func hide(cmd *cobra.Command, flags []string) {
	for _, name := range flags {
		if err := cmd.Flags().MarkHidden(name); err != nil {
			panic(err) // the caller has added it
		}
	}
}

// unless makes a check of arguments one that passes where one of the flags is given.
func unless(flags []string, check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if given(cmd, flags) {
			return nil
		}
		return check(cmd, args)
	}
}

// configCheck checks the rules in dir as ratelimit_config_check does, and prints the same lines. Warnings, which that
// program does not have, go to stderr.
func (p *program) configCheck(flags *ruleFlags, dir string) error {
	p.printf("checking rate limit configs...\nloading config directory: %s\n", dir)
	if _, err := os.ReadDir(dir); err != nil {
		p.printf("error opening directory %s: %v\n", dir, err)
		return errPrinted
	}
	set, files, problems := flags.load(dir)
	for _, file := range files {
		p.printf("opening config file: %s\n", file.Name)
	}
	for _, problem := range problems {
		if problem.Warning {
			fmt.Fprintln(p.stderr, problem)
		} else {
			p.printf("error loading rate limit configs: %s\n", problem)
		}
	}
	if set == nil {
		return errPrinted
	}
	p.printf("all rate limit configs ok\n")
	return nil
}

// askedDescriptors is the flag of ratelimit_client that adds a descriptor each time it is given.
type askedDescriptors []*commonv3.RateLimitDescriptor

// Set implements pflag.Value.
func (d *askedDescriptors) Set(text string) error {
	asked := new(commonv3.RateLimitDescriptor)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return fmt.Errorf("invalid descriptor list: %q is not of the form key=value with one equals sign", pair)
		}
		asked.Entries = append(asked.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	*d = append(*d, asked)
	return nil
}

// String implements pflag.Value, as ratelimit_client prints it.
func (d *askedDescriptors) String() string {
	var b strings.Builder
	for _, asked := range *d {
		b.WriteString("[")
		for _, e := range asked.GetEntries() {
			fmt.Fprintf(&b, " <key=%s, value=%s> ", e.GetKey(), e.GetValue())
		}
		b.WriteString("] ")
	}
	return b.String()
}

// Type implements pflag.Value.
func (d *askedDescriptors) Type() string { return "key=value,..." }

// referenceAsk holds the flags of ratelimit_client that call does not have.
type referenceAsk struct {
	domain      string
	descriptors askedDescriptors
	protocol    string // for sending traces; empty sends none
}

// add adds the flags of ratelimit_client to call. Those that are only other names for call's own flags set the same
// variables.
func (a *referenceAsk) add(cmd *cobra.Command, c *client) {
	cmd.Flags().StringVar(&a.domain, "domain", "", "domain to query")
	cmd.Flags().Var(&a.descriptors, "descriptors", "descriptor to query")
	cmd.Flags().StringVar(&c.addr, "dial_string", c.home, "the same as --addr")
	cmd.Flags().StringVar(&c.cert, "grpc-cert-file", "", "the same as --cert")
	cmd.Flags().StringVar(&c.key, "grpc-key-file", "", "the same as --key")
	cmd.Flags().StringVar(&c.ca, "grpc-server-ca-file", "", "the same as --ca")
	cmd.Flags().BoolVar(&c.tls, "grpc-use-tls", false, "the same as --tls")
	cmd.Flags().StringVar(&a.protocol, "oltp-protocol", "", "protocol to send traces over, http or grpc")
	hide(cmd, clientFlags())
}

// run asks as ratelimit_client does: once, for one hit, and a rejection is an answer like any other. As there,
// certificate files have no effect without -grpc-use-tls.
func (a *referenceAsk) run(ctx context.Context, p *program, cmd *cobra.Command, c *client) error {
	for _, name := range clientFlags() {
		p.printf("Flag: --%s=%q\n", name, cmd.Flag(name).Value)
	}
	if !c.tls && !given(cmd, []string{"ca", "cert", "key"}) {
		c.ca, c.cert, c.key = "", "", ""
	}
	options, flush, err := a.tracing(ctx, p)
	if err != nil {
		p.printf("%v\n", err)
		return errPrinted
	}
	defer flush()
	conn, err := c.dial(c.addr, options...)
	if err != nil {
		p.printf("error connecting: %v\n", err)
		return errPrinted
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	request := &rlsv3.RateLimitRequest{Domain: a.domain, Descriptors: a.descriptors, HitsAddend: 1}
	answer, err := rlsv3.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, request)
	if err != nil {
		p.printf("request error: %v\n", err)
		return errPrinted
	}
	p.printf("response: %v\n", answer)
	return nil
}

// tracing returns the options for tracing the call, if that is asked for, and a function that sends the trace
// afterwards.
func (a *referenceAsk) tracing(ctx context.Context, p *program) (options []grpc.DialOption, flush func(), err error) {
	if a.protocol == "" {
		return nil, func() {}, nil
	}
	t, err := tracing.New(ctx, tracing.Config{Service: "RateLimitClient", Protocol: a.protocol, Rate: 1, Log: server.NewLogger(p.stderr, settings.Settings{})})
	if err != nil {
		return nil, nil, err
	}
	otel.SetErrorHandler(t)
	return []grpc.DialOption{grpc.WithStatsHandler(t.Client())}, func() {
		over, cancel := context.WithCancel(ctx)
		cancel()
		_ = t.Run(over) // it logs what goes wrong
	}, nil
}
