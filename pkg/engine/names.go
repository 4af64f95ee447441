package engine

import (
	"fmt"
	"strings"
)

// String returns the algorithm's name in the rules, such as fixed_window.
func (a Algorithm) String() string {
	switch a {
	case FixedWindow:
		return "fixed_window"
	case SlidingWindow:
		return "sliding_window"
	case SlidingLog:
		return "sliding_log"
	case TokenBucket:
		return "token_bucket"
	case LeakyBucket:
		return "leaky_bucket"
	case Concurrency:
		return "concurrency"
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// String returns the alignment's name in the rules: clock or first.
func (a Align) String() string {
	switch a {
	case AlignClock:
		return "clock"
	case AlignFirst:
		return "first"
	}
	return fmt.Sprintf("align(%d)", uint8(a))
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

// ParseAlgorithm returns the algorithm with that name. The error lists the known names.
func ParseAlgorithm(name string) (Algorithm, error) { return parse(name, FixedWindow, Concurrency) }

// ParseAlign returns the alignment with that name. The error lists the known names.
func ParseAlign(name string) (Align, error) { return parse(name, AlignClock, AlignFirst) }

// ParseTrigger returns the trigger with that name. The error lists the known names.
func ParseTrigger(name string) (Trigger, error) { return parse(name, OnExceeded, OnReached) }

// named is an enumeration whose values, from 0, have names.
type named interface {
	~uint8
	fmt.Stringer
}

func parse[T named](name string, first, last T) (T, error) {
	for v := first; v <= last; v++ {
		if v.String() == name {
			return v, nil
		}
	}
	return first, fmt.Errorf("%q is not known; it takes %s", name, names(first, last))
}

// names lists the names from first to last: a, b or c.
func names[T named](first, last T) string {
	var b strings.Builder
	for v := first; v <= last; v++ {
		switch v {
		case first:
		case last:
			b.WriteString(" or ")
		default:
			b.WriteString(", ")
		}
		b.WriteString(v.String())
	}
	return b.String()
}
