package replicated

import "errors"

// Entry is a short text under a key, which replicas share. Of two entries under one key the later one wins.
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

// Values of Made in an entry that is to be stored, in place of a time.
const (
	MadeNow      int64 = 0  // the present time
	MadeNowThere int64 = -1 // the same, but store it only if there is another entry under its key
)

// Revision says up to which change a replica has read a register. The zero value says that it has read nothing.
//
// The tag is random, and new with each change. A store that knows the tag has everything that was read up to the number, and the
// entries that the change stored. A store that fell back to an earlier state does not know the tag, even if it has used the number
// again.
type Revision struct {
	Number int64
	Tag    string
}

// Changes are the new entries of a register.
type Changes struct {
	Known    bool // the store knows the revision of the question; otherwise Entries begin with the first entry of all
	Revision Revision
	Now      int64   // by the clock of the store, in µs since the epoch
	More     bool    // there are further ones: ask again
	Entries  []Entry // in the order in which they were stored, without those that were replaced
}

// Errors of stores.
var (
	// ErrFull is returned where a register has as many entries as it may have.
	ErrFull = errors.New("replicated: the register is full")
	// ErrFellBack is returned where the store does not know the revision of the replica that stores entries: the store has lost
	// something.
	ErrFellBack = errors.New("replicated: the register fell back to an earlier state")
)
