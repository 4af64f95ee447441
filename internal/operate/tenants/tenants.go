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
	"time"

	"github.com/ratelimitd/ratelimitd/internal/operate/replicated"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// MaxName is how many bytes a tenant's name may have.
const MaxName = 1024

// MaxTenants is how many tenants a source may have.
const MaxTenants = 10_000_000

// Source is a table that names the plan of a tenant.
type Source uint8

// The sources.
const (
	Nowhere Source = iota
	File
	Store
)

// String returns the source, for people.
func (s Source) String() string { return [...]string{"nothing", "TENANTS_FILE", "Redis"}[s] }

// Entry is the line of a tenant in a source.
type Entry struct {
	Plan     string
	Requests uint32 // replaces the plan's requests_per_unit, if Numbered
	Numbered bool
	Until    time.Time // when the entry ends, and the tenant counts as not named any more; zero if it has no end
}

// Over reports whether the entry has ended.
func (e *Entry) Over(now time.Time) bool { return !e.Until.IsZero() && !now.Before(e.Until) }

// String returns the entry in words.
func (e *Entry) String() string {
	text := "plan " + e.Plan
	if e.Numbered {
		text += fmt.Sprintf(", %d requests_per_unit", e.Requests)
	}
	if !e.Until.IsZero() {
		text += ", until " + e.Until.UTC().Format(time.RFC3339)
	}
	return text
}

// Config says where the table comes from. The zero value has no source.
type Config struct {
	Files bool             // [Tenants.Load] will be called
	Store replicated.Store // nil if there is none
	Log   *slog.Logger     // nil discards
	Event func(e Event)    // called for each event; may be nil
	Again func()           // starts loading the files again, and does not wait for it; may be nil
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
	seed   maphash.Seed          // of all tables, so that a page of one table goes on in the table that replaces it
	nonce  string                // of this process, for the same reason
	file   atomic.Pointer[table] // nil until files are loaded
	shared *shared               // nil if there is no store
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
	t := &Tenants{config: c, log: c.Log, seed: maphash.MakeSeed(), nonce: rand.Text()[:8]}
	if c.Store != nil {
		t.shared = newShared(t.seed, c.Event)
	}
	t.register = replicated.New(replicated.Config{
		Table: t.shared, Store: c.Store, What: "tenants", Failed: ErrStore, Log: c.Log,
	})
	return t
}

// Find returns the entry of a tenant that counts now, and its source; [Nowhere] if there is none. It does not allocate.
func (t *Tenants) Find(name []byte) (Entry, Source) {
	if t == nil {
		return Entry{}, Nowhere
	}
	if e, ok := t.tableOf(Store).find(name); ok && (e.Until.IsZero() || !e.Over(time.Now())) {
		return e, Store
	}
	if e, ok := t.file.Load().find(name); ok && (e.Until.IsZero() || !e.Over(time.Now())) {
		return e, File
	}
	return Entry{}, Nowhere
}

// Said is the entry of a tenant in one source.
type Said struct {
	Source Source
	Entry  Entry
}

// Said returns the entries of a tenant in all sources, the one that decides first, including those that have ended.
func (t *Tenants) Said(name []byte) (all []Said) {
	if t == nil {
		return nil
	}
	if e, ok := t.tableOf(Store).find(name); ok {
		all = append(all, Said{Store, e})
	}
	if e, ok := t.file.Load().find(name); ok {
		all = append(all, Said{File, e})
	}
	return all
}

// Listed is a tenant and its entry in a source.
type Listed struct {
	Tenant string
	Said
}

// ErrPage is the error for a page token that this process has not made.
var ErrPage = errors.New("page_token is not from this server, or the server has restarted since: start again without it")

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
	for ; from >= File; from, shard, after = from-1, 0, 0 {
		for ; shard < shards; shard, after = shard+1, 0 {
			for _, one := range t.tableOf(from).list(shard) {
				l := Listed{one.name, Said{from, one.Entry}}
				if one.hash <= after && after > 0 || !wanted(&l) {
					continue
				}
				if len(all) == most {
					return all, next, nil
				}
				all = append(all, l)
				next = fmt.Sprintf("%s-%d-%d-%x", t.nonce, from, shard, one.hash)
			}
		}
	}
	return all, "", nil
}

// place is where a page begins: in a part of a source's table, after the name with a hash.
type place struct {
	source Source
	shard  int
	hash   uint64
}

// place parses a page.
func (t *Tenants) place(page string) (at place, err error) {
	if page == "" {
		return place{source: Store}, nil
	}
	var nonce string
	_, err = fmt.Sscanf(page, "%8s-%d-%d-%x", &nonce, &at.source, &at.shard, &at.hash)
	if err != nil || nonce != t.nonce || at.shard < 0 || at.shard >= shards || at.source > Store {
		return at, ErrPage
	}
	return at, nil
}

// On reports whether there is a source.
func (t *Tenants) On() bool { return t != nil && (t.config.Files || t.config.Store != nil) }

// First is closed once the tenants of the store are known, or asking the store has failed.
func (t *Tenants) First() <-chan struct{} { return t.register.First() }

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
		t.log.Warn("tenants are on a plan that no rule defines, and get the plan default", "plan", u.Plan, "tenants", u.Tenants, "from", u.Source.String())
	}
}

// UnknownPlan is a plan of the table that no rule has.
type UnknownPlan struct {
	Plan    string
	Source  Source
	Tenants int
}

// Unknown returns the plans of the table that no rule has; none while there are no rules.
func (t *Tenants) Unknown() (all []UnknownPlan) {
	if t == nil || t.known.Load() == nil {
		return nil
	}
	known := *t.known.Load()
	for _, s := range []Source{Store, File} {
		for _, c := range t.tableOf(s).counts() {
			if c.tenants > 0 && !slices.Contains(known, c.plan) {
				all = append(all, UnknownPlan{Plan: c.plan, Source: s, Tenants: c.tenants})
			}
		}
	}
	return all
}

// Len returns how many tenants a source has, including those whose entries have ended.
func (t *Tenants) Len(s Source) int {
	if t == nil {
		return 0
	}
	return t.tableOf(s).len()
}

func (t *Tenants) tableOf(s Source) *table {
	switch {
	case s == File:
		return t.file.Load()
	case t.shared != nil:
		return t.shared.table
	}
	return nil
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
func (e *Entry) Validate() error {
	switch {
	case e.Plan == "":
		return errNoPlan
	case len(e.Plan) > maxPlan || strings.ContainsAny(e.Plan, " \t\r\n"):
		return fmt.Errorf("the plan '%s': want one that a rule has, of 1 to %d letters, digits, hyphens and underscores", descriptors.Shorten(e.Plan), maxPlan)
	}
	return nil
}

// maxPlan is how many bytes the name of a plan may have, as in rules.
const maxPlan = 64
