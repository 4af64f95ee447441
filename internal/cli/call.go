package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/internal/process/server"
	"github.com/ratelimitd/ratelimitd/internal/process/settings"
	"github.com/ratelimitd/ratelimitd/internal/process/tracing"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// callFlags are the flags of call.
type callFlags struct {
	hits     uint32
	negative bool
	limit    string
	repeat   int
}

func (p *program) callCommand() *cobra.Command {
	var (
		f callFlags
		a referenceFlags
	)
	cmd := p.queries(&cobra.Command{
		Use:   "call [flags] DOMAIN DESCRIPTOR...",
		Short: "Send a test request and show the answer",
		Long: `Call sends a running server the request that Envoy would send, and shows the answer for each
descriptor: whether it passes, its limit, the remaining hits, and when the limit resets. The hits count.
If the server has DECISION_METADATA=true, it also shows the rule or control, the wait in a leaky bucket,
and a limit exceeded in shadow mode. ratelimitd explain shows these without the setting.

` + descriptorHelp + `
` + optionHelp + `

The exit code is 0 if all requests passed, 2 if one was over its limit, and 1 for errors.

With a flag of envoyproxy/ratelimit's ratelimit_client (-dial_string, -domain, -descriptors,
-oltp-protocol, -grpc-use-tls, -grpc-server-ca-file, -grpc-cert-file, -grpc-key-file), or started
under that name, it acts as that program.`,
		Example: `  ratelimitd call example fixed=ann
  ratelimitd call --repeat 4 example fixed=ann
  ratelimitd call --hits 2 example fixed=ann bucket=ann
  ratelimitd call example 'fixed=ann;hits=5;limit=100/hour' 'held=a;negative'`,
		Args: unless(clientFlags(), needs("DOMAIN", "DESCRIPTOR")),
		RunE: func(cmd *cobra.Command, args []string) error {
			if given(cmd, clientFlags()) {
				return a.run(p, cmd)
			}
			return p.call(cmd.Context(), &f, args)
		},
	})
	a.add(cmd, &p.client)
	cmd.Flags().Uint32Var(&f.hits, "hits", 0, "hits for each descriptor without its own number; 0 means 1")
	cmd.Flags().BoolVar(&f.negative, "negative", false, "refund the hits of all descriptors")
	cmd.Flags().StringVar(&f.limit, "limit", "", "limit for each descriptor without its own, such as 10/minute")
	cmd.Flags().IntVar(&f.repeat, "repeat", 1, "number of times to send the request")
	return cmd
}

// call sends the requests. It returns errNegative if one of them was over its limit.
func (p *program) call(ctx context.Context, f *callFlags, args []string) error {
	if f.repeat < 1 {
		return fmt.Errorf("--repeat %d: must be 1 or more", f.repeat)
	}
	wanted, err := parseDescriptors(args[1:])
	if err != nil {
		return err
	}
	request, err := f.request(args[0], wanted)
	if err != nil {
		return err
	}
	service, rejected := rlsv3.NewRateLimitServiceClient(&p.client), 0
	for range f.repeat {
		answer, err := service.ShouldRateLimit(ctx, request)
		if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			rejected++
		}
		if err := p.show(answer, err, func() { p.print(answerText(request, answer)) }); err != nil {
			return err
		}
	}
	if f.repeat > 1 && !p.json() {
		p.printf("%d passed, %d rejected\n", f.repeat-rejected, rejected)
	}
	return negativeIf(rejected > 0, nil)
}

// request builds the request from the flags and the arguments.
func (f *callFlags) request(domain string, wanted []descriptor) (_ *rlsv3.RateLimitRequest, err error) {
	request := &rlsv3.RateLimitRequest{Domain: domain, HitsAddend: f.hits}
	for i := range wanted {
		d := &wanted[i]
		m := &commonv3.RateLimitDescriptor{IsNegativeHits: d.Negative || f.negative}
		for _, e := range d.Entries {
			m.Entries = append(m.Entries, &commonv3.RateLimitDescriptor_Entry{Key: string(e.Key), Value: string(e.Value)})
		}
		if d.HasHits {
			m.HitsAddend = wrapperspb.UInt64(d.Hits)
		}
		limit := d.Override
		if !d.HasOverride && f.limit != "" {
			if limit, err = ParseOverride(f.limit); err != nil {
				return nil, fmt.Errorf("--limit %s: %w", f.limit, err)
			}
		}
		if limit.LargeRequestsPerUnit > 0 {
			return nil, fmt.Errorf("limit of %d: a request carries at most 4294967295", limit.Number())
		}
		if limit.Unit != descriptors.UnitUnknown {
			m.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: limit.RequestsPerUnit,
				Unit:            typev3.RateLimitUnit(limit.Unit), // the numbers are the same
			}
			if limit.Multiplier > 0 {
				m.Limit.UnitMultiplier = wrapperspb.UInt32(limit.Multiplier)
			}
		}
		request.Descriptors = append(request.Descriptors, m)
	}
	return request, nil
}

