package admin

import (
	"cmp"
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/decide/override"
	"github.com/ratelimitd/ratelimitd/internal/operate/access"
	"github.com/ratelimitd/ratelimitd/internal/operate/observe"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Sizes of a page of Top.
const (
	defaultTop = 20
	maxTop     = 1000
	// maxReserved bounds the rows for which Top reads the reserved hits from the backend.
	maxReserved = 100
)

// Top returns the busiest or the most rejected descriptors.
func (s methods) Top(ctx context.Context, q *adminv1.TopRequest) (*adminv1.TopResponse, error) {
	ranking, window := q.GetRanking(), q.GetWindow()
	_, ranked := adminv1.Ranking_name[int32(ranking)]
	_, timed := adminv1.Window_name[int32(window)]
	most := cmp.Or(int(q.GetPageSize()), defaultTop)
	switch {
	case !ranked:
		return nil, invalidf("ranking is %d: want RANKING_BUSIEST or RANKING_REJECTED", ranking)
	case !timed:
		return nil, invalidf("window is %d: want WINDOW_MINUTE or WINDOW_HOUR", window)
	case most < 0 || most > maxTop:
		return nil, invalidf("page_size is %d: want 1 to %d, or 0 for %d", most, maxTop, defaultTop)
	}
	if err := s.subject(ctx, q); err != nil {
		return nil, err
	}
	who := whoOf(ctx)
	query := observe.Query{Filter: filterOf(q), MaxRows: most}
	query.Domains = who.Domains
	if ranking == adminv1.Ranking_RANKING_REJECTED {
		query.By = observe.Rejected
	}
	if window == adminv1.Window_WINDOW_HOUR {
		query.Window = observe.Hour
	}
	found := s.config.Observer.Top(query)
	m := topMessage(found, who)
	if q.GetRule() == "" && len(q.GetEntries()) == 0 {
		for _, r := range found.Rules {
			m.Rules = append(m.Rules, &adminv1.TopRule{
				Domain: valid(r.Domain), Rule: valid(r.Path), Hits: uint64(r.Hits[observe.Busiest]), Rejected: uint64(r.Hits[observe.Rejected]),
			})
		}
	}
	s.addControls(found.Rows, m.GetEntries())
	s.addReserved(ctx, found.Rows, m.GetEntries())
	if who.Limited() && q.GetRule() == "" { // counted over all domains
		m.Hits, m.Rejected = 0, 0
	}
	return m, nil
}

// subject is the filter of Top and Watch.
type subject interface {
	GetDomain() string
	GetRule() string
	GetEntries() []*adminv1.EntryFilter
}

// subject validates the filter q.
func (s *Service) subject(ctx context.Context, q subject) error {
	who := whoOf(ctx)
	if n := len(q.GetEntries()); n > limiter.MaxEntries {
		return invalidf("entries has %d elements: want at most %d, the maximum for a descriptor", n, limiter.MaxEntries)
	}
	for _, e := range q.GetEntries() {
		switch {
		case e.GetKey() == "":
			return invalidf("an element of entries has no key: set the key of an entry, such as user, and a value unless any value matches")
		case who.Masked && e.Value != nil:
			return status.Errorf(codes.PermissionDenied, "values of end users are hidden from you, so entries may name only the key %s", valid(e.GetKey()))
		}
	}
	rule, domain := q.GetRule(), q.GetDomain()
	if rule == "" {
		return nil
	}
	set := s.limiter.Rules()
	if set == nil {
		return limiter.ErrNoRules
	}
	if domain != "" && !strings.HasPrefix(rule, domain+".") {
		return invalidf("the rule %s is not in the domain %s: leave one of them out", valid(rule), valid(domain))
	}
	example := ""
	for r := range set.Rules() {
		if !who.Sees(r.DomainName()) {
			continue
		}
		if r.Path == rule {
			return nil
		}
		example = cmp.Or(example, r.Path)
	}
	return notFoundf("no rule %s: use the path of a rule, such as %s; ListRules returns all of them", valid(rule), cmp.Or(example, "shop.user"))
}

// filterOf converts the filter q.
func filterOf(q subject) observe.Filter {
	f := observe.Filter{Domain: q.GetDomain(), Rule: q.GetRule()}
	for _, e := range q.GetEntries() {
		f.Entries = append(f.Entries, observe.EntryFilter{Key: e.GetKey(), Value: e.GetValue(), AnyValue: e.Value == nil})
	}
	return f
}

// addControls fills in the block that denies a descriptor.
func (s *Service) addControls(rows []observe.Row, entries []*adminv1.TopEntry) {
	table := s.controls.Overrides().Load()
	if table == nil {
		return
	}
	for i := range rows {
		if rows[i].Cut {
			continue
		}
		if c := table.Find(rows[i].Domain, rows[i].Entries); len(c) > 0 && c[0].Kind == override.Block {
			entries[i].Control = c[0].ID
		}
	}
}

// addReserved fills in the reserved hits of the first rows whose rules reserve, from the backend.
func (s *Service) addReserved(ctx context.Context, rows []observe.Row, entries []*adminv1.TopEntry) {
	asked := 0
	for i := range rows {
		r := &rows[i]
		if r.Cut {
			continue
		}
		if rule := s.limiter.Matched(r.Domain, r.Entries); rule == nil || rule.Reserve == nil {
			continue
		}
		if asked++; asked > maxReserved {
			return
		}
		c, err := s.limiter.Peek(ctx, string(r.Domain), r.Entries)
		if err != nil {
			return // the next one would wait as long
		}
		entries[i].Reserved = new(c.Decision.Reserved)
	}
}

func topMessage(a observe.Answer, who *access.Who) *adminv1.TopResponse {
	m := &adminv1.TopResponse{
		From:            timestamppb.New(a.From),
		To:              timestamppb.New(a.To),
		Hits:            uint64(a.Total[observe.Busiest]),
		Rejected:        uint64(a.Total[observe.Rejected]),
		UnknownHits:     uint64(a.Missing[observe.Busiest]),
		UnknownRejected: uint64(a.Missing[observe.Rejected]),
		SampledOneIn:    a.Every,
	}
	for i := range a.Rows {
		r := &a.Rows[i]
		e := &adminv1.TopEntry{
			Domain:        valid(string(r.Domain)),
			Rule:          valid(r.Rule),
			IsCut:         r.Cut,
			Hits:          uint64(r.Counts[observe.Busiest].Hits),
			HitsError:     uint64(r.Counts[observe.Busiest].Error),
			Rejected:      uint64(r.Counts[observe.Rejected].Hits),
			RejectedError: uint64(r.Counts[observe.Rejected].Error),
		}
		e.Entries = Entries(who, r.Entries)
		m.Entries = append(m.Entries, e)
	}
	return m
}

// Entries converts entries as visible to who. Values of end users are hidden from Masked callers.
func Entries(who *access.Who, all []descriptors.Entry) (shown []*adminv1.Entry) {
	for _, e := range all {
		shown = append(shown, entryMessage(who, string(e.Key), string(e.Value)))
	}
	return shown
}

// entryMessage is Entries for one entry.
func entryMessage(who *access.Who, key, value string) *adminv1.Entry {
	e := &adminv1.Entry{Key: valid(key)}
	switch {
	case who.Masked:
		e.Value = who.Hide(value)
	case valid(value) != value:
		e.Value, e.RawValue = valid(value), []byte(value)
	default:
		e.Value = value
	}
	return e
}
