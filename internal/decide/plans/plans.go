// Package plans maps tenants to plans. Lookups and changes run concurrently: a request never waits for a change of the whole table, and
// sees each tenant's entry either before or after a change.
//
// This package is part of the core.
package plans

import (
	"fmt"
	"time"
)

// Source is a table of tenants.
type Source uint8

// The sources. A later one takes precedence.
const (
	Nowhere Source = iota
	File
	Store
)

// String returns the name of the source, for people.
func (s Source) String() string { return [...]string{"nothing", "TENANTS_FILE", "Redis"}[s] }

// Entry is a tenant's entry in a source.
type Entry struct {
	Plan     string
	Requests uint64 // replaces the plan's requests_per_unit, if Numbered
	Numbered bool
	Until    time.Time // end of the entry, from which on the tenant has no entry; zero if it has no end
}

// Over reports whether the entry has ended.
func (e *Entry) Over(now time.Time) bool { return !e.Until.IsZero() && !now.Before(e.Until) }

// String describes the entry.
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

// Plans holds the tables of tenants. It is immutable: replacing a table means publishing a new Plans. A nil *Plans has no tenants.
type Plans struct {
	File, Store *Table // nil if there is none
}

// of returns the table of a source, or nil.
func (p *Plans) of(s Source) *Table {
	switch {
	case p == nil:
		return nil
	case s == File:
		return p.File
	}
	return p.Store
}

// Find returns a tenant's current entry and its source, or [Nowhere] if the tenant has none. It does not allocate.
func (p *Plans) Find(name []byte) (Entry, Source) {
	for s := Store; s > Nowhere; s-- {
		if e, ok := p.of(s).Find(name); ok && (e.Until.IsZero() || !e.Over(time.Now())) {
			return e, s
		}
	}
	return Entry{}, Nowhere
}

// SourceEntry is a tenant's entry and its source.
type SourceEntry struct {
	Source Source
	Entry  Entry
}

// Entries returns a tenant's entries in all sources, by decreasing precedence, including ended ones.
func (p *Plans) Entries(name []byte) (all []SourceEntry) {
	for s := Store; s > Nowhere; s-- {
		if e, ok := p.of(s).Find(name); ok {
			all = append(all, SourceEntry{s, e})
		}
	}
	return all
}
