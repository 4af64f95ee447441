package backend

import (
	"errors"
	"time"
)

// Note is a short text that replicas share until it ends, beside the counters. A later note takes the place of the one with
// the same ID.
type Note struct {
	ID   string
	At   int64     // when it was made, by the clock of the store, in µs since the epoch; later than that of the note before
	Ends time.Time // to the millisecond
	Gone bool      // it was taken away before its end
	Text []byte
}

// Version is what a replica knows of the notes in a store. The zero value knows nothing.
//
// A store forgets those that were taken away, the first ones first. Who has read up to Floor has read of all that were
// forgotten; others may hold what was taken away. What is not later than Horizon, and not in the store, was taken away.
type Version struct {
	Run      string // the process that was asked, if it tells
	Epoch    string // changes when the store has lost what it had
	Revision int64  // rises with each note
	Floor    int64  // the revision of the last note that was forgotten
	Horizon  int64  // the latest time of a note that was forgotten
}

// Notes is what is new in a store.
type Notes struct {
	Version Version
	Changed []Note // in the order in which they came, without those that a later one took the place of
	More    bool   // there are further ones: ask again
	Lost    bool   // the store lacks some that it had
}

// ErrNotesFull is returned where there are as many notes as there may be.
var ErrNotesFull = errors.New("backend: too many notes")
