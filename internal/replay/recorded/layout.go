package recorded

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// layout says where values stand in the lines of a log.
type layout interface {
	// find returns the index of an operator's value among those that split returns, and whether lines have it. It is not called
	// once lines are split.
	find(want operator) (index int, ok bool)
	// split appends the values of a line, nil for those that it does not have.
	split(line []byte, values [][]byte) ([][]byte, error)
	// clock returns how the times are written that stand in a value.
	clock(index int) (clockFormat, error)
	// what says what would have to be changed for a value to be found.
	what() string
}

// getter returns a value of a line, and whether the line has it.
type getter func(values [][]byte) ([]byte, bool)

// need returns how to get an operator's value.
func need(l layout, want operator, why string) (getter, error) {
	i, ok := l.find(want)
	if !ok {
		return nil, fmt.Errorf("%s needs %v, which is not in %s", why, want, l.what())
	}
	return at(i), nil
}

func at(i int) getter {
	return func(values [][]byte) ([]byte, bool) { return values[i], values[i] != nil }
}

// header returns how to get a header of the request.
func header(l layout, name, why string) (getter, error) {
	name = strings.ToLower(name)
	if name == "host" {
		name = headerHost
	}
	return need(l, operator{name: opRequest, arg: name}, why)
}

// query returns how to get a parameter of the request's query.
func query(l layout, name, why string) (getter, error) {
	if i, ok := l.find(operator{name: opQuery, arg: name}); ok {
		return at(i), nil
	}
	path, err := header(l, headerPath, why)
	if err != nil {
		return nil, err
	}
	return func(values [][]byte) ([]byte, bool) {
		text, _ := path(values)
		_, rest, _ := bytes.Cut(text, []byte("?"))
		rest, _, _ = bytes.Cut(rest, []byte("#"))
		for pair := range bytes.SplitSeq(rest, []byte("&")) {
			key, value, _ := bytes.Cut(pair, []byte("="))
			if unescaped(key) == name {
				return []byte(unescaped(value)), true
			}
		}
		return nil, false
	}, nil
}

func unescaped(text []byte) string {
	if s, err := url.QueryUnescape(string(text)); err == nil {
		return s
	}
	return string(text)
}

// address returns how to get the address of the client, without a port.
func address(l layout, why string) (func(values [][]byte) (netip.Addr, bool), error) {
	i, ok := l.find(operator{name: opAddress})
	if !ok {
		if i, ok = l.find(operator{name: opAddressPort}); !ok {
			return nil, fmt.Errorf("%s needs %v or %v, which are not in %s", why, operator{name: opAddress}, operator{name: opAddressPort}, l.what())
		}
	}
	return func(values [][]byte) (netip.Addr, bool) {
		text := string(values[i])
		if a, err := netip.ParseAddr(text); err == nil {
			return a.Unmap(), true
		}
		a, err := netip.ParseAddrPort(text)
		return a.Addr().Unmap(), err == nil
	}, nil
}

// substitution returns how to get what a format string gives. A value that there is not is the empty text, and ok is false
// where none of its operators has one.
func substitution(l layout, text, why string) (getter, error) {
	pieces, err := parseFormat(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", why, err)
	}
	if len(pieces) == 1 && pieces[0].op == nil || len(pieces) == 0 {
		fixed := []byte(strings.ReplaceAll(text, "%%", "%"))
		return func([][]byte) ([]byte, bool) { return fixed, true }, nil
	}
	getters := make([]getter, len(pieces))
	for i, p := range pieces {
		if p.op == nil {
			continue
		}
		if getters[i], err = operand(l, *p.op, why); err != nil {
			return nil, err
		}
	}
	if len(getters) == 1 {
		return getters[0], nil
	}
	return func(values [][]byte) (all []byte, found bool) {
		for i, p := range pieces {
			if p.op == nil {
				all = append(all, p.text...)
				continue
			}
			value, ok := getters[i](values)
			all = append(all, value...)
			found = found || ok
		}
		return all, found
	}, nil
}

// operand returns how to get the value of an operator of a format string.
func operand(l layout, o operator, why string) (getter, error) {
	most := o.most
	o.most = 0
	get, err := operandInFull(l, o, why)
	if err != nil || most == 0 {
		return get, err
	}
	return func(values [][]byte) ([]byte, bool) {
		v, ok := get(values)
		return v[:min(len(v), most)], ok
	}, nil
}

func operandInFull(l layout, o operator, why string) (getter, error) {
	switch {
	case o.name == opAddress:
		from, err := address(l, why)
		if err != nil {
			return nil, err
		}
		return func(values [][]byte) ([]byte, bool) {
			a, ok := from(values)
			if !ok {
				return nil, false
			}
			return a.AppendTo(nil), true
		}, nil
	case o.name == opQuery:
		return query(l, o.arg, why)
	case o.name == opRequest && o.or != "":
		first, err := need(l, operator{name: o.name, arg: o.arg}, why)
		second, otherErr := need(l, operator{name: o.name, arg: o.or}, why)
		switch {
		case first == nil && second == nil:
			return nil, errors.Join(err, otherErr)
		case first == nil:
			return second, nil
		case second == nil:
			return first, nil
		}
		return func(values [][]byte) ([]byte, bool) {
			if v, ok := first(values); ok {
				return v, ok
			}
			return second(values)
		}, nil
	default:
		return need(l, o, why)
	}
}
