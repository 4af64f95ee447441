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
	Number   int                  // of the update, counted from 1
	At       time.Time            // when it was decided
	Since    time.Time            // since when rules of this version are in use without a break; zero if it was invalid
	Version  string               // of its sources; the same wherever they have the same names and contents
	Changes  Changes              // from the set before; nil if there are none or they are not known, and for the first set, except from Try. If the update was invalid, the changes of the rules used in its place
	Problems descriptors.Problems // with warnings
	Err      error                // why it was invalid; nil if it was not
}

// Accepted returns what became of the update whose set is in use, or nil if there is none.
func (w *Watch) Accepted() *Outcome { return w.accepted.Load() }

// Changed returns what became of the last update that changed the rules, or nil if none did since the first ones. Later ones may
// have been the same, or invalid.
func (w *Watch) Changed() *Outcome { return w.changed.Load() }

// Rejected returns what became of the last update that was invalid, or nil if none was. It may be older than the set that is
// in use.
func (w *Watch) Rejected() *Outcome { return w.rejected.Load() }

// Last returns what became of the last update, or nil if there was none.
func (w *Watch) Last() *Outcome {
	accepted, rejected := w.accepted.Load(), w.rejected.Load()
	if rejected == nil || accepted != nil && accepted.Number > rejected.Number {
		return accepted
	}
	return rejected
}

// Try returns what would become of an update, which it does not carry out: its Number is 0.
func (w *Watch) Try(sources []descriptors.Source, unreadable descriptors.Problems) *Outcome {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.try(given{rules: input{0, sources, unreadable}, overlay: w.newest.overlay})
}

func (w *Watch) try(g given) *Outcome {
	set, problems, err := w.tryLoad(g)
	o := &Outcome{At: time.Now(), Version: g.version(), Problems: problems, Err: err}
	if err == nil {
		o.Changes = w.config.Compare(w.set, set)
	}
	return o
}

// version returns a hash of the names and the contents of sources.
func version(sources []descriptors.Source) string {
	h := sha256.New()
	add := func(b []byte) { // with its length, so that nothing moves from one text to the next unnoticed
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b)))) // a hash takes everything
		_, _ = h.Write(b)
	}
	for i := range sources {
		add([]byte(sources[i].Name))
		add(sources[i].Data)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}
