// Package descriptors implements rules: it parses YAML trees of descriptors, validates them, compiles them into an immutable tree,
// matches requests against it, and names the counters.
//
// A request carries descriptors. Each is a list of entries with a key and a value. A [Domain] is a tree whose nodes are keys, or keys
// with a value. Each entry descends one level, and the node of the last entry determines the limit. [Load] creates a [Set] of domains
// from files in two steps: it parses bytes into structs that record the position of each value, and converts these into validated values.
// It reports all problems, with file, line, column and path. A Set is immutable, so it is safe for concurrent use.
//
// The grammar is that of envoyproxy/ratelimit with additional keys; config/reference.yaml shows all of them.
//
// A program that makes its own decisions calls [Load], [Set.Domain] and [Domain.Match], and passes the result of [RateLimits.Limits] for
// the matched rule to a backend (pkg/backend), under the key returned by [Hash] for [Match.AppendName]. The example of pkg/backend is a
// complete program. A nil Domain or Rule means no limit. The program must implement the other properties of a [Rule], such as Shadow,
// Quota, Unlimited, OnFailure and HeadersOff; backends ignore them.
//
// This package is part of the core.
package descriptors

import (
	"iter"
	"math"
	"slices"
	"strconv"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/internal/rulefile"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// Source is a file of rules or a resource of a control plane: its Name (a string) in messages, and its Data (a []byte), which is YAML.
type Source = rulefile.Source

// Problem is an error or a warning about a source: its File, Line and Column, the Path in the tree, and a Text that describes the mistake
// and the accepted values. A Warning does not make the source invalid.
type Problem = rulefile.Problem

// Problems is a list of problems. Load returns it as its error.
type Problems = rulefile.Problems //nolint:errname // primarily a list; an error only if one of its elements is

// MaxFileSize is the maximum size of a source in bytes.
const MaxFileSize = rulefile.MaxFileSize

// DefaultPlan is the plan of tenants without another plan. Each descriptor with plans must have it.
const DefaultPlan = rulefile.DefaultPlan

// Shorten truncates a text from a file for use in a message.
func Shorten(s string) string { return plain.Shorten(s) }

// Options configure Load. With the zero value, it reads sources as envoyproxy/ratelimit does.
type Options struct {
	MergeDomains bool // allow several sources with descriptors of the same domain
	Strict       bool // treat warnings as errors

	// Transform returns a function that changes the files of one load before they are validated. Nil means no changes.
	Transform func() rulefile.Transform

	// QuotaGroupBy is the quota_group_by of domains without that key.
	QuotaGroupBy []string

	// CalendarMonths makes clock-aligned fixed windows of months follow the calendar of UTC, including those of overrides in requests. It
	// does not affect rules with the key calendar.
	CalendarMonths bool
}

// Entry is a key and a value of a request's descriptor. The caller owns the bytes; they are not retained.
type Entry struct{ Key, Value []byte }

// Set is a validated and compiled set of rules. It is immutable.
type Set struct {
	files   []string
	indents []int     // indentation of the sources, for columns in places
	domains []*Domain // in the order of the files
	byName  map[string]*Domain
	rules   []*Rule

	overlaid []Overlaid
}

// Domain is one domain of a [Set].
type Domain struct {
	Name           string
	ID             uint32   // hash of Name
	ChargeTogether bool     // charge: together
	AllowOverride  bool     // allow_limit_override
	QuotaGroupBy   []string // quota_group_by, or the default from the Options
	FallsBack      bool     // a rule has on_failure: allow, deny or local

	// ReserveEntries are the keys of the entries with which requests settle reservations.
	ReserveEntries []string
	// ReserveBy are the keys of the entries whose values name the reservations of requests.
	ReserveBy []string

	rlqs map[string]*rlqsOrder // by the sorted keys of rules with rlqs

	root     Level
	months   *engine.Zone // UTC if Options.CalendarMonths is set; otherwise nil
	settings domainSettings
	place    string // place of its name in the first file that has it
}

// Rule is the limit, or the list of limits, of a node of the tree.
type Rule struct {
	Index      int    // position in [Set.Rules]
	Path       string // domain, keys and values as written, joined as in the reference: shop.user_u1.path
	File       string
	Line       int        // of the descriptor; 0 if the source has no lines
	Overlay    string     // place in the overlay that changed the rule; empty if none did
	RateLimits RateLimits // one for rate_limit, several for rate_limits
	Unlimited  bool       // RateLimits then has a single element with the name and replaces
	Shadow     bool       // shadow_mode: the program must admit requests over the limit
	Quota      bool       // quota_mode: a request is rejected only if all its limits of this kind are over
	Holder     string     // key of the entry that identifies the holder of a concurrency limit's slots; may be empty
	Penalty    *engine.Penalty
	Reserve    *Reserve       // nil if none
	RLQS       *RLQS          // nil if the limit is not divided among clients
	OnFailure  OnFailure      // the fallback
	Lease      int32          // hits to lease; 0 means auto, −1 off
	HeadersOff bool           // headers: off; callers must not see the numbers
	Metadata   map[string]any // as expected by structpb.NewStruct; nil if none
	PlanOf     string         // key of the entry that identifies the tenant, for a rule of a plan; otherwise empty
	Plan       string         // name of the rule's plan; otherwise empty

	domain    string // name of the domain
	node      *Node
	holderAt  int     // index of Holder's entry; −1 if none
	byAt      int     // index of the entry of Reserve.By, here or in another plan; −1 if none
	rewritten bool    // the counter's name differs from the request's entries
	dynamic   bool    // the metric key may contain values of requests
	planAt    int     // index of PlanOf's entry; −1 if none
	plans     []*Rule // rules of all plans of the descriptor, including this one, in file order
	path      []*Node // from the top level down to node; set only if rewritten or dynamic

	hasCalendarKey bool // the rule has the key calendar, with any value
}

// Place returns the position of the rule for people: file:line, or only the source if it has no lines.
func (r *Rule) Place() string {
	if r.Line == 0 {
		return r.File
	}
	return r.File + ":" + strconv.Itoa(r.Line)
}

// Origin returns Place and, if an overlay changed the rule, the place in the overlay.
func (r *Rule) Origin() string {
	if r.Overlay == "" {
		return r.Place()
	}
	return r.Place() + ", changed by " + r.Overlay
}

// Override is a limit that takes the place of a rule's, from a request, a control or a tenant.
type Override struct {
	RequestsPerUnit      uint32
	Unit                 Unit   // UnitUnknown for an invalid number
	Multiplier           uint32 // 0 means 1
	LargeRequestsPerUnit uint64 // the number if it exceeds 2^32 − 1, which requests cannot carry
}

// Number returns the number of o.
func (o *Override) Number() uint64 { return max(uint64(o.RequestsPerUnit), o.LargeRequestsPerUnit) }

// SetNumber sets the number of o.
func (o *Override) SetNumber(n uint64) {
	o.RequestsPerUnit, o.LargeRequestsPerUnit = saturated(n), 0
	if n > math.MaxUint32 {
		o.LargeRequestsPerUnit = n
	}
}

// Match is the result of matching a descriptor's entries.
type Match struct {
	Rule *Rule // nil if no node matched, or if the node has no limit: the descriptor passes

	node   *Node        // node of the last entry; nil if none matched. Its ancestors are the nodes of the other entries
	months *engine.Zone // of the domain
}

// Rules yields the rules in file order.
func (s *Set) Rules() iter.Seq[*Rule] { return slices.Values(s.rules) }

// Files returns the names of the sources.
func (s *Set) Files() []string { return slices.Clone(s.files) }

// Domain returns the domain called name, or nil. It does not allocate.
func (s *Set) Domain(name []byte) *Domain { return s.byName[string(name)] }

// Domains yields the domains in file order.
func (s *Set) Domains() iter.Seq[*Domain] { return slices.Values(s.domains) }

// Overlaid is a rule or domain changed by an overlay.
type Overlaid struct {
	Path  string // path of the rule, or name of the domain
	Place string // file:line in the overlay
	Keys  string // changed keys and their values, in YAML
}

// Overlaid returns the changes of overlays in the order of the rules. Each domain precedes its rules.
func (s *Set) Overlaid() []Overlaid { return slices.Clone(s.overlaid) }
