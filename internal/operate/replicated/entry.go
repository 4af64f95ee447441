package replicated

import "errors"

// Entry is a short text under a key, which replicas share. Of two entries with the same key, the later one wins.
type Entry struct {
	Key  string // not empty
	Text string
	// Created is the time of creation by the store's clock, in µs since the epoch. It is later than that of the replaced entry. An
	// entry to be stored with Created 0 removes the key.
	Created int64
	// Expires is the time after which the entry may be forgotten, by the store's clock, in ms since the epoch; 0 means never. An
	// entry with an end expires no earlier than the entries that it replaced, so that none of them returns.
	Expires int64
}

// Revision identifies the last change of a register that a replica has read. In the zero value, it has read nothing.
//
// The tag is random and new with each change. A store that knows the tag has everything read up to the number, and the entries
// that the change stored. A store that fell back to an earlier state does not know the tag, even if it has used the number again.
type Revision struct {
	Number int64
	Tag    string
}

// Changes are the new entries of a register since a revision.
type Changes struct {
	Incremental bool // the store knows the given revision; otherwise Entries starts from the beginning
	Revision    Revision
	Now         int64    // by the store's clock, in µs since the epoch
	More        bool     // call again for more entries
	Entries     []Entry  // in the order of their changes, without replaced ones
	Unread      []string // names of unreadable values, such as one that is too large
}

// Errors of stores.
var (
	// ErrFull is the error for a register with the maximum number of entries.
	ErrFull = errors.New("replicated: the register is full")
	// ErrBehind is the error for storing entries from an outdated revision: another replica has changed the register, or the store has
	// lost data.
	ErrBehind = errors.New("replicated: the register has changed")
)
