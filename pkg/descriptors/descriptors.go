// Package descriptors holds the rules: it reads YAML trees of descriptors, checks them, compiles them into an immutable
// tree, matches requests against it, and names the counters.
//
// A request carries descriptors, each a list of entries, a key and a value each. A [Domain] is a tree whose nodes are
// keys, or keys with a value; each entry goes one step down it, and the node that the last entry leads to says what the
// limit is. [Load] makes a [Set] of domains from files in two steps: bytes become raw structs that know where each value
// stands, and those become checked values. All that is wrong is reported, with file, line, column and path. After
// that nothing changes any more, so a Set may be used from any number of goroutines.
//
// The grammar is that of envoyproxy/ratelimit, with more keys; config/reference.yaml shows all of them.
package descriptors

import (
	"iter"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Source is one file of rules, or one resource of a control plane.
type Source struct {
	Name string // what messages call it: a path, or the name of a resource
	Data []byte // YAML; not looked at where there is a Tree
	Tree *Tree
}

// Options say how sources are read. The zero value reads them as envoyproxy/ratelimit does.
type Options struct {
	MergeDomains bool // descriptors of one domain may stand in several sources
	Strict       bool // warnings are errors

	// CalendarMonths makes fixed windows of months by the clock follow the calendar of UTC, also those that requests bring
	// along. A rule with a calendar key has its own way.
	CalendarMonths bool
}

// Entry is one key and value of a request's descriptor. The bytes belong to the caller and are not kept.
type Entry struct{ Key, Value []byte }

// Set is a checked and compiled set of rules. It is immutable.
type Set struct {
	files   []string
	domains []*Domain // in the order of the files
	byName  map[string]*Domain
	rules   []*Rule
}

// Domain is one domain of a Set.
type Domain struct {
	Name           string
	ChargeTogether bool // charge: together
	AllowOverride  bool // allow_limit_override

	root     level
	months   *engine.Zone // of Options.CalendarMonths, else nil
	settings domainSettings
	file     int // index into Set.files, of the first one
}

// Rule is the limit, or the list of limits, of one node of the tree.
type Rule struct {
	Index     int    // position in Set.Rules
	Path      string // domain and keys as written in the file, joined as the reference joins them: shop.user_u1.path
	File      string
	Line      int           // of the descriptor; 0 where the source has no lines
	Items     []Item        // one for rate_limit, several for rate_limits
	Limits    engine.Limits // of the items, in their order; empty for an unlimited rule
	Unlimited bool          // then Items has one element, for its name and replaces
	Shadow    bool
	Quota     bool
	Holder    string // key of the entry that names the holder of a concurrency limit's slots, else empty
	Penalty   *engine.Penalty
	OnFailure OnFailure
	Lease     int32          // hits to fetch in advance; 0 is auto, -1 is off
	Metadata  map[string]any // what structpb.NewStruct takes; nil without

	node      *node
	holderAt  int     // index of the entry of Holder; −1 without
	rewritten bool    // the counter's name is not just the entries of a request
	dynamic   bool    // values of a request may get into the metric key
	path      []*node // from the top down to node, where one of the two is true

	saysCalendar bool // the key calendar is there, true or false
}

// Place is where the rule stands, for people: file:line, or the source alone where it has no lines.
func (r *Rule) Place() string {
	if r.Line == 0 {
		return r.File
	}
	return r.File + ":" + strconv.Itoa(r.Line)
}

// Item is one limit of a rule, as the file says it.
type Item struct {
	Limit           engine.Limit
	RequestsPerUnit uint32
	Unit            Unit
	Multiplier      uint32 // of the unit; 1 where the file has none
	Name            string
	Replaces        []string
}

// Override is a limit that a request brings along.
type Override struct {
	RequestsPerUnit uint32
	Unit            Unit   // UnitUnknown also stands for every number that is no unit
	Multiplier      uint32 // 0 stands for 1
}

// Match is where a descriptor's entries lead in the tree.
type Match struct {
	Rule *Rule // nil where nothing matched, or what matched has no limit

	node   *node        // of the last entry; nil where nothing matched. Its parents are those of the entries before
	months *engine.Zone // of the domain
}

// Rules yields the rules in the order of the files.
func (s *Set) Rules() iter.Seq[*Rule] { return slices.Values(s.rules) }

// Files are the names of the sources.
func (s *Set) Files() []string { return slices.Clone(s.files) }

// Domain is the domain of that name, or nil. It does not allocate.
func (s *Set) Domain(name []byte) *Domain { return s.byName[string(name)] }

// Domains yields the domains in the order of the files.
func (s *Set) Domains() iter.Seq[*Domain] { return slices.Values(s.domains) }
