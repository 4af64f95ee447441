package admin

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Constants of Watch.
const (
	defaultPerSecond = 1000
	maxBatch         = 100         // decisions per message
	reportEvery      = time.Second // delay until a watcher learns what it missed, without decisions
)

// Watch streams decisions as they are made.
func (s methods) Watch(q *adminv1.WatchRequest, stream adminv1.AdminService_WatchServer) error {
	ctx, _, err := s.admit(stream.Context(), q)
	if err != nil {
		return err
	}
	_, err = answered(ctx, nil, s.watch(ctx, q, stream))
	return err
}

// Watcher returns a function that calls Watch in this process for callers that policy admits, like [Service.Client] for the other
// methods. It passes each answer to send until send fails.
func (s *Service) Watcher(policy access.Policy) func(ctx context.Context, q *adminv1.WatchRequest, send func(*adminv1.WatchResponse) error) error {
	v := s.behind(policy)
	return func(ctx context.Context, q *adminv1.WatchRequest, send func(*adminv1.WatchResponse) error) error {
		return v.Watch(q, &sending{ctx: incoming(ctx), send: send}) //nolint:contextcheck // the stream holds the context
	}
}

// sending is the stream of a call in this process.
type sending struct {
	grpc.ServerStream

	ctx  context.Context //nolint:containedctx // as in gRPC streams
	send func(*adminv1.WatchResponse) error
}

// Context implements [grpc.ServerStream].
func (s *sending) Context() context.Context { return s.ctx }

// SendHeader implements [grpc.ServerStream].
func (*sending) SendHeader(metadata.MD) error { return nil }

// Send implements [adminv1.AdminService_WatchServer].
func (s *sending) Send(m *adminv1.WatchResponse) error { return s.send(m) }

func (s *Service) watch(ctx context.Context, q *adminv1.WatchRequest, stream adminv1.AdminService_WatchServer) error {
	if err := s.subject(ctx, q); err != nil {
		return err
	}
	options, err := watchOptions(q)
	if err != nil {
		return err
	}
	who := whoOf(ctx)
	options.Domains, options.Narrow = who.Domains, who.Narrow()
	if who.Limited() {
		options.Token = who.Name
	}
	w, err := s.config.Observer.Watch(options)
	if errors.Is(err, observe.ErrTooMany) {
		return status.Error(codes.ResourceExhausted, err.Error())
	}
	defer w.Close()
	if err := stream.SendHeader(metadata.MD{}); err != nil { // the caller misses no decision after this
		return err
	}
	return s.show(ctx, w, stream)
}

// show sends the decisions of w until ctx ends.
func (s *Service) show(ctx context.Context, w *observe.Watcher, stream adminv1.AdminService_WatchServer) error {
	who, report := whoOf(ctx), time.NewTicker(reportEvery)
	defer report.Stop()
	for {
		m := new(adminv1.WatchResponse)
		select {
		case <-ctx.Done():
			return status.Error(codes.Unavailable, "the server is stopping") // or the caller has disconnected
		case <-report.C:
			if err := s.stillPermitted(ctx); err != nil {
				return err
			}
		case line := <-w.Lines():
			m.Decisions = append(m.Decisions, decisionMessage(line, who))
			for len(w.Lines()) > 0 && len(m.Decisions) < maxBatch {
				m.Decisions = append(m.Decisions, decisionMessage(<-w.Lines(), who))
			}
		}
		if m.Lost, m.Skipped = w.Missed(); m.Lost+m.Skipped == 0 && len(m.Decisions) == 0 {
			continue
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}

// stillPermitted returns an error if the watcher's token is no longer valid or has other permissions.
func (s *Service) stillPermitted(ctx context.Context) error {
	now, err := s.allow(ctx, false)
	before := whoOf(ctx)
	switch code := status.Code(err); {
	case code == codes.Unauthenticated, code == codes.PermissionDenied:
		return err
	case err == nil && (now.Masked != before.Masked || !slices.Equal(now.Domains, before.Domains)):
		return status.Error(codes.PermissionDenied, "the permissions of your token have changed: start again")
	}
	return nil
}

// watchOptions validates and converts the options of q.
func watchOptions(q *adminv1.WatchRequest) (observe.Options, error) {
	o := observe.Options{
		Filter:    filterOf(q),
		OneIn:     q.GetOneIn(),
		PerSecond: cmp.Or(q.GetMaxPerSecond(), defaultPerSecond),
	}
	if o.PerSecond > observe.MaxPerSecond {
		return o, invalidf("max_per_second is %d: want 1 to %d, or 0 for %d", o.PerSecond, observe.MaxPerSecond, defaultPerSecond)
	}
	for _, wanted := range q.GetOutcomes() {
		if wanted == 0 || adminv1.Outcome_name[int32(wanted)] == "" {
			return o, invalidf("outcomes has %v: want OUTCOME_NO_LIMIT, _UNLIMITED, _REPLACED, _ADMITTED, _REJECTED, _SHADOWED, _BLOCKED, _ALLOWED, _FAILED, _LATE_CHARGE or _SKIPPED", wanted)
		}
	}
	for one := range limiter.Outcomes() {
		if slices.Contains(q.GetOutcomes(), outcomeOf(one)) {
			o.Outcomes = append(o.Outcomes, one)
		}
	}
	return o, nil
}

func decisionMessage(l *observe.Line, who *access.Who) *adminv1.Decision {
	m := &adminv1.Decision{
		Time:           timestamppb.New(l.Time),
		Caller:         l.Caller,
		Domain:         valid(string(l.Domain)),
		IsCut:          l.Cut,
		Rule:           valid(l.Rule),
		Outcome:        outcomeOf(l.Outcome),
		OverLimit:      l.Over,
		Source:         adminv1.Source(l.By), // both use the same numbers
		Control:        l.Control,
		Limit:          valid(l.Limit),
		IsOverride:     l.Override,
		Hits:           l.Hits,
		IsNegativeHits: l.Refund,
		Left:           l.Left,
		RetryAfter:     Duration(l.Retry),
		Took:           Duration(l.Took),
	}
	if l.By == limiter.ByFallback {
		m.Policy = rulemessage.OnFailure(l.Policy)
	}
	if l.Err != nil {
		m.Error = valid(l.Err.Error())
	}
	m.Entries = Entries(who, l.Entries)
	return m
}
