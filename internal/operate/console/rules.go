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

// Limits of the pages of rules.
const (
	rulesOnPage  = 100
	keysSearched = 1000 // the busiest of the last hour, at most as many as the API returns
	keysFound    = 20
	rateOver     = 30 * time.Second // maximum period of averaging rates
)

// line is a line of the rule tree: a domain, or a level with its rule, if any.
type line struct {
	Depth int
	Name  string
	Of    *rated
}

// tree is a page of rules, with the keys that a search finds.
type tree struct {
	Search string
	Lines  []line
	Shown  int    // rules on this page
	Total  uint32 // on all pages
	Later  bool   // not the first page
	Next   string
	URL    string               // of this page
	Keys   *adminv1.TopResponse // keys with all words of the search; nil without a search for keys
	Typed  string               // the address of the descriptor page if the search is a descriptor
}

func (u *console) ruleTree(ctx context.Context, r *http.Request) (*tree, error) {
	q := r.URL.Query()
	t := tree{Search: strings.TrimSpace(q.Get("q")), Later: q.Get("after") != "", URL: Root + "rules?" + q.Encode()}
	ask := &adminv1.ListRulesRequest{Search: t.Search, PageSize: rulesOnPage, PageToken: q.Get("after")}
	m, err := u.API.ListRules(ctx, ask)
	if status.Code(err) == codes.Aborted { // the rules have changed
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

// findKeys finds the keys with all words of a search. It is too slow to run at each keystroke.
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

// findTyped interprets a search as a descriptor, whether its key is known or not.
func (u *console) findTyped(ctx context.Context, t *tree) error {
	entries := parseEntries(strings.Split(t.Search, ","))
	if !strings.Contains(t.Search, "=") || len(entries) == 0 {
		return nil
	}
	domains, key := map[string]bool{}, entries[0].GetKey()
	m, err := u.API.ListRules(ctx, &adminv1.ListRulesRequest{Search: key, PageSize: rulesOnPage})
	domain := "" // if not exactly one domain has the key, the user chooses
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

// rated is a rule with its rates per second.
type rated struct {
	Rule              *adminv1.Rule
	State             *adminv1.RuleState
	Allowed, Rejected string
	Busy              bool // rejected requests recently
}

// ruleID identifies a rule. Rules of two domains, or of one, may have the same path.
type ruleID struct{ domain, path, place string }

// Place returns the file and line of the rule.
func (x *rated) Place() string {
	return strings.TrimSuffix(fmt.Sprintf("%s:%d", x.Rule.GetFile(), x.Rule.GetLine()), ":0") // 0 means unknown
}

// URL returns the address of the rule's page.
func (x *rated) URL() string { return ruleURL(x.State.GetDomain(), x.Rule.GetPath(), x.Place()) }

// sample is a rule's totals at one time.
type sample struct {
	at                time.Time
	allowed, rejected uint64
}

// rates remembers two earlier samples of each rule. Its zero value is empty.
type rates struct {
	mu   sync.Mutex
	seen map[ruleID][2]sample
}

// rated returns rules with their rates since an earlier sample.
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

// rulesAt returns all rules with a path, in a domain, or in all if domain is empty.
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

// rulePage is a rule, its counters, and the controls that override it.
type rulePage struct {
	*rated
	Others       []*rated // other rules with the same path and domain
	Domain       string
	YAML         string
	Bounds       []string
	Busiest      *adminv1.TopResponse
	MostRejected *adminv1.TopResponse // the most rejected descriptors
	Window       string               // of the lists: minute or hour
	Controls     []*adminv1.Control
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
	x := all[max(0, slices.IndexFunc(all, func(x *rated) bool { return x.Place() == q.Get("at") }))] // or the first, if that place no longer has one
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
	p.MostRejected, err = u.API.Top(ctx, &adminv1.TopRequest{Rule: path, Domain: p.Domain, Window: window, PageSize: 10, Ranking: adminv1.Ranking_RANKING_REJECTED})
	if err != nil {
		return nil, err
	}
	p.MostRejected.Entries = slices.DeleteFunc(p.MostRejected.GetEntries(), func(e *adminv1.TopEntry) bool { return e.GetRejected() == 0 })
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
