package admin

import (
	"context"
	"errors"
	"time"

	"github.com/ratelimitd/ratelimitd/internal/process/health"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// Process is the process that the API is part of: what Status, ReloadRules and Drain ask.
type Process interface {
	// Status returns how the process is.
	Status() Status
	// Divided returns the limits that are divided among clients that decide by themselves, of those about which want says so: at most
	// so many, and as many clients of each.
	Divided(want func(domain string, entries []descriptors.Entry) bool, most int) []Divided
	// ReloadRules takes the rules again from where they come from, and waits for what comes of it. With dry it only says what would.
	// It returns an error that wraps [ErrNoPreview] or [ErrNoRulesCame], or that of ctx, if that is not known.
	ReloadRules(ctx context.Context, dry bool) (Reloaded, error)
	// Drain has the process report that it is not healthy or, with undo, no longer so for that reason. It returns [ErrStopping]
	// if it is stopping.
	Drain(undo, dry bool) (Drained, error)
}

// Errors of a [Process].
var (
	ErrNoPreview   = errors.New("a dry run is not possible")
	ErrNoRulesCame = errors.New("no rules came")
	ErrStopping    = errors.New("the server is stopping, which cannot be undone")
)

// Status is how a process is.
type Status struct {
	Version    string
	Started    time.Time
	Healthy    bool
	NotReady   []string
	Components []health.Component
	Drained    time.Time // since when; zero if it is not
	Rules      Rules
	Invalid    *Invalid // nil if none were
	Store      Store
	Near       *NearCache // nil if there is none
	Load       Load
}

// Divided is a limit that is divided among clients that decide by themselves. Rates are in hits a second.
type Divided struct {
	Domain  string
	Entries []descriptors.Entry
	Answer  string // what clients are told

	Strict   bool
	Rate     float64 // of the limit
	Capacity float64 // what may be handed out, by all servers
	Part     float64 // of it, this server's
	Left     float64 // hits in the store
	Assigned float64 // to all clients
	Total    int     // clients
	Clients  []DividedClient
}

// DividedClient is a client that has a share of a limit.
type DividedClient struct {
	Name, State           string
	Weight, Demand, Share float64
}

// Rules is what is in use.
type Rules struct {
	Source, Version string
	Loaded          time.Time // in this version; zero if there are none
	Behind          time.Time // zero if they are up to date
	Missing         string    // why there are none

	Changed time.Time // when they were changed last; zero if they are the first ones
	Changes Changes   // of that time; nil if there are none
}

// Changes describes what an update of the rules changed.
type Changes interface {
	// Lines returns at most most changes, one in each line, and the number of other changes.
	Lines(most int) (lines []string, more int)
	// In returns the most dangerous changes in the domains that sees accepts, and the number and a summary of all changes there.
	In(sees func(domain string) bool) (first []Change, total int, summary string)
}

// Change is a change of the rules.
type Change struct {
	Path, Text, Place string
	Effect            adminv1.ChangeEffect
}

// Invalid is what was not taken.
type Invalid struct {
	At       time.Time
	Version  string
	Problems descriptors.Problems
	Over     bool // others have been taken since
}

// Store is where counters are.
type Store struct {
	Text        string
	Connections int
	Nodes       []Node
	MemoryKeys  int
}

// Node is a server of a store.
type Node struct {
	Name    string
	Breaker health.Breaker
	Opened  uint64 // how often that has opened
	Wait    time.Duration
}

// NearCache is what a near cache holds, and has done since the start.
type NearCache struct {
	Entries                                       int
	Hits, Rejections, Misses, Evictions           uint64
	HitsHeld, HitsLeased, HitsSpent, HitsReturned uint64
}

// Load is what there is to do, and what was not done.
type Load struct {
	Calls, Limit                 int64
	Wait                         time.Duration
	ByProcess, ByStore, AtHeader uint64 // shed
}

// Reloaded is what came of a reload.
type Reloaded struct {
	Invalid  bool
	Problems descriptors.Problems
	Changes  Changes // nil if there are none
	Rules    Rules   // in use
}

// Drained is what came of draining.
type Drained struct {
	Since     time.Time // zero if the process is not drained
	Changed   bool
	Otherwise bool // it is healthy as far as draining does not matter
}
