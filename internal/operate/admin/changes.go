package admin

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/audit"
	"github.com/ratelimitd/ratelimitd/internal/operate/controls"
)

// requestID is the metadata key with the ID of a call. A caller repeats a call with the same ID to avoid a second change.
const requestID = "x-request-id"

// mayBeDone is the code for a call that may have taken effect and must not be repeated.
const mayBeDone = codes.Unknown

// Bounds of the calls remembered per caller, so that no caller displaces the calls of others.
const (
	rememberFor   = 10 * time.Minute
	maxRemembered = 1000
	maxBytes      = 4 << 20 // total of the answers
	maxRequestID  = 128     // bytes
)

// whoKey is the context key of [access.Who], and actKey that of *[audit.Act].
type (
	whoKey struct{}
	actKey struct{}
)

// whoOf returns the admitted caller of ctx.
func whoOf(ctx context.Context) *access.Who {
	if who, ok := ctx.Value(whoKey{}).(*access.Who); ok {
		return who
	}
	return &access.Who{Masked: true, Domains: []string{}}
}

// actOf returns the audit record for the change in ctx. Methods fill it in.
func actOf(ctx context.Context) *audit.Act {
	if a, ok := ctx.Value(actKey{}).(*audit.Act); ok {
		return a
	}
	return new(audit.Act)
}

// callers holds the remembered calls of all callers and listeners.
type callers struct{ all sync.Map } // caller name → *calls

// of returns the calls of a caller.
func (c *callers) of(caller string) *calls {
	all, _ := c.all.LoadOrStore(caller, &calls{byID: make(map[string]*call)})
	return all.(*calls)
}

// calls holds the remembered calls of one caller.
type calls struct {
	mu    sync.Mutex
	byID  map[string]*call // by ID
	order []*call          // by age, including forgotten ones
	bytes int              // total size of the answers
}

// call is a finished or running call.
type call struct {
	id     string
	at     time.Time
	hash   [sha256.Size]byte // hash of the request
	done   chan struct{}     // closed once there is an answer or an error
	size   int               // size of the answer in bytes
	answer any
	err    error
}

// begin returns the call with this ID, and whether it is new. A new one requires a call of finish. begin returns an error if the
// ID belongs to a different request.
func (c *calls) begin(id string, hash [sha256.Size]byte) (of *call, isNew bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for len(c.order) > 0 && (now.Sub(c.order[0].at) >= rememberFor || len(c.order) >= maxRemembered || c.bytes > maxBytes) {
		c.forget(c.order[0])
		c.order = c.order[1:]
	}
	if old := c.byID[id]; old != nil {
		if old.hash != hash {
			return nil, false, invalidf("another call used this x-request-id in the last ten minutes: use a new ID unless you repeat that call")
		}
		return old, false, nil
	}
	of = &call{id: id, at: now, hash: hash, done: make(chan struct{})}
	c.byID[id] = of
	c.order = append(c.order, of)
	return of, true, nil
}

// forget removes a call if it is still present. c.mu must be held.
func (c *calls) forget(of *call) {
	if c.byID[of.id] == of {
		delete(c.byID, of.id)
		c.bytes -= of.size
	}
}

// finish sets the result of a call and wakes its waiters. It forgets a failed call, so that the caller can repeat it, unless the
// call may have taken effect.
func (c *calls) finish(of *call, answer any, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of.answer, of.err = answer, err
	switch {
	case err != nil && status.Code(err) != mayBeDone:
		c.forget(of)
	case err == nil && c.byID[of.id] == of:
		of.size = proto.Size(answer.(proto.Message))
		c.bytes += of.size
	}
	close(of.done)
}

// dry reports whether q is a dry run.
func dry(q any) bool {
	d, ok := q.(interface{ GetDryRun() bool })
	return ok && d.GetDryRun()
}

// change answers the change q with f, unless it was denied, and records it. A repeated call returns the first answer.
func (s *Service) change(ctx context.Context, q proto.Message, f grpc.UnaryHandler, denied error) (any, error) { //nolint:ireturn // signature of grpc
	who := whoOf(ctx)
	id, given, invalid := idOf(ctx)
	if invalid = cmp.Or(invalid, checkReason(q)); denied == nil && invalid != nil {
		denied = statusOf(ctx, invalid)
	}
	if denied != nil {
		s.failed(ctx, who, methodOf(q), denied)
		return nil, denied
	}
	a := &audit.Act{Method: methodOf(q), RequestID: id, By: who.Name, From: who.From}
	describe(a, q)
	_ = grpc.SetHeader(ctx, metadata.Pairs(requestID, id)) // fails only in tests without a call
	ctx = context.WithValue(ctx, actKey{}, a)
	if dry(q) {
		answer, err := f(ctx, q)
		return answered(ctx, answer, err)
	}
	once := func() (any, error) {
		if given {
			if err := s.doneElsewhere(ctx, a); err != nil {
				return nil, err
			}
		}
		answer, err := f(ctx, q)
		answer, err = answered(ctx, answer, err)
		s.record(ctx, who, a, err)
		return answer, err
	}
	if !given {
		return once()
	}
	return deduplicate(ctx, s.calls.of(who.Name), id, q, once)
}

