// Package tenants maps tenants to plans, and to limits of their own.
//
// Rules define the plans. The mapping of tenants to plans is a separate table, since it has a line for each customer and changes
// with them. The table comes from files ([Tenants.Load]), from a store that replicas share ([Tenants.Run]), or from both; if both
// have a tenant, the store takes precedence. Requests look up tenants while the table changes. A lookup never waits for the whole
// table, and finds the entry of a tenant either before or after a change.
//
// This package is optional: the core works without it.
package tenants

import (
	"crypto/rand"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ratelimitd/ratelimitd/internal/decide/plans"
	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// MaxName is the maximum size of a tenant's name in bytes.
const MaxName = 1024

// MaxTenants is the maximum number of tenants of a source.
const MaxTenants = 10_000_000

// Config configures the sources of a table. The zero value has none.
type Config struct {
	Files       bool             // [Tenants.Load] will be called
	Store       replicated.Store // nil without a store
	Log         *slog.Logger     // nil discards
	Event       func(e Event)    // called for each event; may be nil
	ReloadFiles func()           // starts to reload the files and returns immediately; may be nil

	// Check returns an error if a tenant's own number has no effect on a rule of its plan; may be nil.
	Check func(plan string, requests uint64) error
}

// Event is an event counted by metrics.
type Event uint8

// The events.
const (
	Loaded  Event = iota // files were loaded
	Invalid              // files were invalid, and the last good ones stay
	Unread               // an entry of the store is unreadable
)

// Tenants maps tenants to plans. Its methods are safe for concurrent use. A nil *Tenants is empty.
type Tenants struct {
	config    Config
	log       *slog.Logger
	seed      maphash.Seed                // of all tables, so that a page token stays valid when a table is replaced
	nonce     string                      // of this process, because page tokens depend on seed
	plans     atomic.Pointer[plans.Plans] // holds nil without a source
	shared    *shared                     // nil without a store
	planNames atomic.Pointer[[]string]

	register *replicated.Register
	loading  sync.Mutex
	status   atomic.Pointer[Status]
}

// New returns an empty table.
func New(c Config) *Tenants {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Event == nil {
		c.Event = func(Event) {}
	}
	if c.Check == nil {
		c.Check = func(string, uint64) error { return nil }
	}
	t := &Tenants{config: c, log: c.Log, seed: maphash.MakeSeed(), nonce: rand.Text()[:8]}
	if c.Store != nil {
		t.shared = newShared(t.seed, c.Event)
		t.plans.Store(&plans.Plans{Store: t.shared.Table})
	} else if c.Files {
		t.plans.Store(new(plans.Plans))
	}
	t.register = replicated.New(replicated.Config{
		Table: t.shared, Store: c.Store, What: "tenants", Failed: ErrStore, Log: c.Log,
	})
	return t
}

// Plans returns the pointer to the current tables, for requests. It holds nil without a source.
func (t *Tenants) Plans() *atomic.Pointer[plans.Plans] { return &t.plans }

// Entries returns a tenant's entries in all sources; see [plans.Plans.Entries].
func (t *Tenants) Entries(name []byte) []plans.SourceEntry {
	if t == nil {
		return nil
	}
	return t.plans.Load().Entries(name)
}

// Listed is a tenant with its entry in a source.
type Listed struct {
	Tenant string
	plans.SourceEntry
}

// ErrPage is the error for a page token of another process.
var ErrPage = errors.New("page_token is not from this server, or the server has restarted since then: start again without it")

// List returns at most most tenants for which wanted returns true, starting at a page token, and the next token. The token of the
// first page is "", as is the one after the last page. The order is unspecified.
func (t *Tenants) List(page string, most int, wanted func(*Listed) bool) (all []Listed, next string, err error) {
	if t == nil {
		return nil, "", nil
	}
	at, err := t.place(page)
	if err != nil {
		return nil, "", err
	}
	from, shard, after := at.source, at.shard, at.hash
	for ; from >= plans.File; from, shard, after = from-1, 0, 0 {
		for ; shard < plans.Shards; shard, after = shard+1, 0 {
			for _, one := range t.tableOf(from).List(shard) {
				l := Listed{one.Name, plans.SourceEntry{Source: from, Entry: one.Entry}}
				if one.Hash <= after && after > 0 || !wanted(&l) {
					continue
				}
				if len(all) == most {
					return all, next, nil
				}
				all = append(all, l)
				next = fmt.Sprintf("%s-%d-%d-%x", t.nonce, from, shard, one.Hash)
			}
		}
	}
	return all, "", nil
}

// place is a parsed page token: a shard of a source's table, and the hash of the name before the page.
type place struct {
	source plans.Source
	shard  int
	hash   uint64
}

// place parses a page token.
func (t *Tenants) place(page string) (at place, err error) {
	if page == "" {
		return place{source: plans.Store}, nil
	}
	var nonce string
	_, err = fmt.Sscanf(page, "%8s-%d-%d-%x", &nonce, &at.source, &at.shard, &at.hash)
	if err != nil || nonce != t.nonce || at.shard < 0 || at.shard >= plans.Shards || at.source > plans.Store {
		return at, ErrPage
	}
	return at, nil
}

// On reports whether there is a source.
func (t *Tenants) On() bool { return t != nil && (t.config.Files || t.config.Store != nil) }

// First returns a channel that is closed once the store's tenants are loaded, or the store has failed.
func (t *Tenants) First() <-chan struct{} { return t.register.First() }

// StoreRead reports whether the store's tenants, if there is a store, have been read.
func (t *Tenants) StoreRead() bool { return t == nil || t.config.Store == nil || t.register.Synced() }

// SetPlans sets the sorted plan names of the rules, and warns of tenants on other plans.
func (t *Tenants) SetPlans(names []string) {
	before := t.planNames.Swap(&names)
	if before != nil && slices.Equal(*before, names) {
		return
	}
	t.warn()
	if s := t.status.Load(); s != nil && t.config.ReloadFiles != nil && (s.Err != nil || before == nil) {
		t.config.ReloadFiles()
	}
}

func (t *Tenants) warn() {
	for _, u := range t.Unknown() {
		t.log.Warn("tenants are on a plan that no rule defines, so they get the default plan", "plan", u.Plan, "tenants", u.Tenants, "from", u.Source.String())
	}
}

// UnknownPlan is a plan in the table that no rule has.
type UnknownPlan struct {
	Plan    string
	Source  plans.Source
	Tenants int
}

// Unknown returns the plans in the table that no rule has; nil before rules are loaded.
func (t *Tenants) Unknown() (all []UnknownPlan) {
	if t == nil || t.planNames.Load() == nil {
		return nil
	}
	known := *t.planNames.Load()
	for _, s := range []plans.Source{plans.Store, plans.File} {
		for _, c := range t.tableOf(s).Counts() {
			if c.Tenants > 0 && !slices.Contains(known, c.Plan) {
				all = append(all, UnknownPlan{Plan: c.Plan, Source: s, Tenants: c.Tenants})
			}
		}
	}
	return all
}

// Len returns the number of tenants in a source, including expired entries.
func (t *Tenants) Len(s plans.Source) int {
	if t == nil {
		return 0
	}
	return t.tableOf(s).Len()
}

func (t *Tenants) tableOf(s plans.Source) *plans.Table {
	switch p := t.plans.Load(); {
	case p == nil:
		return nil
	case s == plans.File:
		return p.File
	default:
		return p.Store
	}
}

// ValidateName returns an error if name is not valid for a tenant.
func ValidateName(name string) error {
	switch n := len(name); {
	case n == 0:
		return errNoName
	case n > MaxName:
		return fmt.Errorf("the tenant's name has %d bytes: want at most %d", n, MaxName)
	}
	return nil
}

// Validate returns an error if e is not valid for a tenant.
func Validate(e *plans.Entry) error {
	switch {
	case e.Plan == "":
		return errNoPlan
	case len(e.Plan) > maxPlan || strings.ContainsAny(e.Plan, " \t\r\n"):
		return fmt.Errorf("invalid plan '%s': use the name of a rule's plan, 1 to %d letters, digits, hyphens and underscores", descriptors.Shorten(e.Plan), maxPlan)
	case e.Requests > descriptors.MaxRequestsPerUnit:
		return fmt.Errorf("requests_per_unit %d: want a number from 0 to %d", e.Requests, descriptors.MaxRequestsPerUnit)
	}
	return nil
}

// maxPlan is the maximum size of a plan's name in bytes, as in rules.
const maxPlan = 64
