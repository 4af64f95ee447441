package admin

import (
	"context"

	"github.com/ratelimitd/ratelimitd/internal/rules/rulemessage"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Status returns the status of this server.
func (s methods) Status(ctx context.Context, _ *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	p, who := s.config.Process, whoOf(ctx)
	a := p.Status(who)
	a.OnFailure = rulemessage.OnFailure(s.limiter.Fallback(nil))
	for _, c := range s.controls.Cached() {
		if who.Sees(c.Domain) {
			a.Controls++
		}
	}
	a.Reach, a.Replicas = s.replicas(ctx)
	a.DividedLimits = p.Divided(who, func(domain string, _ []descriptors.Entry) bool { return who.Sees(domain) })
	a.Watchers = uint32(s.config.Observer.Watchers())
	narrowed(who, a)
	validate(a.ProtoReflect())
	return a, nil
}

// ReloadRules reloads the rules from their source.
func (s methods) ReloadRules(ctx context.Context, q *adminv1.ReloadRulesRequest) (*adminv1.ReloadRulesResponse, error) {
	p := s.config.Process
	act, who := actOf(ctx), whoOf(ctx)
	act.Before = "rules " + p.Status(who).GetRules().GetVersion()
	a, err := p.ReloadRules(ctx, who, q.GetDryRun())
	if err != nil {
		return nil, err
	}
	if act.After = "rules " + a.GetRules().GetVersion(); a.GetInvalid() {
		act.After += ", because the new ones were invalid"
	}
	validate(a.ProtoReflect())
	return a, nil
}

// Drain makes health fail, or ends that.
func (s methods) Drain(ctx context.Context, q *adminv1.DrainRequest) (*adminv1.DrainResponse, error) {
	a, err := s.config.Process.Drain(q.GetUndo(), q.GetDryRun())
	if err != nil {
		return nil, err
	}
	act, words := actOf(ctx), map[bool]string{false: "in service", true: "drained"}
	act.Before, act.After = words[(a.Drained == nil) == a.GetChanged()], words[a.Drained != nil]
	return a, nil
}