// doneElsewhere returns an error if another replica, or an earlier process, has already executed the call of a.
func (s *Service) doneElsewhere(ctx context.Context, a *audit.Act) error {
	all, _ := s.config.Acts.Acts(ctx)
	for i := range all {
		if o := &all[i]; o.RequestID == a.RequestID && o.By == a.By && (o.Failed == "" || o.Failed == mayBeDone.String()) && time.Since(o.Time) < rememberFor {
			return status.Errorf(codes.AlreadyExists, "a call with this x-request-id was, or may have been, carried out at %s by another server: "+
				"see the audit log, and use a new ID unless you repeat that call", o.Time.Format(time.RFC3339))
		}
	}
	return nil
}

// deduplicate runs once for a new call, or waits for the answer of the first call with this ID.
func deduplicate(ctx context.Context, c *calls, id string, q proto.Message, once func() (any, error)) (answer any, err error) { //nolint:ireturn // signature of grpc
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(q)
	if err != nil {
		return answer, status.Error(codes.InvalidArgument, "the request cannot be read again: "+err.Error())
	}
	of, isNew, err := c.begin(id, sha256.Sum256(append([]byte(methodOf(q)+"\n"), text...)))
	if err != nil {
		return answer, statusOf(ctx, err)
	}
	if isNew {
		err = status.Error(codes.Internal, "the call ended without an answer") // after a panic
		defer func() { c.finish(of, answer, err) }()
		answer, err = once()
		return answer, err
	}
	select {
	case <-of.done:
		return of.answer, of.err
	case <-ctx.Done():
		return answer, status.FromContextError(ctx.Err()).Err()
	}
}

// answered converts err to a status.
func answered(ctx context.Context, answer any, err error) (any, error) { //nolint:ireturn // signature of grpc
	if err == nil {
		return answer, nil
	}
	if _, ok := status.FromError(err); ok {
		return nil, err
	}
	return nil, statusOf(ctx, err)
}

// idOf returns the ID of a call, and whether the caller sent it.
func idOf(ctx context.Context) (id string, given bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	switch ids := md.Get(requestID); {
	case len(ids) == 0 || len(ids) == 1 && ids[0] == "":
		return rand.Text(), false, nil
	case len(ids) > 1:
		return "", true, invalidf("the call has %d x-request-id headers: send one", len(ids))
	case len(ids[0]) > maxRequestID || strings.ContainsFunc(ids[0], func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", true, invalidf("x-request-id must have at most %d bytes, of printable ASCII without spaces", maxRequestID)
	default:
		return ids[0], true, nil
	}
}

// checkReason returns an error if the reason in q is too long.
func checkReason(q proto.Message) error {
	if r, ok := q.(interface{ GetReason() string }); ok && len(r.GetReason()) > controls.MaxReason {
		return invalidf("the reason has %d bytes: it may have at most %d", len(r.GetReason()), controls.MaxReason)
	}
	return nil
}

// methodOf returns the name of the method with request q.
func methodOf(q proto.Message) string {
	return strings.TrimSuffix(string(q.ProtoReflect().Descriptor().Name()), "Request")
}

// failed counts a call that changed nothing. It logs one line per minute and caller.
func (s *Service) failed(ctx context.Context, who *access.Who, method string, err error) {
	code := status.Code(err).String()
	s.config.Changed(method, false)
	if omitted, logs := s.config.Acts.Fail(who.Name, who.From, method, code); logs {
		s.audit.LogAttrs(ctx, slog.LevelWarn, "a change failed", slog.String("method", method), slog.String("by", who.Name),
			slog.String("from", who.From), slog.String("code", code), slog.Uint64("omitted", omitted))
	}
}

// record records and logs a change. A failed call counts as a change if its code means that it may have taken effect.
func (s *Service) record(ctx context.Context, who *access.Who, a *audit.Act, err error) {
	if err != nil {
		switch code := status.Code(err); code { //nolint:exhaustive // all other codes mean no change
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
			a.Failed, a.Why, a.Before, a.After = code.String(), status.Convert(err).Message(), "", ""
		default:
			s.failed(ctx, who, a.Method, err)
			return
		}
	}
	s.config.Acts.Add(ctx, a)
	s.config.Changed(a.Method, err == nil)
	keys := make([]string, 0, len(a.Entries)) // without values, which are data of end users
	for _, e := range a.Entries {
		keys = append(keys, valid(string(e[0])))
	}
	attrs := []slog.Attr{
		slog.String("method", a.Method), slog.String("request_id", a.RequestID), slog.String("by", a.By), slog.String("from", a.From),
		slog.String("domain", valid(string(a.Domain))), slog.Any("keys", keys), slog.String("what", a.What), slog.String("reason", a.Reason),
	}
	if err != nil {
		s.audit.LogAttrs(ctx, slog.LevelWarn, "a change failed, but may have taken effect", append(attrs, slog.String("failed", a.Failed))...)
		return
	}
	s.audit.LogAttrs(ctx, slog.LevelInfo, "an operator made a change", append(attrs, slog.String("before", a.Before), slog.String("after", a.After))...)
}
