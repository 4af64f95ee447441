package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Bounds of what is shown of rules.
const (
	mostRules = 5000             // in the tree; a search finds the others
	rateOver  = 30 * time.Second // over how long rates are averaged, at most
)

// line is a line of the tree of rules: a domain, or a level of it, with the rule that is there if there is one.
type line struct {
	Depth             int
	Name              string
	Rule              *adminv1.Rule
	State             *adminv1.RuleState
	Allowed, Rejected string // per second
	Busy              bool   // a request was rejected lately
	URL               string
}

// tree is the page of all rules.
type tree struct {
	Search string
	Lines  []line
	Shown  int
	All    int
}

func (u *console) ruleTree(ctx context.Context, r *http.Request) (*tree, error) {
	q := strings.TrimSpace(r.URL.Query().Get("q"))
	all, err := u.allRules(ctx, "")
	if err != nil {
		return nil, err
	}
	t := tree{Search: q, All: len(all)}
	var before []string
	for _, x := range all {
		if q != "" && !meets(x.rule, q) {
			continue
		}
		if t.Shown++; t.Shown > mostRules {
			continue
		}
		levels := []string{x.state.GetDomain()}
		for _, l := range x.state.GetLevels() {
			levels = append(levels, levelText(l))
		}
		same := 0
		for same < len(levels)-1 && same < len(before) && before[same] == levels[same] {
			same++
		}
		for i := same; i < len(levels); i++ {
			l := line{Depth: i, Name: levels[i]}
			if i == len(levels)-1 {
				l.Rule, l.State = x.rule, x.state
				l.Allowed, l.Rejected, l.Busy, l.URL = x.allowed, x.rejected, x.busy, x.URL()
			}
			t.Lines = append(t.Lines, l)
		}
		before = levels
	}
	return &t, nil
}

func levelText(l *adminv1.EntryFilter) string {
	if l.Value == nil {
		return l.GetKey()
	}
	return l.GetKey() + "=" + l.GetValue()
}

// meets reports whether all words of a search occur in what is known of a rule.
func meets(r *adminv1.Rule, search string) bool {
	text := r.GetPath() + " " + r.GetFile() + " " + ruleText(r)
	return !slices.ContainsFunc(strings.Fields(search), func(word string) bool {
		return !strings.Contains(strings.ToLower(text), strings.ToLower(word))
	})
}

// rated is a rule with what it does.
type rated struct {
	rule              *adminv1.Rule
	state             *adminv1.RuleState
	allowed, rejected string
	busy              bool
	ambiguous         bool // another rule of the domain has the same path
}

// ruleID is what tells a rule from others: paths of two domains, or of one, may be the same text.
type ruleID struct{ domain, path, place string }

func (x *rated) id() ruleID { return ruleID{x.state.GetDomain(), x.rule.GetPath(), x.Place()} }

// Place is where the rule is written.
func (x *rated) Place() string { return fmt.Sprintf("%s:%d", x.rule.GetFile(), x.rule.GetLine()) }

// URL is the address of the rule's page.
func (x *rated) URL() string {
	if x.ambiguous {
		return ruleURL(x.state.GetDomain(), x.rule.GetPath(), x.Place())
	}
	return ruleURL(x.state.GetDomain(), x.rule.GetPath(), "")
}

// allRules returns all rules whose path begins with prefix, and what they did per second since the page was shown before.
func (u *console) allRules(ctx context.Context, prefix string) (all []rated, err error) {
	now := make(map[ruleID]done)
	same := make(map[ruleID]int) // how many have a path, whatever their place
	for token := ""; ; {
		m, err := u.API.ListRules(ctx, &adminv1.ListRulesRequest{PathPrefix: prefix, PageToken: token})
		if err != nil {
			return nil, err
		}
		for i, r := range m.GetRules() {
			s := m.GetStates()[i]
			all = append(all, rated{rule: r, state: s})
			now[all[len(all)-1].id()] = done{s.GetAllowed(), s.GetRejected()}
			same[ruleID{domain: s.GetDomain(), path: r.GetPath()}]++
		}
		if token = m.GetNextPageToken(); token == "" {
			break
		}
	}
	what := seenRules{prefix: prefix, rules: len(all)}
	if len(all) > 0 {
		what.first = all[0].id()
	}
	before, over := u.rates.since(what, time.Now(), now)
	for i := range all {
		x := &all[i]
		x.ambiguous = same[ruleID{domain: x.state.GetDomain(), path: x.rule.GetPath()}] > 1
		b, known := before[x.id()]
		if !known || over <= 0 {
			x.allowed, x.rejected = "–", "–"
			continue
		}
		n := now[x.id()]
		x.allowed, x.rejected = perSecond(b.allowed, n.allowed, over), perSecond(b.rejected, n.rejected, over)
		x.busy = n.rejected > b.rejected
	}
	return all, nil
}

func perSecond(before, now uint64, over time.Duration) string {
	return count(float64(now-min(now, before)) / over.Seconds())
}

