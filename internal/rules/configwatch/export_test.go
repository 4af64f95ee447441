package configwatch

import "github.com/ratelimitd/ratelimitd/pkg/descriptors"

// PanicOnLoad makes w's loader panic from now on.
func (w *Watch) PanicOnLoad() {
	w.load = func([]descriptors.Source, descriptors.Options) (*descriptors.Set, descriptors.Problems, error) {
		panic("index out of range")
	}
}

// PanicOnComparison makes w panic from now on when it compares sets.
func (w *Watch) PanicOnComparison() {
	w.config.Compare = func(*descriptors.Set, *descriptors.Set) Changes { panic("index out of range") }
}
