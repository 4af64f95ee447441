package backend

import "errors"

// Record is a short text under a name, which replicas share, beside the counters, as many as there are tenants. It stays
// until it is changed.
type Record struct {
	Name string
	Text string // not empty, unless Gone
	Gone bool   // there is none of that name any more
}

// RecordChanges is what is new in a store of records.
type RecordChanges struct {
	Version Version
	Anew    bool // Changed begins with the first of all records, because the version asked about is none of this store's
	Lost    bool // the store has no records, and does not know of any: it is new, or has lost what it had
	More    bool // there are further ones: ask again
	Changed []Record
}

// ErrRecordsLost is returned where the store has no records and does not know of any: what is known has to be put back first, be it
// nothing.
var ErrRecordsLost = errors.New("backend: the records are lost")

// ErrRecordsFull is returned where there are as many records as there may be.
var ErrRecordsFull = errors.New("backend: too many records")
