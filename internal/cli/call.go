package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// callFlags are the flags of call.
type callFlags struct {
	query

	hits     uint32
	negative bool
	limit    string
	repeat   int
}

func (p *program) callCommand() *cobra.Command {
	var (
		f callFlags
		a referenceAsk
	)
	cmd := &cobra.Command{
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
				return a.run(cmd.Context(), p, cmd, f.client)
			}
			return p.call(cmd.Context(), &f, args)
		},
	}
	f.add(p, cmd)
	a.add(cmd, f.client)
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
	conn, err := f.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	service, rejected := rlsv3.NewRateLimitServiceClient(conn), 0
	for range f.repeat {
		answer, err := service.ShouldRateLimit(ctx, request)
		if err != nil {
			return f.explain(err)
		}
		if answer.GetOverallCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
			rejected++
		}
		if err := f.show(answer, func() {
			p.print(answerText(request, answer))
		}); err != nil {
			return err
		}
	}
	if f.repeat > 1 && !f.json() {
		p.printf("%d passed, %d rejected\n", f.repeat-rejected, rejected)
	}
	if rejected > 0 {
		return errNegative
	}
	return nil
}

// request builds the request that the flags and the arguments ask for.
func (f *callFlags) request(domain string, wanted []descriptor) (*rlsv3.RateLimitRequest, error) {
	request := &rlsv3.RateLimitRequest{Domain: domain, HitsAddend: f.hits}
	for i := range wanted {
		d := &wanted[i]
		d.give = d.give || f.negative
		if d.limit == nil && f.limit != "" {
			limit, err := ParseOverride(f.limit)
			if err != nil {
				return nil, fmt.Errorf("--limit %s: %w", f.limit, err)
			}
			d.limit = &limit
		}
		if d.limit != nil && d.limit.LargeRequestsPerUnit > 0 {
			return nil, fmt.Errorf("limit of %d: a request carries at most 4294967295", d.limit.Number())
		}
		request.Descriptors = append(request.Descriptors, d.envoy())
	}
	return request, nil
}

// envoy returns d in Envoy's API.
func (d *descriptor) envoy() *commonv3.RateLimitDescriptor {
	m := &commonv3.RateLimitDescriptor{IsNegativeHits: d.give}
	for _, e := range d.entries {
		m.Entries = append(m.Entries, &commonv3.RateLimitDescriptor_Entry{Key: e.key, Value: e.value})
	}
	if d.hits != nil {
		m.HitsAddend = wrapperspb.UInt64(*d.hits)
	}
	if d.limit != nil {
		m.Limit = &commonv3.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: d.limit.RequestsPerUnit,
			Unit:            typev3.RateLimitUnit(d.limit.Unit), // the numbers are the same
		}
		if d.limit.Multiplier > 0 {
			m.Limit.UnitMultiplier = wrapperspb.UInt32(d.limit.Multiplier)
		}
	}
	return m
}

// noteText returns what Envoy's API does not say of a descriptor, from the server's DECISION_METADATA: the rule or control that decided,
// the wait in a leaky bucket, and a limit that is exceeded in shadow mode. Where that is missing, it names the command that shows it.
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

// answerText returns an answer for people: a line for the request, one for each descriptor, one for each header, and the body.
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

// notLimited reports whether no limit applied to a descriptor, not even one that is unlimited.
func notLimited(s *rlsv3.RateLimitResponse_DescriptorStatus) bool {
	return s.GetCode() != rlsv3.RateLimitResponse_OVER_LIMIT && s.GetCurrentLimit() == nil && s.GetLimitRemaining() == 0
}

// statusText returns the answer to one descriptor in words.
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
	words := fmt.Sprintf("%s, %s, %d left", s.GetCode(), item, s.GetLimitRemaining())
	if limit.GetName() != "" {
		words += ", called " + limit.GetName()
	}
	reset := descriptors.WaitText(s.GetDurationUntilReset().AsDuration())
	if s.GetCode() == rlsv3.RateLimitResponse_OVER_LIMIT {
		return fmt.Sprintf("%s, retry in %s", words, reset)
	}
	return fmt.Sprintf("%s, resets in %s", words, reset)
}
