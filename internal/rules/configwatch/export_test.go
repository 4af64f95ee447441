package configwatch

import (
	"github.com/ratelimitd/ratelimitd/internal/rules/rulediff"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
)

// PanicOnLoad makes w's loader panic from now on.
func (w *Watch) PanicOnLoad() {
	w.load = func([]descriptors.Source, descriptors.Options) (*descriptors.Set, descriptors.Problems, error) {
		panic("index out of range")
	}
}

// PanicOnComparison makes w panic from now on when it finds out what changed.
func (w *Watch) PanicOnComparison() {
	w.since = func(*descriptors.Set, *descriptors.Set, int) *rulediff.Summary { panic("index out of range") }
}