// done is what a rule has done since the start.
type done struct{ allowed, rejected uint64 }

// looked is what rules had done when a page was shown.
type looked struct {
	at    time.Time
	rules map[ruleID]done
}

// seenRules is what a page shows: rules whose path begins so, as many of them as they may see, and the first of these.
type seenRules struct {
	prefix string
	first  ruleID
	rules  int
}

// rates remembers what was shown before, by page: the last time, and one some time before. Its zero
// value remembers nothing.
type rates struct {
	mu   sync.Mutex
	seen map[seenRules][2]looked
}

// since remembers what is seen now, and returns what was seen some seconds before, and how long ago that is.
func (s *rates) since(what seenRules, now time.Time, rules map[ruleID]done) (map[ruleID]done, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, two := range s.seen { // pages that are not shown any more
		if now.Sub(two[1].at) > rateOver {
			delete(s.seen, other)
		}
	}
	if s.seen == nil {
		s.seen = make(map[seenRules][2]looked)
	}
	two, known := s.seen[what]
	switch {
	case !known:
		two = [2]looked{{now, rules}, {now, rules}}
	case now.Sub(two[1].at) >= rateOver/2:
		two = [2]looked{two[1], {now, rules}}
	}
	s.seen[what] = two
	return two[0].rules, now.Sub(two[0].at)
}

// ruleText returns a rule in words.
func ruleText(r *adminv1.Rule) string {
	if r.GetIsUnlimited() {
		return "unlimited"
	}
	var all []string
	for _, l := range r.GetLimits() {
		all = append(all, l.GetText())
	}
	return strings.Join(all, "; ")
}

// rulePage is a rule, what it limits, and what stands above it.
type rulePage struct {
	*rated
	Others   []rated // that have the same path in the same domain
	Rule     *adminv1.Rule
	State    *adminv1.RuleState
	Domain   string
	YAML     string
	Bounds   []string
	Busiest  *adminv1.TopResponse
	Rejected *adminv1.TopResponse
	Window   string // minute or hour
	Controls []*adminv1.Control
}

// Rates returns what the rule does per second.
func (p *rulePage) Rates() [2]string { return [2]string{p.allowed, p.rejected} }

// chosen returns the rule that a query asks for, or nil, and the others of its domain with the same path. Without a domain, and where no
// rule is in the place asked for any more, it is the first of the path.
func chosen(all []rated, q url.Values) (x *rated, others []rated) {
	all = slices.DeleteFunc(all, func(x rated) bool {
		return x.rule.GetPath() != q.Get("path") || q.Get("domain") != "" && x.state.GetDomain() != q.Get("domain")
	})
	if len(all) == 0 {
		return nil, nil
	}
	i := max(0, slices.IndexFunc(all, func(x rated) bool { return x.Place() == q.Get("at") }))
	for j := range all {
		if j != i && all[j].state.GetDomain() == all[i].state.GetDomain() {
			others = append(others, all[j])
		}
	}
	return &all[i], others
}

func (u *console) rule(ctx context.Context, r *http.Request) (*rulePage, error) {
	q := r.URL.Query()
	path := q.Get("path")
	all, err := u.allRules(ctx, path)
	if err != nil {
		return nil, err
	}
	x, others := chosen(all, q)
	if x == nil {
		return nil, status.Errorf(codes.NotFound, "there is no rule %s; it may have been removed since", path)
	}
	p := rulePage{rated: x, Others: others, Rule: x.rule, State: x.state, Domain: x.state.GetDomain(), YAML: ruleYAML(x.rule), Bounds: bounds(x.rule), Window: "minute"}
	window := adminv1.Window_WINDOW_MINUTE
	if q.Get("window") == "hour" {
		p.Window, window = "hour", adminv1.Window_WINDOW_HOUR
	}
	p.Busiest, err = u.API.Top(ctx, &adminv1.TopRequest{Rule: path, Domain: p.Domain, Window: window, PageSize: 10})
	if err != nil {
		return nil, err
	}
	p.Rejected, err = u.API.Top(ctx, &adminv1.TopRequest{Rule: path, Domain: p.Domain, Window: window, PageSize: 10, Ranking: adminv1.Ranking_RANKING_REJECTED})
	if err != nil {
		return nil, err
	}
	p.Rejected.Entries = slices.DeleteFunc(p.Rejected.GetEntries(), func(e *adminv1.TopEntry) bool { return e.GetRejected() == 0 })
	ids := x.state.GetControls()
	for token := ""; len(ids) > len(p.Controls); {
		m, err := u.API.ListControls(ctx, &adminv1.ListControlsRequest{Domain: p.Domain, PageSize: 500, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, c := range m.GetControls() {
			if slices.Contains(ids, c.GetId()) {
				p.Controls = append(p.Controls, c)
			}
		}
		if token = m.GetNextPageToken(); token == "" {
			break
		}
	}
	return &p, nil
}
