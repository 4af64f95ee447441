// Package rulefile parses files of rules into [File] structs, which contain the values of a file and their positions. It validates only
// types; package descriptors validates the values. A zero [Mark] means that a key is absent. Broken means that an error about the value
// has already been reported.
//
// The grammar is the table [Keywords], which lists each key with its places and its values. A new key needs a row there, but no code that
// reads it, unless its value is a list or a map of any keys.
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

// Field is a key with its value. The zero Field is absent.
type Field struct {
	*Keyword // the row of the key; nil if the field is absent
	Text

	N      uint64 // of a number; 1 for true and for a map
	Fields        // of a map; nil if the value is of another kind
}

// On reports whether a flag is true.
func (f Field) On() bool { return f.N != 0 }

// Fields are the keys of a map that are present, each once, in file order.
type Fields []Field

// Get returns the field of a key.
func (fs Fields) Get(k string) (f Field) {
	if i := slices.IndexFunc(fs, func(f Field) bool { return f.Name == k }); i >= 0 {
		f = fs[i]
	}
	return f
}

// Break marks the value of a key as broken.
func (fs Fields) Break(k string) {
	for i := range fs {
		fs[i].Broken = fs[i].Broken || fs[i].Name == k
	}
}

// In returns the fields whose keys belong in a place.
func (fs Fields) In(p Place) (out Fields) {
	for _, f := range fs {
		if f.Where&p != 0 {
			out = append(out, f)
		}
	}
	return out
}

// File is a parsed source: the top-level keys and the descriptors.
type File struct {
	Domain      Text
	GroupBy     []Text // quota_group_by
	GroupByAt   Mark
	Descriptors []Descriptor
	Fields                     // the other keys
	Overlay     *OverlayChange // changes of an overlay; nil if none
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
	PlansAt  Mark
	Plans    []Plan

	Metadata   map[string]any
	MetadataAt Mark

	Fields // the other keys

	Overlay *OverlayChange // changes of an overlay; nil if none
}

// Limit is rate_limit or an item of rate_limits.
type Limit struct {
	At       Mark
	Replaces []Text
	Fields   // the other keys
}

// Transform changes the files of one load after parsing and before validation. The zero value changes nothing.
type Transform struct {
	Apply    func(*File, *Reader) // changes a file, and reports problems to its reader
	Problems func() Problems      // returns problems of the transform itself; called last
}

// OverlayChange is the change of an overlay at one place.
type OverlayChange struct {
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

// Valid reports whether the text is present and not broken.
func (t Text) Valid() bool { return t.At.Present() && !t.Broken }

// Plan is the entry of a descriptor for one plan.
type Plan struct {
	Name   Text
	At     Mark
	Limit  *Limit  // nil for a list, or if it is invalid
	Limits []Limit // items of a list
	Listed bool
}
