//go:build !race

package nearcache

// How much is tested.
const (
	ModelLimits = 6  // up to which limit the model goes
	SuiteCalls  = 12 // the longest random sequence of the suite
)
