package console

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// change is a kind of change of a descriptor.
type change struct{ Do, Title, Text string }

// changes are all there are.
func changes() []change {
	return []change{
		{"block", "Block", "Deny all requests for a while."},
		{"allow", "Allow", "Let all requests pass for a while. They consume nothing."},
		{"limit", "Limit", "Override the limit for a while."},
		{"grant", "Grant", "Refund hits to the counter."},
		{"reset", "Reset", "Clear the counter."},
	}
}

// action is a change that an operator is about to make, or has made.
type action struct {
	Kind    *change        // nil for what is not about a descriptor
	Page    descriptorPage // to type it again, if it failed
	Verb    string         // such as block
	What    string         // that it is about
	Done    bool
	Effect  string
	Notes   []string
	Reach   string // which replicas it applies to
	Reason  string
	Form    url.Values // that it came with, to confirm it
	BackURL string
}

// act previews the change that a form asks for, or makes it once it is confirmed. Both have the same x-request-id, so that confirming twice
// makes it once.
func (u *console) act(ctx context.Context, r *http.Request) (*action, error) {
	p := typed(r) // reads the form
	f := r.PostForm
	p.Form = f
	d := action{Verb: f.Get("do"), What: plain.Text(p.Domain + ": " + entriesText(p.Entries)), Done: f.Get("confirmed") != "", Reason: f.Get("reason"), Form: f}
	d.Page, d.BackURL = p, descriptorURL(Root+"descriptor", p.Domain, p.Entries)
	if i := slices.IndexFunc(changes(), func(c change) bool { return c.Do == d.Verb }); i >= 0 {
		d.Kind = &changes()[i]
	}
	id := f.Get("id")
	if id == "" {
		id = rand.Text()
		f.Set("id", id)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", id)
	var err error
	switch d.Verb {
	case "block", "allow", "limit":
		err = u.control(ctx, &d, &p)
	case "grant":
		err = u.grant(ctx, &d, &p)
	case "reset":
		err = u.reset(ctx, &d, &p)
	case "lift":
		err = u.lift(ctx, &d)
	default:
		return nil, status.Error(codes.InvalidArgument, "no action given")
	}
	switch {
	case err != nil && d.Kind == nil:
		return nil, err
	case err != nil: // what was typed is shown again
		f.Del("confirmed")
		d.Done = false
	}
	return &d, err
}

// made is what all controls are answered with.
type made interface {
	GetControl() *adminv1.Control
	GetReplaced() *adminv1.Control
	GetReach() *adminv1.Reach
	GetNotes() []string
}

func (u *console) control(ctx context.Context, d *action, p *descriptorPage) error {
	span, err := descriptors.ParseSpan(strings.TrimSpace(d.Form.Get("for")))
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "For: %v", err)
	}
	var (
		m     made
		until = durationpb.New(span)
		below = d.Form.Get("below") != ""
	)
	switch d.Verb {
	case "block":
		m, err = u.API.Block(ctx, &adminv1.BlockRequest{Domain: p.Domain, Entries: p.Entries, Below: below, For: until, Reason: d.Reason, DryRun: !d.Done})
	case "allow":
		m, err = u.API.Allow(ctx, &adminv1.AllowRequest{Domain: p.Domain, Entries: p.Entries, Below: below, For: until, Reason: d.Reason, DryRun: !d.Done})
	default:
		n, wrong := strconv.ParseUint(d.Form.Get("requests"), 10, 64)
		if wrong != nil {
			return status.Errorf(codes.InvalidArgument, "Requests: %q is not a whole number", d.Form.Get("requests"))
		}
		to := &adminv1.Override{Unit: adminv1.Unit(adminv1.Unit_value["UNIT_"+strings.ToUpper(d.Form.Get("unit"))])}
		to.SetNumber(n)
		m, err = u.API.Limit(ctx, &adminv1.LimitRequest{Domain: p.Domain, Entries: p.Entries, Below: below, For: until, Reason: d.Reason, To: to, DryRun: !d.Done})
	}
	if err != nil {
		return err
	}
	d.Effect = map[string]string{"block": "All requests are denied", "allow": "All requests pass and consume nothing", "limit": "The limit is " + overrideText(m.GetControl().GetTo())}[d.Verb] +
		" until " + at(m.GetControl().GetUntil()) + " UTC."
	d.Notes, d.Reach = m.GetNotes(), reach(m.GetReach())
	if c := m.GetReplaced(); c != nil {
		d.Notes = append(d.Notes, "Replaces a control of the same kind that would have ended at "+at(c.GetUntil())+" UTC.")
	}
	return nil
}

func (u *console) grant(ctx context.Context, d *action, p *descriptorPage) error {
	hits, err := strconv.ParseUint(d.Form.Get("hits"), 10, 63)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "Hits: %q is not a whole number", d.Form.Get("hits"))
	}
	m, err := u.API.Grant(ctx, &adminv1.GrantRequest{Domain: p.Domain, Entries: p.Entries, Hits: hits, Reason: d.Reason, DryRun: !d.Done})
	if err != nil {
		return err
	}
	d.Effect, d.Reach = fmt.Sprintf("Hits to refund: %d at most. Left now: %d.", hits, m.GetCounter().Balance()), reach(m.GetReach())
	return nil
}

func (u *console) reset(ctx context.Context, d *action, p *descriptorPage) error {
	m, err := u.API.Reset(ctx, &adminv1.ResetRequest{Domain: p.Domain, Entries: p.Entries, Force: d.Form.Get("force") != "", Reason: d.Reason, DryRun: !d.Done})
	if err != nil {
		return err
	}
	d.Effect, d.Reach = fmt.Sprintf("Clears the counter. Left now: %d.", m.GetCounter().GetLeft()), reach(m.GetReach())
	return nil
}

func (u *console) lift(ctx context.Context, d *action) error {
	m, err := u.API.Lift(ctx, &adminv1.LiftRequest{Ids: d.Form["control"], Reason: d.Reason, DryRun: !d.Done})
	if err != nil {
		return err
	}
	c := m.GetLifted()[0]
	d.What, d.BackURL = plain.Text(c.GetDomain()+": "+entriesText(c.GetEntries())), Root+"controls"
	d.Effect, d.Reach = "The "+lower(c.GetKind().String(), "CONTROL_KIND_")+" ends, and the rules apply again.", reach(m.GetReach())
	return nil
}
