package engine

import (
	"fmt"
	"slices"
	"strings"
)

// String returns the algorithm's name in the rules, such as fixed_window.
func (a Algorithm) String() string {
	if name := a.row().name; name != "" {
		return name
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// String returns the trigger's name in the rules: exceeded or reached.
func (t Trigger) String() string {
	switch t {
	case OnExceeded:
		return "exceeded"
	case OnReached:
		return "reached"
	}
	return fmt.Sprintf("trigger(%d)", uint8(t))
}

// AlgorithmNames lists the names of all algorithms, in the form "a, b or c".
func AlgorithmNames() string { return list(slices.Collect(Algorithms()), "or") }

// ParseAlgorithm returns the algorithm called name. Its error lists the valid names.
func ParseAlgorithm(name string) (Algorithm, error) {
	return parse(name, 0, Algorithm(len(algorithms)-1))
}

// ParseTrigger returns the trigger called name. Its error lists the valid names.
func ParseTrigger(name string) (Trigger, error) { return parse(name, OnExceeded, OnReached) }

// named is an enumeration whose values have names.
type named interface {
	~uint8
	fmt.Stringer
}

// parse returns the value between first and last called name.
func parse[T named](name string, first, last T) (T, error) {
	var all []T
	for v := first; v <= last; v++ {
		if v.String() == name {
			return v, nil
		}
		all = append(all, v)
	}
	return first, fmt.Errorf("%q is not known; it must be %s", name, list(all, "or"))
}

// list formats names as "a, b or c", with last in place of "or".
func list[T fmt.Stringer](all []T, last string) string {
	var b strings.Builder
	for i, v := range all {
		switch {
		case i == 0:
		case i < len(all)-1:
			b.WriteString(", ")
		default:
			b.WriteString(" " + last + " ")
		}
		b.WriteString(v.String())
	}
	return b.String()
}
