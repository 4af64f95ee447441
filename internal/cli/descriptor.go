package cli

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/ratelimitd/ratelimitd/internal/decide/limiter"
	"github.com/ratelimitd/ratelimitd/internal/leaf/plain"
	"github.com/ratelimitd/ratelimitd/pkg/descriptors"
	"github.com/ratelimitd/ratelimitd/pkg/engine"
	adminv1 "github.com/ratelimitd/ratelimitd/proto/ratelimitd/admin/v1"
)

// descriptor is a descriptor from the command line.
type descriptor struct {
	limiter.Descriptor

	text    string // the argument, without its options
	options bool   // the argument has options
}

// descriptorHelp explains how to write descriptors.
const descriptorHelp = `A descriptor is key=value,key=value,... Put a backslash before a comma, semicolon or backslash in a
value; write invisible characters as \n, \u001b or \xff.`

// optionHelp explains the options that may follow a descriptor.
const optionHelp = `Options of one descriptor follow a semicolon: hits=N (0 checks without consuming), negative (refunds
hits), and limit=N/UNIT or limit=N/MxUNIT, a limit that the request carries: 10/minute, 100/5xminute.`

// parseDescriptors parses the arguments after a domain.
func parseDescriptors(args []string) ([]descriptor, error) {
	all := make([]descriptor, len(args))
	for i, arg := range args {
		if err := all[i].parse(arg); err != nil {
			return nil, fmt.Errorf("descriptor %q: %w", arg, err)
		}
	}
	return all, nil
}

// limiterDescriptor parses a descriptor argument.
func limiterDescriptor(arg string) (limiter.Descriptor, error) {
	all, err := parseDescriptors([]string{arg})
	return append(all, descriptor{})[0].Descriptor, err
}

// Entries parses the entries of a descriptor argument, such as user=ann,path=/.
func Entries(arg string) ([]descriptors.Entry, error) {
	d, err := limiterDescriptor(arg)
	return d.Entries, err
}

func (d *descriptor) parse(arg string) error {
	parts := split(arg, ';')
	d.text, d.options = parts[0], len(parts) > 1
	for _, pair := range split(parts[0], ',') {
		key, value, ok := cutPair(pair)
		if !ok || key == "" {
			return fmt.Errorf("%q is not of the form key=value", pair)
		}
		d.Entries = append(d.Entries, descriptors.Entry{Key: []byte(key), Value: []byte(value)})
	}
	given := make(map[string]bool)
	for _, option := range parts[1:] {
		name, value, _ := strings.Cut(option, "=")
		if given[name] {
			return fmt.Errorf("%q: %s is given twice", option, name)
		}
		given[name] = true
		var err error
		switch {
		case name == "hits":
			if d.Hits, err = strconv.ParseUint(value, 10, 64); err != nil {
				return fmt.Errorf("hits=%s: must be a whole number from 0 to 2^64-1", value)
			}
			d.HasHits = true
		case option == "negative":
			d.Negative = true
		case name == "limit":
			if d.Override, err = ParseOverride(value); err != nil {
				return fmt.Errorf("limit=%s: %w", value, err)
			}
			d.HasOverride = true
		default:
			return fmt.Errorf("%q: must be hits=N, negative or limit=N/UNIT", option)
		}
	}
	return nil
}

var errOverride = errors.New("must be N/UNIT or N/MxUNIT, such as 10/minute or 100/5xminute")

// ParseOverride parses limits such as 10/minute and 100/5xminute.
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

// split splits text at separators without a backslash before them. It keeps backslashes.
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

// cutPair splits an entry into its key and value; found is false if there is only a key.
func cutPair(pair string) (key, value string, found bool) {
	key = split(pair, '=')[0]
	if len(key) == len(pair) {
		return unescape(key), "", false
	}
	return unescape(key), unescape(pair[len(key)+1:]), true
}

// pairText formats an entry for cutPair, on one line that is safe for terminals.
func pairText(key, value string) string {
	return strings.ReplaceAll(escape(key), "=", `\=`) + "=" + escape(value)
}

// escape quotes any text so that unescape returns it.
func escape(text string) string {
	return plain.Text(strings.NewReplacer(`\`, `\\`, ",", `\,`, ";", `\;`).Replace(text))
}

// escaped matches a backslash with the escaped character, or the code of an invisible character.
var escaped = regexp.MustCompile(`(?s)\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|.)`)

// unescape reverts escape. Before other characters, a backslash is dropped.
func unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(e string) string {
		if char, err := strconv.Unquote(`"` + e + `"`); err == nil && strings.Contains("nrtux", e[1:2]) {
			return char
		}
		return e[1:]
	})
}

// messages converts the entries of d for the admin API.
func (d *descriptor) messages() []*adminv1.Entry {
	all := make([]*adminv1.Entry, 0, len(d.Entries))
	for _, e := range d.Entries {
		all = append(all, &adminv1.Entry{Key: strings.ToValidUTF8(string(e.Key), "\uFFFD"), RawValue: e.Value})
	}
	return all
}

// message converts d for the admin API.
func (d *descriptor) message() *adminv1.Descriptor {
	m := &adminv1.Descriptor{Entries: d.messages(), IsNegativeHits: d.Negative}
	if d.HasHits {
		m.HitsAddend = &d.Hits
	}
	if d.HasOverride {
		m.Limit = overrideMessage(d.Override)
	}
	return m
}

func overrideMessage(o descriptors.Override) *adminv1.Override {
	return &adminv1.Override{
		RequestsPerUnit: o.RequestsPerUnit, LargeRequestsPerUnit: o.LargeRequestsPerUnit, Unit: adminv1.Unit(o.Unit), UnitMultiplier: o.Multiplier,
	}
}

// entriesArgument formats entries as a shell argument.
func entriesArgument(es []*adminv1.Entry, cut bool) string {
	var pairs []string
	for _, e := range es {
		pairs = append(pairs, pairText(e.GetKey(), entryValue(e)))
	}
	text := shellWord(strings.Join(pairs, ","))
	if cut {
		text += "…"
	}
	return text
}

func entryValue(e *adminv1.Entry) string { return cmp.Or(string(e.GetRawValue()), e.GetValue()) }

// shellWord quotes text for a shell; "" stays empty.
func shellWord(text string) string {
	if text == "" {
		return ""
	}
	return plain.Word(plain.Text(text))
}
