// Package plans knows which tenant is on which plan. Requests look tenants up while the tables change: no request waits for a table as
// a whole, and it finds a tenant either as before a change or as after it.
//
// This package is part of the core.
package plans

import (
	"fmt"
	"time"
)

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

// Plans has the tables of tenants. It is immutable: where another table takes the place of one, a new Plans is published. A nil *Plans
// has no tenants.
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

// Find returns the entry of a tenant that counts now, and its source; [Nowhere] if there is none. It does not allocate.
func (p *Plans) Find(name []byte) (Entry, Source) {
	for s := Store; s > Nowhere; s-- {
		if e, ok := p.of(s).Find(name); ok && (e.Until.IsZero() || !e.Over(time.Now())) {
			return e, s
		}
	}
	return Entry{}, Nowhere
}

// Said is the entry of a tenant in one source.
type Said struct {
	Source Source
	Entry  Entry
}

// Said returns the entries of a tenant in all sources, the one that decides first, including those that have ended.
func (p *Plans) Said(name []byte) (all []Said) {
	for s := Store; s > Nowhere; s-- {
		if e, ok := p.of(s).Find(name); ok {
			all = append(all, Said{s, e})
		}
	}
	return all
}
