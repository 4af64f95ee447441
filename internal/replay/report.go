package replay

import "time"

// Report is the result of a run. Its JSON field names are stable.
type Report struct {
	Requests  uint64    `json:"requests"`              // without recorded calls at ends of requests
	From      time.Time `json:"from"`                  // of the first event
	To        time.Time `json:"to"`                    // of the last event
	Unasked   uint64    `json:"unasked"`               // requests without a descriptor
	Calls     uint64    `json:"calls"`                 // recorded calls at ends of requests
	Late      uint64    `json:"late"`                  // events too late to be sorted, which ran at the time of the event before
	Recorded  *Recorded `json:"then,omitempty"`        // nil if not recorded
	Sets      []Outcome `json:"sets"`                  // one for each set of rules
	Changed   *Changed  `json:"changed,omitempty"`     // between two sets
	Rules     []Rule    `json:"rules"`                 // with matching descriptors; for two sets by difference, then by rejections
	Values    []Value   `json:"descriptors"`           // with rejections, in the same order
	LeftOff   uint64    `json:"descriptorsLeftOff"`    // descriptors with rejections that Values omits
	Forgotten bool      `json:"descriptorsAreBusiest"` // there were too many descriptors, so some rare ones are missing
	Timeline  Timeline  `json:"timeline"`
}

// Recorded counts recorded decisions.
type Recorded struct {
	Requests uint64 `json:"requests"` // with a known decision
	Rejected uint64 `json:"rejected"`
}

// Outcome counts the decisions of a set of rules.
type Outcome struct {
	Rules    string `json:"rules"`           // name of the set
	Rejected uint64 `json:"rejected"`        // requests
	Shadowed uint64 `json:"shadowed"`        // requests that pass only because a rule is in shadow mode
	NoLimit  uint64 `json:"noLimit"`         // requests without a limit
	Affected uint64 `json:"affected"`        // different descriptors with rejections
	Failed   uint64 `json:"failed"`          // requests that a server would answer with an error
	Error    string `json:"error,omitempty"` // the first error

	Unruled       uint64 `json:"unknownDomain"`         // requests of domains without rules
	UnknownDomain string `json:"whichDomain,omitempty"` // message about the first of them

	Close uint64 `json:"nearBoundary"` // requests within a second of a limit's boundary, where the exact time decides

	NewlyRejected uint64 `json:"newlyRejected"` // rejected requests that passed when recorded
	NewlyPassed   uint64 `json:"newlyPassed"`   // passing requests that were rejected when recorded

	Charges   uint64 `json:"charges"`   // calls at ends of requests
	Hasty     uint64 `json:"hasty"`     // charges made too early, because too many were scheduled
	Endless   uint64 `json:"endless"`   // slots held for as long as their rules allow, because no release was recorded
	ForcedOut uint64 `json:"forcedOut"` // counters evicted for others, which started again
}

// Changed compares the decisions of two sets.
type Changed struct {
	Both   uint64 `json:"rejectedByBoth"`
	First  uint64 `json:"rejectedByFirstOnly"`
	Second uint64 `json:"rejectedBySecondOnly"`
}

// Rule counts the decisions of a rule under each set. Numbers count descriptors, not requests.
type Rule struct {
	Path      string       `json:"path"`
	Places    []string     `json:"places"` // file:line; empty in a set without the rule
	Requested []uint64     `json:"asked"`
	Rejected  []uint64     `json:"rejected"`
	Shadowed  []uint64     `json:"shadowed"` // rejected in shadow mode, and thus admitted
	First     []*time.Time `json:"first"`    // first rejection, or nil
	Last      []*time.Time `json:"last"`
	Limits    []Limit      `json:"limits,omitempty"` // rejections by limit, if the rule has several
}

// Limit counts rejections by one limit of a rule.
type Limit struct {
	Limit    string   `json:"limit"`
	Rejected []uint64 `json:"rejected"`
}

// Value counts the decisions on a descriptor by a rule.
type Value struct {
	Rule      string   `json:"rule"`
	Text      string   `json:"descriptor"`
	Requested uint64   `json:"asked"`         // under the first set with the rule
	Missed    uint64   `json:"askedOfOthers"` // maximum number of Requested that belong to other descriptors
	Rejected  []uint64 `json:"rejected"`
}

// Timeline shows counts over time.
type Timeline struct {
	Start    time.Time    `json:"start"`
	Seconds  int64        `json:"secondsPerBucket"`
	Requests []uint64     `json:"requests"`
	Rejected [][]uint64   `json:"rejected"` // for each set
	Rules    []RuleSeries `json:"rules"`    // with the most rejections
}

// RuleSeries shows the rejections of a rule over time.
type RuleSeries struct {
	Path     string     `json:"path"`
	Rejected [][]uint64 `json:"rejected"` // for each set; nil without rejections
}
