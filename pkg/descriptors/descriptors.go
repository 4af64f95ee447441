// Package descriptors holds the rules: it reads YAML trees of descriptors, checks them, compiles them into an immutable
// tree, matches requests against it, and names the counters.
//
// A request carries descriptors. Each is a list of entries, and each entry has a key and a value. A [Domain] is a tree
// whose nodes are keys, or keys with a value; each entry goes one step down the tree, and the node that the last entry
// leads to says what the limit is. [Load] makes a [Set] of domains from files in two steps: bytes become structs
// that know where each value stands, and those become checked values. All problems are reported, with file, line,
// column and path. A loaded Set never changes, so any number of goroutines may use it.
//
// The grammar is that of envoyproxy/ratelimit with additional keys; config/reference.yaml shows all of them.
//
// A program that decides by itself calls [Load], [Set.Domain] and [Domain.Match], and gives [RateLimits.Limits] of the
// rule that it finds to a backend (pkg/backend), under the key that [Hash] makes of [Match.AppendName].
// pkg/backend/example_test.go is a whole program. Domain and Rule are nil where nothing is limited. What else a [Rule] says,
// such as Shadow, Quota, Unlimited, OnFailure and HeadersOff, is for that program to carry out: no backend knows of it.
//
// This package is part of the core.
package descriptors

