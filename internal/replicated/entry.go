package replicated

import "errors"

// Entry is a short text under a key, which replicas share beside the counters. Of two entries under one key the later one counts.
type Entry struct {
	Key  string // not empty
	Text string
	// Made is when the entry was made, by the clock of the store, in µs since the epoch. An entry that is stored with [MadeNow] is
	// later than the one that it replaces.
	Made int64
	// Expires is when the entry may be forgotten, by the same clock, in ms since the epoch; 0 is never. An entry that has an end
	// expires no earlier than those that it replaced, so that none of them returns.
	Expires int64
}

// What an entry that is to be stored may have in place of the time at which it was made.
const (
	MadeNow      int64 = 0  // it is made now
	MadeNowThere int64 = -1 // the same, but it is stored only if there is another entry under its key
)

// Revision is how much of a register a replica has read, and what the store must have. The zero value is nothing.
//
// The tag is random, and made again with each change. A store that knows the tag has all that was read up to the number, and what the
// change stored; a store that fell back to an earlier state does not know it, even if it has used the number again.
type Revision struct {
	Number int64
	Tag    string
}

// Changes is what is new in a register.
type Changes struct {
	Known    bool // the store knows the revision that was asked about; otherwise Entries begin with the first of all
	Revision Revision
	Now      int64   // by the clock of the store, in µs since the epoch
	More     bool    // there are further ones: ask again
	Entries  []Entry // in the order in which they came, without those that were replaced
}

// Errors of what stores entries.
var (
	// ErrFull is returned where a register has as many entries as it may have.
	ErrFull = errors.New("replicated: the register is full")
	// ErrFellBack is returned where the store does not know the revision of the replica that stores entries: it has lost something.
	ErrFellBack = errors.New("replicated: the register fell back to an earlier state")
)
