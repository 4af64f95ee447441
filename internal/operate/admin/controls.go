package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of lists of controls.
const (
	usualControls = 100 // per page
	maxControls   = 500
	maxLifted     = 100
)

// putRequest is a request of Block, Allow, or Limit.
type putRequest interface {
	GetDomain() string
	GetEntries() []*adminv1.Entry
	GetBelow() bool
	GetFor() *durationpb.Duration
	GetReason() string
}

// Block denies the requests that a descriptor matches, for a time.
func (s methods) Block(ctx context.Context, q *adminv1.BlockRequest) (*adminv1.BlockResponse, error) {
	p, err := s.put(ctx, q, &override.Control{Kind: override.Block})
	if err != nil {
		return nil, err
	}
	return &adminv1.BlockResponse{Control: p.GetControl(), Replaced: p.GetReplaced(), Reach: p.GetReach(), Notes: p.GetNotes()}, nil
}

// Allow admits the requests that a descriptor matches, for a time.
func (s methods) Allow(ctx context.Context, q *adminv1.AllowRequest) (*adminv1.AllowResponse, error) {
	p, err := s.put(ctx, q, &override.Control{Kind: override.Allow})
	if err != nil {
		return nil, err
	}
	return &adminv1.AllowResponse{Control: p.GetControl(), Replaced: p.GetReplaced(), Reach: p.GetReach(), Notes: p.GetNotes()}, nil
}

// Limit replaces the limit of a descriptor for a time.
func (s methods) Limit(ctx context.Context, q *adminv1.LimitRequest) (*adminv1.LimitResponse, error) {
	o := q.GetTo()
	if o == nil {
		return nil, invalidf("a limit needs a number: set the field to")
	}
	if o.Contradicts() {
		return nil, errContradiction
	}
	c := &override.Control{Kind: override.Limit, LimitName: q.GetLimitName()}
	c.To = overrideOf(o)
	if c.To.Unit == descriptors.UnitUnknown {
		return nil, invalidf("the new limit has no unit: it must be second, minute, hour, day, week, month or year")
	}
	var rule *adminv1.Rule
	if q.GetBelow() && !s.limiter.HasDomain(q.GetDomain()) && q.GetDomain() != "" {
		why, _, _ := s.limiter.Outcome(q.GetDomain(), nil)
		return nil, fmt.Errorf("%w: %s", limiter.ErrNoLimit, why)
	}
	if !q.GetBelow() && len(q.GetEntries()) > 0 && q.GetDomain() != "" {
		r, err := s.limiter.Limitable(q.GetDomain(), entriesOf(q.GetEntries()), c.To, c.LimitName)
		if err != nil {
			return nil, err
		}
		rule = rulemessage.Of(r)
	}
	p, err := s.put(ctx, q, c)
	if err != nil {
		return nil, err
	}
	p.Rule = rule
	return p, nil
}

// put activates c as q asks. Its answer is that of Limit, without the rule.
func (s *Service) put(ctx context.Context, q putRequest, c *override.Control) (*adminv1.LimitResponse, error) {
	span := q.GetFor()
	if span == nil {
		return nil, invalidf("the duration is missing: set the field for, from 1s to 30 days (720h)")
	}
	if err := span.CheckValid(); err != nil {
		return nil, invalidf("for is not a valid duration: it must be from 1s to 30 days (720h)")
	}
	if span.AsDuration() == math.MaxInt64 { // the span does not fit into a time.Duration
		return nil, invalidf("for is %d seconds: it must be from 1s to 30 days (720h)", span.GetSeconds())
	}
	who := whoOf(ctx)
	c.Domain, c.Below, c.By, c.Reason, c.Scoped = q.GetDomain(), q.GetBelow(), who.Name, valid(q.GetReason()), who.Limited()
	entries := entriesOf(q.GetEntries())
	for _, e := range entries {
		c.Entries = append(c.Entries, override.Entry{Key: string(e.Key), Value: string(e.Value)})
	}
	before, err := s.controls.Set(ctx, c, span.AsDuration(), dry(q))
	if err != nil {
		return nil, err
	}
	a := actOf(ctx)
	a.Before, a.After = inForce(before), inForce(c)
	return &adminv1.LimitResponse{
		Control: controlMessage(c, who), Replaced: controlMessage(before, who), Reach: s.reach(ctx), Notes: s.notes(ctx, c, entries),
	}, nil
}

// notes warns about controls without effect and about likely mistakes.
func (s *Service) notes(ctx context.Context, c *override.Control, entries []descriptors.Entry) (notes []string) {
	text, limited, below := s.limiter.Outcome(c.Domain, entries)
	if whoOf(ctx).Limited() && !s.limiter.HasDomain(c.Domain) {
		text = noRulesOf(c.Domain)
	}
	switch {
	case limited || c.Below && s.limiter.HasDomain(c.Domain):
	case c.Kind == override.Block:
		notes = append(notes, valid(text)+": requests with it are denied anyway")
	case below && !c.Below:
		notes = append(notes, valid(text)+": this has no effect now; --below would include the descriptors below it")
	default:
		notes = append(notes, valid(text)+": this has no effect now")
	}
	if c.LimitName != "" && s.limiter.HasDomain(c.Domain) && !s.limiter.HasLimit(c.Domain, c.LimitName) {
		notes = append(notes, fmt.Sprintf("no rule of %s has a limit called %s: this has no effect now", valid(c.Domain), valid(c.LimitName)))
	}
	if i := slices.IndexFunc(c.Entries, func(e override.Entry) bool { return strings.Contains(e.Key+e.Value, "*") }); i >= 0 {
		e := c.Entries[i]
		notes = append(notes, valid(fmt.Sprintf("the * in %s=%s is literal: controls have no wildcards", e.Key, e.Value)))
	}
	return notes
}