import (
	"iter"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Source is one file of rules, or one resource of a control plane: its Name (a string), as messages
// have it, and its Data (a []byte), which is YAML.
type Source = rulefile.Source

// Problem is an error or a warning about a source: its File, Line and Column, the Path in the tree, and a Text that says what is wrong
// and what would be accepted. A Warning rejects nothing.
type Problem = rulefile.Problem

// Problems is a list of problems; it is the error that Load returns.
type Problems = rulefile.Problems //nolint:errname // primarily a list; an error only if one of its elements is

// MaxFileSize is how many bytes a source may have at most.
const MaxFileSize = rulefile.MaxFileSize

// DefaultPlan is the plan of tenants that are on no other one. Each descriptor with plans has it.
const DefaultPlan = rulefile.DefaultPlan

// Shorten bounds the length of a file's text in a message.
func Shorten(s string) string { return plain.Shorten(s) }

// Options say how sources are read. The zero value reads them as envoyproxy/ratelimit does.
type Options struct {
	MergeDomains bool // several sources may have descriptors of the same domain
	Strict       bool // treat warnings as errors

	// Transform returns what changes the files of one load before they are checked. Nil changes nothing.
	Transform func() rulefile.Transform

	// QuotaGroupBy is the quota_group_by of domains that do not have the key.
	QuotaGroupBy []string

	// CalendarMonths makes fixed windows of months that are aligned to the clock follow the calendar of UTC, including
	// those of limits that requests bring along. A rule that has a calendar key is not affected.
	CalendarMonths bool
}

// Entry is one key and value of a request's descriptor. The bytes belong to the caller and are not retained.
type Entry struct{ Key, Value []byte }

// Set is a checked and compiled set of rules. It is immutable.
type Set struct {
	files   []string
	indents []int     // of their texts, for the columns of places
	domains []*Domain // in the order of the files
	byName  map[string]*Domain
	rules   []*Rule

	overlaid []Overlaid
}

// Domain is one domain of a [Set].
type Domain struct {
	Name           string
	ID             uint32   // a hash of Name
	ChargeTogether bool     // charge: together
	AllowOverride  bool     // allow_limit_override
	QuotaGroupBy   []string // quota_group_by, or that of the Options
	FallsBack      bool     // a rule has on_failure: allow, deny or local

	// ReserveEntries are the keys of the entries by which requests settle reservations.
	ReserveEntries []string

	rlqs map[string]*rlqsOrder // by the sorted keys of the rules with rlqs

	root     Level
	months   *engine.Zone // UTC if Options.CalendarMonths is set, else nil
	settings domainSettings
	place    string // of its name in the first file that has it
}

// Rule is the limit, or the list of limits, of one node of the tree.
type Rule struct {
	Index      int    // position in [Set.Rules]
	Path       string // domain, keys and values as written in the file, joined as the reference joins them: shop.user_u1.path
	File       string
	Line       int        // of the descriptor; 0 if the source has no lines
	Overlay    string     // the place of what an overlay laid over it; empty if none did
	RateLimits RateLimits // one for rate_limit, several for rate_limits
	Unlimited  bool       // RateLimits then has one element, which carries the name and replaces
	Shadow     bool       // shadow_mode: the program that decides lets pass what is over the limit
	Quota      bool       // quota_mode: a request is rejected only if all its limits of this kind are over
	Holder     string     // key of the entry that names the holder of a concurrency limit's slots, or empty
	Penalty    *engine.Penalty
	Reserve    *Reserve       // nil if there is none
	RLQS       *RLQS          // nil if the limit is not divided among clients
	OnFailure  OnFailure      // the fallback
	Lease      int32          // hits to fetch in advance; 0 means auto, -1 off
	HeadersOff bool           // headers: off; callers are not told its numbers
	Metadata   map[string]any // in the form that structpb.NewStruct takes; nil if there is none
	PlanOf     string         // key of the entry whose value names the tenant, if the rule is one of several plans; or empty
	Plan       string         // name of the plan that the rule is; empty if it is none

	domain    string // its name
	node      *Node
	holderAt  int     // index of the entry of Holder; −1 if there is none
	rewritten bool    // the counter's name is not just the request's entries
	dynamic   bool    // values of a request may become part of the metric key
	planAt    int     // index of the entry of PlanOf; −1 if there is none
	plans     []*Rule // all of the descriptor, this one among them, in the order of the file
	path      []*Node // from the top down to node; set only if rewritten or dynamic is

	saysCalendar bool // the rule has the key calendar, be it true or false
}

// Place returns where the rule is defined, for people: file:line, or the source alone if it has no lines.
func (r *Rule) Place() string {
	if r.Line == 0 {
		return r.File
	}
	return r.File + ":" + strconv.Itoa(r.Line)
}

// Origin is Place, and the place of what an overlay laid over the rule.
func (r *Rule) Origin() string {
	if r.Overlay == "" {
		return r.Place()
	}
	return r.Place() + ", changed by " + r.Overlay
}

// Override is a limit that a request carries.
type Override struct {
	RequestsPerUnit uint32
	Unit            Unit   // UnitUnknown also stands for numbers that are not a unit
	Multiplier      uint32 // 0 means 1
}

// Match is where a descriptor's entries lead in the tree.
type Match struct {
	Rule *Rule // nil if nothing matched, or what matched has no limit: the descriptor passes

	node   *Node        // matched by the last entry; nil if nothing matched. Its parents are the nodes of the entries before
	months *engine.Zone // of the domain
}

// Rules yields the rules in the order of the files.
func (s *Set) Rules() iter.Seq[*Rule] { return slices.Values(s.rules) }

// Files returns the names of the sources.
func (s *Set) Files() []string { return slices.Clone(s.files) }

// Domain returns the domain with that name, or nil. It does not allocate.
func (s *Set) Domain(name []byte) *Domain { return s.byName[string(name)] }

// Domains yields the domains in the order of the files.
func (s *Set) Domains() iter.Seq[*Domain] { return slices.Values(s.domains) }

// Overlaid is a rule, or a domain, that an overlay changes.
type Overlaid struct {
	Path  string // of the rule, or the name of the domain
	Place string // in the overlay: file:line
	Keys  string // that are laid over it, and their values, in YAML
}

// Overlaid returns what the overlay changes, in the order of the rules; each domain comes before its rules.
func (s *Set) Overlaid() []Overlaid { return slices.Clone(s.overlaid) }
