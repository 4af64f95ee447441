package admin

import (
	"cmp"
	"context"
	"runtime"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// mostShown is the most problems, changes or controls of a rule in an answer.
const mostShown = 100

// process returns what is asked by the methods about the process, or the error of those without one.
func (s *Service) process() (Process, error) { //nolint:ireturn // it is the consumer's own
	if s.config.Process == nil {
		return nil, status.Error(codes.Unimplemented, "status unavailable")
	}
	return s.config.Process, nil
}

// Status says how this server is.
func (s methods) Status(ctx context.Context, _ *adminv1.StatusRequest) (*adminv1.StatusResponse, error) {
	p, err := s.process()
	if err != nil {
		return nil, err
	}
	now, who := p.Status(), whoOf(ctx)
	a := &adminv1.StatusResponse{
		Version:    valid(now.Version),
		GoVersion:  runtime.Version(),
		Started:    timestamppb.New(now.Started),
		Uptime:     durationpb.New(time.Since(now.Started)),
		Healthy:    now.Healthy,
		Drained:    unlessNever(now.Drained),
		Rules:      s.rulesMessage(&now.Rules, who),
		Store:      storeMessage(&now.Store),
		OnFailure:  onFailureOf(s.limiter.Fallback(nil)),
		Load:       loadMessage(&now.Load),
		Controls:   uint32(len(who.controls(s.controls.Known()))),
		Components: componentMessages(now.Components),
	}
	a.Reach, a.Replicas = s.replicas(ctx)
	for _, why := range now.NotReady {
		a.NotReady = append(a.NotReady, valid(why))
	}
	if r := now.Invalid; r != nil {
		problems := who.problems(r.Problems)
		a.InvalidRules = &adminv1.InvalidRules{
			Time: timestamppb.New(r.At), Version: r.Version, Problems: problemMessages(problems), Total: uint32(len(problems)), IsOver: r.Over,
		}
	}
	if n := now.Near; n != nil {
		a.NearCache = &adminv1.NearCacheStatus{
			Entries: uint64(n.Entries), Hits: n.Hits, Rejections: n.Rejections, Misses: n.Misses, Evictions: n.Evictions,
		}
		a.Leases = &adminv1.LeaseStatus{Held: n.HitsHeld, Leased: n.HitsLeased, Spent: n.HitsSpent, Returned: n.HitsReturned}
	}
	sees := func(domain string, _ []descriptors.Entry) bool { return !who.Limited() || who.Sees(domain) }
	a.DividedLimits = s.dividedMessages(sees, s.masks(ctx))
	if s.config.Observer != nil {
		a.Watchers = uint32(s.config.Observer.Watchers())
	}
	who.status(a)
	return a, nil
}

// ReloadRules takes the rules again from where they come from.
func (s methods) ReloadRules(ctx context.Context, q *adminv1.ReloadRulesRequest) (*adminv1.ReloadRulesResponse, error) {
	p, err := s.process()
	if err != nil {
		return nil, err
	}
	act := actOf(ctx)
	act.Before = "rules " + p.Status().Rules.Version
	r, err := p.ReloadRules(ctx, q.GetDryRun())
	if err != nil {
		return nil, err
	}
	if act.After = "rules " + r.Rules.Version; r.Invalid {
		act.After += ", because the new ones were invalid"
	}
	var lines []string
	more := 0
	if r.Changes != nil {
		lines, more = r.Changes.Lines(mostShown)
	}
	a := &adminv1.ReloadRulesResponse{
		Invalid: r.Invalid, Problems: problemMessages(r.Problems), TotalProblems: uint32(len(r.Problems)),
		TotalChanges: uint32(len(lines) + more), Rules: s.rulesMessage(&r.Rules, whoOf(ctx)),
	}
	for _, line := range lines {
		a.Changes = append(a.Changes, valid(line))
	}
	return a, nil
}

// Drain has the server report that it is not healthy, or ends that.
func (s methods) Drain(ctx context.Context, q *adminv1.DrainRequest) (*adminv1.DrainResponse, error) {
	p, err := s.process()
	if err != nil {
		return nil, err
	}
	d, err := p.Drain(q.GetUndo(), q.GetDryRun())
	if err != nil {
		return nil, err
	}
	act, words := actOf(ctx), map[bool]string{false: "in service", true: "drained"}
	act.Before, act.After = words[d.Since.IsZero() == d.Changed], words[!d.Since.IsZero()]
	return &adminv1.DrainResponse{Drained: unlessNever(d.Since), Changed: d.Changed, OtherwiseHealthy: d.Otherwise}, nil
}

func (s *Service) rulesMessage(r *Rules, who *Who) *adminv1.RulesStatus {
	m := &adminv1.RulesStatus{
		Source: valid(r.Source), Version: r.Version, Loaded: unlessNever(r.Loaded), Behind: unlessNever(r.Behind), Missing: valid(r.Missing),
	}
	if !r.Loaded.IsZero() {
		m.Age = durationpb.New(time.Since(r.Loaded))
	}
	m.LastChange = changeMessage(r, who)
	if set := s.limiter.Rules(); set != nil {
		for r := range set.Rules() {
			if who.Sees(r.DomainName()) {
				m.Rules++
			}
		}
		for d := range set.Domains() {
			if who.Sees(d.Name) {
				m.Domains++
			}
		}
	}
	return m
}

// changeMessage returns the last change of the rules in the domains of who; nil if there is none.
func changeMessage(r *Rules, who *Who) *adminv1.RulesChange {
	if r.Changes == nil {
		return nil
	}
	first, total, summary := r.Changes.In(who.Sees)
	if total == 0 {
		return nil
	}
	m := &adminv1.RulesChange{Time: timestamppb.New(r.Changed), Summary: summary, Total: uint32(total)}
	for i := range first[:min(len(first), mostShown)] {
		c := &first[i]
		m.Differences = append(m.Differences, &adminv1.RulesDifference{
			Path: valid(c.Path), Text: valid(c.Text), Place: valid(c.Place), Effect: c.Effect,
		})
	}
	return m
}

func problemMessages(all descriptors.Problems) (out []*adminv1.RulesProblem) {
	for _, warning := range []bool{false, true} { // errors first
		for _, p := range all {
			if p.Warning == warning && len(out) < mostShown {
				out = append(out, &adminv1.RulesProblem{
					File: valid(p.File), Line: int32(p.Line), Column: int32(p.Column), Path: valid(p.Path), Text: valid(p.Text), IsWarning: warning,
				})
			}
		}
	}
	return out
}

func componentMessages(all []health.Component) (out []*adminv1.Component) {
	for _, c := range all {
		m := &adminv1.Component{Name: c.Name, Since: timestamppb.New(c.Since), LastError: valid(c.LastError), Health: adminv1.Health_HEALTH_FAILING}
		switch {
		case c.OK:
			m.Health = adminv1.Health_HEALTH_OK
		case c.Degraded:
			m.Health = adminv1.Health_HEALTH_DEGRADED
		}
		out = append(out, m)
	}
	return out
}

func storeMessage(s *Store) *adminv1.StoreStatus {
	m := &adminv1.StoreStatus{Text: valid(s.Text), Connections: uint32(max(s.Connections, 0)), MemoryKeys: uint64(s.MemoryKeys)}
	breakers := map[health.Breaker]adminv1.Breaker{
		health.Open: adminv1.Breaker_BREAKER_OPEN, health.HalfOpen: adminv1.Breaker_BREAKER_HALF_OPEN,
	}
	for _, n := range s.Nodes {
		m.Nodes = append(m.Nodes, &adminv1.StoreNode{
			Name: valid(n.Name), Breaker: cmp.Or(breakers[n.Breaker], adminv1.Breaker_BREAKER_CLOSED), Opened: n.Opened, Wait: unlessZero(n.Wait),
		})
	}
	return m
}

// dividedMessages returns the limits that are divided, of those about which want says so.
func (s *Service) dividedMessages(want func(domain string, entries []descriptors.Entry) bool, masks *mask) (out []*adminv1.DividedLimit) {
	all := s.config.Process.Divided(want, mostShown)
	for i := range all {
		out = append(out, dividedMessage(&all[i], masks))
	}
	return out
}

func dividedMessage(d *Divided, masks *mask) *adminv1.DividedLimit {
	m := &adminv1.DividedLimit{
		Domain: valid(d.Domain), Answer: d.Answer, IsStrict: d.Strict, Rate: d.Rate, Capacity: d.Capacity, Part: d.Part, Left: d.Left,
		Assigned: d.Assigned, TotalClients: uint32(d.Total),
	}
	for _, e := range d.Entries {
		m.Entries = append(m.Entries, masks.entry(string(e.Key), string(e.Value)))
	}
	for i := range d.Clients {
		c := &d.Clients[i]
		m.Clients = append(m.Clients, &adminv1.DividedClient{Name: valid(c.Name), State: c.State, Weight: c.Weight, Demand: c.Demand, Share: c.Share})
	}
	return m
}

func loadMessage(l *Load) *adminv1.LoadStatus {
	return &adminv1.LoadStatus{
		Calls: uint64(max(l.Calls, 0)), Limit: uint64(max(l.Limit, 0)), Wait: unlessZero(l.Wait),
		ShedByProcess: l.ByProcess, ShedByStore: l.ByStore, ShedCalls: l.AtHeader,
	}
}

// unlessNever returns nil, for unset, if t is zero.
func unlessNever(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
