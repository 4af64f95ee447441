package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
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
	rulesOnPage  = 100
	keysSearched = 1000 // of the busiest of the last hour, as many as the API returns
	keysFound    = 20
	rateOver     = 30 * time.Second // over how long rates are averaged, at most
)

// line is a line of the tree of rules: a domain, or a level of it, with the rule that is there if there is one.
type line struct {
	Depth int
	Name  string
	Of    *rated
}

// tree is a page of the rules, and of the keys that a search finds.
type tree struct {
	Search string
	Lines  []line
	Shown  int    // rules on this page
	Total  uint32 // on all pages
	Later  bool   // it is not the first page
	Next   string
	URL    string               // of this page
	Keys   *adminv1.TopResponse // that have all words of the search; nil unless they were searched
	Typed  string               // the address of the page about the search as a descriptor; empty if it is none
}

func (u *console) ruleTree(ctx context.Context, r *http.Request) (*tree, error) {
	q := r.URL.Query()
	t := tree{Search: strings.TrimSpace(q.Get("q")), Later: q.Get("after") != "", URL: Root + "rules?" + q.Encode()}
	ask := &adminv1.ListRulesRequest{Search: t.Search, PageSize: rulesOnPage, PageToken: q.Get("after")}
	m, err := u.API.ListRules(ctx, ask)
	if status.Code(err) == codes.Aborted { // there are other rules now
		ask.PageToken, t.Later = "", false
		m, err = u.API.ListRules(ctx, ask)
	}
	if err != nil {
		return &t, err
	}
	t.Shown, t.Total, t.Next = len(m.GetRules()), m.GetTotal(), next(r, m.GetNextPageToken())
	var before []string
	for _, x := range u.rated(m) {
		levels := []string{x.State.GetDomain()}
		for _, l := range x.State.GetLevels() {
			levels = append(levels, levelText(l))
		}
		same := 0
		for same < len(levels)-1 && same < len(before) && before[same] == levels[same] {
			same++
		}
		for i := same; i < len(levels); i++ {
			t.Lines = append(t.Lines, line{Depth: i, Name: levels[i]})
		}
		t.Lines[len(t.Lines)-1].Of = x
		before = levels
	}
	if err = u.findTyped(ctx, &t); err != nil || t.Search == "" || partly(r) {
		return &t, err
	}
	return &t, u.findKeys(ctx, &t)
}

// findKeys finds the keys that have all words of a search, which takes too long to do it at each keystroke.
func (u *console) findKeys(ctx context.Context, t *tree) (err error) {
	t.Keys, err = u.API.Top(ctx, &adminv1.TopRequest{Window: adminv1.Window_WINDOW_HOUR, PageSize: keysSearched})
	if err != nil {
		return err
	}
	words := strings.Fields(strings.ToLower(t.Search))
	found := slices.DeleteFunc(t.Keys.GetEntries(), func(e *adminv1.TopEntry) bool {
		text := strings.ToLower(e.GetDomain() + ": " + entriesText(e.GetEntries()))
		return slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	})
	t.Keys.Entries = found[:min(len(found), keysFound)]
	return nil
}

// findTyped finds a search that is written as a descriptor, whether its key is known or not.
func (u *console) findTyped(ctx context.Context, t *tree) error {
	entries := parseEntries(strings.Split(t.Search, ","))
	if !strings.Contains(t.Search, "=") || len(entries) == 0 {
		return nil
	}
	domains, key := map[string]bool{}, entries[0].GetKey()
	m, err := u.API.ListRules(ctx, &adminv1.ListRulesRequest{Search: key, PageSize: rulesOnPage})
	domain := "" // the page asks for it, unless one domain alone has the key
	for _, s := range m.GetStates() {
		if l := s.GetLevels(); len(l) > 0 && l[0].GetKey() == key {
			domain = s.GetDomain()
			domains[domain] = true
		}
	}
	if len(domains) != 1 {
		domain = ""
	}
	t.Typed = descriptorURL(Root+"descriptor", domain, entries)
	return err
}

func levelText(l *adminv1.EntryFilter) string {
	if l.Value == nil {
		return l.GetKey()
	}
	return l.GetKey() + "=" + l.GetValue()
}

// rated is a rule with what it does per second.
type rated struct {
	Rule              *adminv1.Rule
	State             *adminv1.RuleState
	Allowed, Rejected string
	Busy              bool // a request was rejected lately
}

// ruleID is what tells a rule from others: paths of two domains, or of one, may be the same text.
type ruleID struct{ domain, path, place string }

// Place is where the rule is written.
func (x *rated) Place() string {
	return strings.TrimSuffix(fmt.Sprintf("%s:%d", x.Rule.GetFile(), x.Rule.GetLine()), ":0") // of a line that is not known
}