// Lift ends controls early.
func (s methods) Lift(ctx context.Context, q *adminv1.LiftRequest) (*adminv1.LiftResponse, error) {
	ids := q.GetIds()
	switch {
	case len(ids) == 0:
		return nil, invalidf("no control to lift: pass one or more IDs from ListControls")
	case len(ids) > maxLifted:
		return nil, invalidf("%d controls are too many: pass at most %d at a time", len(ids), maxLifted)
	}
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	who := whoOf(ctx)
	if who.Limited() {
		wanted, err := s.controls.Lift(ctx, ids, true)
		if err == nil {
			err = liftable(who, wanted)
		}
		if err != nil {
			return nil, err
		}
	}
	lifted, err := s.controls.Lift(ctx, ids, q.GetDryRun())
	if err != nil {
		return nil, err
	}
	a, before := &adminv1.LiftResponse{Reach: s.reach(ctx)}, make([]string, 0, len(lifted))
	for _, c := range lifted {
		a.Lifted = append(a.Lifted, controlMessage(c, who))
		before = append(before, inForce(c))
	}
	actOf(ctx).Before = strings.Join(before, "; ")
	if c := lifted[0]; len(lifted) == 1 { // a single control has one subject
		describeControl(actOf(ctx), c)
	} else if !slices.ContainsFunc(lifted, func(o *override.Control) bool { return o.Domain != c.Domain }) {
		actOf(ctx).Domain = []byte(c.Domain)
	}
	return a, nil
}

// ListControls lists the active controls.
func (s methods) ListControls(ctx context.Context, q *adminv1.ListControlsRequest) (*adminv1.ListControlsResponse, error) {
	size, err := pageSize(q.GetPageSize(), usualControls, maxControls)
	if err != nil {
		return nil, err
	}
	from := 0
	if t := q.GetPageToken(); t != "" {
		n, err := strconv.ParseUint(t, 10, 31)
		if err != nil {
			return nil, invalidf("page_token is invalid: it must be the next_page_token of the previous page")
		}
		from = int(n)
	}
	who := whoOf(ctx)
	all := slices.DeleteFunc(s.controls.List(ctx), func(c *override.Control) bool { return !shows(who, c.Domain, q.GetDomain()) })
	a := &adminv1.ListControlsResponse{Reach: s.reach(ctx)}
	bytes := 0
	for i, c := range all[min(from, len(all)):] {
		if i == size || bytes > maxPageBytes {
			a.NextPageToken = strconv.Itoa(from + i)
			break
		}
		m := controlMessage(c, who)
		bytes += proto.Size(m)
		a.Controls = append(a.Controls, m)
	}
	return a, nil
}

// Grant refunds hits to the counter of one descriptor.
func (s methods) Grant(ctx context.Context, q *adminv1.GrantRequest) (*adminv1.GrantResponse, error) {
	if len(q.GetEntries()) == 0 {
		return nil, errNoEntries
	}
	before, after, err := s.limiter.Grant(ctx, q.GetDomain(), entriesOf(q.GetEntries()), q.GetHits(), q.GetDryRun())
	if err != nil {
		return nil, err
	}
	a := actOf(ctx)
	a.Before, a.After = counterState(before), counterState(after)
	m := &adminv1.GrantResponse{
		Rule:    rulemessage.Of(after.Rule),
		Before:  counterMessage(before.Name, &before.RateLimits, &before.Decision),
		Counter: counterMessage(after.Name, &after.RateLimits, &after.Decision),
		Reach:   s.counting(ctx),
	}
	m.Before.Overdraft, m.Counter.Overdraft = before.Overdraft, after.Overdraft
	return m, nil
}

// controlMessage converts c as visible to who; nil becomes nil.
func controlMessage(c *override.Control, who *access.Who) *adminv1.Control {
	if c == nil {
		return nil
	}
	m := &adminv1.Control{
		Id: c.ID, Kind: adminv1.ControlKind(rulemessage.Enum(adminv1.ControlKind_value, "CONTROL_KIND", c.Kind)), Domain: valid(c.Domain), Below: c.Below,
		LimitName: valid(c.LimitName), Since: timestamppb.New(c.Since), Until: timestamppb.New(c.Until), By: valid(c.By), Reason: valid(c.Reason),
	}
	for _, e := range c.Entries {
		m.Entries = append(m.Entries, entryMessage(who, e.Key, e.Value))
	}
	if c.Kind == override.Limit {
		m.To = &adminv1.Override{
			RequestsPerUnit: c.To.RequestsPerUnit, LargeRequestsPerUnit: c.To.LargeRequestsPerUnit,
			Unit: adminv1.Unit(c.To.Unit), UnitMultiplier: max(c.To.Multiplier, 1),
		}
	}
	return m
}
