// Package rulefile parses files of rules into [File] structs, which contain the values of a file and their positions. It validates only
// types; package descriptors validates the values. A zero [Mark] means that a key is absent. Broken means that an error about the value
// has already been reported.
//
// The grammar is the table [Keywords], which lists each key and its places.
//
// This package is part of the core.
package rulefile

import (
	"slices"

	"gopkg.in/yaml.v3"
)

// Text is a value written as text.
type Text struct {
	Value  string
	At     Mark
	Broken bool
}

// Flag is a boolean value.
type Flag struct {
	On bool
	At Mark
}

// Number is a whole number.
type Number struct {
	N  uint64
	At Mark
}

// File is a parsed source: the top-level keys and the descriptors.
type File struct {
	Domain, Charge Text
	Override       Flag
	GroupBy        []Text // quota_group_by
	GroupByAt      Mark
	Descriptors    []Descriptor
	Overlay        *Laid // changes of an overlay; nil if none
}

// Descriptor is an element of descriptors.
type Descriptor struct {
	At         Mark
	Node       *yaml.Node // the map; nil unless Reader.Nodes is set
	Key, Value Text
	Children   []Descriptor
	ChildrenAt Mark

	Limit    *Limit // rate_limit
	LimitsAt Mark
	Limits   []Limit // rate_limits
	Policy   *Policy // keys beside rate_limits
	PlanOf   Text
	PlansAt  Mark
	Plans    []Plan

	Shadow, Quota, Detailed, ValueToMetric, Share Flag
	Metadata                                      map[string]any
	MetadataAt                                    Mark

	Overlay *Laid // changes of an overlay; nil if none
}

// Limit is rate_limit or an item of rate_limits.
type Limit struct {
	At        Mark
	Unit      Text
	Requests  Number
	Unlimited Flag
	Name      Text
	Replaces  []Text
	Owns      []Own   // extension keys of a limit, each once
	Policy    *Policy // keys inside rate_limit
}

// Policy holds the extension keys of a descriptor.
type Policy struct {
	OnFailure, Holder, Lease, Headers Text
	PenaltyAt                         Mark
	Penalty                           Penalty
	ReserveAt                         Mark
	Reserve                           Reserve
	RLQSAt                            Mark // zero if rlqs is false
	RLQS                              RLQS
}

// Penalty is the value of penalty.
type Penalty struct {
	Duration, On, Max Text
	Escalate          Number
}

// Reserve is the value of reserve.
type Reserve struct {
	TTL, OnExpiry, Entry, By Text
	Estimate                 Number
}

// RLQS is the value of rlqs; true means an empty map.
type RLQS struct{ Mode, WeightFrom Text }

// Transform changes the files of one load after parsing and before validation. The zero value changes nothing.
type Transform struct {
	Apply    func(*File, *Reader) // changes a file, and reports problems to its reader
	Problems func() Problems      // returns problems of the transform itself; called last
}

// Laid is the change of an overlay at one place.
type Laid struct {
	Place string // file:line in the overlay
	Keys  string // changed keys and their values, in YAML
}

// Or returns the position of the text, or at if the text is absent.
func (t Text) Or(at Mark) Mark {
	if t.At.Present() {
		return t.At
	}
	return at
}

// Plan is the entry of a descriptor for one plan.
type Plan struct {
	Name   Text
	At     Mark
	Limit  *Limit  // nil for a list, or if it is invalid
	Limits []Limit // items of a list
	Listed bool
}

// Own is an extension key of a limit with its value: a text, or the numeric form of a number or flag.
type Own struct {
	Key string
	Text

	N     uint64
	Begin Begin // of a calendar that is a map, with N 1
}

// Begin is the time at which windows of a calendar begin.
type Begin struct{ Month, Day, Weekday, Hour Number }

// Own returns an extension key of a limit, or nil if it is absent.
func (l *Limit) Own(k string) *Own {
	if i := slices.IndexFunc(l.Owns, func(o Own) bool { return o.Key == k }); i >= 0 {
		return &l.Owns[i]
	}
	return nil
}

// Written is a key of a descriptor with its position.
type Written struct {
	Key string
	At  Mark
}

// Written returns the keys that are present. p may be nil.
func (p *Policy) Written() (out []Written) {
	if p == nil {
		return nil
	}
	for _, w := range []Written{
		{KeyOnFailure, p.OnFailure.At},
		{KeyPenalty, p.PenaltyAt},
		{KeyHolder, p.Holder.At},
		{KeyLease, p.Lease.At},
		{KeyHeaders, p.Headers.At},
		{KeyReserve, p.ReserveAt},
		{KeyRLQS, p.RLQSAt},
	} {
		if w.At.Present() {
			out = append(out, w)
		}
	}
	return out
}

// Where returns the position of a key of a limit, or of the limit if the key is absent.
func (l *Limit) Where(k string) Mark {
	if o := l.Own(k); o != nil {
		return o.At
	}
	if k == KeyRequestsPerUnit && l.Requests.At.Present() {
		return l.Requests.At
	}
	return l.At
}
