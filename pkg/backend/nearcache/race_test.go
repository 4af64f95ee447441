//go:build race

package nearcache

// How much is tested under the race detector, which takes ten times as long: what is one goroutine has no races to find.
const (
	ModelLimits = 2 // up to which limit the model goes
	SuiteCalls  = 3 // the longest random sequence of the suite
)
