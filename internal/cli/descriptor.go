package cli

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// descriptor is a descriptor as given in an argument of a command.
type descriptor struct {
	text    string // the argument, without its options
	options bool   // it had some
	entries []entry
	hits    *uint64
	give    bool
	limit   *descriptors.Override
}

type entry struct{ key, value string }

// descriptorHelp explains how to write descriptors.
const descriptorHelp = `A descriptor is key=value,key=value,... Put a backslash before a comma, semicolon or backslash in a
value; write invisible characters as \n, \u001b or \xff.`

// optionHelp explains the options that may follow a descriptor.
const optionHelp = `Options of one descriptor follow a semicolon: hits=N (0 checks without consuming), negative (refunds
hits), and limit=N/UNIT or limit=N/MxUNIT, a limit that the request carries: 10/minute, 100/5xminute.`

// parseDescriptors parses the arguments after a domain.
func parseDescriptors(args []string) ([]descriptor, error) {
	all := make([]descriptor, 0, len(args))
	for _, arg := range args {
		d, err := parseDescriptor(arg)
		if err != nil {
			return nil, fmt.Errorf("descriptor %q: %w", arg, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// Entries returns the keys and values of a descriptor as it is written in an argument, such as user=ann,path=/.
func Entries(arg string) (pairs [][2]string, err error) {
	d, err := parseDescriptor(arg)
	for _, e := range d.entries {
		pairs = append(pairs, [2]string{e.key, e.value})
	}
	return pairs, err
}

func parseDescriptor(arg string) (descriptor, error) {
	parts := split(arg, ';')
	d := descriptor{text: parts[0], options: len(parts) > 1}
	for _, pair := range split(parts[0], ',') {
		key, value, ok := cutPair(pair)
		if !ok || key == "" {
			return d, fmt.Errorf("%q is not of the form key=value", pair)
		}
		d.entries = append(d.entries, entry{key, value})
	}
	given := make(map[string]bool)
	for _, option := range parts[1:] {
		name, _, _ := strings.Cut(option, "=")
		if given[name] {
			return d, fmt.Errorf("%q: %s is given twice", option, name)
		}
		given[name] = true
		if err := d.option(option); err != nil {
			return d, err
		}
	}
	return d, nil
}

func (d *descriptor) option(text string) error {
	name, value, _ := strings.Cut(text, "=")
	switch {
	case name == "hits":
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil {
			return fmt.Errorf("hits=%s: must be a whole number from 0 to 2^64-1", value)
		}
		d.hits = &n
	case text == "negative":
		d.give = true
	case name == "limit":
		limit, err := ParseOverride(value)
		if err != nil {
			return fmt.Errorf("limit=%s: %w", value, err)
		}
		d.limit = &limit
	default:
		return fmt.Errorf("%q: must be hits=N, negative or limit=N/UNIT", text)
	}
	return nil
}

var errOverride = errors.New("must be N/UNIT or N/MxUNIT, such as 10/minute or 100/5xminute")

// ParseOverride parses 10/minute and 100/5xminute.
func ParseOverride(text string) (descriptors.Override, error) {
	number, unit, ok := strings.Cut(text, "/")
	n, err := strconv.ParseUint(number, 10, 64)
	if !ok || err != nil || n > engine.MaxLimit {
		return descriptors.Override{}, errOverride
	}
	var o descriptors.Override
	o.SetNumber(n)
	if multiplier, name, ok := strings.Cut(unit, "x"); ok {
		m, err := strconv.ParseUint(multiplier, 10, 32)
		if err != nil || m == 0 {
			return descriptors.Override{}, errOverride
		}
		o.Multiplier, unit = uint32(m), name
	}
	o.Unit = descriptors.ParseUnit(unit)
	if o.Unit == descriptors.UnitUnknown {
		return descriptors.Override{}, fmt.Errorf("unit %q: must be second, minute, hour, day, week, month or year", unit)
	}
	return o, nil
}

// split cuts text at separators that are not preceded by a backslash. Backslashes are kept.
func split(text string, separator byte) []string {
	var parts []string
	start := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case separator:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

// cutPair returns the key and the value of an entry; found is false if there is a key alone.
func cutPair(pair string) (key, value string, found bool) {
	key = split(pair, '=')[0]
	if len(key) == len(pair) {
		return unescape(key), "", false
	}
	return unescape(key), unescape(pair[len(key)+1:]), true
}

// pairText is what cutPair takes, on one line that a terminal may be shown.
func pairText(key, value string) string {
	return strings.ReplaceAll(escape(key), "=", `\=`) + "=" + escape(value)
}

// escape writes text so that unescape returns it, whatever is in it.
func escape(text string) string {
	return plain.Text(strings.NewReplacer(`\`, `\\`, ",", `\,`, ";", `\;`).Replace(text))
}

// escaped matches a backslash and what it stands before, or what stands for a character that cannot be seen.
var escaped = regexp.MustCompile(`(?s)\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|.)`)

// unescape returns what escape was given. Before other characters a backslash has no meaning.
func unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(e string) string {
		if char, err := strconv.Unquote(`"` + e + `"`); err == nil && strings.Contains("nrtux", e[1:2]) {
			return char
		}
		return e[1:]
	})
}

// keys returns the entries in the form that rules are matched against.
func (d *descriptor) keys() []descriptors.Entry {
	all := make([]descriptors.Entry, 0, len(d.entries))
	for _, e := range d.entries {
		all = append(all, descriptors.Entry{Key: []byte(e.key), Value: []byte(e.value)})
	}
	return all
}
