// Package rulefile reads files of rules: bytes become a [File], which holds what a file says and where it says it, before anything
// but types is checked. Package descriptors turns that into checked values. A zero [Mark] means that a key is absent. Broken means
// that an error about the value has already been reported.
//
// The grammar is one table, [Keywords]: each key, and where it belongs.
//
// This package is part of the core.
package rulefile

import (
	"slices"

	"gopkg.in/yaml.v3"
)

// Text is a value that is written as text.
type Text struct {
	Value  string
	At     Mark
	Broken bool
}

// Flag is true or false.
type Flag struct {
	On bool
	At Mark
}

// Number is a whole number.
type Number struct {
	N  uint64
	At Mark
}

// File is what a source says: the keys at the top, and the descriptors.
type File struct {
	Domain, Charge Text
	Override       Flag
	GroupBy        []Text // quota_group_by
	GroupByAt      Mark
	Descriptors    []Descriptor
	Overlay        *Laid // what an overlay changes; nil if it changes nothing
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
	Policy   *Policy // beside rate_limits
	PlanOf   Text
	PlansAt  Mark
	Plans    []Plan

	Shadow, Quota, Detailed, ValueToMetric, Share Flag
	Metadata                                      map[string]any
	MetadataAt                                    Mark

	Overlay *Laid // what an overlay changes; nil if it changes nothing
}

// Limit is rate_limit, or an item of rate_limits.
type Limit struct {
	At        Mark
	Unit      Text
	Requests  Number
	Unlimited Flag
	Name      Text
	Replaces  []Text
	Owns      []Own   // our own keys of a limit, each once
	Policy    *Policy // inside rate_limit
}

// Policy holds our own keys of a descriptor.
type Policy struct {
	OnFailure, Holder, Lease, Headers Text
	PenaltyAt                         Mark
	Penalty                           Penalty
	ReserveAt                         Mark
	Reserve                           Reserve
	RLQSAt                            Mark // unset if it is false
	RLQS                              RLQS
}

// Penalty is the map of that name.
type Penalty struct {
	Duration, On, Max Text
	Escalate          Number
}

// Reserve is the map of that name.
type Reserve struct {
	TTL, OnExpiry, Entry Text
	Estimate             Number
}

// RLQS is the map of that name; true is an empty one.
type RLQS struct{ Mode, WeightFrom Text }

// Transform changes the files of one load between reading and checking. The zero value changes nothing.
type Transform struct {
	Apply    func(*File, *Reader) // changes a file; reports the problems of that to its reader
	Problems func() Problems      // returns the problems of the transform itself; called last
}

// Laid is what an overlay changes in one place.
type Laid struct {
	Place string // in the overlay: file:line
	Keys  string // that are laid over it, and their values, in YAML
}

// Or returns where the text is, or at if it is missing.
func (t Text) Or(at Mark) Mark {
	if t.At.Present() {
		return t.At
	}
	return at
}

// Plan is what a descriptor says about one plan.
type Plan struct {
	Name   Text
	At     Mark
	Limit  *Limit  // nil if there is a list, or nothing that could be read
	Limits []Limit // of a list
	Listed bool
}

// Own is one of our own keys of a limit, and its value: a text, or the number that stands for a number or a flag.
type Own struct {
	Key string
	Text

	N uint64
}

// Own returns one of our own keys of a limit, or nil if it is absent.
func (l *Limit) Own(k string) *Own {
	if i := slices.IndexFunc(l.Owns, func(o Own) bool { return o.Key == k }); i >= 0 {
		return &l.Owns[i]
	}
	return nil
}

// Written is a key of a descriptor that is present in a file, and where.
type Written struct {
	Key string
	At  Mark
}

// Written lists the keys that are present; a nil p has none.
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

// Where returns the place of a key of a limit, or of the limit itself if the key is absent.
func (l *Limit) Where(k string) Mark {
	if o := l.Own(k); o != nil {
		return o.At
	}
	if k == KeyRequestsPerUnit && l.Requests.At.Present() {
		return l.Requests.At
	}
	return l.At
}