// URL is the address of the rule's page.
func (x *rated) URL() string { return ruleURL(x.State.GetDomain(), x.Rule.GetPath(), x.Place()) }

// sample is what a rule had done at a time since the start.
type sample struct {
	at                time.Time
	allowed, rejected uint64
}

// rates remembers what rules had done when they were shown: the last time, and one some time before. Its zero value remembers nothing.
type rates struct {
	mu   sync.Mutex
	seen map[ruleID][2]sample
}

// rated returns rules with what they did per second since they were shown before.
func (u *console) rated(m *adminv1.ListRulesResponse) []*rated {
	all, now := make([]*rated, 0, len(m.GetRules())), time.Now()
	u.rates.mu.Lock()
	defer u.rates.mu.Unlock()
	if u.rates.seen == nil {
		u.rates.seen = make(map[ruleID][2]sample)
	}
	maps.DeleteFunc(u.rates.seen, func(_ ruleID, two [2]sample) bool { return now.Sub(two[1].at) > rateOver })
	for i, r := range m.GetRules() {
		x := &rated{Rule: r, State: m.GetStates()[i], Allowed: "–", Rejected: "–"}
		id := ruleID{x.State.GetDomain(), r.GetPath(), x.Place()}
		is := sample{now, x.State.GetAllowed(), x.State.GetRejected()}
		two, known := u.rates.seen[id]
		switch {
		case !known:
			two = [2]sample{is, is}
		case now.Sub(two[1].at) >= rateOver/2:
			two = [2]sample{two[1], is}
		}
		u.rates.seen[id] = two
		if before := two[0]; before.at.Before(now) {
			over := now.Sub(before.at)
			x.Allowed, x.Rejected = perSecond(before.allowed, is.allowed, over), perSecond(before.rejected, is.rejected, over)
			x.Busy = is.rejected > before.rejected
		}
		all = append(all, x)
	}
	return all
}

func perSecond(before, now uint64, over time.Duration) string {
	return count(float64(now-min(now, before)) / over.Seconds())
}

// rulesAt returns all rules with a path, of a domain or of all if it is empty.
func (u *console) rulesAt(ctx context.Context, path, domain string) ([]*rated, error) {
	q, found := &adminv1.ListRulesRequest{PathPrefix: path}, new(adminv1.ListRulesResponse)
	for {
		m, err := u.API.ListRules(ctx, q)
		if err != nil {
			return nil, err
		}
		for i, s := range m.GetStates() {
			if r := m.GetRules()[i]; r.GetPath() == path && (domain == "" || s.GetDomain() == domain) {
				found.Rules, found.States = append(found.Rules, r), append(found.States, s)
			}
		}
		if q.PageToken = m.GetNextPageToken(); q.PageToken == "" {
			return u.rated(found), nil
		}
	}
}

// rulePage is a rule, what it limits, and what stands above it.
type rulePage struct {
	*rated
	Others   []*rated // that have the same path in the same domain
	Domain   string
	YAML     string
	Bounds   []string
	Busiest  *adminv1.TopResponse
	Most     *adminv1.TopResponse // rejected
	Window   string               // minute or hour
	Controls []*adminv1.Control
}

func (u *console) rule(ctx context.Context, r *http.Request) (*rulePage, error) {
	q := r.URL.Query()
	path := q.Get("path")
	all, err := u.rulesAt(ctx, path, q.Get("domain"))
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, status.Errorf(codes.NotFound, "rule %s not found; it may have been removed", path)
	}
	x := all[max(0, slices.IndexFunc(all, func(x *rated) bool { return x.Place() == q.Get("at") }))] // or the first, if none is there any more
	p := rulePage{rated: x, Domain: x.State.GetDomain(), YAML: ruleYAML(x.Rule), Bounds: bounds(x.Rule), Window: "minute"}
	p.Others = slices.DeleteFunc(all, func(y *rated) bool { return y == x || y.State.GetDomain() != p.Domain })
	window := adminv1.Window_WINDOW_MINUTE
	if q.Get("window") == "hour" {
		p.Window, window = "hour", adminv1.Window_WINDOW_HOUR
	}
	p.Busiest, err = u.API.Top(ctx, &adminv1.TopRequest{Rule: path, Domain: p.Domain, Window: window, PageSize: 10})
	if err != nil {
		return nil, err
	}
	p.Most, err = u.API.Top(ctx, &adminv1.TopRequest{Rule: path, Domain: p.Domain, Window: window, PageSize: 10, Ranking: adminv1.Ranking_RANKING_REJECTED})
	if err != nil {
		return nil, err
	}
	p.Most.Entries = slices.DeleteFunc(p.Most.GetEntries(), func(e *adminv1.TopEntry) bool { return e.GetRejected() == 0 })
	ids := x.State.GetControls()
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
