// Package tenants knows which tenant is on which plan, and which tenants have a number of their own.
//
// The rules say which plans there are. Which tenant is on which plan is a table apart from the rules, since it has a line for each
// customer and changes with them. The table comes from files ([Tenants.Load]), from a store that replicas share ([Tenants.Run]), or
// from both; where both name a tenant, the store decides. Requests look tenants up while the table changes. No request ever waits
// for a table as a whole, and it finds a tenant either as before a change or as after it.
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

// MaxName is how many bytes a tenant's name may have.
const MaxName = 1024

// MaxTenants is how many tenants a source may have.
const MaxTenants = 10_000_000

// Config says where the table comes from. The zero value has no source.
type Config struct {
	Files bool             // [Tenants.Load] will be called
	Store replicated.Store // nil if there is none
	Log   *slog.Logger     // nil discards
	Event func(e Event)    // called for each event; may be nil
	Again func()           // starts loading the files again, and does not wait for it; may be nil

	// Check returns an error if a tenant's own number has no effect on a rule of its plan; may be nil.
	Check func(plan string, requests uint64) error
}

// Event is an event that metrics count.
type Event uint8

// The events.
const (
	Loaded  Event = iota // files became the table
	Invalid              // files did not: the last good ones stay
	Unread               // an entry of the store cannot be read
)

// Tenants holds which tenants are on which plan. Its methods are safe for concurrent use. A nil *Tenants has no tenants.
type Tenants struct {
	config Config
	log    *slog.Logger
	seed   maphash.Seed                // of all tables, so that a page of one table goes on in the table that replaces it
	nonce  string                      // of this process, for the same reason
	plans  atomic.Pointer[plans.Plans] // nil if there is no source
	shared *shared                     // nil if there is no store
	known  atomic.Pointer[[]string]

	register *replicated.Register
	loading  sync.Mutex
	status   atomic.Pointer[Status]
}

// New returns a table without tenants.
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

// Plans returns where the tables are published, for requests; nil if there is no source.
func (t *Tenants) Plans() *atomic.Pointer[plans.Plans] { return &t.plans }

// Said returns the entries of a tenant in all sources, as [plans.Plans.Said] does.
func (t *Tenants) Said(name []byte) []plans.Said {
	if t == nil {
		return nil
	}
	return t.plans.Load().Said(name)
}

// Listed is a tenant and its entry in a source.
type Listed struct {
	Tenant string
	plans.Said
}

// ErrPage is the error for a page token that this process has not made.
var ErrPage = errors.New("page_token is not from this server, or the server has restarted since then: start again without it")

// List returns at most so many tenants for which wanted returns true, from a page on, and the next page. The first page is empty,
// and so is the one after the last. The tenants are in no particular order.
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
				l := Listed{one.Name, plans.Said{Source: from, Entry: one.Entry}}
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

// place is where a page begins: in a part of a source's table, after the name with a hash.
type place struct {
	source plans.Source
	shard  int
	hash   uint64
}

// place parses a page.
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

// First is closed once the tenants of the store are known, or asking the store has failed.
func (t *Tenants) First() <-chan struct{} { return t.register.First() }

// StoreRead reports whether the tenants of the store, if there is one, have been read.
func (t *Tenants) StoreRead() bool { return t == nil || t.config.Store == nil || t.register.Known() }

// SetPlans sets the names of the plans that the rules have, sorted, and warns of tenants on other plans.
func (t *Tenants) SetPlans(names []string) {
	before := t.known.Swap(&names)
	if before != nil && slices.Equal(*before, names) {
		return
	}
	t.warn()
	if s := t.status.Load(); s != nil && t.config.Again != nil && (s.Err != nil || before == nil) {
		t.config.Again()
	}
}

func (t *Tenants) warn() {
	for _, u := range t.Unknown() {
		t.log.Warn("tenants are on a plan that no rule defines, so they get the default plan", "plan", u.Plan, "tenants", u.Tenants, "from", u.Source.String())
	}
}

// UnknownPlan is a plan of the table that no rule has.
type UnknownPlan struct {
	Plan    string
	Source  plans.Source
	Tenants int
}

// Unknown returns the plans of the table that no rule has; none while there are no rules.
func (t *Tenants) Unknown() (all []UnknownPlan) {
	if t == nil || t.known.Load() == nil {
		return nil
	}
	known := *t.known.Load()
	for _, s := range []plans.Source{plans.Store, plans.File} {
		for _, c := range t.tableOf(s).Counts() {
			if c.Tenants > 0 && !slices.Contains(known, c.Plan) {
				all = append(all, UnknownPlan{Plan: c.Plan, Source: s, Tenants: c.Tenants})
			}
		}
	}
	return all
}

// Len returns how many tenants a source has, including those whose entries have ended.
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

// ValidateName returns an error if a tenant cannot have that name.
func ValidateName(name string) error {
	switch n := len(name); {
	case n == 0:
		return errNoName
	case n > MaxName:
		return fmt.Errorf("the tenant's name has %d bytes: want at most %d", n, MaxName)
	}
	return nil
}

// Validate returns an error if a tenant cannot have that entry.
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

// maxPlan is how many bytes the name of a plan may have, as in rules.
const maxPlan = 64