// noteText returns the facts from the server's DECISION_METADATA that Envoy's API has no field for: the rule or control that decided,
// the wait in a leaky bucket, and a limit exceeded in shadow mode. Without metadata, it names the command that shows them.
func noteText(s *rlsv3.RateLimitResponse_DescriptorStatus, fields map[string]*structpb.Value) string {
	var notes []string
	control, rule := fields["control"].GetStringValue(), fields["rule"].GetStringValue()
	switch {
	case control != "":
		notes = append(notes, "control "+control)
	case rule != "":
		notes = append(notes, fmt.Sprintf("rule %s at %s:%.0f", rule, fields["file"].GetStringValue(), fields["line"].GetNumberValue()))
	case s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT, notLimited(s):
		notes = append(notes, "ratelimitd explain shows why")
	}
	if wait := fields["wait_ms"].GetNumberValue(); wait > 0 {
		notes = append(notes, "turn in "+descriptors.WaitText(time.Duration(wait)*time.Millisecond))
	}
	if fields["shadowed"].GetBoolValue() {
		notes = append(notes, "over the limit, admitted in shadow mode")
	}
	return strings.Join(notes, ", ")
}

// answerText formats an answer as text: a line for the request, one for each descriptor, one for each header, and the body.
func answerText(request *rlsv3.RateLimitRequest, answer *rlsv3.RateLimitResponse) string {
	var b page
	b.printf("%s\n", answer.GetOverallCode())
	decided := answer.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
	for i, s := range answer.GetStatuses() {
		if i >= len(request.GetDescriptors()) {
			break
		}
		b.printf("  %s: %s", entriesText(request.GetDescriptors()[i]), statusText(s))
		var fields map[string]*structpb.Value
		if i < len(decided) {
			fields = decided[i].GetStructValue().GetFields()
		}
		if note := noteText(s, fields); note != "" {
			b.printf(" (%s)", note)
		}
		b.WriteByte('\n')
	}
	for _, h := range answer.GetResponseHeadersToAdd() {
		b.printf("  header %s: %s\n", h.GetKey(), h.GetValue())
	}
	for _, h := range answer.GetRequestHeadersToAdd() {
		b.printf("  header to upstream %s: %s\n", h.GetKey(), h.GetValue())
	}
	if body := answer.GetRawBody(); len(body) > 0 {
		b.printf("  body %s\n", body)
	}
	return b.String()
}

func entriesText(d *commonv3.RateLimitDescriptor) string {
	var pairs []string
	for _, e := range d.GetEntries() {
		pairs = append(pairs, e.GetKey()+"="+e.GetValue())
	}
	return strings.Join(pairs, ",")
}

// notLimited reports whether no rule, not even an unlimited one, applied to a descriptor.
func notLimited(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
	return s.GetCode() != rlsv3.RateLimitResponse_OVER_LIMIT && s.GetCurrentLimit() == nil && s.GetLimitRemaining() == 0
}

// endlessSeconds returns the duration_until_reset of the unit forever, which Envoy's API lacks: the unit's length, rounded up.
func endlessSeconds() int64 { return int64((descriptors.Forever.Length() + 1e6 - 1) / 1e6) }

