package recorded

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimitd/ratelimitd/pkg/engine"
)

// clockFormat says how times are written. The zero value stands for the ways that can be told apart: RFC 3339, with a blank
// for the T or without a zone too, which is UTC then; and seconds, milliseconds, microseconds or nanoseconds since 1970.
type clockFormat struct{ parts []clockPart }

// clockPart is a letter of a format after its percent sign, with the number of digits of a fraction, or else a text.
type clockPart struct {
	letter byte
	digits int
	text   string
}

// clockOf returns how an operator START_TIME writes times.
func clockOf(o operator) (clockFormat, error) {
	var f clockFormat
	if o.arg == "" {
		return f, nil
	}
	text := strings.NewReplacer("%T", "%H:%M:%S", "%F", "%Y-%m-%d", "%D", "%m/%d/%y", "%R", "%H:%M").Replace(o.arg)
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			f.parts = append(f.parts, clockPart{text: text[i : i+1]})
			continue
		}
		p := clockPart{}
		for i++; i < len(text) && (text[i] == 'E' || text[i] == '*' || text[i] >= '1' && text[i] <= '9'); i++ {
			if text[i] >= '1' && text[i] <= '9' {
				p.digits = int(text[i] - '0')
			}
		}
		if i == len(text) || !strings.ContainsRune("YmdeHMSfbBaAzZsy%", rune(text[i])) {
			return f, fmt.Errorf("%v: of the formats of times %%Y %%m %%d %%e %%H %%M %%S %%f %%3f %%b %%a %%y %%z %%Z %%s %%T %%F %%D %%R are known", o)
		}
		p.letter = text[i]
		if p.letter == '%' {
			p = clockPart{text: "%"}
		}
		f.parts = append(f.parts, p)
	}
	return f, nil
}

// parse returns the time that a text says.
func (f clockFormat) parse(text []byte) (engine.Micros, error) {
	if f.parts == nil {
		return parseTime(string(text))
	}
	c := calendarTime{month: 1, day: 1}
	rest := string(text)
	for _, p := range f.parts {
		var ok bool
		if rest, ok = c.part(p, rest); !ok {
			return 0, fmt.Errorf("%q is not a time of the log's format", text)
		}
	}
	if rest != "" || !c.exists() {
		return 0, fmt.Errorf("%q is not a time of the log's format", text)
	}
	return c.micros()
}

// calendarTime is a time in parts.
type calendarTime struct {
	year, month, day, hour, minute, second int

	nanos  int
	zone   time.Duration
	since  int64 // seconds since 1970
	isUnix bool
}

// exists reports whether there is such a time; a second may be a leap second.
func (c *calendarTime) exists() bool {
	day := time.Date(c.year, time.Month(c.month), c.day, 0, 0, 0, 0, time.UTC)
	return int(day.Month()) == c.month && day.Day() == c.day && c.hour < 24 && c.minute < 60 && c.second <= 60
}

func (c *calendarTime) micros() (engine.Micros, error) {
	t := time.Date(c.year, time.Month(c.month), c.day, c.hour, c.minute, c.second, c.nanos, time.UTC).Add(-c.zone)
	if c.isUnix {
		t = time.Unix(c.since, int64(c.nanos))
	}
	return micros(t)
}

// part reads a part of a time from the beginning of text, and returns the rest.
func (c *calendarTime) part(p clockPart, text string) (rest string, ok bool) {
	number := func(into *int, least, most int) (string, bool) {
		n := digits(text, most)
		if n < least {
			return text, false
		}
		var err error
		*into, err = strconv.Atoi(text[:n])
		return text[n:], err == nil
	}
	switch p.letter {
	case 0:
		return strings.CutPrefix(text, p.text)
	case 'Y':
		return number(&c.year, 4, 4)
	case 'y':
		rest, ok = number(&c.year, 2, 2)
		c.year += 2000
		return rest, ok
	case 'm':
		return number(&c.month, 1, 2)
	case 'e', 'd':
		text = strings.TrimPrefix(text, " ")
		return number(&c.day, 1, 2)
	case 'H':
		return number(&c.hour, 1, 2)
	case 'M':
		return number(&c.minute, 1, 2)
	case 'S':
		if rest, ok = number(&c.second, 1, 2); !ok || !strings.HasPrefix(rest, ".") || p.digits == 0 {
			return rest, ok
		}
		return c.fraction(rest[1:], 9)
	case 'f':
		most := p.digits
		if most == 0 {
			most = 9
		}
		return c.fraction(text, most)
	default:
		return c.word(p, text)
	}
}

