package replay

import "time"

// Report is what became of a play. The names of its fields in JSON do not change.
type Report struct {
	Requests  uint64    `json:"requests"`              // that were played
	From      time.Time `json:"from"`                  // of the first
	To        time.Time `json:"to"`                    // of the last
	Unasked   uint64    `json:"unasked"`               // of these, without a descriptor
	Calls     uint64    `json:"calls"`                 // at the ends of requests, which were recorded themselves
	Late      uint64    `json:"late"`                  // came too late to be put in order, and were played as if at the time of those before
	Then      *Recorded `json:"then,omitempty"`        // nil if that is not recorded
	Sets      []Outcome `json:"sets"`                  // one for each set of rules
	Changed   *Changed  `json:"changed,omitempty"`     // of two sets
	Rules     []Rule    `json:"rules"`                 // that were met: of two sets, those first on which they differ most, and then those that refuse most
	Values    []Value   `json:"descriptors"`           // of which something is refused, in the same order
	LeftOff   uint64    `json:"descriptorsLeftOff"`    // of which something is refused too, beyond those in Values
	Forgotten bool      `json:"descriptorsAreBusiest"` // there were too many descriptors: of those that are rare some are missing
	Timeline  Timeline  `json:"timeline"`
}

// Recorded is what became of requests when they were recorded.
type Recorded struct {
	Requests uint64 `json:"requests"` // of which that is known
	Refused  uint64 `json:"refused"`
}

// Outcome is what becomes of the requests under a set of rules.
type Outcome struct {
	Rules    string `json:"rules"`           // the name of the set
	Refused  uint64 `json:"refused"`         // requests
	Shadowed uint64 `json:"shadowed"`        // requests that pass, and have a descriptor that only a rule in shadow mode refuses
	NoLimit  uint64 `json:"noLimit"`         // requests that meet no limit
	Affected uint64 `json:"affected"`        // different descriptors of which something is refused
	Failed   uint64 `json:"failed"`          // requests that a server would answer with an error
	Error    string `json:"error,omitempty"` // the first of these

	Unruled       uint64 `json:"unknownDomain"`         // requests of domains that the set has no rules for
	UnknownDomain string `json:"whichDomain,omitempty"` // what is said of the first of these

	RefusedAnew uint64 `json:"refusedAnew"` // requests that are refused, and passed when they were recorded
	PassedAnew  uint64 `json:"passedAnew"`  // requests that pass, and were refused when they were recorded

	Charges   uint64 `json:"charges"`   // calls at the ends of requests
	Hasty     uint64 `json:"hasty"`     // of these, made at once, because too many waited
	Endless   uint64 `json:"endless"`   // slots that were held for as long as their rule allows, as it is not recorded when the request ended
	ForcedOut uint64 `json:"forcedOut"` // counters that were dropped to make room for others, and began anew
}

// Changed compares what becomes of requests under two sets.
type Changed struct {
	Both   uint64 `json:"refusedByBoth"`
	First  uint64 `json:"refusedByFirstAlone"`
	Second uint64 `json:"refusedBySecondAlone"`
}

// Rule is what a rule does, under each set. Numbers are those of descriptors.
type Rule struct {
	Path     string       `json:"path"`
	Places   []string     `json:"places"` // file:line; empty in a set without the rule
	Asked    []uint64     `json:"asked"`
	Refused  []uint64     `json:"refused"`
	Shadowed []uint64     `json:"shadowed"` // refused by a rule in shadow mode, which lets them pass
	First    []*time.Time `json:"first"`    // when it first refused; nil if it never did
	Last     []*time.Time `json:"last"`
	Limits   []Limit      `json:"limits,omitempty"` // of a rule with several limits: which of them refused
}

// Limit is how often one of a rule's limits refused.
type Limit struct {
	Limit   string   `json:"limit"`
	Refused []uint64 `json:"refused"`
}

// Value is what becomes of a descriptor under a rule.
type Value struct {
	Rule    string   `json:"rule"`
	Text    string   `json:"descriptor"`
	Asked   uint64   `json:"asked"`         // by the first set that has the rule
	Missed  uint64   `json:"askedOfOthers"` // at most so many of these are those of others
	Refused []uint64 `json:"refused"`
}

// Timeline is what happens over time.
type Timeline struct {
	Start    time.Time    `json:"start"`
	Seconds  int64        `json:"secondsPerBucket"`
	Requests []uint64     `json:"requests"`
	Refused  [][]uint64   `json:"refused"` // for each set
	Rules    []RuleSeries `json:"rules"`   // of those that refuse most
}

// RuleSeries is what a rule refuses over time.
type RuleSeries struct {
	Path    string     `json:"path"`
	Refused [][]uint64 `json:"refused"` // for each set; nil if nothing
}
