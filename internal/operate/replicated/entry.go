package replicated

import "errors"

// Entry is a short text under a key, which replicas share. Of two entries under one key the later one wins.
type Entry struct {
	Key  string // not empty
	Text string
	// Made is when the entry was made, by the clock of the store, in µs since the epoch. It is later than that of the entry that it
	// replaces. 0, in an entry that is to be stored, takes away what is there.
	Made int64
	// Expires is when the entry may be forgotten, by the same clock, in ms since the epoch; 0 is never. An entry that has an end
	// expires no earlier than those that it replaced, so that none of them returns.
	Expires int64
}

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
	Now      int64    // by the clock of the store, in µs since the epoch
	More     bool     // there are further ones: ask again
	Entries  []Entry  // in the order in which they were stored, without those that were replaced
	Unread   []string // names of what the store holds in place of an entry, such as one that is too large
}

// Errors of stores.
var (
	// ErrFull is returned where a register has as many entries as it may have.
	ErrFull = errors.New("replicated: the register is full")
	// ErrBehind is returned where the replica that stores entries has not read what is there: another one has changed it, or the store
	// has lost something.
	ErrBehind = errors.New("replicated: the register has changed")
)
