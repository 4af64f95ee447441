package replay

import "time"

// Report is the result of a run. The names of its fields in JSON do not change.
type Report struct {
	Requests  uint64    `json:"requests"`              // that were run
	From      time.Time `json:"from"`                  // of the first
	To        time.Time `json:"to"`                    // of the last
	Unasked   uint64    `json:"unasked"`               // of these, without a descriptor
	Calls     uint64    `json:"calls"`                 // at the ends of requests, which were recorded themselves
	Late      uint64    `json:"late"`                  // came too late to be put in order, and were run at the time of those before
	Then      *Recorded `json:"then,omitempty"`        // nil if that is not recorded
	Sets      []Outcome `json:"sets"`                  // one for each set of rules
	Changed   *Changed  `json:"changed,omitempty"`     // of two sets
	Rules     []Rule    `json:"rules"`                 // that were met: of two sets, those first on which they differ most, and then those that reject most
	Values    []Value   `json:"descriptors"`           // of which something is rejected, in the same order
	LeftOff   uint64    `json:"descriptorsLeftOff"`    // of which something is rejected too, beyond those in Values
	Forgotten bool      `json:"descriptorsAreBusiest"` // there were too many descriptors: of those that are rare some are missing
	Timeline  Timeline  `json:"timeline"`
}

// Recorded says how requests were decided when they were recorded.
type Recorded struct {
	Requests uint64 `json:"requests"` // of which that is known
	Rejected uint64 `json:"rejected"`
}

// Outcome says how a set of rules decides the requests.
type Outcome struct {
	Rules    string `json:"rules"`           // the name of the set
	Rejected uint64 `json:"rejected"`        // requests
	Shadowed uint64 `json:"shadowed"`        // requests that pass, and have a descriptor that only a rule in shadow mode rejects
	NoLimit  uint64 `json:"noLimit"`         // requests that meet no limit
	Affected uint64 `json:"affected"`        // different descriptors of which something is rejected
	Failed   uint64 `json:"failed"`          // requests that a server would answer with an error
	Error    string `json:"error,omitempty"` // the first of these

	Unruled       uint64 `json:"unknownDomain"`         // requests of domains that the set has no rules for
	UnknownDomain string `json:"whichDomain,omitempty"` // the message about the first of these

	Close uint64 `json:"nearBoundary"` // requests within a second of the boundary of a limit, which a moment earlier or later may be decided differently

	RejectedAnew uint64 `json:"newlyRejected"` // requests that are rejected, and passed when they were recorded
	PassedAnew   uint64 `json:"newlyPassed"`   // requests that pass, and were rejected when they were recorded

	Charges   uint64 `json:"charges"`   // calls at the ends of requests
	Hasty     uint64 `json:"hasty"`     // of these, made immediately, because too many waited
	Endless   uint64 `json:"endless"`   // slots that were held for as long as their rule allows, as it is not recorded when the request ended
	ForcedOut uint64 `json:"forcedOut"` // counters that were dropped to make room for others, and started again
}

// Changed compares how two sets decide the requests.
type Changed struct {
	Both   uint64 `json:"rejectedByBoth"`
	First  uint64 `json:"rejectedByFirstOnly"`
	Second uint64 `json:"rejectedBySecondOnly"`
}

// Rule says what a rule does under each set. Numbers count descriptors, not requests.
type Rule struct {
	Path     string       `json:"path"`
	Places   []string     `json:"places"` // file:line; empty in a set without the rule
	Asked    []uint64     `json:"asked"`
	Rejected []uint64     `json:"rejected"`
	Shadowed []uint64     `json:"shadowed"` // rejected by a rule in shadow mode, which lets them pass
	First    []*time.Time `json:"first"`    // when it first rejected; nil if it never did
	Last     []*time.Time `json:"last"`
	Limits   []Limit      `json:"limits,omitempty"` // of a rule with several limits: which of them rejected
}

// Limit is how often one of a rule's limits rejected.
type Limit struct {
	Limit    string   `json:"limit"`
	Rejected []uint64 `json:"rejected"`
}

// Value says how a descriptor is decided under a rule.
type Value struct {
	Rule     string   `json:"rule"`
	Text     string   `json:"descriptor"`
	Asked    uint64   `json:"asked"`         // by the first set that has the rule
	Missed   uint64   `json:"askedOfOthers"` // at most so many of these belong to other descriptors
	Rejected []uint64 `json:"rejected"`
}

// Timeline is what happens over time.
type Timeline struct {
	Start    time.Time    `json:"start"`
	Seconds  int64        `json:"secondsPerBucket"`
	Requests []uint64     `json:"requests"`
	Rejected [][]uint64   `json:"rejected"` // for each set
	Rules    []RuleSeries `json:"rules"`    // of those that reject most
}

// RuleSeries is what a rule rejects over time.
type RuleSeries struct {
	Path     string     `json:"path"`
	Rejected [][]uint64 `json:"rejected"` // for each set; nil if nothing
}
