package configwatch

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// Outcome is the immutable result of an update.
type Outcome struct {
	At      time.Time // time of the decision
	Since   time.Time // start of continuous use of this version; zero if invalid
	Version string    // hash of the sources' names and contents
	// Changes are those from the previous set; nil if there are none or they are unknown, and for the first set, except from Try. For
	// an invalid update, they are the changes of the rules used instead.
	Changes  Changes
	Problems descriptors.Problems // including warnings
	Err      error                // error of an invalid update, or nil
}

// Accepted returns the outcome of the update with the current set, or nil.
func (w *Watch) Accepted() *Outcome { return w.accepted.Load() }

// Changed returns the outcome of the last update that changed the rules, or nil if none did since the first set. Later updates
// were without changes, or invalid.
func (w *Watch) Changed() *Outcome { return w.changed.Load() }

// Rejected returns the outcome of the last invalid update, or nil. It may be older than the current set.
func (w *Watch) Rejected() *Outcome { return w.rejected.Load() }

// Last returns the outcome of the last update, or nil.
func (w *Watch) Last() *Outcome { return w.last.Load() }

// Try returns the outcome that an update would have, without performing it.
func (w *Watch) Try(sources []descriptors.Source, unreadable descriptors.Problems) *Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.try(given{rules: input{0, sources, unreadable}, overlay: w.newest.overlay})
}

func (w *Watch) try(g given) *Outcome {
	set, o := w.tryLoad(g)
	o.At = time.Now()
	if o.Err == nil {
		o.Changes = w.config.Compare(w.set, set)
	}
	return o
}

// version returns a hash of the sources' names and contents.
func version(sources []descriptors.Source) string {
	h := sha256.New()
	add := func(b []byte) { // the length separates texts
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b)))) // a hash never fails
		_, _ = h.Write(b)
	}
	for i := range sources {
		add([]byte(sources[i].Name))
		add(sources[i].Data)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