// word reads a part that is not a number of two digits.
func (c *calendarTime) word(p clockPart, text string) (rest string, ok bool) {
	switch p.letter {
	case 's':
		n := digits(text, 10) // until 2286; digits of a fraction may follow at once, as in %s%3f
		since, err := strconv.ParseInt(text[:n], 10, 64)
		c.since, c.isUnix = since, true
		return text[n:], err == nil
	case 'b', 'B':
		for m := time.January; m <= time.December; m++ {
			if rest, ok = named(text, m.String(), p.letter == 'b'); ok {
				c.month = int(m)
				return rest, true
			}
		}
	case 'a', 'A':
		for d := time.Sunday; d <= time.Saturday; d++ {
			if rest, ok = named(text, d.String(), p.letter == 'a'); ok {
				return rest, true
			}
		}
	case 'z':
		return c.offset(text)
	case 'Z':
		for _, name := range []string{"UTC", "GMT", "Z"} {
			if rest, ok = strings.CutPrefix(text, name); ok {
				return rest, true
			}
		}
	}
	return text, false
}

// named cuts a name, or its first three letters, from the beginning of text.
func named(text, name string, short bool) (rest string, ok bool) {
	if short {
		name = name[:3]
	}
	return strings.CutPrefix(text, name)
}

// fraction reads digits after a decimal point.
func (c *calendarTime) fraction(text string, most int) (rest string, ok bool) {
	n := digits(text, most)
	if n == 0 {
		return text, false
	}
	v, err := strconv.Atoi(text[:n])
	c.nanos = v * int(math.Pow10(9-n))
	return text[n:], err == nil
}

// offset reads +0100, +01:00 or Z.
func (c *calendarTime) offset(text string) (rest string, ok bool) {
	if rest, ok = strings.CutPrefix(text, "Z"); ok {
		return rest, true
	}
	for _, layout := range []string{"-0700", "-07:00"} {
		if len(text) < len(layout) {
			continue
		}
		if t, err := time.Parse(layout, text[:len(layout)]); err == nil {
			_, seconds := t.Zone()
			c.zone = time.Duration(seconds) * time.Second
			return text[len(layout):], true
		}
	}
	return text, false
}

// digits returns how many digits there are at the beginning of text, at most most.
func digits(text string, most int) (n int) {
	for n < len(text) && n < most && text[n] >= '0' && text[n] <= '9' {
		n++
	}
	return n
}

// parseTime parses a time that is written in one of the ways that can be told apart.
func parseTime(text string) (engine.Micros, error) {
	if text != "" && strings.Trim(text, "0123456789.") == "" {
		return sinceEpoch(text)
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05Z07:00", time.DateTime, "2006-01-02T15:04:05Z0700"} {
		if t, err := time.Parse(layout, text); err == nil { // a fraction may follow the seconds
			return micros(t)
		}
	}
	return 0, fmt.Errorf("%.40q is not a time: want one such as 2026-11-20T10:00:00.000Z, or seconds, ms, µs or ns since 1970", text)
}

// sinceEpoch parses a number of seconds, ms, µs or ns since 1970. Which it is its size tells, for the years from 1973 on.
func sinceEpoch(text string) (engine.Micros, error) {
	whole, fraction, _ := strings.Cut(text, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a number of seconds, ms, µs or ns since 1970", text)
	}
	unit := int64(time.Second)
	for most := int64(1e11); unit > 1 && n >= most; most *= 1000 {
		unit /= 1000
	}
	nanos := int64(0)
	if fraction != "" {
		f, err := strconv.ParseFloat("0."+fraction, 64)
		if err != nil {
			return 0, fmt.Errorf("%.40q is not a number of seconds, ms, µs or ns since 1970", text)
		}
		nanos = int64(math.Round(f * float64(unit)))
	}
	perSecond := int64(time.Second) / unit
	return micros(time.Unix(n/perSecond, n%perSecond*unit+nanos))
}

// micros returns a time that engines know: between the years 1970 and 9999.
func micros(t time.Time) (engine.Micros, error) {
	if y := t.UTC().Year(); y < 1970 || y > 9999 {
		return 0, fmt.Errorf("the year %d is not between 1970 and 9999", y)
	}
	return engine.Micros(t.UnixMicro()), nil
}