// statusText describes the status of one descriptor.
func statusText(s *rlsv3.RateLimitResponse_DescriptorStatus) string {
	limit := s.GetCurrentLimit()
	switch {
	case notLimited(s):
		return "OK, not limited"
	case limit == nil && s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT: // such as by a rule with headers: off
		return "OVER_LIMIT, by a hidden limit"
	case limit == nil:
		return "OK, unlimited"
	}
	item := descriptors.RateLimit{
		RequestsPerUnit: limit.GetRequestsPerUnit(),
		Unit:            descriptors.Unit(limit.GetUnit()), // the numbers are the same
		Multiplier:      max(limit.GetUnitMultiplier().GetValue(), 1),
	}
	if item.Unit == descriptors.UnitUnknown && s.GetDurationUntilReset().GetSeconds() == endlessSeconds() {
		item.Unit = descriptors.Forever
	}
	words := fmt.Sprintf("%s, %s, %d left", s.GetCode(), item, s.GetLimitRemaining())
	if limit.GetName() != "" {
		words += ", called " + limit.GetName()
	}
	if item.Unit == descriptors.Forever {
		return words
	}
	reset := descriptors.WaitText(s.GetDurationUntilReset().AsDuration())
	if s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		return fmt.Sprintf("%s, retry in %s", words, reset)
	}
	return fmt.Sprintf("%s, resets in %s", words, reset)
}

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
		cmd.Flags().Lookup(name).Hidden = true
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

// referenceFlags holds the flags of ratelimit_client that call does not have.
type referenceFlags struct {
	domain      string
	descriptors []*commonv3.RateLimitDescriptor
	protocol    string // for sending traces; empty sends none
}

// add adds the flags of ratelimit_client to call. Those that are only other names for call's own flags set the same
// variables.
func (a *referenceFlags) add(cmd *cobra.Command, c *client) {
	cmd.Flags().StringVar(&a.domain, "domain", "", "domain to query")
	cmd.Flags().Var(&flagValue{"key=value,...", a.descriptorsText, a.addDescriptor}, "descriptors", "descriptor to query")
	cmd.Flags().StringVar(&c.addr, "dial_string", c.home, "the same as --addr")
	cmd.Flags().StringVar(&c.cert, "grpc-cert-file", "", "the same as --cert")
	cmd.Flags().StringVar(&c.key, "grpc-key-file", "", "the same as --key")
	cmd.Flags().StringVar(&c.ca, "grpc-server-ca-file", "", "the same as --ca")
	cmd.Flags().BoolVar(&c.tls, "grpc-use-tls", false, "the same as --tls")
	cmd.Flags().StringVar(&a.protocol, "oltp-protocol", "", "protocol to send traces over, http or grpc")
	hide(cmd, clientFlags())
}

// addDescriptor adds a descriptor, as each flag -descriptors does.
func (a *referenceFlags) addDescriptor(text string) error {
	d := new(commonv3.RateLimitDescriptor)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return fmt.Errorf("invalid descriptor list: %q is not of the form key=value with one equals sign", pair)
		}
		d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	a.descriptors = append(a.descriptors, d)
	return nil
}

// descriptorsText returns the descriptors as ratelimit_client prints them.
func (a *referenceFlags) descriptorsText() string {
	var b strings.Builder
	for _, d := range a.descriptors {
		b.WriteString("[")
		for _, e := range d.GetEntries() {
			fmt.Fprintf(&b, " <key=%s, value=%s> ", e.GetKey(), e.GetValue())
		}
		b.WriteString("] ")
	}
	return b.String()
}

// run makes a call like ratelimit_client: one, for one hit, whose rejection counts as an answer. As there,
// certificate files have no effect without -grpc-use-tls.
func (a *referenceFlags) run(p *program, cmd *cobra.Command) error {
	c := &p.client
	for _, name := range clientFlags() {
		p.printf("Flag: --%s=%q\n", name, cmd.Flag(name).Value)
	}
	if !c.tls && !given(cmd, []string{"ca", "cert", "key"}) {
		c.ca, c.cert, c.key = "", "", ""
	}
	options, flush, err := a.tracing(cmd.Context(), p)
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
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
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
func (a *referenceFlags) tracing(ctx context.Context, p *program) (options []grpc.DialOption, flush func(), err error) {
	if a.protocol == "" {
		return nil, func() {}, nil
	}
	t, err := tracing.New(ctx, tracing.Config{Service: "RateLimitClient", Protocol: a.protocol, Rate: 1, Log: server.NewLogger(p.stderr, settings.Settings{})})
	if err != nil {
		return nil, nil, err
	}
	return []grpc.DialOption{grpc.WithStatsHandler(t.Client())}, func() {
		over, cancel := context.WithCancel(ctx)
		cancel()
		_ = t.Run(over) // it logs errors
	}, nil
}
